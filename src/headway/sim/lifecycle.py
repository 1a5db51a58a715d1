"""The states of the instances, and the timetable of their state changes.

    stopped -> provisioning -> loading -> warming -> ready -> draining -> stopped

A place is a position in the cluster that one engine may occupy. It has the index of the engine's first instance. If the
state of a place is `stopped`, a new engine can start there, with an empty cache.
`Losses` handles the requests of instances that stop.
"""

from collections.abc import Callable
from heapq import heappop, heappush

from headway.results.recorder import Recorder, StateChange
from headway.sim.setup import FaultSetup, LifeSetup, PoolSetup
from headway.streams import stream
from headway.types import NEVER, REPLICAS


class Place:
    __slots__ = (
        "drawn", "held_from", "held_ps", "index", "instances", "loading", "pool", "provisioning", "state", "warm_at",
    )  # fmt: skip

    def __init__(self, index: int, pool: PoolSetup, setup: LifeSetup) -> None:
        self.index = index
        self.instances = range(index, index + pool.ranks)  # indices of the engine's instances
        self.pool = pool
        self.state = "stopped"
        self.drawn = 0  # sequence number of the place's valid entry in the timetable; 0 if there is no valid entry
        self.warm_at = 0  # when the warm-up of the instance ends
        self.held_from = -1  # start of the current billed period; -1 while the place is stopped
        self.held_ps = 0  # total duration of earlier billed periods
        self.provisioning: Callable[[], int] = setup.provisioning(stream(setup.seed, f"provisioning.{index}"))
        self.loading: Callable[[], int] = setup.loading(stream(setup.seed, f"loading.{index}"))


class Lifecycle:
    def __init__(self, setup: LifeSetup, recorder: Recorder) -> None:
        self.setup = setup
        self.recorder = recorder
        self.places = {index: Place(index, pool, setup) for pool in setup.pools for index in pool.places}
        self.heap: list[tuple[int, int, int, str]] = []  # timetable: (time, place index, entry number, next state)
        self.numbered = 0
        self.faults = sorted(setup.faults, key=lambda fault: fault.at_ps)
        self.fault = 0  # position of the next fault in `faults`
        self.draining: list[int] = []  # indices of the instances that wait for their requests to end
        self.next_ps = NEVER

    def start(self, now: int) -> None:
        """Begin the simulation: the initial instances of each pool are ready."""
        for place in self.places.values():
            if place.index - place.pool.first < place.pool.initial * place.pool.ranks:
                self.change(now, place, "ready")
            else:
                self.record(now, place)
        self.set_next()

    def change(self, now: int, place: Place, state: str) -> None:
        """Change the state of an instance, and cancel the state change that was planned for it."""
        if place.held_from < 0 and state != "stopped":
            place.held_from = now
        if state == "stopped" and place.held_from >= 0:
            place.held_ps += now - place.held_from
            place.held_from = -1
        place.state = state
        place.drawn = 0
        if place.index in self.draining:
            self.draining.remove(place.index)
        self.record(now, place)

    def record(self, now: int, place: Place) -> None:
        for index in place.instances:
            self.recorder.states.append(StateChange(now, index, place.state))

    def plan(self, at: int, place: Place, state: str) -> None:
        """Plan the next state of an instance. If its state changes before time `at`, the plan is cancelled."""
        self.numbered += 1
        place.drawn = self.numbered
        heappush(self.heap, (at, place.index, self.numbered, state))
        self.set_next()

    def due(self, now: int) -> tuple[Place, str] | None:
        """Remove and return the next planned state change of this instant, if any."""
        self.set_next()
        if self.heap and self.heap[0][0] == now:
            _, index, _, state = heappop(self.heap)
            self.set_next()
            return self.places[index], state
        return None

    def struck_before(self, now: int) -> FaultSetup | None:
        """Return the next fault that began before the simulation and still lasts when the simulation starts, with its
        remaining time. Return None if there is no such fault."""
        while self.fault < len(self.faults) and self.faults[self.fault].at_ps < now:
            fault = self.faults[self.fault]
            self.fault += 1
            left = None if fault.duration_ps is None else fault.at_ps + fault.duration_ps - now
            if left is None or left > 0:
                return FaultSetup(now, fault.instance, fault.kind, left, fault.factor)
        return None

    def strikes(self, now: int) -> FaultSetup | None:
        """Return the next fault of this instant, if any."""
        if self.fault < len(self.faults) and self.faults[self.fault].at_ps == now:
            self.fault += 1
            self.set_next()
            return self.faults[self.fault - 1]
        return None

    def set_next(self) -> None:
        heap, places = self.heap, self.places
        while heap and places[heap[0][1]].drawn != heap[0][2]:
            heappop(heap)
        self.next_ps = heap[0][0] if heap else NEVER
        if self.fault < len(self.faults):
            self.next_ps = min(self.next_ps, self.faults[self.fault].at_ps)

    def of(self, pool: PoolSetup) -> list[Place]:
        return [self.places[index] for index in pool.places]

    def count(self, pool: PoolSetup) -> int:
        """Return the number of replicas of a pool."""
        return sum(place.state in REPLICAS for place in self.of(pool))

    def free(self, pool: PoolSetup) -> Place | None:
        """Return the first place in a pool that has no instance, or None if all places have one."""
        return next((place for place in self.of(pool) if place.state == "stopped"), None)
