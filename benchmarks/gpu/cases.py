"""The cluster, the traffic, the policies and the seeds of the comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec import Struct

from headway.scenario.scenario import Scenario

MODEL = "llama-3.2-1b"
REPLICAS = 4
BLOCKS = 3000  # of each replica
POSITIONS = 8192
CLUSTER: dict[str, Any] = {
    "instances": REPLICAS,
    "gpu": "h200",
    "model": MODEL,
    "max_batch_tokens": 2048,
    "max_batch_size": 64,
    "kv": {"block_tokens": 16, "gpu_blocks": BLOCKS, "entry": "prompt"},
}
WORKLOADS: dict[str, dict[str, Any]] = {
    # Conversations of a few turns; each starts with one of 40 system prompts, whose lengths differ.
    "chat": {
        "requests": 300,
        "prompt_tokens": {"dist": "lognormal", "mean": 150, "std": 120, "min": 10, "max": 700},
        "output_tokens": {"dist": "lognormal", "mean": 60, "std": 40, "min": 4, "max": 250},
        "prefix": {
            "groups": 40,
            "added": True,
            "tokens": {"dist": "lognormal", "mean": 1800, "std": 1000, "min": 300, "max": 3600},
            "popularity": {"dist": "zipf", "s": 0.8},
        },
        "kind": {
            "kind": "chat",
            "turns": {"dist": "uniform", "min": 2, "max": 5},
            "turn_tokens": {"dist": "lognormal", "mean": 250, "std": 200, "min": 8, "max": 800},
            "think_time": {"dist": "exponential", "mean": "100ms"},
        },
    },
    # Questions about one of 50 documents, whose lengths differ.
    "rag": {
        "requests": 300,
        "prompt_tokens": {"dist": "lognormal", "mean": 120, "std": 80, "min": 20, "max": 600},
        "output_tokens": {"dist": "lognormal", "mean": 60, "std": 40, "min": 4, "max": 250},
        "prefix": {
            "groups": 50,
            "added": True,
            "tokens": {"dist": "lognormal", "mean": 2400, "std": 1600, "min": 400, "max": 4800},
            "popularity": {"dist": "zipf", "s": 1.0},
        },
    },
}
RATES = {"chat": {"medium": "100/s", "high": "250/s"}, "rag": {"medium": "300/s", "high": "420/s"}}
POLICIES = ("round-robin", "least-loaded", "lmetric", "prefix-overlap", "kv-aware-spill", "weighted")
# The built-in policies that are best in simulation on the validation seeds: by TTFT, and by E2E.
FINAL = ("kv-aware-spill", "weighted")
OWN = ("searched", "tuned")  # policies of the searches
TRAIN, VALIDATION, TEST = range(1, 5), range(11, 19), range(501, 509)
UNSTEADY = ("least-loaded", "round-robin")
TABLE_SEEDS = 3  # the first seeds of TEST, under which all policies run
# What --quick runs.
QUICK_POLICIES, QUICK_CELLS, QUICK_SEEDS = ("kv-aware-spill", "searched"), (("rag", "high"),), TEST[:2]
QUICK_LIVE = ("single-high", "dilated-searched")


class Case(Struct, frozen=True):
    """One run: a policy under one workload, load and seed."""

    policy: str
    workload: str
    load: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.workload}-{self.load}-{self.policy}-{self.seed}"


def document(workload: str, load: str, latency: dict[str, Any], routing: Any, seed: int = 1) -> dict[str, Any]:
    return {
        "defaults": "2026-11",
        "cluster": CLUSTER | {"latency": latency},
        "signals": {"poll_interval": "0s"},
        "workload": WORKLOADS[workload] | {"rate": RATES[workload][load]},
        "policies": {"routing": routing},
        "seed": {"workload": seed, "simulation": seed, "jitter": seed},
    }


def scenario(case: Case, latency: dict[str, Any], own: dict[str, Any]) -> Scenario:
    """Return the scenario of a case. `own` has the policies that are not named as in the catalogue."""
    routing = own.get(case.policy, case.policy)
    return Scenario.load(document(case.workload, case.load, latency, routing, case.seed))


# Runs over HTTP. One engine in real time has these rates of RAG requests and, for the last one, these blocks.
SINGLE = {"low": ("15/s", BLOCKS), "medium": ("40/s", BLOCKS), "high": ("60/s", BLOCKS), "tight": ("25/s", 900)}
SINGLE_REQUESTS = 160
LIVE_SIGNALS = {"poll_interval": "20ms"}
LIVE_SEED, REHEARSAL_SEED = 601, 602  # of the compared runs, and of runs without a GPU that measure the server's time
DILATION = 8.0
DILATED = ("round-robin", "kv-aware-spill", "searched")
DILATED_REHEARSAL = "dilated-searched"  # for all dilated runs
DEPLOYED = "searched"  # replaces round-robin while traffic runs
DEPLOY_REQUESTS, DEPLOY_AFTER = 600, 200


class LiveRun(Struct, frozen=True):
    """A run over HTTP. If `deploy` is set, the searched policy is deployed while it runs."""

    name: str
    scenario: Scenario
    dilation: float
    deploy: bool = False


def live_runs(
    latency: dict[str, Any], own: dict[str, Any], seed: int, deploy: bool = False, quick: bool = False
) -> list[LiveRun]:
    runs = [LiveRun(f"single-{name}", single(name, latency, seed), 1.0) for name in SINGLE]
    for policy in DILATED:
        runs.append(LiveRun(f"dilated-{policy}", dilated(policy, latency, own, seed), DILATION))
    if deploy:
        longer = dilated("round-robin", latency, own, seed, DEPLOY_REQUESTS)
        runs += [LiveRun("kept-round-robin", longer, DILATION), LiveRun("deployed-searched", longer, DILATION, True)]
    return [run for run in runs if not quick or run.name in QUICK_LIVE]


def single(name: str, latency: dict[str, Any], seed: int) -> Scenario:
    """Return the scenario of one engine in real time."""
    rate, blocks = SINGLE[name]
    found = document("rag", "medium", latency, "round-robin", seed)
    found["cluster"] = found["cluster"] | {"instances": 1, "kv": CLUSTER["kv"] | {"gpu_blocks": blocks}}
    found["workload"] = found["workload"] | {"rate": rate, "requests": SINGLE_REQUESTS}
    return Scenario.load(found | {"signals": LIVE_SIGNALS})


def dilated(policy: str, latency: dict[str, Any], own: dict[str, Any], seed: int, requests: int = 300) -> Scenario:
    """Return the scenario of several replicas in dilated time. The polling interval is that of the replicas' clocks."""
    found = document("rag", "medium", latency, own.get(policy, policy), seed)
    found["workload"] = found["workload"] | {"requests": requests}
    return Scenario.load(found | {"signals": LIVE_SIGNALS})


def profile_latency(profile: Path, host_us: float, sequence_us: float) -> dict[str, Any]:
    host, each = f"{host_us:.4g}us", f"{sequence_us:.4g}us"
    return {"model": "hardware", "profile": str(profile), "host": host, "host_sequence": each}
