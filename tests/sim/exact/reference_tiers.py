"""The stores below the GPU once more, for the naive simulator: a store is a list of blocks, a link a list of transfers
with exact fractions of what each has left, and both are walked from the first to the last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING

from drawn_tier import DrawnTier

if TYPE_CHECKING:
    from reference import Identity, Job

SECOND = 10**12


@dataclass(eq=False)
class Load:
    """The blocks that a request waits for."""

    instance: int
    job: Job
    numbers: list[int]
    transfers: int = 0  # under way
    leaves: list[tuple[Store, int]] = field(default_factory=list)  # how many blocks move up from where


class Link:
    """Transfers share it equally; each is through at a whole picosecond, and arrives a latency later."""

    def __init__(self, bandwidth: int, latency: int) -> None:
        self.bandwidth = bandwidth
        self.latency = latency
        self.at = 0
        self.left: list[tuple[Fraction, Load | None]] = []  # picoseconds that each would take alone
        self.flying: list[tuple[int, Load | None]] = []
        self.busy = 0
        self.moved = 0

    def start(self, now: int, amount: int, load: Load | None) -> None:
        self.go_to(now)
        self.left.append((Fraction(max(1, ceil(Fraction(amount * SECOND, self.bandwidth)))), load))
        self.moved += amount

    def go_to(self, now: int) -> None:
        while self.left:
            least = min(left for left, _ in self.left)
            ends = self.at + ceil(least * len(self.left))
            passed = least if ends <= now else Fraction(now - self.at, len(self.left))
            self.busy += min(ends, now) - self.at
            self.at = min(ends, now)
            self.left = [(left - passed, load) for left, load in self.left]
            if ends > now:
                break
            self.flying += [(self.at + self.latency, load) for left, load in self.left if left == 0]
            self.left = [entry for entry in self.left if entry[0] > 0]
        self.at = now

    def next(self) -> int | None:
        """When something arrives next that somebody waits for."""
        later = Link(self.bandwidth, self.latency)
        later.at, later.left = self.at, list(self.left)
        later.go_to(10**30)
        return min((at for at, load in self.flying + later.flying if load is not None), default=None)

    def arrived(self, now: int) -> list[Load]:
        self.go_to(now)
        here = [load for at, load in self.flying if at == now and load is not None]
        self.flying = [(at, load) for at, load in self.flying if at > now]
        return here


@dataclass(eq=False)
class Store:
    blocks: int
    link: Link
    shared: bool
    content: list[Identity] = field(default_factory=list)  # the oldest first
    came: dict[Identity, int] = field(default_factory=dict)
    leaving: int = 0  # blocks that move up, whose room is free for others
    stored: int = 0
    loaded: int = 0
    thrashed: int = 0
    peak: int = 0
    filled: int = 0
    at: int = 0

    def go_to(self, now: int) -> None:
        self.filled += self.used() * (now - self.at)
        self.at = now

    def used(self) -> int:
        return max(0, len(self.content) - self.leaving)

    def touch(self, now: int, identity: Identity) -> None:
        """It is the youngest now."""
        if identity in self.content:
            self.content.remove(identity)
        self.content.append(identity)
        self.came[identity] = now


class Lower:
    """The stores below one instance."""

    def __init__(self, instance: int, stores: list[Store], offload: str, keep: int, block_bytes: int) -> None:
        self.instance = instance
        self.stores = stores
        self.eager = offload == "eager"
        self.keep = keep  # blocks with content that the GPU keeps at a scheduling change
        self.block_bytes = block_bytes
        self.noted: list[Identity] = []  # to come down at the next scheduling change

    def where(self, identity: Identity) -> Store | None:
        """The fastest that has it."""
        return next((store for store in self.stores if identity in store.content), None)

    def beyond(self, job: Job, hits: int, size: int) -> list[int]:
        """The blocks that follow on so many without a gap and lie in some store; a token is left to compute."""
        found = []
        for number in range(hits, (job.known - 1) // size):
            if self.where(job.identity(number, size)) is None:
                break
            found.append(number)
        return found

    def load(self, now: int, job: Job, numbers: list[int], size: int) -> Load:
        """One transfer for each stretch that lies in one store."""
        load = Load(self.instance, job, numbers)
        places = [self.where(job.identity(number, size)) for number in numbers]
        while places:
            store = places[0]
            assert store is not None
            length = next((place for place, other in enumerate(places) if other is not store), len(places))
            names = [job.identity(number, size) for number in numbers[:length]]
            store.loaded += length
            store.thrashed += len([name for name in names if store.came[name] > now - SECOND])
            if self.eager or store.shared:  # the copy stays, and was used
                for name in reversed(names):
                    store.touch(store.came[name], name)
            else:
                store.go_to(now)
                store.leaving += length
                load.leaves.append((store, length))
            store.link.start(now, length * self.block_bytes, load)
            load.transfers += 1
            del places[:length]
            numbers = numbers[length:]
        return load

    def arrived(self, now: int, load: Load, names: list[Identity]) -> None:
        """Where what is loaded moves, no store of the instance's own has it any longer."""
        for store in self.stores:
            if not store.shared and not self.eager:
                store.go_to(now)
                store.content = [name for name in store.content if name not in names]
        self.end(now, load)

    def end(self, now: int, load: Load) -> None:
        """It moves no more, so that its room counts again."""
        for store, length in load.leaves:
            store.go_to(now)
            store.leaving -= length
            self.come(now, [], self.stores.index(store))
        load.leaves = []

    def settle(self, now: int) -> None:
        """What was noted comes down."""
        coming, self.noted = self.noted, []
        self.come(now, coming, 0)

    def come(self, now: int, coming: list[Identity], place: int) -> None:
        """Content comes into a store, and what goes beyond its capacity further down."""
        for store in self.stores[place:]:
            store.go_to(now)
            before = set(store.content)
            for name in coming:
                store.touch(now, name)
            fresh = len(set(coming) - before)
            over = max(0, store.used() - store.blocks)
            coming = store.content[:over]
            del store.content[:over]
            store.peak = max(store.peak, store.used())
            if fresh:
                store.stored += fresh
                store.link.start(now, fresh * self.block_bytes, None)


def build(instances: int, tiers: Sequence[DrawnTier]) -> tuple[list[list[Store]], list[Link]]:
    """The stores of each instance, and all links, those of the first instance first."""
    found: list[list[Store]] = []
    links: list[Link] = []
    for instance in range(instances):
        stores = []
        for place, tier in enumerate(tiers):
            if tier.shared and instance:
                stores.append(found[0][place])
                continue
            links.append(Link(tier.bandwidth, tier.latency_ps))
            stores.append(Store(tier.blocks, links[-1], tier.shared))
        found.append(stores)
    return found, links
