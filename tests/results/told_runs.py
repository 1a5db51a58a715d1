"""Small runs of every sort, for tests of what is told of a run: each by its name, made when it is first asked for."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from conftest import ROOT
from headway.experiment.run import simulate
from headway.results.records import Counterfactual
from headway.results.result import Result

PREFIXES: dict[str, Any] = {
    "defaults": "2026-11",
    "seed": 7,
    "workload": {
        "requests": 300,
        "rate": "16/s",
        "prompt_tokens": {"dist": "normal", "mean": 2048, "std": 256, "min": 1600, "max": 4096},
        "output_tokens": {"dist": "normal", "mean": 128, "std": 32, "min": 8, "max": 512},
        "prefix": {"groups": 20, "tokens": 1536},
    },
    "cluster": {"instances": 4, "max_batch_size": 32, "kv": {"gpu_blocks": 3000}, "latency": {"model": "fixed"}},
    "slo": {"ttft": "500ms", "tpot": "25ms"},
}
# The third strikes nobody: its instance is not there any more.
FAULTS = (
    "{at: 1s, instance: instance-3, kind: crash, duration: 1s}",
    "{at: 1500ms, instance: instance-5, kind: crash}",
    "{at: 2s, instance: instance-5, kind: slow, factor: 2}",
    "{at: 2s, instance: instance-6, kind: slow, factor: 2}",
)
ODD_NAMES: dict[str, Any] = {
    "name": "odd *names* | 3",
    "workload": {
        "requests": 80,
        "rate": "40/s",
        "prompt_tokens": 300,
        "output_tokens": 20,
        "tenants": {"xqzjkv-17": {"slo": {"ttft": "30ms"}}, "Zürich `4`": {"priority": "realtime"}},
    },
    "cluster": {"instances": 2, "latency": {"model": "fixed"}},
}


def _example(name: str, *overrides: str, **options: Any) -> Result:
    return simulate(ROOT / "examples" / name, overrides=list(overrides), **options)


RUNS: dict[str, Callable[[], Result]] = {
    "prefixes": lambda: simulate(PREFIXES, trace="decisions"),
    "round-robin": lambda: simulate(PREFIXES, routing="round-robin", trace="decisions"),
    "round-robin without an slo": lambda: simulate(PREFIXES | {"slo": {}}, routing="round-robin", trace="decisions"),
    "untraced": lambda: simulate(PREFIXES),
    "warm-up": lambda: simulate(PREFIXES | {"warmup": 100}, trace="decisions"),
    "simulated again": lambda: with_alternatives(simulate(PREFIXES, routing="round-robin", trace="decisions")),
    "tenants": lambda: _example("07_tenants.yaml", "workload.duration=100s", trace="decisions"),
    "odd names": lambda: simulate(ODD_NAMES, trace="decisions"),
    "admission": lambda: _example(
        "11_admission.yaml",
        "workload.requests=600",
        "cluster={instances: 2, latency: {model: roofline}}",  # slow enough that both tenants miss
        admission="saturation",
        trace="decisions",
    ),
    "tiers": lambda: _example("12_tiers.yaml", "workload.requests=500", trace="full"),
    "disaggregated": lambda: _example("13_disaggregated.yaml", "workload.requests=250", trace="decisions"),
    "autoscaled": lambda: _example(
        "15_autoscaling.yaml", "workload.duration=6m", scaling="concurrency", trace="decisions"
    ),
    "faults": lambda: _example(
        "16_faults.yaml",
        "workload.requests=400",
        f"faults=[{', '.join(FAULTS)}]",
        "retries=1",
        trace="decisions",
    ),
    "preempted": lambda: simulate(
        PREFIXES | {"cluster": PREFIXES["cluster"] | {"instances": 2, "kv": {"gpu_blocks": 700}}}, trace="decisions"
    ),
    "all rejected": lambda: simulate(
        PREFIXES, admission={"name": "token-bucket", "rate": 1, "burst": 1}, trace="decisions"
    ),
    "cut short": lambda: simulate(PREFIXES | {"horizon": "4s"}, trace="decisions"),
    "empty": lambda: simulate(PREFIXES | {"horizon": "1us"}, trace="decisions"),
}


@cache
def told_run(name: str) -> Result:
    return RUNS[name]()


def with_alternatives(result: Result) -> Result:
    """The run with a made-up alternative for every tenth request, better in turns and worse."""
    rows = list(result.requests.rows())
    for row in rows[::10]:
        ttft = row["first_token_ps"] - row["arrival_ps"]
        e2e = row["finished_ps"] - row["arrival_ps"]
        better = ttft // 2 if row["request"] % 20 else 3 * ttft
        value = result.summary()["slo"]["goodput_ratio"]
        result.counterfactuals.append(
            Counterfactual(
                request=row["request"],
                at_ps=row["routed_ps"],
                chosen=row["instance"],
                alternative=(row["instance"] + 1) % 4,
                ttft_ps=ttft,
                alternative_ttft_ps=better,
                e2e_ps=e2e,
                alternative_e2e_ps=e2e + better - ttft,
                objective="slo.goodput_ratio",
                value=value,
                alternative_value=value + (row["request"] - 100) / 1000,
            )
        )
    return result
