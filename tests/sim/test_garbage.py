"""Prompts that are computed for other instances leave nothing behind that only the collector of circles would find.

`exact_runs` looks for such garbage after runs of every other kind.
"""

from __future__ import annotations

import pytest

from exact_runs import no_garbage
from headway.experiment.run import prepare
from headway.scenario.scenario import Scenario

APART = {"architecture": "disaggregated", "prefill": {"instances": 1}, "decode": {"instances": 2}}


@pytest.mark.parametrize("pipelined", [False, True])
@pytest.mark.parametrize("timeout", [None, "400ms"])
def test_prompts_computed_for_others_leave_no_circles(pipelined: bool, timeout: str | None) -> None:
    workload = {"requests": 40, "rate": "8/s", "prompt_tokens": 6000, "output_tokens": 5}
    if timeout is not None:
        workload["timeout"] = timeout  # some give up while they wait, some in the middle of their prompts
    cluster = APART | {"transfer": {"pipelined": pipelined}}
    prepared = prepare(Scenario.load({"workload": workload, "cluster": cluster}))
    traffic, simulation = prepared.traffic(), prepared.simulation()
    with no_garbage():
        recorder = simulation.run(traffic)
    outcomes = len(set(recorder.outcome))
    assert outcomes == (1 if timeout is None else 2)
