"""A published benchmark of a cluster: at which rate does round robin saturate?"""

from __future__ import annotations

from typing import Any

import headway

# A post of llm-d (2025-09-24): Qwen3-32B on 8 x 2 H100, 150 groups with a shared prompt of 6,000 tokens and questions
# of 1,200 tokens. Its round robin saturates at 18 requests/s and delivers 4,429 output tokens/s, so an answer has about
# 250 tokens on average, although the benchmark allows more.
ANSWER = 250
KNEE = 18


def p90_of_ttft(rate: float) -> float:
    workload: dict[str, Any] = {
        "rate": f"{rate}/s",
        "duration": "60s",
        "prompt_tokens": {"dist": "normal", "mean": 7200, "std": 100, "min": 6200, "max": 8200},
        "output_tokens": {"dist": "normal", "mean": ANSWER, "std": 25, "min": 50, "max": 500},
        "prefix": {"groups": 150, "tokens": 6000},
    }
    cluster = {"instances": 8, "gpu": "h100", "model": "qwen-3-32b", "tp": 2, "max_batch_tokens": 8192}
    result = headway.simulate({"workload": workload, "cluster": cluster, "policies": {"routing": "round-robin"}})
    return float(result.summary()["latency"]["ttft"]["p90"])


def test_round_robin_saturates_near_the_published_rate() -> None:
    assert p90_of_ttft(0.8 * KNEE) < 1000 < 5000 < p90_of_ttft(1.2 * KNEE)
