"""Healthy scenarios: ten workloads, each near the highest rate that its cluster serves well.

Findings must stay quiet there. The command `python -m headway.testing.healthy` runs each with ten seeds and prints the
runs that have a finding above the level "note".
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Final

from headway.experiment.run import simulate
from headway.results.records import NOTE, Finding
from headway.types import Json

CHAT: Final = {
    "prompt_tokens": {"dist": "lognormal", "mean": 900, "std": 700},
    "output_tokens": {"dist": "lognormal", "mean": 180, "std": 110},
}
TARGETS: Final = {"ttft": "250ms", "tpot": "18ms"}
HEALTHY: Final[dict[str, Json]] = {
    "chat": {"workload": {"requests": 800, "rate": "72/s", **CHAT}, "cluster": {"instances": 4}, "slo": TARGETS},
    "without targets": {"workload": {"requests": 800, "rate": "60/s", **CHAT}, "cluster": {"instances": 4}},
    "shared prefixes": {
        "workload": {"requests": 800, "rate": "84/s", **CHAT, "prefix": {"groups": 16, "tokens": 512}},
        "cluster": {"instances": 4},
        "policies": {"routing": "lmetric"},
        "slo": TARGETS,
    },
    "long prompts": {
        "workload": {"requests": 400, "rate": "8/s", "prompt_tokens": 8000, "output_tokens": 150},
        "cluster": {"instances": 4},
        "slo": {"ttft": "1s", "tpot": "25ms"},
    },
    "long answers": {
        "workload": {"requests": 400, "rate": "24/s", "prompt_tokens": 300, "output_tokens": 900},
        "cluster": {"instances": 4},
        "slo": TARGETS,
    },
    "tenants and classes": {
        "workload": {
            "requests": 800,
            "rate": "60/s",
            **CHAT,
            "tenants": {
                "shop": {"weight": 5, "priority": "realtime"},
                "search": {"weight": 3},
                "crawler": {"weight": 2, "priority": "batch"},
            },
        },
        "cluster": {"instances": 4},
        "policies": {"priority": "by-class", "scheduler": "priority"},
        "slo": TARGETS,
    },
    "disaggregated": {
        "workload": {"requests": 600, "rate": "48/s", **CHAT},
        "cluster": {"architecture": "disaggregated", "prefill": {"instances": 2}, "decode": {"instances": 2}},
        "slo": TARGETS,
    },
    "a tier below the GPU": {
        "workload": {"requests": 600, "rate": "36/s", **CHAT, "prefix": {"groups": 24, "tokens": 1024}},
        "cluster": {"instances": 3, "kv": {"gpu_blocks": 6000, "tiers": {"cpu": {"blocks": 20000}}}},
        "slo": TARGETS,
    },
    "autoscaling": {
        "workload": {"requests": 1500, "rate": "48/s", **CHAT},
        "cluster": {"instances": 4, "min_replicas": 3, "max_replicas": 8},
        "policies": {"scaling": {"name": "queue-threshold"}},
        "scaling": {"interval": "15s", "model_load": "20s"},
        "slo": TARGETS,
    },
    "stale signals": {
        "workload": {"requests": 800, "rate": "72/s", **CHAT},
        "cluster": {"instances": 4},
        "policies": {"routing": "least-loaded"},
        "signals": {"poll_interval": "1s"},
        "slo": TARGETS,
    },
}
SEEDS: Final = 10


def alarms(name: str, seed: int) -> list[Finding]:
    """Run a healthy scenario with a seed, and return its findings above the level "note"."""
    result = simulate({**HEALTHY[name], "name": name, "seed": seed}, progress=False)
    return [finding for finding in result.findings() if finding.level != NOTE]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m headway.testing.healthy", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--seeds", type=int, default=SEEDS, metavar="N", help="run each with the seeds 0 to N - 1")
    seeds = parser.parse_args(arguments).seeds
    loud = 0
    for name in HEALTHY:
        for seed in range(seeds):
            print(f"\r{name}, seed {seed}\x1b[K", end="", file=sys.stderr, flush=True)
            findings = alarms(name, seed)
            loud += bool(findings)
            for finding in findings:
                print(f"\r{name}, seed {seed}: {finding.level}: {finding.kind}: {finding.title}")
    print("\r\x1b[K", end="", file=sys.stderr)
    print(f"{loud} of {len(HEALTHY) * seeds} healthy runs have a finding above the level note.")


if __name__ == "__main__":
    main()
