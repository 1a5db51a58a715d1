"""Golden decisions: with every other part of the control plane off, each routing policy and each scorer sends the
requests of three scenarios where it always did, and they take as long. `golden_decisions.json` has the instance of each
request as a digit, and a digest of all times; it was written by `decisions`, before there was anything else to decide
or, of the default latency model, when it became the default.
"""

from __future__ import annotations

import json
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

import headway

GOLDEN: dict[str, dict[str, list[str]]] = json.loads(Path(__file__).with_name("golden_decisions.json").read_text())
CLUSTER = {"instances": 6, "max_batch_size": 8, "kv": {"gpu_blocks": 1500}}
ROOFLINE = {**CLUSTER, "latency": {"model": "roofline"}}
PREFIXES = {
    "requests": 300,
    "rate": "90/s",
    "prompt_tokens": {"dist": "normal", "mean": 1500, "std": 400, "min": 600, "max": 4000},
    "output_tokens": {"dist": "lognormal", "mean": 60, "std": 40, "min": 2, "max": 300},
    "prefix": {"groups": 12, "tokens": 1100},
}
SCENARIOS: dict[str, dict[str, Any]] = {
    "shared prefixes": {"seed": 11, "workload": PREFIXES, "cluster": ROOFLINE},
    "sessions": {
        "seed": 12,
        "workload": {"preset": "chat-2026-11", "requests": 300, "rate": "6/s"},
        "cluster": ROOFLINE,
    },
    "default step times": {"seed": 11, "workload": PREFIXES, "cluster": {**CLUSTER, "gpu": "h200"}},
}
TIMES = ("arrival_ps", "started_ps", "first_token_ps", "finished_ps", "cached_tokens", "output_tokens")


def routing(name: str) -> Any:
    """A policy with its defaults, the profile of a scorer, or the one with filters and a lot."""
    policy, _, scorer = name.partition(": ")
    if scorer == "filters":
        filters = [{"name": "kv-below", "threshold": 0.8}, {"name": "load-below", "max_load": 6}, "load-spread"]
        return {"name": policy, "filters": filters, "picker": "weighted-random"}
    return {"name": policy, "scorers": {scorer: 1}} if scorer else policy


def decisions(scenario: str, name: str) -> list[str]:
    requests = headway.simulate({"defaults": "2026-11", **SCENARIOS[scenario]}, routing=routing(name)).requests
    times = json.dumps([requests[column] for column in TIMES])
    where = "".join(str(instance) for instance in requests["instance"])
    return [where, blake2b(times.encode(), digest_size=8).hexdigest()]


@pytest.mark.parametrize(
    "scenario", [pytest.param(name, marks=() if name == "sessions" else pytest.mark.full) for name in GOLDEN]
)
def test_every_routing_policy_decides_as_it_did_before_there_was_anything_else_to_decide(scenario: str) -> None:
    changed = [name for name, golden in GOLDEN[scenario].items() if decisions(scenario, name) != golden]
    assert not changed
