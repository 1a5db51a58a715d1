"""A small suite, and bundles for it."""

from __future__ import annotations

from typing import Any

from headway.evolve import Bundle, Suite

CODE = """
W = parameter(1.0, 0.0, 5.0)

def score(request, instance, cluster):
    return W * ratio(cached_tokens(instance), request.prompt_tokens) - instance.inflight
"""


def document(**changes: Any) -> dict[str, Any]:
    """Two workloads, one of them under two seeds, on two instances."""
    result: dict[str, Any] = {
        "name": "small",
        "objectives": [
            {"name": "ttft", "figure": "latency.ttft.mean", "weight": 1},
            {"name": "e2e", "figure": {"latency.e2e.mean": 0.5, "latency.e2e.p95": 0.5}, "weight": 3},
        ],
        "baseline": {"routing": "round-robin"},
        "scenario": {
            "cluster": {"instances": 2, "kv": {"gpu_blocks": 400}, "latency": {"model": "linear"}},
            "slo": {"ttft": "1s"},
        },
        "workloads": {
            "prefixes": {
                "requests": 60,
                "rate": "20/s",
                "prompt_tokens": 900,
                "output_tokens": 40,
                "prefix": {"groups": 4, "tokens": 800},
            },
            "plain": {"requests": 50, "rate": "15/s", "output_tokens": {"dist": "uniform", "min": 5, "max": 200}},
        },
        "train": [{"workload": "prefixes", "seeds": [1, 2]}, {"workload": "plain", "seeds": [1]}],
        "validation": [{"workload": "prefixes", "seeds": [11]}],
        "held_out": [{"workload": "plain", "seeds": "101..110"}, {"workload": "prefixes", "seeds": [101]}],
    }
    return result | changes


def suite(**changes: Any) -> Suite:
    return Suite.load(document(**changes))


def code(source: str) -> Bundle:
    return Bundle.of("code", routing={"name": "code", "source": source})
