"""The conformance suites: built-ins pass them, and a plug-in that breaks one of the promises does not."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from headway import Priority, Reject, Route, testing
from headway.latency import MODELS, build, read_gpu, read_model
from headway.latency.base import Run
from headway.policies import registry
from headway.policies.queues import Fifo
from headway.testing import RoutingSuite
from headway.types import ADMIT, Scale
from headway.workload.traces import FORMATS
from headway.workload.traces.record import Format, Info, Options, Reader, Record

STAGES = (
    "routing",
    "admission",
    "priority",
    "flow",
    "estimator",
    "decider",
    "scorer",
    "filter",
    "scheduler",
    "scaling",
)
OWN_TIES = {"random", "kv-aware", "kv-aware-spill", "no-hit-lru"}  # they say themselves what becomes of equal instances
BUILT_IN = [(stage, name) for stage in STAGES for name in registry.names(stage)]
CHECKS: dict[str, Callable[..., None]] = {stage: getattr(testing, f"check_{stage}") for stage in STAGES}


@pytest.mark.parametrize(("stage", "name"), BUILT_IN, ids=[f"{stage}/{name}" for stage, name in BUILT_IN])
def test_every_built_in_policy_passes(stage: str, name: str) -> None:
    CHECKS[stage](name, **({"ties": False} if name in OWN_TIES else {}))


STEPS = [
    *({"decodes": n, "context": n * c, "time": f"{5 + n * (1 + c // 500)}ms"} for n in (1, 256) for c in (9, 4000)),
    *({"prefill": n, "past": p, "time": f"{6 + n // 50 + p // 900}ms"} for n in (1, 512, 8192) for p in (0, 9000)),
]


@pytest.mark.parametrize("name", [name for name in MODELS if name != "aiconfigurator"])
def test_every_built_in_latency_model_passes(name: str) -> None:
    rows = {"rows": STEPS} if name == "table" else {}
    model = build({"model": name, **rows}, read_model("llama-3.1-8b", "model"), read_gpu("h100", "gpu"), 1)
    testing.check_latency_model(model)


@pytest.mark.parametrize("name", [name for name, one in FORMATS.items() if one.write is not None])
def test_every_trace_format_that_is_written_passes(name: str, tmp_path: Path) -> None:
    records = [Record(512 * (1 + n % 3), 5, 3 * 10**9 * n, [(10 * n, 1 + n % 3)]) for n in range(8)]
    format = FORMATS[name]
    assert format.write is not None
    path = tmp_path / ("trace.csv" if name in ("azure", "blis", "burstgpt") else "trace.jsonl")
    format.write(path, Info("mooncake", 512), iter(records))
    testing.check_trace_reader(format, path)


START = 1_779_163_048_815  # ms
READ_ONLY: dict[str, list[dict[str, Any]]] = {
    "bailian": [
        {"chat_id": n, "parent_chat_id": -1, "timestamp": n, "input_length": 20, "output_length": 3}
        | {"type": "text", "turn": 1, "hash_ids": [n % 3, n + 9]}
        for n in range(4)
    ],
    "weka": [
        {"id": f"s{n}", "block_size": 64, "hash_id_scope": "local", "tool_tokens": 100, "system_tokens": 30}
        | {"requests": [{"t": n, "type": "n", "model": "m", "in": 130, "out": 5, "hash_ids": [1, 2]}]}
        for n in range(4)
    ],
    "dynamo": [
        {"schema": "dynamo.request.trace.v1", "event_type": "request_end", "event_time_unix_ms": START + n + 10}
        | {
            "request": {
                "request_id": f"r{n}",
                "request_received_ms": START + n,
                "total_time_ms": 10,
                "output_tokens": 3,
                "replay": {"trace_block_size": 16, "input_length": 20, "input_sequence_hashes": [7, 8 + n]},
            }
        }
        for n in range(4)
    ],
    "tracelab": [
        {"session_id": f"s{n}", "round_index": 0, "prefix_tokens": 0, "newly_append_tokens": 40}
        | {"input_tokens_total": 40, "output_tokens": 7}
        | {"timing_events": [{"event_type": "round_start", "timestamp": f"2026-06-01T05:40:0{n}Z"}]}
        for n in range(4)
    ],
    "otel": [
        {"name": "chat m", "spanId": f"{n}", "startTimeUnixNano": str((START + n) * 10**6)}
        | {"endTimeUnixNano": str((START + n + 10) * 10**6)}
        | {
            "attributes": {
                "gen_ai.operation.name": "chat",
                "gen_ai.usage.input_tokens": 100,
                "gen_ai.usage.output_tokens": 20,
            }
        }
        for n in range(4)
    ],
}


@pytest.mark.parametrize("name", READ_ONLY)
def test_every_trace_format_of_one_file_that_is_only_read_passes(name: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in READ_ONLY[name]))
    testing.check_trace_reader(FORMATS[name], path)


class TestInherited(RoutingSuite):
    policy = "least-loaded"


# --- what is wrong is found ------------------------------------------------------------------------------------------


class Plain:
    """Routes to the first; each class below spoils one thing."""

    def route(self, request: Any, cluster: Any) -> Any:
        return Route(cluster.instances[0].id)


class Dice(Plain):
    def route(self, request: Any, cluster: Any) -> Any:
        return Route(random.choice(cluster.instances).id)


class Scribbler(Plain):
    def route(self, request: Any, cluster: Any) -> Any:
        cluster.instances[0].queued += 1
        return Route(cluster.instances[0].id)


class ReadsTooMuch(Plain):
    def route(self, request: Any, cluster: Any) -> Any:
        return Route(min(cluster.instances, key=lambda view: (view.kv_utilization, view.index)).id)


# As @policy does, but without an entry in the catalogue of other tests.
registry.describe(ReadsTooMuch, "routing", "reads-too-much", exact=(), reported=("queued",))


class Last(Plain):
    def route(self, request: Any, cluster: Any) -> Any:
        return Route(cluster.instances[-1].id)


class WrongKind(Plain):
    def route(self, request: Any, cluster: Any) -> Any:
        return cluster.instances[0].id


class GivesUpWhenFull(Plain):
    def route(self, request: Any, cluster: Any) -> Any:
        return Route(next(view.id for view in cluster.instances if view.queued < 100))


class FromThree(Plain):
    def route(self, request: Any, cluster: Any) -> Any:
        return Route(cluster.instances[0].id if len(cluster.instances) > 2 else cluster.instances[1].id)


@pytest.mark.parametrize(
    ("policy", "test"),
    [
        (Dice, "test_the_same_inputs"),
        (
            Scribbler,
            r"Scribbler writes to InstanceView\.queued of instance-0 in test_suites\.py line \d+, at request 0\.",
        ),
        (ReadsTooMuch, "reads kv_used"),
        (Last, "the lowest_index|not to instance-0"),
        (WrongKind, "route must return a Route"),
        (GivesUpWhenFull, "all_instances_are_saturated"),
        (FromThree, "one_instance_is_left"),
    ],
)
def test_a_router_that_breaks_a_promise_is_told_which(policy: type, test: str) -> None:
    testing.check_routing(Plain)
    with pytest.raises(AssertionError, match=test):
        testing.check_routing(policy)


def test_a_part_or_stage_that_breaks_a_promise_is_told_which() -> None:
    class Loud:
        def score(self, request: Any, candidates: Any, cluster: Any) -> list[float]:
            return [2.0 for _ in candidates]

    class Shuffles:
        def keep(self, request: Any, candidates: Any, cluster: Any) -> list[Any]:
            candidates.reverse()
            return list(candidates)

    class Moody:
        turns = count()

        def admit(self, request: Any, cluster: Any) -> Any:
            return ADMIT if next(self.turns) % 3 else Reject("no")

    class Vague:
        def prioritise(self, request: Any, cluster: Any) -> Any:
            return Priority(float("nan"))

    class Forgets:
        def queue(self) -> Any:
            return Forgetful()

    class Forgetful(Fifo):
        def first(self) -> Any:
            return self[-1]

    class Shrinks:
        def scale(self, pool: Any) -> Scale:
            return Scale(1)

    class Rewrites:
        def scale(self, pool: Any) -> None:
            pool.pending = 0

    for stage, policy, text in (
        ("scaling", Rewrites, r"Rewrites writes to PoolView\.pending of pool .* for pool pool at 30 s"),
        ("scorer", Loud, "scores must be from 0 to 1"),
        ("filter", Shuffles, "`keep` changed the list of candidates"),
        ("admission", Moody, "different decisions the second time"),
        ("priority", Vague, "finite score"),
        ("scheduler", Forgets, "do not enter the batch in order of arrival|is not waiting"),
        ("scaling", Shrinks, "replicas are saturated"),
    ):
        with pytest.raises(AssertionError, match=text):
            CHECKS[stage](policy)


def test_a_latency_model_whose_plan_differs_from_its_steps_is_told_so() -> None:
    class Optimist:
        def run(self, decodes: int, context: int, chunks: Any) -> Run:
            return 1000 + context, 0, 100

    with pytest.raises(AssertionError, match="is planned to take"):
        testing.check_latency_model(Optimist())


def test_a_trace_reader_that_raises_its_own_errors_is_told_so(tmp_path: Path) -> None:
    def read(path: Path, options: Options) -> Reader:
        rows = (json.loads(line) for line in path.read_text().splitlines())
        return Reader(Info("mine"), (Record(row["prompt"], row["output"], 0) for row in rows))

    sample = tmp_path / "sample.jsonl"
    sample.write_text('{"prompt": 1, "output": 2}\n{"prompt": 3, "output": 4}\n')
    mine = Format("mine", "Mine", lambda path, first: bool(first) and b'"prompt"' in first[0], read)
    with pytest.raises(AssertionError, match=r"test_what_is_wrong_is_told.*JSONDecodeError"):
        testing.check_trace_reader(mine, sample)
