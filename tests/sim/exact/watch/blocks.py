"""The watch over blocks: those of the GPUs, and those of the stores below."""

from __future__ import annotations

from collections.abc import Iterable

from headway.sim.instance import Instance
from headway.sim.job import Job
from headway.sim.simulation import Simulation
from headway.sim.tier import Tier
from headway.sim.tiers import Tiers
from watch.events import HOLDING, Content, Event, Part, Range, Seat, Seats, demand, layers, overlap, without
from watch.speculation import Positions


def cached(instance: Instance) -> Content:
    """The content that the GPU's cache has, held or not."""
    found: Content = {}
    for key, piece in instance.cache.pieces.items():
        ranges = found[key] = []
        while piece is not None:
            ranges.append((piece.start, piece.end))
            piece = piece.next
    return found


def evicted(instance: Instance) -> Content:
    """What the GPU has evicted and not yet given to the stores."""
    found: Content = {}
    for key, start, end, _ in instance.cache.spilt or ():
        found.setdefault(key, []).append((start, end))
    return found


def stored(tier: Tier) -> Content:
    return {key: [(start, end) for start, end, *_ in spans] for key, spans in tier.store.spans.items()}


def wanted(job: Job, start: int, end: int) -> list[tuple[int, Range]]:
    """A request's blocks from `start` to `end` by what they are called."""
    found = []
    first = 0
    for key, last in job.runs:
        if min(last, end) > max(first, start):
            found.append((key, (max(first, start), min(last, end))))
        first = last
    return found


class Gpus(Part):
    """Held, idle and empty blocks are all that a GPU has, and each is counted once, however many share it."""

    def __init__(self, simulation: Simulation, tokens: dict[int, int], positions: Positions) -> None:
        super().__init__(simulation)
        self.positions = positions
        self.tokens = tokens  # generated so far, by request, as the watch over tokens counts them
        self.totals = [engine.view.kv_blocks for engine in simulation.setup.engines]
        self.stopped: dict[int, int] = {}  # steps of its run that each instance has begun by the horizon

    def stops(self, horizon: int) -> None:
        for index, instance in enumerate(self.cluster.instances):
            at = instance.run.start
            while instance.run.end >= 0 and at <= horizon:
                begun = self.stopped.get(index, 0)
                self.stopped[index] = begun + 1
                at += instance.run.first + begun * instance.run.increment

    def check(self, event: Event) -> None:
        by_instance: list[list[tuple[Job, Seat]]] = [[] for _ in self.cluster.instances]
        for job, seat in event.after.items():
            if seat.place in HOLDING:
                demand(job.swapped == 0 or seat.place == "loading", "Request {} has its blocks in two stores.", job.row)
                self.sized(job, seat, event.before)
                by_instance[seat.index].append((job, seat))
        for index, jobs in enumerate(by_instance):
            self.add_up(index, jobs)

    def sized(self, job: Job, seat: Seat, before: Seats) -> None:
        """A request has the blocks that its tokens need, but for a decode, which is asked when it stops."""
        if job.ends_at_step >= 0 and seat.place == "running":
            return
        blocks = self.blocks(job, seat)
        if blocks is None:  # ready: as many as it had room for when it began to load
            then = before.get(job)
            blocks = then.load.end if then is not None and then.load is not None else job.blocks
        demand(job.blocks == blocks, "Request {} ({}) has {} blocks, not {}.", job.row, seat.place, job.blocks, blocks)

    def blocks(self, job: Job, seat: Seat) -> int | None:
        instance, place = self.cluster.instances[seat.index], seat.place
        taken = instance.blocks.taken_steps if instance.run.end >= 0 else 0
        if place == "running":
            if job.ends_at_step >= 0:
                tokens = self.positions.held(seat.index, job, taken)
                if tokens is None:
                    tokens = job.request.prompt_tokens + self.tokens[job.row] - 1 + taken
            elif instance.blocks.reserves:
                tokens = job.known
            else:
                want = dict(instance.run.chunks).get(job, 0) if taken else 0
                tokens = job.computed + want * self.stopped.get(seat.index, taken)
                demand(tokens <= job.known, "Request {} computes {} of {} tokens.", job.row, tokens, job.known)
        elif place == "loading":
            return instance.loader.loading[job].end
        elif place == "handing":
            tokens = job.request.prompt_tokens
        else:
            return None
        return -(-tokens // self.size)

    def add_up(self, index: int, jobs: list[tuple[Job, Seat]]) -> None:
        instance = self.cluster.instances[index]
        cache, name = instance.cache, instance.view.id
        held: Content = {}
        private = 0
        leaving = () if instance.ahead is None else instance.ahead.leaving
        for job, keeps_blocks in leaving:  # has ended, and keeps its blocks while the next step is formed
            if not keeps_blocks:
                private += job.blocks - sum(end - start for _, start, end in job.holds)
                for key, start, end in job.holds:
                    held.setdefault(key, []).append((start, end))
        for job, seat in jobs:
            blocks = job.blocks
            if seat.place == "running" and job.ends_at_step >= 0:
                found = self.blocks(job, seat)
                assert found is not None
                blocks = found
            own = blocks - sum(end - start for _, start, end in job.holds)
            demand(own >= 0, "Request {} holds content for {} blocks more than it has.", job.row, -own)
            private += own
            for key, start, end in job.holds:
                held.setdefault(key, []).append((start, end))
        shared = idle = listed = 0
        for key, piece in cache.pieces.items():
            counted: list[tuple[int, int, int]] = []
            at = -1
            while piece is not None:
                demand(piece.start >= at and piece.end > piece.start, "{} has blocks of {} twice.", name, key)
                at = piece.end
                if piece.holders:
                    shared += piece.end - piece.start
                    if counted and counted[-1][1] == piece.start and counted[-1][2] == piece.holders:
                        counted[-1] = (counted[-1][0], piece.end, piece.holders)
                    else:
                        counted.append((piece.start, piece.end, piece.holders))
                else:
                    idle += piece.end - piece.start
                    listed += 1
                    demand(piece in cache.lru, "{} could never evict blocks {}-{} of {}.", name, piece.start, at, key)
                piece = piece.next
            by_requests = layers(held.pop(key)) if key in held else []
            demand(counted == by_requests, "{} counts holders {} of {}, requests {}.", name, counted, key, by_requests)
        demand(not held, "Requests on {} hold what it does not have: {}.", name, held)
        demand(listed == len(cache.lru), "{} lists {} idle pieces and has {}.", name, len(cache.lru), listed)
        demand(
            cache.held == shared + private,
            "{} says {} held blocks, requests hold {} shared and {} of their own.",
            name,
            cache.held,
            shared,
            private,
        )
        demand(cache.idle == idle, "{} says {} idle blocks and has {}.", name, cache.idle, idle)
        total = self.totals[index]
        demand(
            cache.total == total >= cache.held + idle, "{} has {} blocks and uses {}.", name, total, cache.held + idle
        )


class Stores(Part):
    """What lies in a store and what is free there are its capacity, content lies there once, comes from a GPU or from
    another store, and what moves up leaves."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        self.capacity: dict[Tier, int] = {}
        self.users: dict[Tier, list[int]] = {}
        for index, instance in enumerate(simulation.cluster.instances):
            if instance.tiers is not None:
                specs = simulation.setup.engines[index].kv.tiers or {}
                for tier, spec in zip(instance.tiers.tiers, specs.values(), strict=True):
                    self.capacity[tier] = spec.blocks
                    self.users.setdefault(tier, []).append(index)
        self.content: dict[Tier, Content] = {tier: {} for tier in self.capacity}
        self.loaded = 0
        # before the event
        self.evicted: list[Content] = [
            {} for _ in simulation.cluster.instances
        ]  # what had left the GPU and not come down
        self.sources: list[Content] = [
            {} for _ in simulation.cluster.instances
        ]  # what could come down, that and the rest

    def check(self, event: Event) -> None:
        if not self.capacity:
            return
        content = {tier: self.add_up(tier, event) for tier in self.capacity}
        self.moved_up(event, content)
        self.check_loads(event)
        for tier, now_there in content.items():
            if now_there != self.content[tier]:
                self.comes_from_somewhere(tier, now_there, event)
                if not tier.shared:
                    self.moved_down(tier, now_there)
        self.content = content
        self.evicted = [evicted(instance) for instance in self.cluster.instances]
        self.sources = [self.could_come(instance) for instance in self.cluster.instances]

    def add_up(self, tier: Tier, event: Event) -> Content:
        store, content = tier.store, stored(tier)
        used = 0
        for key, ranges in content.items():
            whole: list[Range] = []
            for start, end in ranges:
                twice = bool(whole) and start < whole[-1][1]
                demand(not twice and end > start, "{} has blocks {}-{} of {} twice.", tier.name, start, end, key)
                used += end - start
                whole[-1:] = [(whole[-1][0], end)] if whole and whole[-1][1] == start else [*whole[-1:], (start, end)]
            for start, end in whole:
                found = store.covered_to(key, start)
                demand(
                    found == end, "{} finds blocks {}-{} of {}, it has them to {}.", tier.name, start, found, key, end
                )
        demand(used == store.used, "{} says {} blocks are stored, there are {}.", tier.name, store.used, used)
        instances = [self.cluster.instances[index] for index in self.users[tier]]
        lent = swapped = 0
        for index, instance in zip(self.users[tier], instances, strict=True):
            tiers = instance.tiers
            assert tiers is not None
            for job, rooms in tiers.lent.items():
                demand(
                    job in instance.loader.loading,
                    "Request {} does not load, and {} lends it room.",
                    job.row,
                    tier.name,
                )
                lent += sum(count for whose, count in rooms if whose is tier)
            if tiers.tiers[0] is tier:
                swapped += sum(job.swapped for job, seat in event.after.items() if seat.index == index)
        demand(lent == tier.lent, "{} says {} blocks are lent, requests have {}.", tier.name, tier.lent, lent)
        demand(
            swapped == tier.swapped,
            "{} says it keeps {} blocks of requests that had to yield, they have {}.",
            tier.name,
            tier.swapped,
            swapped,
        )
        room = self.capacity[tier] + lent - swapped
        demand(store.blocks == room, "{} has room for {} blocks, not {}.", tier.name, room, store.blocks)
        demand(used <= room, "{} has {} blocks and room for {}.", tier.name, used, room)
        return content

    def moved_up(self, event: Event, content: dict[Tier, Content]) -> None:
        """What has been loaded lies in the stores no more, where these add to each other, but for shared ones."""
        for job, seat in event.after.items():
            then = event.before.get(job)
            if then is None or then.load is None or seat.load is then.load or seat.place != "ready":
                continue
            instance = self.cluster.instances[seat.index]
            tiers = instance.tiers
            if tiers is None or tiers.eager or then.swapped or instance.view.role == "decode":
                continue
            there = cached(instance)
            for key, block in wanted(job, then.load.start, then.load.end):
                both = overlap([block], there.get(key, ()))
                for tier in tiers.tiers:
                    if not tier.shared:
                        left = overlap(both, content[tier].get(key, ()))
                        demand(
                            not without(left, self.evicted[seat.index].get(key, ())),
                            "Request {} has loaded blocks {} of {}, which still lie in {}.",
                            job.row,
                            left,
                            key,
                            tier.name,
                        )

    def moved_down(self, tier: Tier, now_there: Content) -> None:
        """What comes down has left the GPU, where the stores add to each other; only later is it computed again."""
        (index,) = self.users[tier]
        instance = self.cluster.instances[index]
        tiers = instance.tiers
        assert tiers is not None
        if tiers.eager:
            return
        there = cached(instance)
        for key, ranges in now_there.items():
            fresh = without(ranges, self.content[tier].get(key, ()))
            for other in self.above(tiers, tier):
                fresh = without(fresh, self.content[other].get(key, ()))
            both = without(overlap(fresh, there.get(key, ())), self.evicted[index].get(key, ()))
            demand(not both, "Blocks {} of {} came into {} and are still in the GPU.", both, key, tier.name)

    def check_loads(self, event: Event) -> None:
        """What the stores say went up is what requests began to load."""
        for job, seat in event.after.items():
            then = event.before.get(job)
            fresh = seat.load is not None and (then is None or then.load is not seat.load)
            if fresh and not job.swapped and job.awaits is None:
                assert seat.load is not None
                self.loaded += seat.load.end - seat.load.start
        said = sum(tier.loaded for tier in self.capacity)
        demand(said == self.loaded, "The stores say that {} blocks went up, requests asked for {}.", said, self.loaded)

    def could_come(self, instance: Instance) -> Content:
        """What may come down from a GPU: what it has, and what it has evicted and not yet given away."""
        found = cached(instance)
        for key, ranges in evicted(instance).items():
            found.setdefault(key, []).extend(ranges)
        return found

    def comes_from_somewhere(self, tier: Tier, now_there: Content, event: Event) -> None:
        for key, ranges in now_there.items():
            fresh = without(ranges, self.content[tier].get(key, ()))
            for index in self.users[tier]:
                if not fresh:
                    break
                fresh = self.unexplained(key, fresh, index, tier, event)
            demand(not fresh, "Blocks {} of {} came into {} from nowhere.", fresh, key, tier.name)

    def unexplained(self, key: int, fresh: list[Range], index: int, tier: Tier, event: Event) -> list[Range]:
        instance = self.cluster.instances[index]
        fresh = without(fresh, self.sources[index].get(key, ()))
        for other in self.above(instance.tiers, tier):
            fresh = without(fresh, self.content[other].get(key, ()))
        for job in self.computing(index, event) if fresh else ():  # computed and evicted at once
            ends = [(first, last) for named, (first, last) in wanted(job, 0, job.known) if named == key]
            fresh = without(fresh, ends if key != job.output_key else [(0, 1 << 40)])
        return fresh

    def above(self, tiers: Tiers | None, tier: Tier) -> list[Tier]:
        assert tiers is not None
        return tiers.tiers[: tiers.tiers.index(tier)]

    def computing(self, index: int, event: Event) -> Iterable[Job]:
        return [job for job, seat in event.before.items() if seat.index == index and seat.place != "waiting"]
