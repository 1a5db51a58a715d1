"""Whole decisions, which are one generated function: they decide, fail and stop as the program's own functions do."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from oracle import CACHED, SHORT, situation
from programs import Maker

from headway.errors import HeadwayError
from headway.policies import registry
from headway.policies.code import Program
from headway.policies.code.rejection import CodeError, Exhausted
from headway.views.instance import InstanceView


def answered(call: Any, instances: Any, program: Program) -> tuple[str, Any]:
    try:
        value = call()
    except CodeError as error:
        return "failed", str(error).removeprefix("policies.routing: ").removesuffix(", at request 17.")
    except Exception as error:
        return "failed", program.failure(error, SHORT)
    if type(value) is int and 0 <= value < len(instances):
        value = instances[value]
    return ("gave", value.id) if isinstance(value, InstanceView) else ("gave", "something else")


def policy_of(source: str) -> Any:
    policy = registry.build("routing", {"name": "code", "source": source, "steps": SHORT}, "policies.routing")
    policy.matches, policy.block_tokens = lambda path: CACHED, 1
    policy.restart()
    return policy


@pytest.mark.parametrize("start", [0, *(pytest.param(start, marks=pytest.mark.full) for start in range(30, 390, 30))])
def test_a_decision_is_what_the_function_alone_decides_in_as_many_steps(start: int) -> None:
    ends: dict[str, int] = {}
    for seed in range(start, start + 30):
        source = Maker(Random(seed)).source()
        try:
            policy = policy_of(source)
        except HeadwayError:
            continue
        request, instances, cluster = situation()
        program, running = policy.program, Program(source, "routing", "code").start()
        running.begin(SHORT, CACHED, cluster.tenants)
        alone = answered(lambda: running.entrance(request, instances, cluster), instances, program)  # noqa: B023
        request, instances, cluster = situation()
        whole = answered(lambda: _target(policy.route(request, cluster), instances), instances, program)  # noqa: B023
        if "must return" in whole[1]:
            whole = ("gave", "something else")
        assert whole == alone
        if program.decision.counts and alone[0] == "gave":
            assert policy.running.spent() == running.spent()
        ends[alone[0]] = ends.get(alone[0], 0) + 1
    assert min(ends.get("gave", 0), ends.get("failed", 0)) > 1


def _target(answer: Any, instances: Any) -> Any:
    return next((view for view in instances if view.id == getattr(answer, "target", "")), answer)


@pytest.mark.parametrize(
    ("stage", "source", "counts"),
    [
        ("admission", "def admit(request, cluster):\n    return request.prompt_tokens < 9\n", False),
        ("routing", "def route(request, instances, cluster):\n    return min([v.queued for v in instances])\n", False),
        ("routing", "def score(request, instance, cluster):\n    return -instance.queued\n", False),
        ("routing", "def score(request, instance, cluster):\n    return sum([1, 2])\n", True),
        ("priority", "def f(x):\n    return x\ndef prioritise(request, cluster):\n    return f(1)\n", True),
        ("estimator", "def estimate(request, cluster):\n    for i in range(3):\n        pass\n    return i\n", True),
    ],
)
def test_only_a_decision_whose_steps_vary_has_a_counter(stage: str, source: str, counts: bool) -> None:
    assert Program(source, stage).decision.counts == counts


def test_steps_that_are_certain_are_within_the_limit_too() -> None:
    loops = "    for v in instances:\n        n += v.queued\n"
    source = "def route(request, instances, cluster):\n    n = 0\n" + loops * 60 + "    return 0\n"
    keys = {"name": "code", "source": source}
    request, _, cluster = situation()
    assert registry.build("routing", keys, "p").route(request, cluster).target == "i0"
    with pytest.raises(CodeError, match="more than 150 steps in one decision") as caught:
        registry.build("routing", {**keys, "steps": 150}, "p").route(request, cluster)
    assert isinstance(caught.value.__cause__, Exhausted)


def test_an_argument_that_the_program_binds_again_does_not_change_what_the_stage_sees() -> None:
    source = (
        "def route(request, instances, cluster):\n    request = 3\n    cluster = 4\n    instances = 5\n    return 2\n"
    )
    request, _, cluster = situation()
    assert registry.build("routing", {"name": "code", "source": source}, "p").route(request, cluster).target == "i2"
