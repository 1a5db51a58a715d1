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
from headway.types import Path as Prompt
from headway.types import Request
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
    "route by a key": """
def route(request, instances, cluster):
    return min(instances, key=lambda v: (v.inflight, v.queued, v.index))
""",
}


def situation(count: int) -> tuple[Request, tuple[InstanceView, ...], ClusterView]:
    views = [InstanceView(index, f"i{index}", kv_blocks=1000) for index in range(count)]
    for index, view in enumerate(views):
        view.queued, view.kv_used, view.inflight = index * 7 % 11, index * 377 % 1000, index % 5
    cluster = ClusterView(views)
    return Request(0, 0, 1000, Prompt((1,), (1000,))), cluster.instances, cluster


def decisions(source: str, count: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Return functions that make one decision: in plain Python, and in the policy language."""
    request, instances, cluster = situation(count)
    program = Program(source, "routing")
    running = program.start()
    space: dict[str, Any] = {}
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
            assert both[0]() == both[1]()
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
