"""Pairs of features of engines: which are simulated together, and what `async_scheduling: auto` means beside them."""

from __future__ import annotations

from typing import Any

import pytest

from headway.scenario.cluster_spec import Cluster

DRAFTS: dict[str, Any] = {"speculation": {"tokens": 2, "acceptance": 0.5}}
RANKS: dict[str, Any] = {"model": "qwen3-30b-a3b", "gpu": "h200", "dp": 2}
WINDOWS: dict[str, Any] = {"model": "gpt-oss-20b", "gpu": "h200"}
CURRENT: dict[str, Any] = {"latency": {"model": "hardware", "engine": "vllm-0.19"}}


@pytest.mark.parametrize(
    "keys",
    [DRAFTS | RANKS, WINDOWS | {"dp": 2}, DRAFTS | WINDOWS, DRAFTS | WINDOWS | {"kv": {"hybrid": False}}],
)
def test_pairs_are_simulated_together(keys: dict[str, Any]) -> None:
    Cluster.read(keys | {"async_scheduling": True})


@pytest.mark.parametrize("keys", [{}, RANKS, WINDOWS, {"model": "deepseek-v3", "gpu": "h200", "dp": 16, "ep": True}])
def test_automatic_scheduling_follows_the_engine(keys: dict[str, Any]) -> None:
    assert Cluster.read(CURRENT | keys).schedules_ahead()
