"""The watch over what is on its way: who owns a prompt computed for another instance, and what is on the links."""

from __future__ import annotations

from collections import Counter, defaultdict

from headway.sim.handover import Handover
from headway.sim.job import Job
from headway.sim.link import Link, Load
from headway.sim.simulation import Simulation
from watch.events import Event, Part, demand, overlap


class Ownership(Part):
    """Each request is in one place, or it is a pair: its prompt at one instance, which owns it, and a place for it at
    another. From the last byte on it is the other's alone."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        self.travelling: dict[Job, Handover] = {}  # those that wait for blocks of another instance
        self.open: dict[int, None] = {}  # requests that have come and not ended
        self.came = 0
        self.routed: Counter[int] = Counter()  # requests that have ended, by the instances that they were sent to

    def check(self, event: Event) -> None:
        simulation = self.simulation
        jobs: dict[int, list[Job]] = {}
        for job in event.after:
            jobs.setdefault(job.row, []).append(job)
        ending = Counter(job.row for job in simulation.cluster.ended)
        recorder = simulation.recorder
        self.open.update(dict.fromkeys(range(self.came, recorder.rows)))
        self.came = recorder.rows
        for row in self.open.keys() | jobs.keys() | ending.keys() | simulation.dispatcher.held.keys():
            self.check_row(row, jobs.get(row, []), ending[row], event)
        for job, handover in self.travelling.items():
            if job.awaits is None:
                self.check_arrival(job, handover, event)
        self.travelling = {job: job.awaits for job in event.after if job.awaits is not None}
        self.check_incoming(event)
        self.check_instances()
        for row in [row for row in self.open if recorder.finished_ps[row] >= 0 and not ending[row]]:
            del self.open[row]
            self.routed.update(at for at in (recorder.instance[row], recorder.prefill_instance[row]) if at >= 0)

    def check_instances(self) -> None:
        """Requests count at the instances that they were sent to, and as in flight there until they are over."""
        simulation, recorder = self.simulation, self.simulation.recorder
        routed = defaultdict(int, self.routed)
        in_flight: defaultdict[int, int] = defaultdict(int)
        ending = [job.row for job in simulation.cluster.ended]
        for row in self.open:
            there, before = recorder.instance[row], recorder.prefill_instance[row]
            live = recorder.finished_ps[row] < 0 or row in ending
            routed[there] += 1
            in_flight[there] += live
            if before >= 0:
                routed[before] += 1
                in_flight[before] += live and recorder.handed_ps[row] < 0
        for index, instance in enumerate(simulation.cluster.instances):
            said = instance.stats.requests
            demand(
                said == routed[index], "Instance {} says {} requests, {} were sent there.", index, said, routed[index]
            )
        if simulation.routers is None:  # else each knows its own
            shown: defaultdict[int, int] = defaultdict(int)  # an engine may stand for its ranks
            for index, target in enumerate(simulation.setup.targets):
                shown[target] += in_flight[index]
            for view in simulation.setup.views:
                said, counted = view.inflight, shown[view.index]
                demand(said == counted, "The router says {} in flight on {}, there are {}.", said, view.id, counted)

    def check_row(self, row: int, jobs: list[Job], ending: int, event: Event) -> None:
        """A request is at the router, at an instance, about to end, or has ended."""
        simulation, ended = self.simulation, self.simulation.recorder.finished_ps[row] >= 0
        places = (row in simulation.dispatcher.held) + bool(jobs) + ending
        if ended and not ending:
            where = [event.after[job].place for job in jobs] or "the router"
            demand(places == 0, "Request {} has ended and is still at {}.", row, where)
            return
        demand(places == 1, "Request {} is in {} places at a time: at the router, instances or ending.", row, places)
        if len(jobs) < 2:
            if jobs and (handover := jobs[0].awaits) is not None:
                demand(False, "Request {} waits for what {} no longer has.", row, handover.prefill)
            return
        target = next((job for job in jobs if job.awaits is not None), None)
        demand(
            len(jobs) == 2 and target is not None and target.awaits.source in jobs,
            "Request {} has two owners: {}.",
            row,
            [event.after[job] for job in jobs],
        )
        self.check_pair(target.awaits, event)

    def check_pair(self, handover: Handover, event: Event) -> None:
        source, target, row = handover.source, handover.target, handover.target.row
        here, there = event.after[source], event.after[target]
        demand((here.index, there.index) == (handover.prefill, handover.decode), "Request {} is astray.", row)
        demand(there.place in ("waiting", "loading"), "Request {} is {} before its blocks have come.", row, there.place)
        demand(
            (here.place == "handing") == handover.computed,
            "Request {} is {} with its prompt{} computed.",
            row,
            here.place,
            "" if handover.computed else " not",
        )
        if there.load is not None:
            own = sum(end - start for _, start, end in target.holds)
            demand(
                own == there.load.start == target.cached_to,
                "Request {} has two owners: blocks on their way to it are already in the cache of instance {}.",
                row,
                there.index,
            )
            most = source.request.prompt_tokens if handover.computed else source.computed
            demand(
                handover.sent <= max(most, there.load.start * self.size), "Request {} sends what is not computed.", row
            )

    def check_arrival(self, target: Job, handover: Handover, event: Event) -> None:
        """The last byte has come in this event."""
        row, prompt = target.row, target.request.prompt_tokens
        demand(
            handover.computed and handover.sent == prompt,
            "Request {} goes on with {} of {} tokens sent.",
            row,
            handover.sent,
            prompt,
        )
        demand(handover.source not in event.after, "Request {} has two owners after its transfer.", row)
        if handover.transfer.spec.keep_prefill_copy or handover.prefill in event.ended:
            return
        cache = self.cluster.instances[handover.prefill].cache
        for key, start, end in handover.source.holds:
            piece = cache.pieces.get(key)
            while piece is not None:
                kept = not piece.holders and overlap([(start, end)], [(piece.start, piece.end)])
                demand(not kept, "Request {} has two owners: instance {} keeps a copy.", row, handover.prefill)
                piece = piece.next

    def check_incoming(self, event: Event) -> None:
        under_way = Counter(event.after[job].index for job in self.travelling)
        for index, incoming in self.simulation.dispatcher.handovers.incoming.items():
            demand(
                incoming.count == under_way[index],
                "Instance {} is to get {} requests, and says {}.",
                index,
                under_way[index],
                incoming.count,
            )
            demand(incoming.full() or not incoming.blocked, "Somebody waits for room that instance {} has.", index)


class Links(Part):
    """What has gone over a link is what set out on it, each byte once."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        links = simulation.cluster.links.links
        self.moved = [0] * len(links)
        self.busy = [0] * len(links)
        self.sent: dict[Handover, int] = {}  # tokens
        self.handovers: dict[Handover, None] = {}
        self.swapped: Counter[int] = Counter()  # blocks by link, of requests that had to yield
        self.tiers = {}
        for index, instance in enumerate(simulation.cluster.instances):
            for tier in instance.tiers.tiers if instance.tiers is not None else ():
                self.tiers[tier.link] = (tier, simulation.setup.engines[index].block_bytes)

    def check(self, event: Event) -> None:
        links = self.cluster.links
        expected: Counter[int] = Counter()
        for job in event.after:
            if job.awaits is not None:
                self.handovers[job.awaits] = None
        for handover in self.handovers:
            expected[handover.link] += self.newly_sent(handover)
        self.watch_swaps(event)
        waited: Counter[Load] = Counter()
        for number, link in enumerate(links.links):
            self.check_bytes(number, link, expected[number])
            waited.update(load for goal, _, load in link.awaited if goal in link.leaving)
            waited.update(load for _, load in link.under_way)
        demand(
            links.next_ps == min((link.next_ps for link in links.links), default=links.next_ps),
            "The links say that something arrives next at {} ps.",
            links.next_ps,
        )
        for job, seat in event.after.items():
            if (load := seat.load) is not None:
                due = job.awaits is not None and (not job.awaits.computed or job.awaits.source in self.cluster.handed)
                left = waited[load] + due
                over = event.name == "on_loaded"  # at one instant several may arrive, and are told one by one
                demand(
                    load.left == left and (left > 0 or over),
                    "Request {} waits for {} transfers, {} are on their way.",
                    job.row,
                    load.left,
                    left,
                )

    def newly_sent(self, handover: Handover) -> int:
        """Bytes that have set out for a request in this event: all together are whole grains, each sent once."""
        if handover.load is None:
            return 0
        start, grain = handover.load.start * self.size, handover.transfer.grain_tokens
        before, sent = self.sent.get(handover, start), handover.sent
        demand(sent >= before, "Request {} takes back what it has sent.", handover.target.row)
        self.sent[handover] = sent
        return (-(-(sent - start) // grain) + -(before - start) // grain) * grain * handover.transfer.token_bytes

    def watch_swaps(self, event: Event) -> None:
        for job, seat in event.after.items():
            if not job.swapped:
                continue
            then = event.before.get(job)
            tiers = self.cluster.instances[seat.index].tiers
            assert tiers is not None
            link = tiers.tiers[0].link
            if then is None or not then.swapped:
                self.swapped[link] += job.swapped
            if seat.load is not None and (then is None or then.load is not seat.load):
                self.swapped[link] += job.swapped

    def check_bytes(self, number: int, link: Link, sent: int) -> None:
        before = self.moved[number]
        demand(link.busy_ps >= self.busy[number], "Link {} was busy for less time than before.", number)
        if number in self.tiers:
            tier, block_bytes = self.tiers[number]
            blocks = tier.stored + tier.loaded + self.swapped[number]
            demand(
                before <= link.moved_bytes == blocks * block_bytes,
                "Link {} has moved {} bytes for {} blocks of {} each.",
                number,
                link.moved_bytes,
                blocks,
                block_bytes,
            )
        else:
            demand(
                link.moved_bytes == before + sent,
                "Link {} has moved {} bytes after {}, and {} have set out.",
                number,
                link.moved_bytes,
                before,
                sent,
            )
        self.moved[number], self.busy[number] = link.moved_bytes, link.busy_ps

    def over(self) -> None:
        """Sent is what requests were sent, and nobody got more of a prompt than there is."""
        for handover, tokens in self.sent.items():
            prompt = handover.target.request.prompt_tokens
            demand(
                tokens <= max(prompt, handover.load.start * self.size),
                "Request {} was sent more than its prompt.",
                handover.target.row,
            )
        for index, number in self.cluster.outgoing.items():
            said = self.cluster.instances[index].stats.sent_bytes
            demand(
                said == self.moved[number],
                "Instance {} says {} bytes sent, {} set out.",
                index,
                said,
                self.moved[number],
            )
