"""A policy that raises, names an unknown instance, or answers NaN or what cannot be ends its run, whatever its stage:
one sentence with the policy's name, the request and the value. Nothing is guessed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headway
from headway import HeadwayError
from headway.experiment.compare import compare

SCENARIO: dict[str, Any] = {
    "seed": 1,
    "workload": {"requests": 30, "rate": "1000/s", "prompt_tokens": 100, "output_tokens": 50},
    "cluster": {"instances": 2, "max_batch_size": 4, "kv": {"gpu_blocks": 16}, "latency": {"model": "fixed"}},
}
# A class a stage that answers as it should up to request 5, and then with `{answer}`, an expression or a statement.
HEAD = """
from headway.policies.queues import Fifo
from headway.types import ADMIT, Delay, NO_PRIORITY, Priority, Reject, Route

nan = float("nan")


def fail():
    raise ArithmeticError("odd")


class Unwritable:
    def __repr__(self):
        fail()

"""
BODIES = {
    "admission": "    def admit(self, request, cluster):\n        return {answer} if request.id == 5 else ADMIT\n",
    "priority": "    def prioritise(self, request, cluster):\n"
    "        return {answer} if request.id == 5 else NO_PRIORITY\n",
    "routing": "    def route(self, request, cluster):\n"
    "        return {answer} if request.id == 5 else Route('instance-0')\n",
    "scorer": "    def score(self, request, candidates, cluster):\n"
    "        return {answer} if request.id == 5 else [0.5, 0.5]\n",
    "filter": "    def keep(self, request, candidates, cluster):\n"
    "        return {answer} if request.id == 5 else list(candidates)\n",
    "picker": "    picked = 0\n    def pick(self, candidates, totals, cluster):\n        self.picked += 1\n"
    "        return {answer} if self.picked == 6 else 0\n",
}
QUEUES = {
    "add": "    def add(self, ticket):\n"
    "        super().append(ticket)\n        if ticket.request.id == 5:\n            {answer}\n",
    "first": "    def first(self):\n        return {answer} if self[0].request.id == 5 else self[0]\n",
    "order": "    def order(self, running):\n        return {answer}\n",
    "chunk": "    def chunk(self, ticket):\n        return {answer} if ticket.request.id == 5 else None\n",
}


def told(folder: Path, stage: str, body: str, answer: str) -> str:
    """The sentence that ends a run under a policy of the user's own file."""
    file = folder / "own.py"
    made = body.replace("{answer}", answer)
    if stage == "scheduler":
        made = f"class Line(Fifo):\n{made}\n\nclass Own:\n    def queue(self):\n        return Line()\n"
    else:
        made = f"class Own:\n{made}"
    file.write_text(HEAD + made)
    own = f"{file}:Own"
    given: dict[str, Any] = {
        "scorer": {"routing": {"name": "weighted", "scorers": [{"name": own, "weight": 1}]}},
        "filter": {"routing": {"name": "weighted", "filters": [own]}},
        "picker": {"routing": {"name": "weighted", "picker": own}},
    }.get(stage, {stage: own})
    with pytest.raises(HeadwayError) as caught:
        headway.simulate(SCENARIO, **given)
    sentence = str(caught.value)
    assert sentence.endswith(".") and "\n" not in sentence
    return sentence


WRONG = [
    ("admission", "None", "got None"),
    ("admission", "nan", "got nan"),
    ("admission", "Delay(-1)", "got Delay(duration_ps=-1)"),
    ("admission", "Delay(0)", "got Delay(duration_ps=0)"),
    ("admission", "Delay(nan)", "got Delay(duration_ps=nan)"),
    ("admission", "Delay(1.5)", "got Delay(duration_ps=1.5)"),
    ("admission", "Reject(None)", "got Reject(reason=None)"),
    ("priority", "nan", "got nan"),
    ("priority", "None", "got None"),
    ("priority", "Priority(nan)", "got Priority(score=nan"),
    ("priority", "Priority(float('inf'))", "got Priority(score=inf"),
    ("priority", "Priority('high')", "got Priority(score='high'"),
    ("routing", "None", "got None"),
    ("routing", "nan", "got nan"),
    ("routing", "'instance-0'", "got 'instance-0'"),
    ("routing", "Route('instance-7')", "to 'instance-7', which is not an instance of this cluster"),
    ("routing", "Route(nan)", "to nan, which is not an instance of this cluster"),
    ("routing", "Route('instance-0', cached_tokens=nan)", "got nan"),
    ("routing", "Route('instance-0', cached_tokens=-16)", "got -16"),
    ("routing", "Route('instance-0', cached_tokens=10**30)", "got 1000"),
    ("routing", "Route('instance-0', priority=10**400)", "got 1000"),
    ("priority", "Priority(-(10**400))", "got Priority(score=-1000"),
    ("admission", "Delay(2**62 + 1)", "a Delay of 1 ps to 2**62 ps, got Delay(duration_ps=4611686018427387905)"),
    ("admission", "Unwritable()", "got a Unwritable that cannot be printed"),
    ("routing", "Route('instance-0', priority=nan)", "got nan"),
    ("routing", "Route('instance-0', priority='high')", "got 'high'"),
    ("routing", "Reject(7)", "got Reject(reason=7)"),
    ("scorer", "[0.5, nan]", "got nan"),
    ("scorer", "[0.5, 'x']", "got 'x'"),
    ("scorer", "nan", "got nan"),
    ("filter", "None", "got None"),
    ("filter", "['instance-0']", "got ['instance-0']"),
    ("picker", "nan", "got nan"),
    ("picker", "-1", "got -1"),
    ("picker", "2", "got 2"),
    ("picker", "None", "got None"),
]


@pytest.mark.parametrize(("stage", "answer", "value"), WRONG, ids=[f"{stage}: {answer}" for stage, answer, _ in WRONG])
def test_a_wrong_answer_ends_the_run_with_name_request_and_value(
    tmp_path: Path, stage: str, answer: str, value: str
) -> None:
    sentence = told(tmp_path, stage, BODIES[stage], answer)
    assert sentence.startswith("policies.") and "Own" in sentence
    assert value in sentence
    assert "request 5" in sentence


@pytest.mark.parametrize("stage", BODIES)
def test_a_policy_that_raises_ends_the_run_with_name_request_and_what_it_said(tmp_path: Path, stage: str) -> None:
    sentence = told(tmp_path, stage, BODIES[stage], "fail()")
    method = BODIES[stage].split("def ")[1].split("(")[0]
    assert f"own.py line 9, in fail, called from Own.{method}: ArithmeticError: odd, at request 5." in sentence


@pytest.mark.parametrize(
    ("method", "answer", "value"),
    [
        ("first", "None", "Line.first must return a ticket that waits at the instance, got None"),
        ("first", "nan", "Line.first must return a ticket that waits at the instance, got nan"),
        ("order", "running[1:]", "Line.order must return the running requests, each once, got ["),
        ("order", "running + running[:1]", "Line.order must return the running requests, each once, got ["),
        ("order", "nan", "Line.order must return the running requests, each once, got nan"),
        ("chunk", "0", "Line.chunk must return a number of tokens, at least 1, or None, got 0"),
        ("chunk", "-4", "or None, got -4"),
        ("chunk", "nan", "or None, got nan"),
    ],
)
def test_a_wrong_answer_of_a_scheduler_is_told_with_the_instance_as_well(
    tmp_path: Path, method: str, answer: str, value: str
) -> None:
    sentence = told(tmp_path, "scheduler", QUEUES[method], answer)
    assert sentence.startswith(
        f"policies.scheduler: {value}" if value.startswith("Line") else "policies.scheduler: Line."
    )
    assert value in sentence
    assert sentence.rpartition(", at request ")[2].partition(" on ")[2] in ("instance-0.", "instance-1.")
    if method != "order":
        assert ", at request 5 on " in sentence


@pytest.mark.parametrize("method", QUEUES)
def test_a_scheduler_that_raises_ends_the_run_with_its_name_and_what_it_said(tmp_path: Path, method: str) -> None:
    sentence = told(tmp_path, "scheduler", QUEUES[method], "fail()")
    assert f"own.py line 9, in fail, called from Line.{method}: ArithmeticError: odd" in sentence
    if method in ("add", "chunk"):  # the others are about all that wait or run there
        assert sentence.endswith(", at request 5.")


@pytest.mark.full
def test_a_request_that_is_put_off_for_ever_ends_the_run(tmp_path: Path) -> None:
    sentence = told(tmp_path, "admission", BODIES["admission"], "Delay(1)")
    assert sentence == (
        "policies.admission: Own.admit delayed a request 100,000 times; it must admit or reject it, or delay it "
        "longer, got Delay(duration_ps=1), at request 5."
    )


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("    def add(self):\n        pass\n", "Line.add must accept 1 argument after self"),
        ("    def ended(self, ticket):\n        pass\n", "Line.ended must accept 3 arguments after self"),
        ("    chunk = 5\n", "Line.chunk must be a method, got 5."),
    ],
)
def test_a_queue_whose_methods_cannot_be_called_is_told_before_the_run(tmp_path: Path, line: str, what: str) -> None:
    assert told(tmp_path, "scheduler", line, "").startswith(f"policies.scheduler: {what}")


def test_a_queue_that_loses_a_request_is_told_though_the_method_that_misses_it_is_ours(tmp_path: Path) -> None:
    sentence = told(tmp_path, "scheduler", "    def add(self, ticket):\n        pass\n", "")
    assert "in Line.first: IndexError" in sentence


@pytest.mark.parametrize("figures", ["0, 16", "16, 0", "16, -1", "'a', 16", "16, 2.5"])
def test_an_index_of_impossible_size_is_told(tmp_path: Path, figures: str) -> None:
    body = f"    def bind(self, context):\n        context.prefix_index({figures})\n{BODIES['admission']}"
    assert "must be a whole number of at least 1" in told(tmp_path, "admission", body, "ADMIT")


def test_figures_that_are_too_large_in_sum_over_the_routers_are_told(tmp_path: Path) -> None:
    body = BODIES["routing"] + "    def metrics(self):\n        return {'big': 1.7e308}\n"
    (tmp_path / "own.py").write_text(HEAD + "class Own:\n" + body.replace("{answer}", "Route('instance-0')"))
    with pytest.raises(HeadwayError, match=r"^policies: the metric 'big', summed over the routers, is not finite\.$"):
        headway.simulate({**SCENARIO, "routers": 2}, routing=f"{tmp_path}/own.py:Own")


def test_a_priority_that_is_right_but_large_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        HEAD + "class Own:\n    def prioritise(self, request, cluster):\n        return Priority(1e300)\n"
    )
    result = headway.simulate(SCENARIO, priority=f"{tmp_path}/own.py:Own", scheduler="priority")
    assert result.summary()["requests"]["completed"] == 30


def test_flow_control_is_of_the_catalogue_alone() -> None:
    class Own:
        pass

    for given in (Own, Own()):
        with pytest.raises(
            HeadwayError, match=r"^flow: give a flow policy by name or as a mapping with 'name'\. Known"
        ):
            headway.simulate(SCENARIO, flow=given)


@pytest.mark.parametrize("stage", ["admission", "priority", "routing"])
def test_one_wrong_policy_ends_a_comparison_too_and_is_named(tmp_path: Path, stage: str) -> None:
    (tmp_path / "own.py").write_text(HEAD + "class Own:\n" + BODIES[stage].replace("{answer}", "nan"))
    plain = {"admission": "always", "priority": "none", "routing": "random"}[stage]
    with pytest.raises(HeadwayError, match=r"Own\..* must .*got nan, at request 5\.$"):
        compare(SCENARIO, [plain, f"{tmp_path}/own.py:Own"], stage=stage, workers=1)


def test_a_policy_that_writes_to_a_view_fails_the_run() -> None:
    class Cheat:
        def route(self, request: Any, cluster: Any) -> Any:
            first = cluster.instances[0]
            object.__setattr__(first, "inflight", first.inflight - 1)  # which the lock of the views does not notice
            return headway.Route(cluster.instances[0].id)

    with pytest.raises(HeadwayError, match=r"instance-0 shows -3 requests in flight instead of 0\. A policy must"):
        headway.simulate({"workload": {"requests": 3, "rate": "1/s"}}, routing=Cheat())


def test_a_policy_that_narrows_the_candidates_is_told_so_or_does_so_for_no_other_request() -> None:
    seen = []

    class Narrow:
        first = 0

        def route(self, request: Any, cluster: Any) -> Any:
            seen.append(len(cluster.instances))
            if request.id >= self.first:
                cluster.instances = cluster.instances[:1]
            return headway.Route(cluster.instances[0].id)

    scenario = {"workload": {"requests": 203, "rate": "1/s"}, "cluster": {"instances": 4}}
    with pytest.raises(HeadwayError, match=r"Narrow writes to ClusterView\.instances .* at request 0\."):
        headway.simulate(scenario, routing=Narrow())
    Narrow.first = 200  # the views are no longer locked
    headway.simulate(scenario, routing=Narrow())
    assert seen == [4] * 204
