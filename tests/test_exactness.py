"""The central promise: leaping, walking and cutting runs at random places give the same bytes, on every scenario.

Everything goes through the public API: a scenario as a mapping in, the summary, the columns and the run folder out.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

import headway
from headway import ClusterView, Request, Route

Json = dict[str, Any]
MODES: tuple[bool | str, ...] = (True, False, "random-cuts")
VIEW = (
    "inflight",
    "inflight_tokens",
    "pending_prefill_tokens",
    "queued",
    "running",
    "routed_since_report",
    "kv_used",
    "busy",
    "watts",
)


class Witness:
    """A router that writes down all it is shown, in the middle of runs too, and the truth about the caches; the sum of
    what it saw is part of the summary. Where it sends a request depends on what it saw."""

    oracle = True

    def bind(self, context: Any) -> None:
        self.context = context
        self.seen = 0
        self.decisions = 0
        self.events = 0

    def look(self, *facts: object) -> None:
        self.seen = zlib.crc32(repr(facts).encode(), self.seen)

    def route(self, request: Request, cluster: ClusterView) -> Route:
        self.decisions += 1
        views = [tuple(getattr(view, name) for name in VIEW) for view in cluster.instances]
        self.look(cluster.now_ps, request.id, views, self.context.truth(request))
        return Route(cluster.instances[self.seen % len(views)].id)

    def observe(self, event: Any) -> None:
        self.events += 1
        views = [tuple(getattr(view, name) for name in VIEW[:6]) for view in self.context.instances]
        self.look(type(event).__name__, event.at_ps, event.request.id, event.instance.index, views)

    def metrics(self) -> dict[str, float]:
        return {"seen": float(self.seen), "decisions": float(self.decisions), "events": float(self.events)}


# --- scenarios ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """How long the longest sequence of a workload may be: what a tight KV cache is measured by."""

    workload: Json
    longest: int


PREFILL = [1000, 500, 2000, 10_000, 333]
DECODE = [1000, 1000, 500, 200, 137]
# A toy model on toy GPUs: reading the weights takes 0.2 ms; computing overtakes reading within a few hundred tokens of
# context on the first, within a few sequences on the second, never on the third.
TOY = {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 1, "params": 100_000, "name": "toy"}
TOY_GPUS = [
    {"memory": "1GB", "bandwidth": "1GB/s", "tflops": figure, "usd_per_hour": 1, "idle_watts": 10, "busy_watts": 99}
    for figure in (0.0012, 0.0025, 1)
]


def one_of(*values: Any) -> SearchStrategy[Any]:
    return st.sampled_from(values)


@st.composite
def latencies(draw: DrawFn) -> Json:
    """The keys of `cluster` that decide step times, mostly in whole milliseconds."""
    kind = draw(one_of("fixed", "fixed", "linear", "linear", "piecewise", "roofline"))
    if kind == "fixed":
        rates = {"prefill_tokens_per_s": draw(one_of(*PREFILL)), "decode_tokens_per_s": draw(one_of(*DECODE))}
        return {"latency": {"model": "fixed", **rates}}
    if kind == "linear":
        terms = {
            "step": draw(one_of("1ms", "2ms", "5ms", "1ps", "1.000001ms")),
            "prefill_token": draw(one_of("0s", "1ms", "20us")),
            "prefill_pair": draw(one_of("0s", "1us", "0.7ps", "1ms")),
            "sequence": draw(one_of("0s", "1ms", "13us")),
            "context_token": draw(one_of("0s", "41ns", "1us", "1ms")),
        }
        return {"latency": {"model": "linear", **terms}}
    if kind == "piecewise":
        curve = {
            "prefill_tokens_per_s": draw(one_of(*PREFILL)),
            "decode_tokens_per_s": draw(one_of(100, 80)),
            "saturation_batch": draw(st.integers(2, 6)),
            "saturated_tokens_per_s": draw(one_of(400, 90)),
        }
        return {"latency": {"model": "piecewise", **curve}}
    efficiency = {"mfu": draw(one_of(0.6, 1, 0.37)), "mbu": draw(one_of(0.8, 1)), "overhead": draw(one_of("1ms", "0s"))}
    return {"model": TOY, "gpu": draw(one_of(*TOY_GPUS)), "latency": {"model": "roofline", **efficiency}}


@st.composite
def weighted(draw: DrawFn) -> Json:
    """A scheduling profile; what it reads in the middle of runs comes first."""
    believing = {"lru_blocks": draw(one_of(3, 20, 31_250)), "block_tokens": draw(one_of(1, 4, 16))}
    names = [
        "kv-utilization",
        "oracle-prefix",
        "queue-depth",
        "prefix-affinity",
        "predicted-latency",
        "no-hit-lru",
        "load-balance",
        "active-requests",
        "session-affinity",
    ]
    scorers: list[Json] = []
    for name in draw(st.lists(one_of(*names[:2], *names), min_size=1, max_size=4, unique=True)):
        own = believing if name in ("prefix-affinity", "no-hit-lru", "predicted-latency") else {}
        scorers.append({"name": name, "weight": draw(one_of(1, 2, 3, 0.3)), **own})
    filters: list[Json] = [
        {"name": "kv-below", "threshold": draw(one_of(0.3, 0.6, 0.9))},
        {"name": "load-below", "max_load": draw(one_of(1, 3))},
        {"name": "load-spread", "absolute": draw(one_of(0, 2)), "relative": 1.5},
    ]
    chosen = draw(st.lists(one_of(*range(len(filters))), max_size=2, unique=True))
    picker: Any = draw(one_of("max-score", "max-score", "weighted-random", {"name": "weighted-random", "seed": 3}))
    return {"name": "weighted", "scorers": scorers, "filters": [filters[at] for at in chosen], "picker": picker}


@st.composite
def kv_aware(draw: DrawFn) -> Json:
    return {
        "name": "kv-aware",
        "kv": draw(one_of(0.55, 0.05)),
        "power": draw(one_of(0.1, 1)),
        "epsilon": draw(one_of(0.01, 0, 0.2)),
        "max_concurrent": draw(one_of(None, 3)),
        "prefix_tokens": draw(one_of(64, None)),
    }


@st.composite
def block_believers(draw: DrawFn) -> Json:
    name = draw(one_of("lmetric", "unified", "lmetric-plus-one", "least-prefill-work", "prefix-affinity"))
    return {"name": name, "block_tokens": draw(one_of(1, 4, 16)), "lru_blocks": draw(one_of(2, 30))}


PLAIN = ["round-robin", "random", "least-loaded", "always-busiest", "power-of-two", "load-only", "sticky"]
ROUTESIM = ["least-outstanding", "prefix-aware", "prefix-overlap", "session-affinity"]


def blind_policies() -> SearchStrategy[Any]:
    """Policies that look at nothing that varies inside a run."""
    return st.one_of(one_of(*PLAIN), one_of(*ROUTESIM), block_believers())


def looking_policies() -> SearchStrategy[Any]:
    """Policies that look into the middle of runs: KV in use, busy share, power, true cache contents."""
    escalation = st.fixed_dictionaries(
        {"name": st.just("cost-escalation"), "decay": one_of(0.1, 5, 100), "kv_weight": one_of(2, 20)}
    )
    return st.one_of(st.just("least-kv"), weighted(), kv_aware(), escalation, st.just("witness"))


def policies() -> SearchStrategy[Any]:
    return st.one_of(looking_policies(), looking_policies(), blind_policies())


@st.composite
def lengths(draw: DrawFn, longest: int) -> Any:
    """A length distribution that never exceeds `longest`."""
    kind = draw(one_of("constant", "normal", "exponential", "lognormal", "empirical"))
    mean = draw(st.integers(1, longest))
    if kind == "constant":
        return mean
    if kind == "empirical":
        return {"dist": kind, "values": draw(st.lists(st.integers(1, longest), min_size=1, max_size=4))}
    spread = {} if kind == "exponential" else {"std": draw(one_of(mean / 3, mean))}
    return {"dist": kind, "mean": mean, **spread, "min": 1, "max": longest}


@st.composite
def synthetic(draw: DrawFn) -> Shape:
    prompt, output = draw(one_of(8, 40, 40, 120)), draw(one_of(2, 30, 30, 80))
    process = draw(one_of("constant", "poisson", {"process": "gamma", "cv": 3}))
    workload: Json = {
        "requests": draw(st.one_of(st.integers(1, 12), st.integers(12, 40), st.integers(20, 70))),
        # Gaps of 1, 2, 5, 10 or 50 ms where they are constant: where steps last whole milliseconds they end there.
        "rate": draw(one_of("1000/s", "500/s", "200/s", "100/s", "20/s")),
        "arrival": process,
        "prompt_tokens": draw(lengths(prompt)),
        "output_tokens": draw(lengths(output)),
    }
    if draw(one_of(True, True, False)):
        popularity = draw(one_of("uniform", {"dist": "zipf", "s": 1.2}))
        # Sometimes longer than most prompts, which then are the beginning of their group's prefix.
        tokens = draw(st.integers(1, 2 * prompt))
        share = draw(one_of(1.0, 0.7))
        groups = draw(st.integers(1, 4))
        workload["prefix"] = {"groups": groups, "tokens": tokens, "share": share, "popularity": popularity}
    if draw(one_of(False, False, False, True)):
        workload["duration"] = draw(one_of("20ms", "100ms"))
    if draw(one_of(False, False, True)):
        workload["max_tokens"] = draw(one_of(5, 200))
    return Shape(workload, prompt + output)


@st.composite
def traced(draw: DrawFn, folder: Path) -> Shape:
    """A Mooncake file with few distinct stamps and prompts that grow out of one another."""
    size = draw(one_of(1, 2, 4, 8, 16))
    blocks = draw(one_of(3, 12, 12, 30))
    at = fresh = longest = 0
    rows: list[Json] = []
    for _ in range(draw(st.one_of(st.integers(2, 8), st.integers(8, 30)))):
        at += draw(one_of(0, 0, 0, 1, 1, 2, 5, 10, 40))
        ids: list[int] = []
        if rows and draw(one_of(True, True, False)):
            parent = rows[draw(st.integers(0, len(rows) - 1))]["hash_ids"]
            ids = parent[: draw(st.integers(1, len(parent)))]
        added = draw(st.integers(0 if ids else 1, blocks))
        ids = (ids + list(range(fresh, fresh + added)))[:blocks]
        fresh += added
        prompt = len(ids) * size - draw(st.integers(0, size - 1))
        output = draw(st.one_of(st.integers(1, 5), st.integers(1, 60)))
        longest = max(longest, prompt + output)
        rows.append({"timestamp": at, "input_length": prompt, "output_length": output, "hash_ids": ids})
    text = "".join(json.dumps(row) + "\n" for row in rows)
    file = folder / f"{zlib.crc32(text.encode()):08x}.jsonl"
    file.write_text(text)
    speed = draw(one_of(1.0, 1.0, 1.0, 0.3))
    return Shape({"trace": {"format": "mooncake", "path": str(file), "block_tokens": size, "speed": speed}}, longest)


@st.composite
def scenarios(draw: DrawFn, shapes: SearchStrategy[Shape], routing: SearchStrategy[Any]) -> Json:
    shape = draw(shapes)
    block = draw(one_of(1, 2, 4, 4, 16))
    needed = -(-shape.longest // block)
    # Just enough for the longest, a little more, plenty; sometimes the longest are rejected.
    blocks = draw(one_of(needed, needed, needed + 1, needed + needed // 2, 3 * needed, 1000, max(1, needed * 2 // 3)))
    cluster: Json = {
        "instances": draw(one_of(1, 2, 2, 3, 4)),
        "max_batch_tokens": draw(st.one_of(one_of(1, 2, 3), st.integers(4, 64), one_of(256, 2048))),
        "max_batch_size": draw(one_of(1, 2, 3, 5, 8, 256)),
        "max_queue": draw(one_of(4, 256)),
        "kv": {
            "block_tokens": block,
            "gpu_blocks": blocks,
            "prefix_caching": draw(one_of(True, True, True, False)),
        },
        **draw(latencies()),
    }
    scenario: Json = {
        "seed": draw(st.integers(0, 1000)),
        "workload": shape.workload,
        "cluster": cluster,
        "policies": {"routing": draw(routing)},
        "warmup": draw(one_of(0, 0, 3)),
        "slo": draw(one_of({}, {"ttft": "20ms", "tpot": "3ms"}, {"ttft": "100ms"})),
    }
    if draw(one_of(False, False, True)):
        scenario["horizon"] = draw(one_of("10ms", "50ms", "51234567ns", "200ms"))
    return scenario


# --- the promise -------------------------------------------------------------------------------------------------


def run(scenario: Json, leap: bool | str) -> headway.Result:
    routing = scenario["policies"]["routing"]
    if routing == "witness":
        return headway.simulate({**scenario, "policies": {}, "leap": leap}, routing=Witness())
    return headway.simulate({**scenario, "leap": leap})


def files(result: headway.Result, folder: Path) -> dict[str, str]:
    result.save(folder)
    found = {file.name: file.read_text() for file in sorted(folder.iterdir())}
    kept = [line for line in found["scenario.yaml"].splitlines() if not line.startswith("leap:")]
    return {**found, "scenario.yaml": "\n".join(kept)}


def check(scenario: Json, folder: Path) -> headway.Result:
    """Run a scenario in all modes and compare whatever comes out."""
    leapt = run(scenario, True)
    kept = files(leapt, folder / "true")
    for mode in MODES[1:]:
        other = run(scenario, mode)
        for name, column in leapt.requests.items():
            assert other.requests[name] == column, f"{name} differs with leap: {mode}"
        assert other.summary()["policy_metrics"] == leapt.summary()["policy_metrics"], f"leap: {mode}"
        assert other.to_json() == leapt.to_json(), f"leap: {mode}"
        assert files(other, folder / str(mode).lower()) == kept, f"leap: {mode}"
    return leapt


def traits(scenario: Json, result: headway.Result) -> list[str]:
    """What a scenario turned out to exercise."""
    summary, columns = result.summary(), result.requests
    budget = scenario["cluster"]["max_batch_tokens"]
    fresh = [prompt - hit for prompt, hit in zip(columns["prompt_tokens"], columns["cached_tokens"], strict=True)]
    started = [at >= 0 for at in columns["started_ps"]]
    ends = {at for at in columns["finished_ps"] + columns["first_token_ps"] if at > 0}
    routing = scenario["policies"]["routing"]
    facts = {
        "preemption": summary["preemptions"] > 0,
        "eviction": any(one["evicted_blocks"] for one in summary["instances"]),
        "rejection": summary["requests"]["rejected"] > 0,
        "in flight at the horizon": summary["requests"]["in_flight"] > 0,
        "prefill in several chunks": any(one and size > budget for one, size in zip(started, fresh, strict=True)),
        "prefix hit": any(columns["cached_tokens"]),
        "arrival on a step's end": any(at in ends for at in columns["arrival_ps"]),
        "queueing": any(at > came for at, came in zip(columns["started_ps"], columns["arrival_ps"], strict=True)),
        "warm-up": scenario["warmup"] > 0,
        f"latency {scenario['cluster']['latency']['model']}": True,
        f"routing {routing if isinstance(routing, str) else routing['name']}": True,
    }
    if isinstance(routing, dict) and routing["name"] == "weighted":
        facts |= {f"scorer {one['name']}": True for one in routing["scorers"]}
        facts |= {f"filter {one['name']}": True for one in routing["filters"]}
        facts["picker weighted-random"] = routing["picker"] != "max-score"
    return [name for name, holds in facts.items() if holds]


COMMON = ("preemption", "eviction", "prefill in several chunks", "prefix hit", "arrival on a step's end", "queueing")
USUAL = ("rejection", "in flight at the horizon", "warm-up")
LATENCIES = ("latency fixed", "latency linear", "latency piecewise", "latency roofline")
LOOKING = ("least-kv", "weighted", "kv-aware", "cost-escalation", "witness")
SCORERS = ("kv-utilization", "oracle-prefix", "prefix-affinity", "predicted-latency", "no-hit-lru", "queue-depth")


def promise(strategy: SearchStrategy[Json], examples: int, folder: Path) -> Counter[str]:
    """Check so many scenarios; how many of them showed what."""
    seen: Counter[str] = Counter()

    @settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def holds(scenario: Json) -> None:
        note(f"headway.simulate({scenario!r})")
        seen.update(["scenarios", *traits(scenario, check(scenario, folder))])

    holds()
    return seen


def demand(seen: Counter[str], names: tuple[str, ...], share: float) -> None:
    """Each of these must have been seen in that share of the scenarios, or the promise was not put to the test."""
    rare = {name: seen[name] for name in names if seen[name] < share * seen["scenarios"]}
    assert not rare, f"seen too rarely in {seen['scenarios']} scenarios: {rare}"


def families(folder: Path) -> dict[str, Callable[[], SearchStrategy[Json]]]:
    return {
        "synthetic": lambda: scenarios(synthetic(), policies()),
        "traced": lambda: scenarios(traced(folder), policies()),
    }


@pytest.mark.parametrize(
    ("family", "examples"),
    [
        ("synthetic", 300),
        ("traced", 300),
        pytest.param("synthetic", 2500, marks=pytest.mark.long),
        pytest.param("traced", 2500, marks=pytest.mark.long),
    ],
)
def test_leaping_walking_and_cutting_give_the_same_bytes(family: str, examples: int, tmp_path: Path) -> None:
    seen = promise(families(tmp_path)[family](), examples, tmp_path / "runs")
    demand(seen, COMMON, 0.15)
    demand(seen, USUAL, 0.03)
    demand(seen, LATENCIES, 0.05)
    demand(seen, tuple(f"routing {name}" for name in LOOKING), 0.05)
    demand(seen, tuple(f"scorer {name}" for name in SCORERS), 0.02)
    demand(seen, ("filter kv-below", "filter load-below", "filter load-spread", "picker weighted-random"), 0.02)


@pytest.mark.parametrize("name", [*PLAIN, *ROUTESIM, "least-kv", "cost-escalation", "kv-aware", "weighted", "witness"])
def test_a_busy_cluster_is_the_same_under_every_policy(name: str, tmp_path: Path) -> None:
    """One scenario in which everything happens at once, whatever examples the search came up with."""
    scenario = {
        "seed": 5,
        "workload": {
            "requests": 150,
            "rate": "200/s",
            "arrival": "constant",
            "prompt_tokens": {"dist": "normal", "mean": 60, "std": 40, "min": 1, "max": 150},
            "output_tokens": {"dist": "exponential", "mean": 30, "min": 1, "max": 100},
            "prefix": {"groups": 3, "tokens": 40, "share": 0.8},
        },
        "cluster": {
            "instances": 3,
            "max_batch_tokens": 48,
            "max_batch_size": 8,
            "kv": {"block_tokens": 4, "gpu_blocks": 64},
            "latency": {"model": "linear", "step": "1ms", "prefill_token": "0s", "sequence": "1ms"},
        },
        "policies": {"routing": name},
        "warmup": 10,
        "slo": {"ttft": "500ms", "tpot": "50ms"},
    }
    assert set(traits(scenario, check(scenario, tmp_path))) >= {*COMMON, "warm-up"}


def test_a_reader_at_the_end_of_a_run_sees_the_blocks_that_its_end_released(tmp_path: Path) -> None:
    """Instance 0 gives up all its blocks at 28 ms; a request that comes at that very instant must see it, also where
    the KV use was looked at shortly before."""
    stamps = [(0, 21), (0, 21), (10, 60), (24, 60), (28, 5)]
    rows = [
        {"timestamp": at, "input_length": 4, "output_length": output, "hash_ids": [number]}
        for number, (at, output) in enumerate(stamps)
    ]
    file = tmp_path / "five.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    scenario = {
        "workload": {"trace": {"format": "mooncake", "path": str(file), "block_tokens": 4}},
        "cluster": {
            "instances": 2,
            "kv": {"block_tokens": 16, "gpu_blocks": 20},
            "latency": {"model": "fixed", "prefill_tokens_per_s": 1000, "decode_tokens_per_s": 1000},
        },
        "policies": {"routing": "least-kv"},
    }
    for leap in MODES:
        result = headway.simulate({**scenario, "leap": leap})
        assert result.requests["finished_ps"][:2] == [28 * 10**9] * 2
        assert result.requests["instance"] == [0, 0, 1, 1, 0], f"leap: {leap}"
