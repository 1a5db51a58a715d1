"""The central promise: leaping, walking and cutting runs at random places give the same bytes, on every scenario.

Everything goes through the public API: a scenario as a mapping in, the summary, the columns and the run folder out.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

import control_draws
import headway
import life_draws
import pd_draws
import session_plans
from deployment_draws import deployed
from headway import ClusterView, Request, Route, registry
from headway.experiment.run import prepare, run_facts
from headway.latency import MODELS
from headway.registry import REPORTED, Entry
from headway.types import ADMIT, KEPT, Admit, InstanceChanged, Reject
from session_plans import Draws, pick
from tier_draws import OFFLOADS, shared_prefixes, sometimes_tiered, tiered

Json = dict[str, Any]
MODES: tuple[bool | str, ...] = (True, False, "random-cuts")
VIEW = (
    "inflight",
    "inflight_tokens",
    "pending_prefill_tokens",
    "decode_tokens",
    "routed",
    "completed",
    "output_tokens",
    "recent_ttft",
    "recent_tpot",
    "tokens_per_second",
    "estimated_wait",
    "observed_at",
    "queued",
    "running",
    "adapters",
    "routed_since_report",
    "kv_used",
    "free_blocks",
    "free_sequences",
    "hit_rate",
    "tier_used",
    "offload_rate",
    "reload_rate",
    "busy",
    "watts",
)


class Witness:
    """A router that writes down all it is shown, in the middle of runs too, and the truth about the caches; the sum of
    what it saw is part of the summary. Where it sends a request depends on what it saw."""

    def __init__(self) -> None:
        self.entry = Entry("routing", "witness", Witness, KEPT, REPORTED, oracle=True)

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
        tenant, totals = cluster.tenants[request.tenant], cluster.totals
        self.look(tenant.requests, tenant.active, tenant.rate, tenant.slo_class, tenant.burst)
        self.look(totals.inflight, totals.queued, totals.rate, totals.throughput)
        return Route(cluster.instances[self.seen % len(views)].id)

    def observe(self, event: Any) -> None:
        self.events += 1
        views = [tuple(getattr(view, name) for name in VIEW) for view in self.context.instances]
        about = event.was if isinstance(event, InstanceChanged) else event.request.id
        self.look(type(event).__name__, event.at_ps, about, event.instance.index, event.instance.state, views)

    def metrics(self) -> dict[str, float]:
        return {"seen": float(self.seen), "decisions": float(self.decisions), "events": float(self.events)}


class Shedder:
    """Turns away every so many requests, and all while an instance has so many: what clients then try again."""

    def __init__(self, every: int, most: int) -> None:
        self.every = every
        self.most = most
        self.entry = Entry("admission", "shedder", Shedder, (), (), False)

    def admit(self, request: Request, cluster: ClusterView) -> Admit | Reject:
        busy = any(view.inflight >= self.most for view in cluster.instances)
        return Reject("busy") if busy or request.id % self.every == 1 else ADMIT


# --- scenarios ---------------------------------------------------------------------------------------------------


class Searched:
    """Figures from Hypothesis, one by one: what fails is reduced to something small."""

    def __init__(self, draw: DrawFn) -> None:
        self.draw = draw

    def between(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))


class Scattered:
    """Figures from one seed: nothing is reduced, but no two scenarios are alike."""

    def __init__(self, seed: int) -> None:
        self.between = Random(seed).randint


def several(draws: Draws, most: int, values: Sequence[Any], least: int = 0) -> list[Any]:
    """Up to so many different ones, in any order."""
    left, found = list(dict.fromkeys(values)), []
    for _ in range(draws.between(least, most)):
        found.append(left.pop(draws.between(0, len(left) - 1)))
    return found


@dataclass(frozen=True)
class Load:
    """A workload, and how long its longest sequence may be: what a tight KV cache is measured by."""

    workload: Json
    longest: int


PREFILL = (1000, 500, 2000, 10_000, 333)
DECODE = (1000, 1000, 500, 200, 137)
# A toy model on toy GPUs: reading the weights takes 0.2 ms; computing overtakes reading within a few hundred tokens of
# context on the first, within a few sequences on the second, never on the third.
TOY = {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 1, "params": 100_000, "name": "toy"}
TOY_GPUS = [
    {"memory": "1GB", "bandwidth": "1GB/s", "tflops": figure, "usd_per_hour": 1, "idle_watts": 10, "busy_watts": 99}
    for figure in (0.0012, 0.0025, 1)
]
PLAIN = ("round-robin", "random", "least-loaded", "always-busiest", "power-of-two", "load-only", "sticky")
BELIEVING = ("lmetric", "unified", "lmetric-plus-one", "least-prefill-work", "prefix-affinity")
ROUTESIM = ("least-outstanding", "prefix-aware", "prefix-overlap", "session-affinity")
LOOKING = ("least-kv", "weighted", "weighted", "kv-aware", "cost-escalation", "witness")  # into the middle of runs
SCORERS = (
    "kv-utilization",
    "oracle-prefix",
    "queue-depth",
    "prefix-affinity",
    "predicted-latency",
    "no-hit-lru",
    "load-balance",
    "active-requests",
    "session-affinity",
    "adapter-affinity",
)


SCHEDULERS = ("priority", "sjf", "shortest-prefill", "slo-slack", "fair")


def latency(draws: Draws) -> Json:
    """The keys of `cluster` that decide step times, mostly in whole milliseconds."""
    kind = pick(draws, "fixed", "fixed", "linear", "linear", "piecewise", "roofline", "hardware", "table")
    if kind == "fixed":
        rates = {"prefill_tokens_per_s": pick(draws, *PREFILL), "decode_tokens_per_s": pick(draws, *DECODE)}
        return {"latency": {"model": "fixed", **rates}}
    if kind == "linear":
        terms = {
            "step": pick(draws, "1ms", "2ms", "5ms", "1ps", "1.000001ms"),
            "prefill_token": pick(draws, "0s", "1ms", "20us"),
            "prefill_pair": pick(draws, "0s", "1us", "0.7ps", "1ms"),
            "sequence": pick(draws, "0s", "1ms", "13us"),
            "context_token": pick(draws, "0s", "41ns", "1us", "1ms"),
        }
        return {"latency": {"model": "linear", **terms}}
    if kind == "piecewise":
        curve = {
            "prefill_tokens_per_s": pick(draws, *PREFILL),
            "decode_tokens_per_s": pick(draws, 100, 80),
            "saturation_batch": draws.between(2, 6),
            "saturated_tokens_per_s": pick(draws, 400, 90),
        }
        return {"latency": {"model": "piecewise", **curve}}
    if kind == "table":
        return {"latency": {"model": "table", "rows": measured(draws), "host": pick(draws, "0ms", "1ms")}}
    if kind == "hardware":
        keys = {"model": "hardware", "host": pick(draws, "auto", "0s", "1ms")}
        return {"model": TOY, "gpu": pick(draws, "h200", *TOY_GPUS), "latency": keys}
    shares = {"mfu": pick(draws, 0.6, 1, 0.37), "mbu": pick(draws, 0.8, 1), "overhead": pick(draws, "1ms", "0s")}
    return {"model": TOY, "gpu": pick(draws, *TOY_GPUS), "latency": {"model": "roofline", **shares}}


def measured(draws: Draws) -> list[Json]:
    """Steps of a table, close to each other, so that many runs end where a piece does."""
    milliseconds = [draws.between(1, 6) for _ in range(7)]
    places = ((1, 5), (1, 20), (4, 0), (4, 33), (4, 90), (7, 40), (7, 200))
    decode = [
        {"decodes": decodes, "context": context, "time": f"{time}ms"}
        for (decodes, context), time in zip(places, milliseconds, strict=True)
    ]
    prefill = [
        {"prefill": tokens, "past": past, "time": f"{time}ms"}
        for (tokens, past), time in zip(
            ((4, 0), (4, 9), (16, 0), (16, 50)), (1, 2, draws.between(2, 9), 9), strict=True
        )
    ]
    return decode + prefill


def even_latency(draws: Draws) -> Json:
    """Steps of whole milliseconds, whatever is in them."""
    if pick(draws, True, False):
        rates = {"prefill_tokens_per_s": pick(draws, 1000, 500), "decode_tokens_per_s": pick(draws, 1000, 500)}
        return {"latency": {"model": "fixed", **rates}}
    none = dict.fromkeys(("prefill_token", "prefill_pair", "sequence", "context_token"), "0s")
    return {"latency": {"model": "linear", "step": pick(draws, "1ms", "2ms", "5ms"), **none}}


def routing(draws: Draws, *kinds: str) -> Any:
    kind = pick(draws, *kinds)
    if kind == "plain":
        return pick(draws, *PLAIN)
    if kind == "routesim":
        return pick(draws, *ROUTESIM)
    if kind == "believing":
        figures = {"block_tokens": pick(draws, 1, 4, 16), "lru_blocks": pick(draws, 2, 30)}
        return {"name": pick(draws, *BELIEVING), **figures}
    name = pick(draws, *LOOKING)
    if name == "weighted":
        return weighted(draws)
    if name == "cost-escalation":
        return {"name": name, "decay": pick(draws, 0.1, 5, 100), "kv_weight": pick(draws, 2, 20)}
    if name == "kv-aware":
        return {
            "name": name,
            "kv": pick(draws, 0.55, 0.05),
            "power": pick(draws, 0.1, 1),
            "epsilon": pick(draws, 0.01, 0, 0.2),
            "max_concurrent": pick(draws, None, 3),
            "prefix_tokens": pick(draws, 64, None),
        }
    return name


def weighted(draws: Draws) -> Json:
    believing = {"lru_blocks": pick(draws, 3, 20, 31_250), "block_tokens": pick(draws, 1, 4, 16)}
    scorers: list[Json] = []
    for name in several(draws, 4, SCORERS, least=1):
        own = believing if name in ("prefix-affinity", "no-hit-lru", "predicted-latency") else {}
        scorers.append({"name": name, "weight": pick(draws, 1, 2, 3, 0.3), **own})
    filters: list[Json] = [
        {"name": "kv-below", "threshold": pick(draws, 0.3, 0.6, 0.9)},
        {"name": "load-below", "max_load": pick(draws, 1, 3)},
        {"name": "load-spread", "absolute": pick(draws, 0, 2), "relative": 1.5},
    ]
    picker: Any = pick(draws, "max-score", "max-score", "weighted-random", {"name": "weighted-random", "seed": 3})
    chosen = several(draws, 2, range(len(filters)))
    return {"name": "weighted", "scorers": scorers, "filters": [filters[at] for at in chosen], "picker": picker}


def lengths(draws: Draws, longest: int) -> Any:
    """A length distribution that never exceeds `longest`."""
    kind = pick(draws, "constant", "normal", "exponential", "lognormal", "empirical")
    mean = draws.between(1, longest)
    if kind == "constant":
        return mean
    if kind == "empirical":
        return {"dist": kind, "values": [draws.between(1, longest) for _ in range(draws.between(1, 4))]}
    spread = {} if kind == "exponential" else {"std": pick(draws, mean / 3, mean)}
    return {"dist": kind, "mean": mean, **spread, "min": 1, "max": longest}


def synthetic(draws: Draws) -> Load:
    prompt, output = pick(draws, 8, 40, 40, 120), pick(draws, 2, 30, 30, 80)
    workload: Json = {
        "requests": pick(draws, draws.between(1, 12), draws.between(12, 40), draws.between(20, 70)),
        # Gaps of 1, 2, 5, 10 or 50 ms where they are constant: where steps last whole milliseconds they end there.
        "rate": pick(draws, "1000/s", "500/s", "200/s", "100/s", "20/s"),
        "arrival": pick(draws, "constant", "poisson", {"process": "gamma", "cv": 3}),
        "prompt_tokens": lengths(draws, prompt),
        "output_tokens": lengths(draws, output),
    }
    if pick(draws, True, True, False):
        workload["prefix"] = {
            "groups": draws.between(1, 4),
            "tokens": draws.between(1, 2 * prompt),  # also longer than the prompts, which then are its beginning
            "share": pick(draws, 1.0, 0.7),
            "popularity": pick(draws, "uniform", {"dist": "zipf", "s": 1.2}),
        }
    if pick(draws, False, False, False, True):
        workload["duration"] = pick(draws, "20ms", "100ms")
    if pick(draws, False, False, True):
        workload["max_tokens"] = pick(draws, 5, 200)
    return Load(workload, prompt + output)


def traced(draws: Draws, folder: Path) -> Load:
    """A Mooncake file with few distinct stamps and prompts that grow out of one another."""
    size, most = pick(draws, 1, 2, 4, 8, 16), pick(draws, 3, 12, 12, 30)
    at = fresh = longest = 0
    rows: list[Json] = []
    for _ in range(pick(draws, draws.between(2, 8), draws.between(8, 30))):
        at += pick(draws, 0, 0, 0, 1, 1, 2, 5, 10, 40)
        ids: list[int] = []
        if rows and pick(draws, True, True, False):
            parent = rows[draws.between(0, len(rows) - 1)]["hash_ids"]
            ids = parent[: draws.between(1, len(parent))]
        added = draws.between(0 if ids else 1, most)
        ids = (ids + list(range(fresh, fresh + added)))[:most]
        fresh += added
        prompt = len(ids) * size - draws.between(0, size - 1)
        output = pick(draws, draws.between(1, 5), draws.between(1, 60))
        longest = max(longest, prompt + output)
        rows.append({"timestamp": at, "input_length": prompt, "output_length": output, "hash_ids": ids})
    file = write_trace(folder, rows)
    speed = pick(draws, 1.0, 1.0, 1.0, 0.3)
    return Load({"trace": {"format": "mooncake", "path": str(file), "block_tokens": size, "speed": speed}}, longest)


def write_trace(folder: Path, rows: list[Json]) -> Path:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    file = folder / f"{zlib.crc32(text.encode()):08x}.jsonl"
    file.write_text(text)
    return file


def talking(draws: Draws, even: bool) -> tuple[Load, Json]:
    """Sessions, and the keys of a scenario that they come by: they are made in the test, not read from YAML."""
    longest = pick(draws, 40, 120, 120)
    unit_ps = 10**9 if even else pick(draws, 10**9, 137_000_000)
    found: Json = {"sessions": session_plans.plan(draws, unit_ps, longest)}
    if pick(draws, True, False, False):
        found["shedder"] = [pick(draws, 3, 7, 10**9), pick(draws, 2, 4, 10**9)]
    return Load({"requests": 1, "rate": "1/s"}, longest), found


def controlled(draws: Draws) -> Json:
    """Every stage of the control plane, and clients of several classes who give up, try again, or wait for answers."""
    prompt, output = pick(draws, 8, 40, 100), pick(draws, 2, 30, 60)
    workload: Json = {
        "requests": pick(draws, draws.between(2, 12), draws.between(20, 60), draws.between(20, 60)),
        "tenants": control_draws.tenants(draws, prompt, output),
    }
    if pick(draws, False, False, True):
        workload["duration"] = pick(draws, "20ms", "100ms")
    found = scenario(draws, Load(workload, prompt + output), pick(draws, True, False))
    found["policies"] |= control_draws.policies(draws)
    return found


def scenario(draws: Draws, load: Load, coinciding: bool) -> Json:
    """A scenario of any kind, or one in which arrivals fall on step ends and policies look into running steps."""
    kinds = ("looking",) if coinciding else ("looking", "looking", "plain", "believing", "routesim")
    block = pick(draws, 1, 2, 4, 4, 16)
    needed = -(-load.longest // block)
    # Just enough for the longest, a little more, plenty; sometimes the longest are rejected.
    blocks = pick(draws, needed, needed, needed + 1, needed + needed // 2, 3 * needed, 1000, max(1, needed * 2 // 3))
    cluster: Json = {
        "instances": pick(draws, 1, 2, 2, 3, 4),
        "max_batch_tokens": pick(draws, draws.between(1, 3), draws.between(4, 64), draws.between(4, 64), 256, 2048),
        "max_batch_size": pick(draws, 1, 2, 3, 5, 8, 256),
        "max_queue": pick(draws, 4, 256),
        "kv": {
            "block_tokens": block,
            "gpu_blocks": blocks,
            "prefix_caching": pick(draws, True, True, True, False),
            "entry": pick(draws, "chunk", "chunk", "prompt"),
        },
        **(even_latency if coinciding else latency)(draws),
    }
    found: Json = {
        "seed": draws.between(0, 1000),
        "workload": load.workload,
        "cluster": cluster,
        "policies": {"routing": routing(draws, *kinds)},
        "warmup": pick(draws, 0, 0, 3),
        "slo": pick(draws, {}, {"ttft": "20ms", "tpot": "3ms"}, {"ttft": "100ms"}),
    }
    if pick(draws, False, False, True):
        found["horizon"] = pick(draws, "10ms", "50ms", "51234567ns", "200ms")
    if pick(draws, False, False, True):
        polled = {
            "poll_interval": pick(draws, "1ms", "5ms", "50ms", "137us"),
            "poll_delay": pick(draws, "0s", "1ms", "23ms"),
        }
        found["signals"] = polled
    if pick(draws, False, False, True):
        found.setdefault("signals", {})["kv_event_delay"] = pick(draws, "0s", "1ms", "23ms")
    if pick(draws, False, False, True):
        interval = pick(draws, None, "1ms", "7ms", "50ms", "137us")
        spread = pick(draws, "requests", "sessions")
        found["routers"] = {"count": pick(draws, 2, 3, 5), "sync_interval": interval, "spread": spread}
    if pick(draws, False, True):
        found["policies"]["scheduler"] = control_draws.policy(draws, "scheduler", *SCHEDULERS)
    return found


def with_adapters(draws: Draws, found: Json) -> Json:
    """Some with more adapters than an instance has slots, so that the first in its queue waits for one."""
    if pick(draws, False, True):
        found["workload"]["adapters"] = ["base", *"abcde"[: draws.between(1, 5)]]
        load_time = pick(draws, "0s", "1ms", "137us", "20ms")
        found["cluster"]["adapters"] = {"slots": pick(draws, 1, 1, 2, 3), "load_time": load_time}
    return found


def scenarios(family: str, folder: Path) -> SearchStrategy[Json]:
    kind, _, source = family.partition(", ")

    def made(draws: Draws) -> Json:
        if kind == "sessions":
            even = pick(draws, True, True, False)
            load, more = talking(draws, even)
            return sometimes_tiered(draws, {**scenario(draws, load, even), **more})
        if kind == "controlled":
            return sometimes_tiered(draws, deployed(draws, with_adapters(draws, controlled(draws))))
        if kind == "tiered":
            found = scenario(draws, Load(shared_prefixes(draws), 100), pick(draws, True, False))
            found["cluster"]["kv"]["prefix_caching"] = True
            return tiered(draws, with_adapters(draws, found))
        if kind == "living":
            base = pick(draws, "synthetic", "controlled", "split")
            found = controlled(draws) if base == "controlled" else scenario(draws, synthetic(draws), False)
            found = with_adapters(draws, found)
            found = pd_draws.split(draws, found) if base == "split" else deployed(draws, found)
            return life_draws.living(draws, sometimes_tiered(draws, found))
        if kind == "split":
            found = with_adapters(draws, scenario(draws, synthetic(draws), False))
            return sometimes_tiered(draws, pd_draws.split(draws, found))
        if kind == "synthetic":
            found = with_adapters(draws, scenario(draws, synthetic(draws), False))
        else:
            found = scenario(draws, traced(draws, folder), kind == "coinciding")
        return sometimes_tiered(draws, deployed(draws, found))

    @st.composite
    def searched(draw: DrawFn) -> Json:
        return made(Searched(draw))

    if source == "searched":
        return searched()
    return st.integers(0, 2**64 - 1).map(lambda seed: made(Scattered(seed)))


# --- the promise -------------------------------------------------------------------------------------------------


def run(scenario: Json, leap: bool | str) -> headway.Result:
    given = {key: value for key, value in scenario.items() if key not in ("sessions", "shedder")}
    given["leap"] = leap
    own: Json = {}
    if scenario["policies"]["routing"] == "witness":
        given["policies"] = {stage: spec for stage, spec in scenario["policies"].items() if stage != "routing"}
        own["routing"] = Witness()
    if scenario["policies"].get("scaling") == "erratic":
        given["policies"] = {stage: spec for stage, spec in given["policies"].items() if stage != "scaling"}
        own["scaling"] = life_draws.Erratic()
    if "sessions" not in scenario:
        return headway.simulate(given, trace="full", **own)
    if "shedder" in scenario:
        own["admission"] = Shedder(*scenario["shedder"])
    prepared = prepare(headway.Scenario.load(given), **own)
    simulation = prepared.simulation()
    recorder = simulation.run(session_plans.traffic(scenario["sessions"]))
    return headway.Result.of(prepared.resolved, recorder, simulation.stats, run_facts(prepared.scenario, simulation))


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
    assert leapt.summary()["latency"]["itl"]["mean"] == mean_gap(leapt.requests, scenario["warmup"])
    for source in scenario.get("sessions", ()):
        chains = all(session["after"] is None for session in source["sessions"])
        if source["users"] is not None and chains:
            assert most_in_flight(leapt.requests, source["tenant"]) <= source["users"]
    return leapt


def most_in_flight(columns: Any, tenant: str) -> int:
    """The most requests of a tenant at once. Who goes on at the instant at which the one before has ended is one."""
    changes = []
    names = ("tenant", "arrival_ps", "finished_ps")
    for whose, came, ended in zip(*(columns[name] for name in names), strict=True):
        if whose == tenant and came != ended:
            changes.append((came, 1))
            if ended >= 0:
                changes.append((ended, -1))
    return max(accumulate((change for _, change in sorted(changes)), initial=0))


def mean_gap(columns: Any, warmup: int) -> float | None:
    """The mean inter-token gap in ms, told from first and last tokens alone: the gaps of a request that was completed
    add up to the time between them, and nobody else's count."""
    names = ("outcome", "output_tokens", "first_token_ps", "finished_ps")
    gaps = total_ps = 0
    for outcome, tokens, first, last in zip(*(columns[name][warmup:] for name in names), strict=True):
        if outcome == "completed":
            gaps += tokens - 1
            total_ps += last - first
    return total_ps / (gaps * 10**9) if gaps else None


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
        "polled signals": "poll_interval" in scenario.get("signals", {}),
        "reported evictions": "kv_event_delay" in scenario.get("signals", {}),
        "several routers": "routers" in scenario,
        "routers that exchange": scenario.get("routers", {}).get("sync_interval") is not None,
        f"scheduler {scenario['policies'].get('scheduler', {'name': 'fcfs'})['name']}": True,
    }
    if "adapters" in summary:
        pairs = zip(columns["instance"], columns["adapter"], columns["started_ps"], strict=True)
        cold = {(index, name) for index, name, at in pairs if name and at >= 0}
        facts |= {"adapters": True, "adapter loaded again": summary["adapters"]["loads"] > len(cold)}
    if "tiers" in summary:
        facts |= tier_traits(scenario, result)
    if "transfer" in summary:
        facts |= pd_draws.split_traits(scenario, columns)
    if "scaling" in scenario:
        facts |= life_draws.life_traits(scenario, result)
    if "sessions" in scenario:
        facts |= session_traits(scenario, result)
    if "flow" in scenario["policies"]:
        facts |= control_traits(scenario, result)
    if isinstance(routing, dict) and routing["name"] == "weighted":
        facts |= {f"scorer {one['name']}": True for one in routing["scorers"]}
        facts |= {f"filter {one['name']}": True for one in routing["filters"]}
        facts["picker weighted-random"] = routing["picker"] != "max-score"
    return [name for name, holds in facts.items() if holds]


def session_traits(scenario: Json, result: headway.Result) -> dict[str, bool]:
    columns = result.requests
    names = list(zip(columns["session"], columns["turn"], strict=True))
    ends = dict(zip(names, columns["finished_ps"], strict=True))
    came = zip(names, columns["arrival_ps"], strict=True)
    return {
        "follow-up at the very instant": any(ends.get((session, turn - 1)) == at for (session, turn), at in came),
        "sent again": len(set(names)) < len(names),
        "not issued": result.summary()["requests"]["not_issued"] > 0,
        "a fixed number of users": any(source["users"] is not None for source in scenario["sessions"]),
        "branches": any(one["after"] is not None for source in scenario["sessions"] for one in source["sessions"]),
        "cut off with turns to come": result.summary()["requests"]["in_flight"] > 0,
    }


def tier_traits(scenario: Json, result: headway.Result) -> dict[str, bool]:
    summary, columns = result.summary(), result.requests
    tiers = [tier for name, tier in summary["tiers"].items() if name != "gpu"]
    kv = scenario["cluster"]["kv"]
    ends = zip(columns["outcome"], columns["started_ps"], columns["first_token_ps"], strict=True)
    return {
        "offload": any(one["stored_blocks"] for one in tiers),
        "load": any(one["loaded_blocks"] for one in tiers),
        "thrash": any(one["thrashed_blocks"] for one in tiers),
        "two tiers": len(tiers) > 1,
        f"offload {kv['offload']}": any(one["stored_blocks"] for one in tiers),
        "swap": kv["preemption"] == "swap" and summary["preemptions"] > 0,
        f"evict {kv['eviction']}": any(one["evicted_blocks"] for one in summary["instances"]),
        "gave up beside loads": any(one["loaded_blocks"] for one in tiers)
        and any(out == "timed_out" and began >= 0 > first for out, began, first in ends),
    }


def control_traits(scenario: Json, result: headway.Result) -> dict[str, bool]:
    columns, flow = result.requests, scenario["policies"]["flow"]
    arrived, admitted, routed = (columns[name] for name in ("arrival_ps", "admitted_ps", "routed_ps"))
    ends = list(zip(columns["outcome"], admitted, routed, columns["started_ps"], strict=True))
    figures = result.summary()["policy_metrics"]
    senders = scenario["workload"]["tenants"].values()
    facts = {f"{stage} {scenario['policies'][stage]['name']}": True for stage in control_draws.STAGES}
    if flow["name"] == "bands":
        facts |= {f"flow {key} {flow[key]}": True for key in ("by", "order", "fairness", "share", "saturation")}
    return facts | {
        "put off": any(at > came for at, came in zip(admitted, arrived, strict=True)),
        "waited at the router": any(at > came >= 0 for at, came in zip(routed, admitted, strict=True)),
        "time to live over": figures.get("flow_timed_out", 0) > 0,
        "turned away from the queue": figures.get("flow_turned_away", 0) > 0,
        "gave up before admission": any(out == "timed_out" and at < 0 for out, at, _, _ in ends),
        "gave up at the router": any(out == "timed_out" and at >= 0 > on for out, at, on, _ in ends),
        "gave up at an instance": any(out == "timed_out" and on >= 0 > began for out, _, on, began in ends),
        "gave up while it ran": any(out == "timed_out" and began >= 0 for out, _, _, began in ends),
        "sent again": result.summary()["requests"]["retried"] > 0,
        "a closed loop": any("closed_loop" in one for one in senders),
    }


CONTROLLED = (
    *(f"{stage} {name}" for stage, drawn in control_draws.STAGES.items() for name in drawn),
    *(f"flow by {name}" for name in ("class", "score")),
    *(f"flow order {name}" for name in ("fifo", "priority", "deadline")),
    *(f"flow fairness {name}" for name in ("strict", "round-robin", "weighted")),
    *(f"flow share {name}" for name in ("tokens", "requests")),
    *(f"flow saturation {name}" for name in ("never", "utilization", "concurrency")),
    *("put off", "waited at the router", "time to live over", "turned away from the queue", "sent again"),
    *("gave up before admission", "gave up at the router", "gave up at an instance", "gave up while it ran"),
    "a closed loop",
)
COMMON = ("preemption", "eviction", "prefill in several chunks", "prefix hit", "arrival on a step's end", "queueing")
USUAL = ("rejection", "in flight at the horizon", "warm-up")
TALKING = ("follow-up at the very instant", "sent again", "not issued", "a fixed number of users", "branches")
STORED = ("offload", "load", "thrash", "two tiers", *(f"offload {name}" for name in OFFLOADS))
# What is not always installed has a test of its own.
LATENCIES = tuple(f"latency {name}" for name in MODELS if name != "aiconfigurator")


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


@pytest.mark.parametrize(
    ("family", "examples"),
    [
        ("synthetic, searched", 250),
        ("synthetic, scattered", 500),
        ("traced, searched", 250),
        ("traced, scattered", 500),
        ("coinciding, scattered", 500),
        ("sessions, searched", 150),
        ("sessions, scattered", 500),
        ("tiered, searched", 60),
        ("tiered, scattered", 300),
        ("split, searched", 60),
        ("split, scattered", 300),
        ("living, searched", 60),
        ("living, scattered", 400),
        pytest.param("living, scattered", 5000, marks=pytest.mark.long),
        ("controlled, searched", 60),
        ("controlled, scattered", 450),
        pytest.param("controlled, scattered", 5000, marks=pytest.mark.long),
        pytest.param("tiered, scattered", 5000, marks=pytest.mark.long),
        pytest.param("split, scattered", 5000, marks=pytest.mark.long),
        pytest.param("synthetic, scattered", 5000, marks=pytest.mark.long),
        pytest.param("traced, scattered", 5000, marks=pytest.mark.long),
        pytest.param("coinciding, scattered", 5000, marks=pytest.mark.long),
        pytest.param("sessions, scattered", 5000, marks=pytest.mark.long),
    ],
)
def test_leaping_walking_and_cutting_give_the_same_bytes(family: str, examples: int, tmp_path: Path) -> None:
    seen = promise(scenarios(family, tmp_path), examples, tmp_path / "runs")
    if family == "tiered, scattered":
        demand(seen, STORED, 0.1)
        demand(seen, ("evict lfu", "evict priority", "gave up beside loads"), 0.03)
        demand(seen, ("swap",), 0.01)
    if family == "split, scattered":
        demand(seen, pd_draws.SHOWN, 0.1)
        demand(seen, ("handed over and not there", *(f"decider {name}" for name in pd_draws.DECIDERS)), 0.05)
        demand(seen, COMMON, 0.03)
        demand(seen, USUAL, 0.01)
    elif family == "living, scattered":
        demand(seen, life_draws.SHOWN, 0.0075)
    elif family == "controlled, scattered":
        demand(seen, CONTROLLED, 0.015)
        demand(seen, (*COMMON, "polled signals", "reported evictions", "adapter loaded again"), 0.02)
    elif "scattered" in family:
        demand(seen, COMMON, 0.05)
        demand(seen, USUAL, 0.02)
        demand(seen, ("polled signals", "reported evictions", "several routers", "routers that exchange"), 0.2)
        demand(seen, ("scheduler fcfs",), 0.3)
        demand(seen, tuple(f"scheduler {name}" for name in SCHEDULERS), 0.05)
        demand(seen, tuple(f"routing {name}" for name in LOOKING), 0.03)
        demand(seen, tuple(f"scorer {name}" for name in SCORERS), 0.015)
        demand(seen, ("filter kv-below", "filter load-below", "filter load-spread", "picker weighted-random"), 0.015)
    if family == "coinciding, scattered":
        demand(seen, ("arrival on a step's end",), 0.25)
        demand(seen, ("preemption",), 0.15)
    elif family == "sessions, scattered":
        demand(seen, TALKING, 0.1)
        demand(seen, ("arrival on a step's end",), 0.25)
        demand(seen, ("cut off with turns to come",), 0.05)
    elif family in ("synthetic, scattered", "traced, scattered"):
        demand(seen, ("adapter loaded again",) if family.startswith("synthetic") else (), 0.05)
        demand(seen, LATENCIES, 0.08)
        demand(seen, tuple(f"routing {name}" for name in (*PLAIN, *BELIEVING, *ROUTESIM)), 0.01)


@pytest.mark.parametrize("stage", control_draws.STAGES)
def test_every_policy_of_the_catalogue_is_drawn(stage: str) -> None:
    assert sorted(control_draws.STAGES[stage]) == sorted(registry.names(stage))


@pytest.mark.parametrize("name", dict.fromkeys([*PLAIN, *BELIEVING, *ROUTESIM, *LOOKING]))
def test_a_busy_cluster_is_the_same_under_every_policy(name: str, tmp_path: Path) -> None:
    scenario = busy({"routing": name})
    assert set(traits(scenario, check(scenario, tmp_path))) >= {*COMMON, "warm-up"}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_busy_cluster_is_the_same_under_every_scheduler(name: str, tmp_path: Path) -> None:
    policies = {"routing": "witness", "priority": "by-class", "scheduler": {"name": name, "chunk_tokens": 20}}
    scenario = busy(policies)
    classes = {"realtime": {"priority": "realtime"}, "batch": {"priority": "batch", "timeout": "300ms"}}
    scenario["workload"]["tenants"] = classes
    result = check(scenario, tmp_path)
    assert set(traits(scenario, result)) >= {*COMMON, "warm-up"}
    assert set(result.requests["outcome"]) == {"completed", "timed_out"}


def busy(policies: Json) -> Json:
    """One scenario in which everything happens at once, whatever examples the search came up with."""
    none = dict.fromkeys(("prefill_token", "prefill_pair", "context_token"), "0s")
    return {
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
            "latency": {"model": "linear", "step": "1ms", "sequence": "1ms", **none},
        },
        "policies": policies,
        "warmup": 10,
        "slo": {"ttft": "500ms", "tpot": "50ms"},
    }


def rows(*requests: tuple[int, int, int]) -> list[Json]:
    """Requests as (stamp in ms, prompt tokens, output tokens), no two alike."""
    return [
        {"timestamp": at, "input_length": prompt, "output_length": output, "hash_ids": [number]}
        for number, (at, prompt, output) in enumerate(requests)
    ]


def small(folder: Path, requests: list[Json], **cluster: Any) -> Json:
    """A trace on instances that take 1 ms a token."""
    even = {"model": "fixed", "prefill_tokens_per_s": 1000, "decode_tokens_per_s": 1000}
    return {
        "workload": {"trace": {"format": "mooncake", "path": str(write_trace(folder, requests))}},
        "cluster": {"instances": 1, "latency": even, **cluster},
        "policies": {"routing": "least-kv"},
        "warmup": 0,
    }


def test_a_reader_at_the_end_of_a_run_sees_the_blocks_that_its_end_released(tmp_path: Path) -> None:
    """Instance 0 gives up all its blocks at 28 ms; a request that comes at that very instant must see it, also where
    the KV use was looked at shortly before."""
    requests = rows((0, 4, 21), (0, 4, 21), (10, 4, 60), (24, 4, 60), (28, 4, 5))
    scenario = small(tmp_path, requests, instances=2, kv={"block_tokens": 16, "gpu_blocks": 20})
    for leap in MODES:
        result = headway.simulate({**scenario, "leap": leap})
        assert result.requests["finished_ps"][:2] == [28 * 10**9] * 2
        assert result.requests["instance"] == [0, 0, 1, 1, 0], f"leap: {leap}"


def test_a_cut_run_leaves_no_trace_at_the_end_of_time(tmp_path: Path) -> None:
    """Alone, the first request would decode until 1.01 s; the second speeds both up, and the clock stops with them."""
    curve = {"decode_tokens_per_s": 100, "saturation_batch": 2, "saturated_tokens_per_s": 1000}
    latency = {"model": "piecewise", "prefill_tokens_per_s": 1000, **curve}
    scenario = small(tmp_path, rows((0, 10, 101), (100, 10, 101)), latency=latency)
    for leap in MODES:
        result = headway.simulate({**scenario, "leap": leap})
        assert result.summary()["duration_s"] == max(result.requests["finished_ps"]) / 10**12, f"leap: {leap}"
    check({**scenario, "horizon": "1s"}, tmp_path / "runs")


@pytest.mark.parametrize("horizon", [9, 10, 11, 40, 44, 45])
def test_the_horizon_may_fall_on_a_step(horizon: int, tmp_path: Path) -> None:
    """Prefill token by token until 40 ms, a block each, then five output tokens. Whether a step that begins at the
    horizon takes its block is a convention, but one and the same however the steps are counted."""
    kv = {"block_tokens": 1, "gpu_blocks": 50}
    scenario = small(tmp_path, rows((0, 40, 5)), max_batch_tokens=1, kv=kv)
    result = check({**scenario, "horizon": f"{horizon}ms"}, tmp_path / "runs")
    (instance,) = result.summary()["instances"]
    assert instance["steps"] == min(horizon, 44)
    assert instance["peak_kv_utilization"] in (min(horizon, 44) / 50, min(horizon + 1, 44) / 50)
    assert result.requests["output_tokens"] == [min(5, max(0, horizon - 39))]
    assert result.requests["outcome"] == ["completed" if horizon >= 44 else "in_flight"]


def test_what_routers_are_due_to_tell_each_other_by_the_horizon_is_told(tmp_path: Path) -> None:
    """The second prompt is sent at 45 ms, and the other router hears of it at 49 ms, where at most a step ends."""
    believing = {"name": "weighted", "scorers": [{"name": "prefix-affinity", "weight": 1, "block_tokens": 4}]}
    scenario = small(tmp_path, rows((0, 40, 100), (45, 40, 100)), instances=2)
    scenario |= {"policies": {"routing": believing}, "routers": {"count": 2, "sync_interval": "7ms"}, "horizon": "50ms"}
    result = check(scenario, tmp_path / "runs")
    assert result.summary()["policy_metrics"]["prefix_index_blocks"] == 2 * 2 * 10


def test_the_horizon_may_come_before_anybody(tmp_path: Path) -> None:
    scenario = small(tmp_path, rows((50, 4, 4)))
    result = check({**scenario, "horizon": "10ms"}, tmp_path / "runs")
    assert len(result.requests) == 0
    assert set(result.summary()["requests"].values()) == {0}


def test_a_request_that_comes_at_the_horizon_has_arrived(tmp_path: Path) -> None:
    scenario = small(tmp_path, rows((0, 4, 4), (10, 4, 4), (11, 4, 4)))
    result = check({**scenario, "horizon": "10ms"}, tmp_path / "runs")
    assert result.requests["outcome"] == ["completed", "in_flight"]


def chain(tenant: str, starts: Sequence[int], turns: int, **options: Any) -> Json:
    """Sessions at so many ms, each of so many turns of 2 tokens in and 2 out that follow at once."""
    one = {"new": 2, "output": 2, "delay_ps": 0}
    sessions = [{"start_ps": at * 10**9, "turns": [one] * turns, "after": None} for at in starts]
    usual = {"longest": 2, "retry": (0, 0), "users": None, "pause_ps": 0, "stop_ps": 10**15}
    return {"tenant": tenant, "sessions": sessions, **usual, **options}


class Told:
    """Sends a tenant's requests to its own instance, and writes down what it is told and asked."""

    def __init__(self) -> None:
        self.told: list[tuple[float, str, str]] = []

    def route(self, request: Request, cluster: ClusterView) -> Route:
        self.told.append((cluster.now_ps / 10**9, "asked", f"{request.session}/{request.turn}"))
        return Route(cluster.instances[int(request.tenant[1:])].id)

    def observe(self, event: Any) -> None:
        if type(event).__name__ != "Routed":
            name = f"{event.request.session}/{event.request.turn}"
            self.told.append((event.at_ps / 10**9, type(event).__name__, name))


@pytest.mark.parametrize("leap", MODES)
def test_what_follows_at_once_is_asked_after_the_ends_of_its_instant_and_starts_there(leap: bool | str) -> None:
    """Two tokens in and two out take 3 ms. At 3 ms a turn ends on each instance, and a session that was known to
    start comes before the router hears of it; the follow-ups come after, by identity, and start at that instant."""
    even = {"model": "fixed", "prefill_tokens_per_s": 1000, "decode_tokens_per_s": 1000}
    given = {"workload": {"requests": 1, "rate": "1/s"}, "cluster": {"instances": 3, "latency": even}, "leap": leap}
    router = Told()
    prepared = prepare(headway.Scenario.load(given), routing=router)
    simulation = prepared.simulation()
    sources = [chain("t1", [0], 2), chain("t0", [0], 2), chain("t2", [3], 1)]
    recorder = simulation.run(session_plans.traffic(sources))
    assert router.told == [
        (0, "asked", "t1-0/0"),
        (0, "asked", "t0-0/0"),
        (2, "FirstToken", "t1-0/0"),
        (2, "FirstToken", "t0-0/0"),
        (3, "asked", "t2-0/0"),
        (3, "Finished", "t1-0/0"),
        (3, "Finished", "t0-0/0"),
        (3, "asked", "t1-0/1"),
        (3, "asked", "t0-0/1"),
        (5, "FirstToken", "t2-0/0"),
        (5, "FirstToken", "t1-0/1"),
        (5, "FirstToken", "t0-0/1"),
        (6, "Finished", "t2-0/0"),
        (6, "Finished", "t1-0/1"),
        (6, "Finished", "t0-0/1"),
    ]
    assert list(recorder.started_ps) == list(recorder.arrival_ps)


@pytest.mark.parametrize("leap", MODES)
@pytest.mark.parametrize("users", [1, 3])
def test_a_fixed_number_of_users_is_never_exceeded_and_always_reached(users: int, leap: bool | str) -> None:
    even = {"model": "fixed", "prefill_tokens_per_s": 1000, "decode_tokens_per_s": 1000}
    given = {"workload": {"requests": 1, "rate": "1/s"}, "cluster": {"instances": 2, "latency": even}, "warmup": 0}
    sources = [chain("t0", [0] * 12, 3, users=users), chain("t1", [0] * 8, 2)]
    done = run({**given, "policies": {"routing": "least-loaded"}, "sessions": sources}, leap)
    assert done.summary()["requests"]["completed"] == 12 * 3 + 8 * 2
    assert most_in_flight(done.requests, "t0") == users
    assert most_in_flight(done.requests, "t1") == 8


@pytest.mark.parametrize("kind", ["completion", "chat", "agentic", "reasoning"])
def test_with_a_concurrency_never_more_requests_of_a_tenant_are_in_flight(kind: str, tmp_path: Path) -> None:
    """Also where sub-agents branch off, nobody thinks, and some requests are too long to be served."""
    given: Json = {"kind": kind, "output_tokens": 30, "prompt_tokens": {"dist": "normal", "mean": 700, "std": 300}}
    if kind != "completion":
        given["think_time"] = "0s"
    if kind == "agentic":
        given |= {"subagents": {"probability": 0.5, "count": 3}, "tool_latency": "0s"}
    looped = {
        "closed_loop": {"concurrency": 3, "think_time": "0s"},
        "kind": given,
        "retry": {"max": 1, "backoff": "5ms"},
    }
    scenario = {
        "workload": {"duration": "4s", "tenants": {"looped": looped, "other": {"rate": "3/s"}}},
        "cluster": {"instances": 2, "kv": {"gpu_blocks": 60}},
        "policies": {"routing": "least-loaded"},
        "warmup": 0,
    }
    done = check(scenario, tmp_path)
    assert most_in_flight(done.requests, "looped") == 3
    assert done.summary()["requests"]["rejected"] > 0
    assert done.summary()["requests"]["retried"] > 0
