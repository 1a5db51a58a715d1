"""A watcher for simulations under test: after every event it works out from the requests themselves, wherever they are,
what every counter must say, and raises `Broken` with a sentence where one says something else.

It only reads. Handlers are wrapped on the one simulation that is watched; nothing in the package knows of it. An event
is a step end, a step begin, an arrival, a request sent or turned away from the router's queue, a load or transfer that
arrives, a client that gives up, prompts passed on, completions told, and the horizon.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from headway.errors import InvariantError
from headway.sim.instance import Instance
from headway.sim.job import Job
from headway.sim.link import Load
from headway.sim.lockstep import Lockstep
from headway.sim.simulation import Simulation

Range = tuple[int, int]  # first block, end block
Counted = tuple[int, int, int]  # the same, and how often
Content = dict[int, list[Range]]  # by key


class Broken(InvariantError):
    """What must always hold does not."""


def demand(holds: bool, sentence: str, *figures: object) -> None:
    if not holds:
        raise Broken(sentence.format(*figures))


class Seat(NamedTuple):
    """Where a request is, as one of the cluster's instances has it."""

    index: int  # of the instance
    place: str  # running, waiting, loading, ready or handing
    order: int  # of its entry into the batch
    load: Load | None
    swapped: int
    computed: int  # tokens in the KV cache, once it has blocks


Seats = dict[Job, Seat]
HOLDING = ("running", "loading", "ready", "handing")  # the places at which requests have blocks of the GPU


def seated(instance: Instance) -> tuple[tuple[str, Iterable[Job]], ...]:
    loader = instance.loader
    unseen = () if instance.ahead is None else instance.ahead.unseen
    return (
        ("running", instance.batch.running),
        ("waiting", [*instance.queue.waiting.values(), *(entry.job for entry in unseen)]),
        ("loading", loader.loading),
        ("ready", loader.ready),
        ("handing", instance.handing),
    )


def seats(simulation: Simulation) -> Seats:
    """Every request at an instance, which is in one place there."""
    found: Seats = {}
    for index, instance in enumerate(simulation.cluster.instances):
        loading = instance.loader.loading
        for place, jobs in seated(instance):
            for job in jobs:
                if job in found:
                    raise Broken(f"Request {job.row} is in two places: {found[job]} and {place}.")
                found[job] = Seat(index, place, job.order, loading.get(job), job.swapped, getattr(job, "computed", 0))
    return found


class Event(NamedTuple):
    """What has just happened, with the requests' places after it and after the event before."""

    name: str
    now: int
    before: Seats
    after: Seats
    ended: list[int]  # instances on which a step ended in the course of it


class Watcher:
    """One simulation under watch: `parts` are asked after each event, and told of each step end before it."""

    def __init__(self, simulation: Simulation, parts: list[Any]) -> None:
        self.simulation = simulation
        self.parts = parts
        self.now = -1
        self.depth = 0
        self.events = 0
        self.before = seats(simulation)
        self.ended: list[int] = []
        for name in ("arrive", "send", "turn_away", "give_up", "pass_on", "complete", "tell_refused"):
            self.wrap(simulation.dispatcher, name)
        self.wrap(simulation.cluster, "stop")
        self.wrap(simulation.dispatcher.handovers, "on_loaded")
        for name in ("ring", "pump"):  # several events each
            self.wrap(simulation.dispatcher, name, counts=False)
        if simulation.capacity is not None:
            self.wrap(simulation.capacity, "manage")  # it cuts runs in the middle of what it does
        self.wrap_instances()

    def wrap(self, owner: Any, name: str, counts: bool = True) -> None:
        plain = getattr(owner, name)

        def watched(now: int, *given: Any, **named: Any) -> Any:
            if name == "stop":
                for part in self.parts:
                    part.stops(now)
            self.depth += counts
            answer = plain(now, *given, **named)
            self.depth -= counts
            self.look(name, now)
            return answer

        setattr(owner, name, watched)

    def wrap_instances(self) -> None:
        """Instances have slots, so they get a class of their own."""
        watcher = self

        class Watched(Instance):
            __slots__ = ()

            def begin(self, now: int) -> bool:
                return watcher.step("begin", now, super().begin)

            def finish_run(self, now: int) -> None:
                watcher.ended.append(self.view.index)
                for part in watcher.parts:
                    part.step_ends(self)
                watcher.step("finish_run", now, super().finish_run)

        class WatchedRanks(Lockstep):
            __slots__ = ()

            def begin(self, now: int) -> int:
                return watcher.step("begin", now, super().begin)

            def finish_run(self, now: int) -> None:
                watcher.step("finish_run", now, super().finish_run)

        for instance in self.simulation.cluster.instances:
            instance.__class__ = Watched
        for stepper in self.simulation.cluster.steppers:
            if isinstance(stepper, Lockstep):
                stepper.__class__ = WatchedRanks

    def step(self, name: str, now: int, plain: Callable[[int], Any]) -> Any:
        self.depth += 1
        answer = plain(now)
        self.depth -= 1
        self.look(name, now)
        return answer

    def look(self, name: str, now: int) -> None:
        """Check everything, unless this was a part of something else that is not over."""
        demand(now >= self.now, "Time goes back: {} at {} ps comes after {} ps.", name, now, self.now)
        self.now = now
        if self.depth:
            return
        self.events += 1
        event = Event(name, now, self.before, seats(self.simulation), self.ended)
        try:
            for part in self.parts:
                part.check(event)
        except Broken as broken:
            raise Broken(f"{broken} (after {name} at {now} ps, event {self.events})") from None
        self.before, self.ended = event.after, []

    def over(self) -> None:
        """The run is over, and its figures are gathered."""
        for part in self.parts:
            part.over()


class Part:
    """A part of the watch."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.cluster = simulation.cluster
        self.size = self.cluster.block_tokens

    def step_ends(self, instance: Instance) -> None:
        """A run is about to end."""

    def stops(self, horizon: int) -> None:
        """The horizon is about to stop the run."""

    def check(self, event: Event) -> None: ...

    def over(self) -> None:
        """All is over."""


# --- blocks ------------------------------------------------------------------------------------------------------


def layers(ranges: list[Range]) -> list[Counted]:
    """The ranges laid over each other: how many of them cover what, neighbours with equally many as one."""
    if len(ranges) == 1:
        return [(*ranges[0], 1)]
    edges = sorted([(start, 1) for start, _ in ranges] + [(end, -1) for _, end in ranges])
    found: list[Counted] = []
    at = count = 0
    for edge, step in edges:
        if edge > at and count:
            joins = bool(found) and found[-1][1] == at and found[-1][2] == count
            found[-1:] = [(found[-1][0], edge, count)] if joins else [*found[-1:], (at, edge, count)]
        at = edge
        count += step
    return found


def overlap(ranges: Iterable[Range], others: Iterable[Range]) -> list[Range]:
    others = list(others)
    found = []
    for start, end in ranges:
        for first, last in others:
            if first < end and last > start:
                found.append((max(start, first), min(end, last)))
    return found


def without(ranges: Iterable[Range], others: Iterable[Range]) -> list[Range]:
    """What the others leave of the ranges."""
    left = list(ranges)
    for first, last in others:
        cut: list[Range] = []
        for start, end in left:
            if last <= start or first >= end:
                cut.append((start, end))
                continue
            if start < first:
                cut.append((start, first))
            if end > last:
                cut.append((last, end))
        left = cut
    return left
