"""How the instances of a cluster come and go: the states that each goes through, and when.

    stopped -> provisioning -> loading -> warming -> ready -> draining -> stopped

Places are numbered like the instances. A place that is stopped may be used again, by an instance that has nothing
cached. Here is the timetable; what becomes of requests when an instance goes is the cluster's.
"""

from collections.abc import Callable
from heapq import heappop, heappush

from headway.results.recorder import Recorder, StateChange
from headway.sim.setup import FaultSetup, LifeSetup, PoolSetup
from headway.streams import stream
from headway.types import NEVER, REPLICAS


class Place:
    """Where an instance may stand."""

    __slots__ = ("drawn", "held_from", "held_ps", "index", "loading", "pool", "provisioning", "state", "warm_at")

    def __init__(self, index: int, pool: PoolSetup, setup: LifeSetup) -> None:
        self.index = index
        self.pool = pool
        self.state = "stopped"
        self.drawn = 0  # which of the timetable's entries for it holds
        self.warm_at = 0  # when it has warmed up, or will have
        self.held_from = -1
        self.held_ps = 0
        self.provisioning: Callable[[], int] = setup.provisioning(stream(setup.seed, f"provisioning.{index}"))
        self.loading: Callable[[], int] = setup.loading(stream(setup.seed, f"loading.{index}"))


class Lifecycle:
    def __init__(self, setup: LifeSetup, recorder: Recorder) -> None:
        self.setup = setup
        self.recorder = recorder
        self.places = [
            Place(pool.first + number, pool, setup) for pool in setup.pools for number in range(pool.maximum)
        ]
        self.heap: list[tuple[int, int, int, str]] = []  # when, which place, number of the entry, what becomes of it
        self.numbered = 0
        self.faults = sorted(setup.faults, key=when)
        self.fault = 0  # the next of them
        self.draining: list[int] = []  # those that wait for their requests to end
        self.next_ps = NEVER

    def start(self, now: int) -> None:
        """The run begins: the first instances of each pool have been there for long."""
        for place in self.places:
            if place.index - place.pool.first < place.pool.initial:
                self.change(now, place, "ready")
            else:
                self.recorder.states.append(StateChange(now, place.index, place.state))
        self.set_next()

    # --- the timetable -----------------------------------------------------------------------------------------

    def change(self, now: int, place: Place, state: str) -> None:
        """An instance gets into a state; what was planned for it is void."""
        if place.held_from < 0 and state != "stopped":
            place.held_from = now
        if state == "stopped" and place.held_from >= 0:
            place.held_ps += now - place.held_from
            place.held_from = -1
        place.state = state
        place.drawn = 0
        if place.index in self.draining:
            self.draining.remove(place.index)
        self.recorder.states.append(StateChange(now, place.index, state))

    def plan(self, at: int, place: Place, state: str) -> None:
        """What it will get into, and when, unless something else happens."""
        self.numbered += 1
        place.drawn = self.numbered
        heappush(self.heap, (at, place.index, self.numbered, state))
        self.set_next()

    def due(self, now: int) -> tuple[Place, str] | None:
        """The next instance that gets into another state at this instant."""
        self.set_next()
        if self.heap and self.heap[0][0] == now:
            _, index, _, state = heappop(self.heap)
            self.set_next()
            return self.places[index], state
        return None

    def struck_before(self, now: int) -> FaultSetup | None:
        """The next fault from before the run that has not passed by the time at which it begins, as of then."""
        while self.fault < len(self.faults) and self.faults[self.fault].at_ps < now:
            fault = self.faults[self.fault]
            self.fault += 1
            left = None if fault.duration_ps is None else fault.at_ps + fault.duration_ps - now
            if left is None or left > 0:
                return FaultSetup(now, fault.instance, fault.kind, left, fault.factor)
        return None

    def strikes(self, now: int) -> FaultSetup | None:
        """The next fault of this instant."""
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

    # --- who is there ------------------------------------------------------------------------------------------

    def of(self, pool: PoolSetup) -> list[Place]:
        return self.places[pool.first : pool.first + pool.maximum]

    def count(self, pool: PoolSetup, states: tuple[str, ...] = REPLICAS) -> int:
        return sum(place.state in states for place in self.of(pool))

    def free(self, pool: PoolSetup) -> Place | None:
        """A place for one instance more: the first."""
        return next((place for place in self.of(pool) if place.state == "stopped"), None)

    def held_time(self, place: Place, now: int) -> int:
        """How long the place has been paid for."""
        return place.held_ps + (now - place.held_from if place.held_from >= 0 else 0)


def when(fault: FaultSetup) -> int:
    return fault.at_ps
