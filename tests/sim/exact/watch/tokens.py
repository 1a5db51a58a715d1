"""The watch over tokens, each of which counts once over both halves of a request, and over the recorder's times."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from headway.results.recorder import COMPLETED, IN_FLIGHT
from headway.sim.instance import Instance
from headway.sim.job import Job
from headway.sim.simulation import Simulation
from watch.events import Event, Part, Seat, demand
from watch.speculation import Positions


class Tokens(Part):
    """Every token of a prompt is found or computed once, by whichever instance; what is computed beyond that is
    recomputation, which wants a reason. Every token of an answer is generated once."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        self.generated: defaultdict[int, int] = defaultdict(int)  # by request
        self.positions = Positions(simulation, self.generated)
        self.known: defaultdict[int, int] = defaultdict(int)  # tokens of its prompt that were found or computed
        self.found: dict[int, int] = {}  # of these, found when its turn first came
        self.loaded: dict[int, int] = {}  # of these, in stores below the GPU
        self.later: defaultdict[int, int] = defaultdict(int)  # found at a later turn
        self.computed: defaultdict[int, int] = defaultdict(int)
        self.again: defaultdict[int, int] = defaultdict(int)  # computed although they had been found or computed before
        self.yielded: defaultdict[int, int] = defaultdict(int)  # how often it was preempted
        self.put_back: defaultdict[int, int] = defaultdict(int)  # how often it lost its blocks in some other way
        self.by_instance: defaultdict[int, int] = defaultdict(int)  # prompt tokens computed for the first time
        self.found_at: defaultdict[int, int] = defaultdict(int)
        self.apart: dict[int, bool] = {}  # requests with two halves: whether the first token comes with the prompt

    # --- what happens

    def step_ends(self, instance: Instance) -> None:
        self.steps(instance, instance.run.length, whole=True)

    def stops(self, horizon: int) -> None:
        for instance in self.cluster.instances:
            if instance.run.end >= 0:
                ended, at = 0, instance.run.start
                while (at := at + instance.run.first + ended * instance.run.increment) <= horizon:
                    ended += 1
                self.steps(instance, ended, whole=False)

    def steps(self, instance: Instance, count: int, whole: bool) -> None:
        """So many steps of a run have ended; `whole`: all of them."""
        for job in instance.batch.running:
            if job.ends_at_step >= 0:  # what a step brings for a client that has given up is wasted
                self.positions.steps(instance, job, count, count - (job.expired and whole))
        for job, want in instance.run.chunks:
            end = job.computed + want * count
            self.compute(instance, job, job.computed, end)
            if end >= job.known and not job.expired and (job.handover is None or job.handover.transfer.first_token):
                self.generated[job.row] += 1
                self.positions.begin(job)

    def compute(self, instance: Instance, job: Job, start: int, end: int) -> None:
        row, prompt = job.row, job.request.prompt_tokens
        start, end = min(start, prompt), min(end, prompt)
        fresh = max(0, end - max(start, self.known[row]))
        demand(
            start <= self.known[row], "Request {} computes tokens from {} on and has {}.", row, start, self.known[row]
        )
        self.computed[row] += fresh
        self.by_instance[instance.view.index] += fresh
        self.again[row] += end - start - fresh
        self.known[row] = max(self.known[row], end)

    def enters(self, job: Job, seat: Seat) -> None:
        """A request's turn has come."""
        row = job.row
        if job.awaits is not None or (seat.load is not None and job.swapped):
            return
        cached = job.computed if seat.load is None else seat.load.end * self.size
        cached = min(cached, job.request.prompt_tokens)  # after a preemption also what it had generated
        if row not in self.found:
            self.found[row] = cached
            self.loaded[row] = 0 if seat.load is None else (seat.load.end - seat.load.start) * self.size
            self.found_at[seat.index] += cached
        else:
            self.later[row] += max(0, cached - self.known[row])
        self.known[row] = max(self.known[row], cached)

    def moves(self, event: Event) -> None:
        for job, seat in event.after.items():
            if job.awaits is not None:
                self.apart[job.row] = job.awaits.transfer.first_token
            then = event.before.get(job)
            was = "" if then is None else then.place
            anew = then is None or then.order != seat.order  # who yields may come back in the same event
            if was == "running" and (anew or seat.place in ("waiting", "loading")):
                self.yielded[job.row] += 1
            # Who is ready and has to yield its blocks may enter again in the same event, with those that are cached.
            yielded = then is not None and was == "ready" and seat.place == "running" and seat.computed < then.computed
            if (was in ("ready", "loading") and seat.place == "waiting") or yielded:
                self.put_back[job.row] += 1
            began = seat.load is not None and (then is None or then.load is not seat.load)
            if began or (seat.place == "running" and anew and (was != "ready" or yielded)):
                self.enters(job, seat)

    # --- what must hold

    def check(self, event: Event) -> None:
        self.moves(event)
        recorder = self.simulation.recorder
        for job, seat in event.after.items():
            self.check_request(job.row, job.request.prompt_tokens)
            if (
                seat.place in ("waiting", "loading")
                and job.handover is None
                and not (job.awaits and not job.awaits.computed)
            ):
                said = self.generated[job.row]
                demand(
                    job.generated == said or (job.awaits is not None and job.awaits.source in self.cluster.handed),
                    "Request {} says {} tokens generated, {} were.",
                    job.row,
                    job.generated,
                    said,
                )
        for index, instance in enumerate(self.cluster.instances):
            stats = instance.stats
            said, counted = stats.prefill_tokens, self.by_instance[index]
            demand(said == counted, "{} says {} prompt tokens computed, it was {}.", stats.id, said, counted)
            said, counted = stats.cached_tokens, self.found_at[index]
            demand(said == counted, "{} says {} tokens found cached, it was {}.", stats.id, said, counted)
        for job in self.cluster.ended:
            self.check_end(job)
        for row in {job.row for job in event.after}:
            self.check_record(row)
        rows = recorder.rows
        demand(sum(recorder.cached_tokens[:rows]) == sum(self.found_at.values()), "Tokens were found by nobody.")
        demand(sum(recorder.preemptions[:rows]) == sum(self.yielded.values()), "No request had to yield.")
        if event.name != "stop":
            self.check_totals()

    def check_record(self, row: int) -> None:
        recorder = self.simulation.recorder
        said: Any = recorder.preemptions[row]
        counted: Any = self.yielded[row]
        demand(said == counted, "Request {} had to yield {} times, the record says {}.", row, counted, said)
        if row in self.found:
            said = recorder.cached_tokens[row], recorder.loaded_tokens[row]
            counted = self.found[row], self.loaded[row]
            demand(said == counted, "Request {} found (and loaded) {} tokens, the record says {}.", row, counted, said)

    def check_request(self, row: int, prompt: int) -> None:
        parts = self.found.get(row, 0) + self.computed[row] + self.later[row]
        demand(
            parts == self.known[row] <= prompt,
            "Request {} has {} of {} tokens, counted {}.",
            row,
            self.known[row],
            prompt,
            parts,
        )
        if self.again[row] and not (self.yielded[row] or self.put_back[row]):
            last = int(self.apart.get(row) is False)  # the other instance computes the prompt's last token once more
            demand(
                self.again[row] == last, "Request {} computes {} tokens again, {} need it.", row, self.again[row], last
            )

    def check_end(self, job: Job) -> None:
        """A request that has ended and whose router has not heard of it."""
        row = job.row
        said = job.generated
        demand(
            said == self.generated[row],
            "Request {} ends with {} tokens, {} were generated.",
            row,
            said,
            self.generated[row],
        )
        if not job.expired and self.simulation.recorder.finished_ps[row] < 0:
            demand(said == job.output_tokens, "Request {} ends with {} tokens of {}.", row, said, job.output_tokens)
            prompt = job.request.prompt_tokens
            demand(
                self.known[row] == prompt, "Request {} ends with {} of {} prompt tokens.", row, self.known[row], prompt
            )

    def check_totals(self) -> None:
        recorder, done = self.simulation.recorder, self.cluster.ended
        ending = [job.row for job in done]
        ended = [row for row in range(recorder.rows) if recorder.finished_ps[row] >= 0 or row in ending]
        counted = sum(self.generated[row] for row in ended)
        said = sum(instance.stats.output_tokens for instance in self.cluster.instances)
        demand(said == counted, "The instances say {} tokens, requests that have ended got {}.", said, counted)
        for row in ended:
            tokens = recorder.output_tokens[row]
            demand(
                row in ending or tokens == self.generated[row],
                "Request {} got {} tokens, the record says {}.",
                row,
                self.generated[row],
                tokens,
            )

    def over(self) -> None:
        recorder, stats = self.simulation.recorder, self.simulation.cluster.stats
        for row, tokens in enumerate(recorder.output_tokens):
            self.check_record(row)
            demand(
                tokens == self.generated[row],
                "Request {} got {} tokens, the record says {}.",
                row,
                self.generated[row],
                tokens,
            )
            if recorder.outcome[row] == COMPLETED:
                parts = self.found[row] + self.computed[row] + self.later[row]
                prompt = recorder.prompt_tokens[row]
                demand(parts == prompt, "Request {} was completed with {} of {} prompt tokens.", row, parts, prompt)
        said = sum(one.output_tokens for one in stats), sum(one.prefill_tokens for one in stats)
        counted = sum(self.generated.values()), sum(self.computed.values())
        demand(said == counted, "The instances say {} tokens generated and computed, it was {}.", said, counted)


TIMES = (
    *("arrival_ps", "admitted_ps", "routed_ps", "enqueued_ps", "started_ps", "first_token_ps"),
    *("handed_ps", "transfer_ps", "transferred_ps", "finished_ps"),
)
ORDERS = (
    ("arrival_ps", "admitted_ps", "routed_ps", "enqueued_ps", "started_ps", "first_token_ps", "finished_ps"),
    ("started_ps", "handed_ps", "transferred_ps", "finished_ps"),
    ("started_ps", "transfer_ps", "transferred_ps"),
)


class Times(Part):
    """What is written down of a request is written once, when it happens, and in the order in which it can happen."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        self.seen: list[tuple[int, ...]] = []  # the times of each request, in the order of TIMES
        self.open: list[int] = []  # requests that have come and not ended

    def check(self, event: Event) -> None:
        recorder = self.simulation.recorder
        columns = [getattr(recorder, name) for name in TIMES]
        for row in range(len(self.seen), recorder.rows):
            self.seen.append((-1,) * len(TIMES))
            self.open.append(row)
        for row in self.open:
            times = tuple([column[row] for column in columns])
            if times != self.seen[row]:
                self.check_row(row, dict(zip(TIMES, times, strict=True)), event)
                self.seen[row] = times
        self.open = [row for row in self.open if recorder.finished_ps[row] < 0]

    def check_row(self, row: int, times: dict[str, int], event: Event) -> None:
        before = dict(zip(TIMES, self.seen[row], strict=True))
        for name, at in times.items():
            if at != before[name]:
                demand(before[name] == -1, "Request {}: {} was {} and becomes {}.", row, name, before[name], at)
                then = "transfer_ps"  # told when it is over
                demand(at == event.now or (name == then and at < event.now), "Request {}: {} is {}.", row, name, at)
        for names in ORDERS:
            came = [times[name] for name in names if times[name] >= 0]
            demand(came == sorted(came), "Request {} is out of order: {}.", row, times)
        needs = (("started_ps", "first_token_ps"), ("handed_ps", "transferred_ps"), ("transferred_ps", "transfer_ps"))
        for first, second in needs:
            demand(times[second] < 0 or times[first] >= 0, "Request {} has {} before {}.", row, second, first)

    def over(self) -> None:
        """Nothing was written later of what had ended."""
        recorder = self.simulation.recorder
        for row, seen in enumerate(self.seen):
            times = dict(zip(TIMES, seen, strict=True))
            said = {name: getattr(recorder, name)[row] for name in TIMES}
            demand(said == times, "Request {} was rewritten after its end: {}, then {}.", row, times, said)
            in_flight = recorder.outcome[row] == IN_FLIGHT
            demand(in_flight == (times["finished_ps"] < 0), "Request {} has no end, or two.", row)
