"""Features of engines that are not simulated together: an error in one sentence, and `auto` is off."""

from __future__ import annotations

from typing import Any

import pytest

from headway.errors import HeadwayError
from headway.scenario.cluster_spec import Cluster

DRAFTS: dict[str, Any] = {"speculation": {"tokens": 2, "acceptance": 0.5}}
RANKS: dict[str, Any] = {"model": "qwen3-30b-a3b", "gpu": "h200", "dp": 2}
WINDOWS: dict[str, Any] = {"model": "gpt-oss-20b", "gpu": "h200"}
CURRENT: dict[str, Any] = {"latency": {"model": "hardware", "engine": "vllm-0.19"}}


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        (DRAFTS | RANKS, "speculation"),
        (DRAFTS | WINDOWS, "speculation"),
        (WINDOWS | {"dp": 2}, "dp"),
    ],
)
def test_features_that_are_not_simulated_together_are_an_error(keys: dict[str, Any], key: str) -> None:
    with pytest.raises(HeadwayError, match=rf"^cluster\.{key}: is not simulated .*; .*\.$"):
        Cluster.read(keys)


@pytest.mark.parametrize("keys", [{}, RANKS, WINDOWS, {"model": "deepseek-v3", "gpu": "h200", "dp": 16, "ep": True}])
def test_automatic_scheduling_follows_the_engine(keys: dict[str, Any]) -> None:
    assert Cluster.read(CURRENT | keys).schedules_ahead()
