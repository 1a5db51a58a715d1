"""Measure the cost of a decision in the policy language and in plain Python: `python benchmarks/language.py`.

Both are timed in turn, chunk by chunk. The minimum time of each counts, so that other load on the machine has little
effect.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from headway.policies.code import Program, language
from headway.policies.code.state import Sent
from headway.types import Path as Prompt
from headway.types import Priority, Request
from headway.views.cluster import ClusterView
from headway.views.instance import InstanceView

CHUNKS: Final = 60
CALLS: Final = 2000  # number of instances that are scored in a chunk
SIZES: Final = (8, 64)
SOURCES: Final = {
    "weighted score": """
W = 0.7
def score(request, instance, cluster):
    q = 1.0 - instance.queued / 12
    kv = instance.kv_used / instance.kv_blocks
    s = W * q + 0.2 * (1.0 - kv) + 0.1 * instance.capacity
    if kv > 0.9:
        s = s - 0.5 * (kv - 0.9)
    return s
""",
    "score with a loop": """
def score(request, instance, cluster):
    most = 1
    for other in cluster.instances:
        if other.queued > most:
            most = other.queued
    return 0.7 * (1.0 - instance.queued / most) + 0.2 * (1.0 - instance.kv_used / instance.kv_blocks)
""",
    "product": """
def score(request, instance, cluster):
    return (instance.pending_prefill_tokens + request.prompt_tokens) * -(instance.inflight + 1)
""",
    "route in two loops": """
def route(request, instances, cluster):
    most = 1
    for other in instances:
        if other.queued > most:
            most = other.queued
    best = 0
    top = -1e9
    place = 0
    for view in instances:
        kv = view.kv_used / view.kv_blocks
        s = 0.7 * (1.0 - view.queued / most) + 0.2 * (1.0 - kv) + 0.1 * view.capacity
        if kv > 0.9:
            s -= 0.5 * (kv - 0.9)
        if s > top:
            top = s
            best = place
        place += 1
    return best
""",
    "route by comprehensions": """
def route(request, instances, cluster):
    most = max(v.inflight for v in instances)
    if most == 0:
        return 0
    scores = [v.inflight / most + 0.3 * v.kv_used / v.kv_blocks for v in instances]
    low = min(scores)
    for i in range(len(scores)):
        if scores[i] == low:
            return i
    return 0
""",
    "tiers, hints and adapters": """
def score(request, instance, cluster):
    used = instance.tier_used.get("cpu", 0) / instance.tier_blocks["cpu"]
    weight = cluster.priority.hints.get("weight", 1)
    loaded = 1 if request.adapter in instance.adapters else 0
    return loaded + weight * (1.0 - used) - 0.1 * instance.inflight / (1 + instance.usd_per_hour)
""",
    "a pair with reasons": """
def route(request, instances, cluster):
    prefill = None
    decode = None
    for one in instances:
        if one.role == "prefill":
            if prefill is None or one.pending_prefill_tokens < prefill.pending_prefill_tokens:
                prefill = one
        elif decode is None or one.kv_used < decode.kv_used:
            decode = one
    return send(decode, prefill=prefill, reason="fewest tokens", priority=cluster.priority.score)
""",
    "an estimate of each": """
def route(request, instances, cluster):
    best = instances[0]
    low = 1e9
    for one in instances:
        wait = estimated_ttft(one, request.prompt_tokens)
        if wait < low:
            low = wait
            best = one
    return best
""",
    "route by a key": """
def route(request, instances, cluster):
    return min(instances, key=lambda v: (v.inflight, v.queued, v.index))
""",
}


def situation(count: int) -> tuple[Request, tuple[InstanceView, ...], ClusterView]:
    views = [InstanceView(index, f"i{index}", kv_blocks=1000) for index in range(count)]
    for index, view in enumerate(views):
        view.queued, view.kv_used, view.inflight = index * 7 % 11, index * 377 % 1000, index % 5
        view.tier_blocks, view.tier_used = {"cpu": 1000}, {"cpu": index * 131 % 1000}
        view.adapters, view.role = ("a", "b", f"c{index}"), ("prefill", "decode")[index % 2]
        view._estimator = Steps()
    cluster = ClusterView(views)
    cluster.priority = Priority(2.0, {"weight": 0.5})
    return Request(0, 0, 1000, Prompt((1,), (1000,)), adapter="c3"), cluster.instances, cluster


class Steps:
    def step_seconds(self, view: InstanceView, prefill_tokens: int, decodes: int, context: int) -> float:
        return 0.001 + 1e-6 * prefill_tokens + 1e-4 * decodes + 1e-9 * context


# What the library adds to Python, as plain functions.
ADDED: Final[dict[str, Any]] = {
    "send": Sent,
    "estimated_ttft": lambda view, tokens: view.estimated_ttft(tokens),
}


def same(one: Any, other: Any) -> bool:
    """Return whether two decisions are alike. Answers of `send` are compared by their parts."""
    parts = [(each.view, each.prefill, each.reason) if isinstance(each, Sent) else each for each in (one, other)]
    return bool(parts[0] == parts[1])


def decisions(source: str, count: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Return functions that make one decision: in plain Python, and in the policy language."""
    request, instances, cluster = situation(count)
    program = Program(source, "routing")
    running = program.start()
    space: dict[str, Any] = dict(ADDED)
    exec(source, space)
    plain, begin, safe = space[program.entrance], running.begin, running.entrance
    if program.entrance == "route":

        def route() -> Any:
            begin(language.STEPS, (), None)
            return safe(request, instances, cluster)

        return lambda: plain(request, instances, cluster), route

    def score() -> Any:
        begin(language.STEPS, (), None)
        return [safe(request, view, cluster) for view in instances]

    return lambda: [plain(request, view, cluster) for view in instances], score


def seconds(call: Callable[[], Any], times: int) -> float:
    start = time.process_time()
    for _ in range(times):
        call()
    return (time.process_time() - start) / times


def main() -> None:
    print(f"{'policy':26}{'instances':>10}{'plain us':>10}{'safe us':>10}{'ratio':>8}")
    for name, source in SOURCES.items():
        for count in SIZES:
            both = decisions(source, count)
            assert same(both[0](), both[1]())
            least = [1e9, 1e9]
            for _ in range(CHUNKS):
                for which, call in enumerate(both):
                    least[which] = min(
                        least[which], seconds(call, max(1, CALLS // count // (count if "loop" in name else 1)))
                    )
            print(
                f"{name:26}{count:10}{1e6 * least[0]:10.2f}{1e6 * least[1]:10.2f}{least[1] / least[0]:8.2f}", flush=True
            )


if __name__ == "__main__":
    main()
