"""Compare deciders on one prefill and three decode instances of llama-3.1-70b, as BLIS's authors did.

    python benchmarks/deciders.py [SEEDS]

chat: a prefix of 5,000 tokens that 20 groups share, four turns of 50 tokens. code: a prefix of 30,000 tokens, 15 turns
of 1,500 tokens. Each instance has four H100. The decode instance returns the first token, as vLLM's does, so that the
transfer counts.
"""

import sys
from concurrent.futures import ProcessPoolExecutor
from math import exp, fsum, log, sqrt
from typing import Any

import headway

Json = dict[str, Any]
DECIDERS: dict[str, Any] = {
    "threshold of 16": {"name": "uncached-threshold", "colocate_below_tokens": 16},
    "drift-plus-penalty": {"name": "drift-plus-penalty", "targets": {"standard": "500ms"}},
    "the same, v 0.01, itl 22ms": {
        "name": "drift-plus-penalty",
        "targets": {"standard": "500ms"},
        "v": 0.01,
        "itl": "22ms",
    },
    "estimated-ttft": "estimated-ttft",
    "lend": "lend",
    "never": "never",
}
LOADS: dict[str, tuple[Json, list[float]]] = {
    "chat": ({"turns": 4, "own": 50, "prefix": 5000, "groups": 20, "requests": 2000}, [2.5, 5, 10]),
    "code": ({"turns": 15, "own": 1500, "prefix": 30_000, "groups": 5, "requests": 900}, [0.2]),
}
T_95 = {2: 4.303, 4: 2.776, 9: 2.262, 19: 2.093}  # quantiles of Student's t for a two-sided interval of 95 %


def scenario(load: str, rate: float, seed: int, decider: Any) -> Json:
    shape = LOADS[load][0]
    kind = {"kind": "chat", "turns": shape["turns"], "turn_tokens": shape["own"], "think_time": "10s"}
    return {
        "seed": seed,
        "defaults": "2026-12",
        "workload": {
            "requests": shape["requests"],
            "rate": f"{rate}/s",
            "kind": kind,
            "prompt_tokens": shape["prefix"] + shape["own"],
            "output_tokens": {"dist": "lognormal", "mean": 200, "std": 100, "min": 10, "max": 1000},
            "prefix": {"groups": shape["groups"], "tokens": shape["prefix"]},
        },
        "cluster": {
            "gpu": "h100",
            "model": "llama-3.1-70b",
            "tp": 4,
            "latency": {"host": "500us"},  # that of the table in the docs
            "architecture": "disaggregated",
            "prefill": {"instances": 1},
            "decode": {"instances": 3},
            "transfer": {"bandwidth": "50GB/s", "first_token": "decode", "keep_prefill_copy": True},
        },
        "policies": {"routing": {"name": "pair", "prefill": "least-loaded", "decode": "weighted"}, "decider": decider},
    }


def play(job: tuple[str, float, int, str]) -> tuple[float, float, float, float]:
    """Return mean TTFT, p99 TTFT and mean TPOT in milliseconds, and the share of split requests."""
    load, rate, seed, name = job
    summary = headway.simulate(scenario(load, rate, seed, DECIDERS[name]), progress=False).summary()
    times, metrics = summary["latency"], summary["policy_metrics"]
    share = metrics["pair_split"] / (metrics["pair_split"] + metrics["pair_whole"])
    return times["ttft"]["mean"], times["ttft"]["p99"], times["tpot"]["mean"], share


def main(seeds: int) -> None:
    numbers = range(1, seeds + 1)
    cases = [(load, rate) for load, (_, rates) in LOADS.items() for rate in rates]
    jobs = [(*case, seed, name) for case in cases for name in DECIDERS for seed in numbers]
    with ProcessPoolExecutor(2) as pool:
        found = dict(zip(jobs, pool.map(play, jobs), strict=True))
    print(
        f"{seeds} seeds; x lower: geometric mean over the seeds of threshold's mean TTFT ÷ this one, interval of 95 %\n"
    )
    print(
        f"{'':22}{'':27}{'ttft mean, ms':>14}{'x lower':>9}{'interval':>16}{'p99, ms':>10}{'tpot, ms':>10}{'split':>7}"
    )
    for load, rate in cases:
        for name in DECIDERS:
            mine = [found[load, rate, seed, name] for seed in numbers]
            base = [found[load, rate, seed, next(iter(DECIDERS))] for seed in numbers]
            logs = [log(there[0] / here[0]) for there, here in zip(base, mine, strict=True)]
            mean = fsum(logs) / seeds
            half = T_95[seeds - 1] * sqrt(fsum([(value - mean) ** 2 for value in logs]) / (seeds - 1) / seeds)
            ttft, p99, tpot, share = (fsum([one[place] for one in mine]) / seeds for place in range(4))
            interval = f"{exp(mean - half):.2f} to {exp(mean + half):.2f}"
            row = f"{f'{load}, {rate:g} sessions/s':22}{name:27}{ttft:>14.0f}{exp(mean):>9.2f}{interval:>16}"
            print(f"{row}{p99:>10.0f}{tpot:>10.1f}{share:>7.0%}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
