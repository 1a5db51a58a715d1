"""True regret: a run with one forced decision agrees with a computation by hand."""

from __future__ import annotations

import io
from pathlib import Path
from statistics import mean
from typing import Any, cast

import pytest
from rich.console import Console

import headway
from conftest import Run
from headway.errors import HeadwayError
from headway.experiment.branches import forced_run
from headway.experiment.counterfactual import counterfactuals
from headway.experiment.explain import explain
from headway.experiment.run import prepare, run_prepared
from headway.report.explain import explanation
from headway.results import store
from headway.results.records import best_alternatives
from headway.results.result import Result
from headway.scenario.scenario import Scenario
from headway.types import Request, Route
from headway.views.cluster import ClusterView

MS = 10**9


class Badly:
    """Routes every request to the first instance."""

    def route(self, request: Request, cluster: ClusterView) -> Route:
        return Route(cluster.instances[0].id)


def shared(**changes: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "seed": 5,
        "workload": {
            "requests": 120,
            "rate": "30/s",
            "prompt_tokens": 1500,
            "output_tokens": 40,
            "prefix": {"groups": 6, "tokens": 1200},
        },
        "cluster": {"instances": 3},
        "slo": {"ttft": "200ms"},
    }
    return settings | changes


POLICY = """
from headway import Route

class First:
    def route(self, request, cluster):
        return Route(cluster.instances[0].id)
"""
TRACE = """TIMESTAMP,ContextTokens,GeneratedTokens
2026-01-01 00:00:00.000000,10000,3
2026-01-01 00:00:00.100000,1000,2
"""


def test_by_hand_the_better_choice_is_found_and_worth_what_it_is(tmp_path: Path) -> None:
    """0.1 ms a prompt token, 10 ms where somebody decodes. Behind the first on instance 0, the second begins at 1 s,
    takes 100 + 10 ms and has its first token after 1010 ms; alone on instance 1 after 100 ms. Its second token takes 10
    ms in either case; the first request has no part in that step of 110 ms then, and ends 100 ms sooner."""
    (tmp_path / "first.py").write_text(POLICY)
    (tmp_path / "two.azure.csv").write_text(TRACE)
    settings = {
        "defaults": "2026-11",
        "workload": {"trace": {"path": str(tmp_path / "two.azure.csv"), "format": "azure"}},
        "cluster": {"instances": 2, "max_batch_tokens": 20_000, "latency": {"model": "fixed"}},
        "policies": {"routing": f"{tmp_path / 'first.py'}:First"},
    }
    result = headway.simulate(settings, trace="decisions")
    assert result.decisions is not None
    assert result.decisions[1].estimated_ttft_ps[1] == 100 * MS
    (single,) = counterfactuals(result, requests=[1], workers=1)
    assert (single.chosen, single.alternative) == (0, 1)
    assert (single.ttft_ps, single.alternative_ttft_ps, single.regret_ps) == (1010 * MS, 100 * MS, 910 * MS)
    assert (single.e2e_ps, single.alternative_e2e_ps) == (1020 * MS, 110 * MS)
    assert (single.value, single.alternative_value) == ((1120 + 1020) / 2, (1020 + 110) / 2)
    (other,) = counterfactuals(result, requests=[0], workers=1)
    assert other.regret_ps == 0
    outcome = explain(result, 1, workers=1)["decision"]
    assert outcome["best_alternative"]["id"] == "instance-1"
    assert outcome["true_regret_ms"] == 910
    assert outcome["estimated_regret_ms"] == pytest.approx(1110 - 100)  # the estimate ignores that 100 ms have passed


def test_the_decision_taken_again_has_no_regret() -> None:
    for routing in ("round-robin", "random", "sticky", "weighted", "lmetric"):
        result = headway.simulate(shared(), routing=routing, trace="decisions")
        assert result.decisions is not None
        ids = result.instance_ids()
        for each in (result.decisions[10], result.decisions[80]):
            outcome = forced_run(result.scenario, each.request, (ids[each.target], None), "latency.e2e.mean")
            assert (outcome.ttft_ps, outcome.e2e_ps) == (each.ttft_ps, each.e2e_ps)
            assert outcome.value == result.summary()["latency"]["e2e"]["mean"]


@pytest.mark.full
def test_round_robin_has_regret_where_prefixes_are_shared() -> None:
    few = {"instances": 3, "kv": {"gpu_blocks": 250}, "latency": {"model": "roofline"}}  # a third of the prefixes fit
    values = {}
    for routing in ("round-robin", "lmetric"):
        result = headway.simulate({"defaults": "2026-11", **shared(cluster=few)}, routing=routing, trace="decisions")
        outcome = counterfactuals(result, 20, alternatives=None, workers=1)
        best = [outcome[place] for place in best_alternatives(outcome).values()]
        assert len(best) == 20
        values[routing] = mean(max(0, each.regret_ps or 0) for each in best)
    assert values["round-robin"] > 50 * MS
    assert values["round-robin"] > 2 * values["lmetric"]


@pytest.mark.full
def test_it_does_not_depend_on_the_number_of_workers() -> None:
    result = headway.simulate(shared(), routing="round-robin", trace="decisions")
    assert counterfactuals(result, 4, workers=1) == counterfactuals(result, 4, workers=2)


def test_alternatives_are_all_others_once() -> None:
    result = headway.simulate(shared(), routing="round-robin", trace="decisions")
    outcome = counterfactuals(result, requests=[17, 50], alternatives=None, workers=1)
    assert [(each.request, each.chosen) for each in outcome] == [(17, 2), (17, 2), (50, 2), (50, 2)]
    assert [sorted(each.alternative for each in outcome[at : at + 2]) for at in (0, 2)] == [[0, 1], [0, 1]]


def test_of_a_pair_one_half_is_changed_at_a_time() -> None:
    apart = {"architecture": "disaggregated", "prefill": {"instances": 2}, "decode": {"instances": 3}}
    result = headway.simulate(shared(cluster=apart), routing="least-loaded", trace="decisions")
    assert result.decisions is not None
    single = result.decisions.of(60)[0]
    outcome = counterfactuals(result, requests=[60], alternatives=None, workers=1)
    assert len(outcome) == 1 + 2
    for other in outcome:
        assert (other.alternative == single.target) != (other.alternative_prefill == single.prefill)
    same = forced_run(
        result.scenario, 60, (result.instance_ids()[single.target], result.instance_ids()[single.prefill]), "duration_s"
    )
    assert same.ttft_ps == single.ttft_ps


def test_the_objective_is_a_figure_of_the_summary() -> None:
    result = headway.simulate(shared(), routing="round-robin", trace="decisions")
    (single,) = counterfactuals(result, 1, objective="latency.ttft.p99", workers=1)
    assert single.objective == "latency.ttft.p99"
    assert single.value == result.summary()["latency"]["ttft"]["p99"]
    (single,) = counterfactuals(result, 1, workers=1)
    assert single.objective == "slo.goodput_ratio"


def test_a_policy_that_remembers_is_told_where_the_request_went() -> None:
    """A session that is forced elsewhere at its first turn stays there."""
    chat = {"kind": "chat", "rate": "1/s", "requests": 60, "prompt_tokens": 200, "output_tokens": 20}
    for routing in ("sticky", "session-affinity", {"name": "unified", "block_tokens": 16}):
        settings = {"seed": 2, "workload": chat, "cluster": {"instances": 3}}
        was = headway.simulate(settings, routing=routing).requests
        turns = [row for row in range(len(was)) if was["session"][row] == was["session"][0]]
        assert len(turns) > 1
        prepared = prepare(Scenario.load(settings), routing=routing)
        now = run_prepared(prepared, forced={0: ("instance-2", None)}).requests
        assert was["instance"][0] != 2
        assert now["instance"][0] == now["instance"][turns[1]] == 2


def test_what_cannot_be_run_again_is_refused() -> None:
    with pytest.raises(HeadwayError, match="this run has no trace of its decisions"):
        counterfactuals(headway.simulate(shared()))
    own = headway.simulate(shared(), routing=Badly, trace="decisions")
    with pytest.raises(HeadwayError, match="an object of your program"):
        counterfactuals(own)
    with pytest.raises(HeadwayError, match="request 999 was not routed"):
        counterfactuals(headway.simulate(shared(), trace="decisions"), requests=[999])


def test_explain_tells_what_every_alternative_gives() -> None:
    result = headway.simulate(shared(), routing="round-robin")
    outcome = explain(result, 40, workers=1)
    decision = outcome["decision"]
    chosen = [each for each in decision["candidates"] if each["chosen"]]
    assert [each["id"] for each in chosen] == [decision["target"]]
    row = {name: result.requests[name][40] for name in result.requests}
    ttft = (row["first_token_ps"] - row["arrival_ps"]) / MS
    assert outcome["request"]["ttft_ms"] == chosen[0]["true"]["ttft_ms"] == ttft
    best = min(each["true"]["ttft_ms"] for each in decision["candidates"])
    assert decision["true_regret_ms"] == pytest.approx(max(0.0, ttft - best), abs=1e-9)


def lossy(retries: int) -> dict[str, Any]:
    """Return three instances; the second crashes after one second and does not restart."""
    fault = {"at": "1s", "instance": "instance-1", "kind": "crash", "duration": "1h"}
    workload = {"requests": 40, "rate": "20/s", "prompt_tokens": 800, "output_tokens": 100}
    scenario = {"workload": workload, "cluster": {"instances": 3}, "policies": {"routing": "round-robin"}}
    return {**scenario, "faults": [fault], "retries": retries}


def told(result: headway.Result, request: int) -> str:
    console = Console(width=1000, file=io.StringIO())
    console.print(explanation(explain(result, request, workers=1)))
    return cast(io.StringIO, console.file).getvalue()


def test_explain_says_where_a_request_that_was_lost_would_have_been_completed() -> None:
    result = headway.simulate(lossy(0), trace="decisions")
    lost = list(result.requests["outcome"]).index("failed")
    assert "simulated again, the request is completed on instance-0 and instance-2." in told(result, lost)


def test_explain_does_not_take_what_was_found_where_a_request_went_last_for_what_was_found_first() -> None:
    result = headway.simulate(lossy(1), trace="decisions")
    again = next(row for row, retries in enumerate(result.requests["retries"]) if retries)
    outcome = explain(result, again, workers=1)
    chosen = next(each for each in outcome["decision"]["candidates"] if each["chosen"])
    assert chosen["id"] == "instance-1" and chosen["true"]["cached_tokens"] is None
    first, _, last = told(result, again).partition("It was dispatched again at 1.000 s, to ")
    assert "were cached" not in first and "were cached there." in last


def test_explain_speaks_of_beliefs_only_where_a_policy_has_some_and_of_what_was_tried() -> None:
    whole = {"workload": {"requests": 5, "rate": "9/s", "prompt_tokens": 9000, "output_tokens": 9}}
    whole["cluster"] = {"instances": 2, "kv": {"gpu_blocks": 300}}
    assert "The policy believed" in told(headway.simulate(whole, routing="lmetric"), 1)
    text = told(headway.simulate(whole, routing="round-robin"), 1)
    assert "believed 0" not in text and "no other place" not in text
    assert "simulated again with every other choice, it gets no first token either." in text


FRAGILE = """
from headway import ClusterView, Request, Route, Routed

class Fragile:
    \"\"\"Cannot bear another hand in its decisions.\"\"\"

    def bind(self, context):
        self.wronged = False

    def observe(self, event):
        self.wronged |= isinstance(event, Routed) and event.instance.id != "instance-0"

    def route(self, request: Request, cluster: ClusterView) -> Route:
        if self.wronged:
            raise RuntimeError("not where I sent it")
        return Route("instance-0")
"""


def test_a_run_is_written_whatever_becomes_of_its_counterfactuals(headway: Run, tmp_path: Path) -> None:
    (tmp_path / "fragile.py").write_text(FRAGILE)
    settings = "workload: {requests: 9, rate: 9/s}\ncluster: {instances: 2}\npolicies: {routing: fragile.py:Fragile}\n"
    (tmp_path / "s.yaml").write_text(settings)
    process = headway("run", "s.yaml", "-o", "run", "--counterfactuals", "9", cwd=tmp_path)
    assert process.returncode == 2 and "Traceback" not in process.stderr
    assert "counterfactuals: with request 0 sent to instance-1: " in process.stderr
    assert len(Result.load(tmp_path / "run").requests) == 9


def test_counterfactuals_that_cannot_be_written_leave_the_folder_whole(tmp_path: Path) -> None:
    result = headway.simulate(shared(), trace="decisions")
    result.save(tmp_path)
    (tmp_path / "counterfactuals.part").mkdir()
    with pytest.raises(HeadwayError, match=r"counterfactuals\.jsonl: cannot be written: Is a directory"):
        store.add(tmp_path, "counterfactuals", counterfactuals(result, 1, workers=1))
    assert Result.load(tmp_path) == result


def test_less_than_one_worker_is_an_error() -> None:
    with pytest.raises(HeadwayError, match="workers: must be at least 1, got 0"):
        counterfactuals(headway.simulate(shared(), trace="decisions"), 1, workers=0)
