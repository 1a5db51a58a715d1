"""A run leaves nothing behind that only the collector of circles would find: it is let look seldom, and each look costs
more the more is in flight."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from test_life_events import Absurd

import test_exactness as drawn
from headway.experiment.run import prepare
from headway.scenario import Scenario

APART = {"architecture": "disaggregated", "prefill": {"instances": 1}, "decode": {"instances": 2}}


def left_by(scenario: dict[str, Any], **policies: Any) -> int:
    """Objects of a run that hold each other and are held by nobody else, once it is over."""
    prepared = prepare(Scenario.load(scenario), **policies)
    traffic, simulation = prepared.traffic(), prepared.simulation()
    gc.collect()
    gc.disable()
    try:
        simulation.run(traffic)
        return gc.collect()
    finally:
        gc.enable()


@pytest.mark.parametrize("pipelined", [False, True])
@pytest.mark.parametrize("timeout", [None, "400ms"])
def test_prompts_computed_for_others_leave_no_circles(pipelined: bool, timeout: str | None) -> None:
    workload = {"requests": 200, "rate": "8/s", "prompt_tokens": 6000, "output_tokens": 20}
    if timeout is not None:
        workload["timeout"] = timeout  # some give up while they wait, some in the middle of their prompts
    assert left_by({"workload": workload, "cluster": APART | {"transfer": {"pipelined": pipelined}}}) == 0


def test_nor_does_anything_else_where_instances_come_and_go(tmp_path: Path) -> None:
    @settings(max_examples=40, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(drawn.scenarios("living, scattered", tmp_path))
    def holds(found: dict[str, Any]) -> None:
        found = {key: value for key, value in found.items() if key not in ("sessions", "shedder")}
        left_out = ("routing", "scaling")
        found["policies"] = {stage: spec for stage, spec in found["policies"].items() if stage not in left_out}
        assert left_by(found, scaling=Absurd()) == 0

    holds()
