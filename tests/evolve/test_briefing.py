"""What a language model is told of workloads and clusters."""

from __future__ import annotations

from typing import Any

import pytest
from small import document

from headway.evolve import Suite
from headway.evolve.briefing import briefing

TENANT: dict[str, Any] = {"weight": 3, "prompt_tokens": 700, "output_tokens": 90}
TALK = {"kind": "chat", "turns": {"dist": "geometric", "mean": 5, "max": 20}}


@pytest.mark.parametrize(
    ("workload", "words"),
    [
        (
            {"rate": "5/s", "requests": 9, "prompt_tokens": 70},
            "9 requests at 5/s; poisson arrivals; prompts of 70",
        ),
        ({"arrival": {"process": "gamma", "cv": 3}}, "gamma (coefficient of variation 3.0) arrivals"),
        ({"prompt_tokens": {"dist": "uniform", "min": 5, "max": 2000}}, "prompts of 5 to 2,000 tokens"),
        (
            {"prompt_tokens": {"dist": "lognormal", "mean": 50, "std": 9, "min": 5, "max": 90}},
            "50 tokens on average",
        ),
        ({"prefix": {"groups": 7, "tokens": 300}}, "prompts begin with one of 7 prefixes of 300 tokens"),
        ({"kind": TALK}, "conversations of 5 turns on average"),
        ({"tenants": {f"t{n}": TENANT for n in range(8)}}, "tenant t0 (weight 3): poisson arrivals, prompts of 700"),
        ({"tenants": {f"t{n}": TENANT for n in range(8)}}, "2 more tenants"),
    ],
)
def test_a_workload_is_described_in_words(workload: dict[str, Any], words: str) -> None:
    base: dict[str, Any] = {"requests": 20, "rate": "20/s"}
    if "tenants" not in workload:
        base |= {"prompt_tokens": 700, "output_tokens": 20}
    own = document(workloads={"w": {**base, **workload}}, train=[{"workload": "w", "seeds": [1]}])
    told = briefing(Suite.load({**own, "validation": [], "held_out": []}), ["routing"])
    assert words in told


def test_a_baseline_in_the_policy_language_is_told_with_its_source() -> None:
    source = "def score(request, instance, cluster):\n    return -instance.inflight  # the baseline\n"
    own = document(baseline={"routing": {"name": "code", "source": source}}, held_out=[], validation=[])
    told = briefing(Suite.load(own), ["routing", "priority"])
    assert source.strip() in told and "The priority policy of the baseline:" in told
    assert "TTFT mean" in told and "held" not in told
