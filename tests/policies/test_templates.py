"""Templates: sources of the package that are catalogue policies with parameters like any other."""

from __future__ import annotations

from typing import Any

import pytest

import headway
from headway.errors import HeadwayError
from headway.policies import registry
from headway.policies.code import Program
from headway.policies.templates import STAGES, TEMPLATES, compile_template

SCENARIO: dict[str, Any] = {
    "workload": {
        "requests": 150,
        "rate": "60/s",
        "prompt_tokens": 300,
        "output_tokens": 60,
        "prefix": {"groups": 5, "tokens": 256},
    },
    "cluster": {"instances": 3, "kv": {"gpu_blocks": 400}, "max_batch_size": 8, "latency": {"model": "fixed"}},
}


def test_every_stage_has_a_template() -> None:
    assert {stage for stage, _ in TEMPLATES} == set(STAGES)
    assert len({name for _, name in TEMPLATES}) == len(TEMPLATES)


def test_the_seeds_template_has_its_four_parameters() -> None:
    found = {one.name: one for one in registry.find("routing", "weighted-affinity-routing", "x").parameters}
    assert {name: one.default for name, one in found.items()} == {
        "cache_affinity_weight": 0.7,
        "load_balance_weight": 0.2,
        "queue_depth_weight": 0.1,
        "utilization_threshold": 0.85,
    }
    assert all(one.bounds == registry.Bounds(0, 1) for one in found.values())


@pytest.mark.parametrize(("stage", "name"), list(TEMPLATES))
def test_a_template_is_a_policy_of_the_catalogue(stage: str, name: str) -> None:
    entry = registry.find(stage, name, "x")
    program = Program(TEMPLATES[stage, name], stage)
    assert name in registry.names(stage)
    assert [one.name for one in entry.parameters] == [one.name for one in program.parameters]
    assert (entry.exact, entry.reported) == (program.exact, program.reported)
    for one in entry.parameters:
        assert one.bounds is not None
        with pytest.raises(HeadwayError, match=f"x.{one.name}: "):
            registry.build(stage, {"name": name, one.name: one.bounds.high + 1}, "x")


@pytest.mark.parametrize(("stage", "name"), list(TEMPLATES))
def test_its_parameters_are_those_of_its_source(stage: str, name: str) -> None:
    """A template with other numbers decides as its source with these numbers does."""
    parameters = registry.find(stage, name, "x").parameters
    values = {one.name: (one.bounds.low + one.bounds.high) / 3 for one in parameters if one.bounds is not None}
    scenario = SCENARIO if stage != "scaling" else {**SCENARIO, **SCALED}
    filed = headway.simulate(scenario, **{stage: {"name": name, **values}})
    written = headway.simulate(
        scenario, **{stage: {"name": "code", "source": TEMPLATES[stage, name], "parameters": values}}
    )
    assert filed.requests == written.requests


SCALED = {"cluster": {**SCENARIO["cluster"], "min_replicas": 1, "max_replicas": 6}, "scaling": {"interval": "500ms"}}


def test_templates_do_what_they_say() -> None:
    warm = headway.simulate(SCENARIO, routing={"name": "weighted-affinity-routing", "cache_affinity_weight": 1})
    blind = headway.simulate(SCENARIO, routing={"name": "weighted-affinity-routing", "cache_affinity_weight": 0})
    hits = [sum(one.requests["cached_tokens"]) for one in (warm, blind)]
    assert hits[0] > hits[1]
    shed = headway.simulate(SCENARIO, admission={"name": "load-shedding", "hard_load": 2})
    assert shed.summary()["requests"]["rejected"] > 0
    assert headway.simulate(SCENARIO, admission="load-shedding").summary()["requests"]["rejected"] == 0
    by_prompt = headway.simulate(SCENARIO, scheduler="shortest-prefill").requests
    assert headway.simulate(SCENARIO, scheduler="weighted-scheduling").requests == by_prompt
    grown = headway.simulate({**SCENARIO, **SCALED}, scaling={"name": "target-load-scaling", "target_load": 2})
    assert grown.summary()["scaling"]["pools"][0]["max_replicas"] == 6


def test_a_parameter_can_be_set_like_any_other() -> None:
    found = headway.Scenario.load(
        SCENARIO,
        ["policies.routing.name=weighted-affinity-routing", "policies.routing.utilization_threshold=0.5"],
    ).resolved()["policies"]["routing"]
    assert found["utilization_threshold"] == 0.5
    assert found["cache_affinity_weight"] == 0.7


def test_a_parameter_cannot_take_the_name_of_something_else() -> None:
    for name in ("program", "restart", "source", "begin"):
        source = f"{name} = parameter(1, 0, 2)\n\n\ndef key(ticket):\n    return {name}\n"
        with pytest.raises(HeadwayError, match=f"x: {name}: the name is reserved"):
            compile_template("scheduler", "x", source)
