"""Measure the CPU time of decisions in the policy language and in plain Python: `python benchmarks/language.py`.

A decision is all that the control plane calls: the policy's own method, including its checks of the answer. Both forms
take turns in one process, some milliseconds each. The figure of a case is the median over the turns of the ratio.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from language_cases import CASES, Case, PlainRoute, PlainScore

from headway.control.router_state import RouterState
from headway.policies import registry
from headway.policies.context import Context
from headway.policies.queues import Ticket
from headway.types import PS_PER_SECOND, Delay, Estimate, Priority, Reject, Request, Route, Scale
from headway.types import Path as Prompt
from headway.views.cluster import ClusterView
from headway.views.engine import EngineView
from headway.views.events import Finished
from headway.views.instance import InstanceView
from headway.views.pool import PoolView

TURNS: Final = 41
TURN_S: Final = 0.004
NOW_PS: Final = 1000 * PS_PER_SECOND
Decision = Callable[[], Any]


class Steps:
    def step_seconds(self, view: InstanceView, prefill_tokens: int, decodes: int, context: int) -> float:
        return 0.001 + 1e-6 * prefill_tokens + 1e-4 * decodes + 1e-9 * context


class World:
    """What the policies of a router see: `count` instances with different loads, and two tenants."""

    def __init__(self, count: int) -> None:
        self.views = [InstanceView(index, f"i{index}", kv_blocks=1000) for index in range(count)]
        for index, view in enumerate(self.views):
            view.queued, view.kv_used, view.inflight = index * 7 % 11, index * 377 % 1000, index % 5
            view.tier_blocks, view.tier_used = {"cpu": 1000}, {"cpu": index * 131 % 1000}
            view.adapters, view.role = ("a", "b", f"c{index}"), ("prefill", "decode")[index % 2]
        self.cluster = ClusterView(self.views)
        self.cluster.now_ps = NOW_PS
        self.cluster.priority = Priority(2.0, {"weight": 0.5})
        state = RouterState(self.cluster)
        self.request = Request(7, NOW_PS - PS_PER_SECOND, 1000, Prompt((1, 2), (600, 1000)), adapter="c3")
        for _ in range(3):
            state.on_arrival(NOW_PS, self.request)
        self.context = Context(self.views, lambda name: Random(name), Steps(), 16)
        self.context.prefix_index(16, 31_250).touch(count - 1, self.request.path)

    def decision(self, stage: str, policy: Any) -> Decision:
        request, cluster, view = self.request, self.cluster, self.views[1]
        if hasattr(policy, "bind"):
            policy.bind(self.context)
        if stage == "scheduler":
            return scheduling(policy, len(self.views))
        if stage == "scaling":
            return scaling(policy, self.views)
        if hasattr(policy, "observe"):
            for tokens in (80, 120, 310):
                policy.observe(Finished(NOW_PS, request, view, "completed", tokens))
        arguments = (request, view, cluster) if stage == "decider" else (request, cluster)
        method = {"routing": "route", "admission": "admit", "priority": "prioritise", "estimator": "estimate"}
        call = getattr(policy, method.get(stage, "apart"))
        return lambda: call(*arguments)


def scheduling(policy: Any, waiting: int) -> Decision:
    """A request arrives at a queue in which others wait, the queue is ordered anew if it wants that, and the first
    request enters the batch."""
    queue, engine = policy.queue(), EngineView("both", 1000, 64, 2048)
    engine.now_ps, engine.kv_used = NOW_PS, 400
    getattr(queue, "see", lambda engine: None)(engine)
    rerank = getattr(queue, "rerank", None)
    tickets = [
        Ticket(Request(number, 0, 1 + 37 * number % 900, Prompt((number,), (1,))), 0.0, 10**9 * number, number)
        for number in range(waiting)
    ]
    for ticket in tickets[1:]:
        queue.add(ticket)
    entering = [tickets[0]]

    def change() -> Any:
        queue.add(entering[0])
        if rerank is not None:
            rerank()
        entering[0] = queue.first()
        queue.take()
        return entering[0].number

    return change


def scaling(policy: Any, views: list[InstanceView]) -> Decision:
    pool = PoolView("p", "m", "both", 1, 64, views, block_tokens=16)
    pool.start(0, NOW_PS, NOW_PS)
    pool.now_ps = NOW_PS
    return lambda: policy.scale(pool)


def both(case: Case, count: int) -> tuple[Decision, Decision]:
    """Return functions that take one decision: in plain Python, and in the policy language."""
    world = World(count)
    plain = case.plain(case.source) if case.plain in (PlainScore, PlainRoute) else case.plain()
    coded = registry.build(case.stage, {"name": "code", "source": case.source}, f"policies.{case.stage}")
    return world.decision(case.stage, plain), world.decision(case.stage, coded)


def essence(answer: Any) -> Any:
    """Return what both forms must decide alike: all but reasons in words."""
    match answer:
        case Route():
            return answer.target, answer.prefill, answer.priority
        case Priority():
            return answer.score, dict(answer.hints)
        case Reject():
            return "reject"
        case Estimate() | Delay() | Scale():
            return next(iter(answer.__struct_fields__)), getattr(answer, answer.__struct_fields__[0])
    return answer


def seconds(call: Decision, times: int) -> float:
    start = time.process_time()
    for _ in range(times):
        call()
    return (time.process_time() - start) / times


def measure(case: Case, count: int, turns: int = TURNS) -> tuple[float, float, float]:
    """Return the median CPU seconds of a decision in Python and in the language, and the median ratio of a turn."""
    plain, coded = both(case, count)
    for _ in range(5):
        assert essence(plain()) == essence(coded()), case.name
    times = max(1, round(TURN_S / seconds(plain, 200)))
    rows = [(seconds(plain, times), seconds(coded, times)) for _ in range(turns)]
    return median(a for a, _ in rows), median(b for _, b in rows), median(b / a for a, b in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", help="only cases with one of these words in their stage or name")
    words = parser.parse_args().words
    print("| Stage | Policy | Instances | Python: µs | Language: µs | Ratio |\n|---|---|---:|---:|---:|---:|")
    for case in CASES:
        for count in case.instances:
            if not words or any(word in f"{case.stage} {case.name}" for word in words):
                plain, coded, ratio = measure(case, count)
                line = f"{1e6 * plain:.2f} | {1e6 * coded:.2f} | {ratio:.2f}"
                print(f"| {case.stage} | {case.name} | {count} | {line} |", flush=True)


if __name__ == "__main__":
    main()
