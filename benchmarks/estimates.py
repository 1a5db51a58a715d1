"""Show what estimates of the output length are worth when the KV caches of the engines are the bottleneck.

    python benchmarks/estimates.py [SEEDS]

Seven of ten requests are tool calls: long prompts, short answers. Three of ten reason: short prompts, answers of 10,000
tokens on average. The KV cache of each of the four engines holds 64,000 tokens. `ratio` is what llm-d's router expected
before its pull request 2309: 1.5 tokens for each token of the prompt, which is wrong for both kinds of requests.
"""

import sys
from concurrent.futures import ProcessPoolExecutor
from math import exp, fsum, log, sqrt
from typing import Any

import headway

Json = dict[str, Any]
EXPECTED = {"name": "weighted", "scorers": {"expected-kv": 1}}
QUEUE = {"name": "weighted", "scorers": {"queue-depth": 1}}
ORACLES = {
    f"oracle, error {error:g}": (EXPECTED, {"name": "noisy-oracle", "error": error}) for error in (0, 0.25, 0.5, 1, 2)
}
POLICIES: dict[str, tuple[Json, Any]] = {
    "expected-kv, ratio": (EXPECTED, "ratio"),
    "queue-depth": (QUEUE, "auto"),
    "expected-kv, constant": (EXPECTED, {"name": "constant", "tokens": 3000}),
    "expected-kv, by-prompt": (EXPECTED, "by-prompt"),
    "expected-kv, by-class": (EXPECTED, "by-class"),
    **ORACLES,
}
T_95 = {4: 3.182, 9: 2.262, 19: 2.093}  # quantiles of Student's t for a two-sided interval of 95 %


def lengths(mean: float, spread: float, least: int, most: int) -> Json:
    return {"dist": "lognormal", "mean": mean, "std": spread, "min": least, "max": most}


def scenario(seed: int, routing: Json, estimator: Any) -> Json:
    tool = {"prompt_tokens": lengths(4000, 4000, 100, 20_000), "output_tokens": lengths(150, 100, 10, 600)}
    reason = {"prompt_tokens": lengths(500, 300, 50, 3000), "output_tokens": lengths(10_000, 3000, 500, 20_000)}
    tenants = {"tool": {"weight": 7, **tool}, "reason": {"weight": 3, "priority": "batch", **reason}}
    return {
        "seed": seed,
        "defaults": "2026-12",
        "workload": {"requests": 1500, "rate": "1.3/s", "tenants": tenants},
        "cluster": {
            "instances": 4,
            "gpu": "h100",
            "model": "llama-3.1-8b",
            "latency": {"host": "500us"},  # that of the table in the docs
            "kv": {"gpu_blocks": 4000},
        },
        "policies": {"routing": routing, "estimator": estimator},
    }


def play(job: tuple[str, int]) -> tuple[float, float, float | None]:
    """Return the p95 of the latency and the median time to first token in seconds, and the estimate's error."""
    name, seed = job
    summary = headway.simulate(scenario(seed, *POLICIES[name]), progress=False).summary()
    times, estimates = summary["latency"], summary.get("estimates")
    return times["e2e"]["p95"] / 1000, times["ttft"]["p50"] / 1000, estimates and estimates["error"]


def main(seeds: int) -> None:
    names, numbers = list(POLICIES), range(1, seeds + 1)
    with ProcessPoolExecutor(2) as pool:
        found = dict(
            zip(
                [(name, seed) for name in names for seed in numbers],
                pool.map(play, [(name, seed) for name in names for seed in numbers]),
                strict=True,
            )
        )
    print(f"{seeds} seeds; changes are geometric means over the seeds, with an interval of 95 %\n")
    print(f"{'':24}{'error':>7}{'e2e p95, s':>12}{'change':>9}{'interval':>18}{'better':>8}{'ttft p50, s':>13}")
    for name in names:
        mine = [found[name, seed] for seed in numbers]
        logs = [log(found[name, seed][0] / found[names[0], seed][0]) for seed in numbers]
        mean = fsum(logs) / seeds
        half = T_95[seeds - 1] * sqrt(fsum([(value - mean) ** 2 for value in logs]) / (seeds - 1) / seeds)
        error = "" if mine[0][2] is None else f"{fsum([one[2] or 0.0 for one in mine]) / seeds:.2f}"
        low, high = (f"{(exp(value) - 1) * 100:+.1f}" for value in (mean - half, mean + half))
        better = f"{len([value for value in logs if value < 0])}/{seeds}"
        p95, ttft = (fsum([one[place] for one in mine]) / seeds for place in (0, 1))
        change = f"{(exp(mean) - 1) * 100:+.1f} %"
        print(f"{name:24}{error:>7}{p95:>12.1f}{change:>9}{f'{low} to {high}':>18}{better:>8}{ttft:>13.1f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
