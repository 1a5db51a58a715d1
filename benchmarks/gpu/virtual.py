"""A cluster in virtual time: replicas take turns on one GPU, and Headway's control plane sees only their clocks.

Each step runs alone on the GPU. It begins at its replica's time t and ends at t + d, where d is the measured duration
of the step: forming it, copying its inputs, computing it, copying the tokens back. Between steps, the event loop jumps
to the next instant at which a step ends or a request arrives. As in the simulator, the steps of an instant end first,
then the router acts, then steps begin. Traffic, policies and views are those that the simulator uses; the engine's
queue, batch, blocks and step times are not.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from time import perf_counter
from typing import Any

from benchmarks.gpu.prompts import Prompts
from benchmarks.gpu.scheduler import Backend, Job, Limits, Replica, Row, new_job
from headway.control.expectations import running
from headway.control.flights import Flight
from headway.control.plane import ControlPlane
from headway.experiment.run import prepare
from headway.latency.base import Estimator
from headway.policies.context import Context
from headway.policies.registry import entry_of
from headway.scenario.scenario import Scenario
from headway.sim.recent_values import BusyWindow
from headway.sim.reported_signals import BUSY_WINDOW, WATTS_WINDOW
from headway.streams import derive, stream
from headway.types import NEVER, PS_PER_SECOND
from headway.views.instance import InstanceView

KNOWN_SIGNALS = ("queued", "running", "kv_used", "busy", "watts")  # reported signals that this cluster maintains
# Returns the duration of a step in seconds. Arguments: the replica, its time, the rows, and the measured seconds.
Clock = Callable[[int, int, list[Row], float], float]


@dataclass
class Served:
    """What one request got. Times are picoseconds of the virtual clock."""

    id: int
    arrival_ps: int
    instance: int
    job: Job

    def columns(self) -> list[int]:
        job = self.job
        return [
            self.id, self.arrival_ps, job.started_ps, job.first_ps, job.ended_ps, self.instance, job.prompt, job.most,
            job.cached, job.preemptions,
        ]  # fmt: skip


COLUMNS = (
    "id", "arrival_ps", "started_ps", "first_token_ps", "finished_ps", "instance", "prompt_tokens", "output_tokens",
    "cached_tokens", "preemptions",
)  # fmt: skip


class Load:
    """The busy share of a replica, and the power that follows from it as in the simulator: one GPU plays all replicas,
    so that its own power says nothing about one of them."""

    def __init__(self, idle_watts: float, busy_watts: float) -> None:
        self.idle_watts, self.span_watts = idle_watts, busy_watts - idle_watts
        self.short, self.long = BusyWindow(BUSY_WINDOW), BusyWindow(WATTS_WINDOW)
        self.busy_from, self.busy_ps = -1, 0

    def start(self, now: int) -> None:
        if self.busy_from < 0:
            self.busy_from = now

    def rest(self, now: int) -> None:
        if self.busy_from >= 0:
            for window in (self.short, self.long):
                window.add(self.busy_from, now)
            self.busy_ps += now - self.busy_from
            self.busy_from = -1

    def show(self, view: InstanceView, origin: int, now: int) -> None:
        view.busy = self.short.share(origin, now, self.busy_ps, self.busy_from)
        share = self.long.share(origin, now, self.busy_ps, self.busy_from)
        view.watts = self.idle_watts + self.span_watts * share


@dataclass
class Measured:
    requests: list[Served] = field(default_factory=list)
    steps: int = 0
    busy_s: float = 0.0
    wall_s: float = 0.0
    preemptions: int = 0


def limits_of(scenario: Scenario) -> Limits:
    cluster = scenario.resolved()["cluster"]
    kv = cluster["kv"]
    return Limits(kv["block_tokens"], kv["gpu_blocks"], cluster["max_batch_tokens"], cluster["max_batch_size"])


class VirtualCluster:
    def __init__(self, scenario: Scenario, backend: Backend, clock: Clock, vocabulary: int) -> None:
        prepared = prepare(scenario)
        self.policies, setup = prepared.policies, prepared.setup
        self.backend, self.clock, self.prompts = backend, clock, Prompts(vocabulary)
        self.traffic, self.views = prepared.traffic(), setup.views
        self.limits = limits_of(scenario)
        count = len(self.views)
        self.replicas = [Replica(backend, self.limits, place * self.limits.blocks) for place in range(count)]
        stages = [self.policies[stage] for stage in ("admission", "priority", "routing")]
        unknown = {name for policy in stages for name in entry_of(policy).reported} - set(KNOWN_SIGNALS)
        assert not unknown, f"this cluster does not report {unknown}"
        context = Context(
            self.views,
            partial(stream, derive(scenario.seed.simulation, "policies")),
            Estimator(engine.latency for engine in setup.engines),
            setup.block_tokens,
            auto=setup.auto,
            belief=setup.signals.belief,
        )
        self.control = ControlPlane(context, *stages, None, running(self.policies["estimator"], stages))
        self.loads = [Load(engine.idle_watts, engine.busy_watts) for engine in setup.engines]
        self.origin = -1  # time of the first decision
        self.ends: list[tuple[int, int]] = []  # heap of (end of a step, replica)
        self.busy = [False] * count
        self.result = Measured()
        self.jobs: dict[int, tuple[Served, Any]] = {}  # request id -> (what it got, its plan)

    def run(self) -> Measured:
        start = perf_counter()
        gc.collect()
        gc.disable()
        try:
            while (now := min(self.traffic.next_ps, self.ends[0][0] if self.ends else NEVER)) != NEVER:
                self._instant(now)
        finally:
            gc.enable()
        self.result.wall_s = perf_counter() - start
        self.result.preemptions = sum(replica.preemptions for replica in self.replicas)
        return self.result

    def _instant(self, now: int) -> None:
        first: list[Job] = []
        ended: list[Job] = []
        while self.ends and self.ends[0][0] == now:
            place = heappop(self.ends)[1]
            self.busy[place] = False
            for all_of, new in zip((first, ended), self.replicas[place].finish(now), strict=True):
                all_of += new
            self._report(place)
        for job in sorted(first, key=lambda job: job.id):
            self.control.on_first_token(now, job.id)
        while self.traffic.next_ps == now:
            self._arrive(now)
        for job in sorted(ended, key=lambda job: job.id):
            self.control.on_finished(now, job.id, "completed", job.generated)
            planned = self.jobs.pop(job.id)[1]
            self.prompts.answers[planned.output_key] = job.tokens[job.prompt :]
            self.traffic.on_ended(planned.request, now, True)
        while self.traffic.next_ps == now:  # the next turn of a session, without a pause
            self._arrive(now)
        for place, replica in enumerate(self.replicas):
            if self.busy[place]:
                continue
            if replica.idle:
                self.loads[place].rest(now)
            else:
                self.loads[place].start(now)
                start = perf_counter()
                rows = replica.begin(now)
                seconds = self.clock(place, now, rows, perf_counter() - start)
                self.busy[place] = True
                heappush(self.ends, (now + max(1, round(seconds * PS_PER_SECOND)), place))
                self.result.busy_s += seconds
                self.result.steps += 1
                self._report(place)

    def _arrive(self, now: int) -> None:
        planned = self.traffic.take()
        request = planned.request
        job = new_job(request.id, self.prompts.tokens(request.path), planned.output_tokens, self.limits.block_tokens)
        self.origin = now if self.origin < 0 else self.origin
        for load, view in zip(self.loads, self.views, strict=True):
            load.show(view, self.origin, now)
        answer = self.control.arrive(now, request)
        assert isinstance(answer, Flight), "the policies of this comparison admit and route every request at once"
        place = answer.view.index
        served = Served(request.id, now, place, job)
        self.result.requests.append(served)
        self.jobs[request.id] = served, planned
        self.replicas[place].add(job)
        self._report(place)

    def _report(self, place: int) -> None:
        view, replica = self.views[place], self.replicas[place]
        view.queued, view.running = len(replica.waiting), len(replica.running)
        view.kv_used = replica.blocks.held
