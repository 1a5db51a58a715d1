"""`headway.check`: the verdict, what it says beside it, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headway
from conftest import ROOT
from headway.errors import HeadwayError
from headway.policies.bundle import Bundle
from headway.regression.changes import turned
from headway.regression.check import _next
from headway.regression.pairs import Run
from small_checks import SLOW, SMALL


def check(*sides: Any, **options: Any) -> headway.Check:
    return headway.check(*sides, **{"seeds": 16, "workers": 1, "progress": False, **options})


def test_a_slower_candidate_fails_and_a_faster_one_passes() -> None:
    worse = check(SMALL, None, "e2e.mean>+5%", candidate_set=SLOW)
    assert (worse.outcome, worse.code) == ("fail", 1)
    (row,) = worse.rows
    assert row["base"] < row["candidate"] and 0.05 < row["low"] < row["value"] < row["high"]
    better = check(SMALL, None, "e2e.mean>+5%", base_set=SLOW)
    assert (better.outcome, better.code) == ("pass", 0)


def test_a_check_stops_as_soon_as_it_can_tell() -> None:
    assert check(SMALL, None, "e2e.mean>+5%", candidate_set=SLOW, seeds=64).pairs == 8


def test_a_verdict_that_is_open_says_what_would_be_needed() -> None:
    found = check(
        SMALL, None, "e2e.mean>+0%", overrides="policies.routing=random", candidate_set="seed.simulation=9", seeds=12
    )
    assert (found.outcome, found.code, found.pairs) == ("cannot tell", 4, 12)
    (row,) = found.rows
    assert row["low"] < 0 < row["high"] and row["needed"] > 12
    assert "would tell" in repr(found) or "hardly tell" in repr(found)


def test_the_same_check_has_the_same_bytes_with_any_number_of_workers() -> None:
    sides = (SMALL, {**SMALL, "policies": {"routing": "random"}}, ["ttft.p99>+5%", "e2e.mean>+1%"])
    one, two = (check(*sides, workers=workers) for workers in (1, 2))
    assert one.summary() == two.summary()
    assert (one.markdown(), one.junit(), repr(one)) == (two.markdown(), two.junit(), repr(two))


def test_equal_sides_pass_without_a_run() -> None:
    found = check(SMALL, dict(SMALL), ["ttft.p99>+0%", "throughput.requests_per_s<-1%"])
    assert (found.outcome, found.pairs) == ("pass", 0)
    assert "nothing ran" in repr(found)
    assert check(SMALL, dict(SMALL), "ttft.p99>1ms").outcome == "fail", "a level needs runs"


def test_sides_that_decide_alike_need_sixteen_equal_pairs() -> None:
    quiet = "signals.poll_interval=100ms"  # least-loaded reads no polled signal
    assert check(SMALL, None, "e2e.mean>+5%", candidate_set=quiet, seeds=12).outcome == "cannot tell"
    found = check(SMALL, None, "e2e.mean>+5%", candidate_set=quiet)
    assert (found.outcome, found.pairs) == ("pass", 16)


def test_several_conditions_share_the_error() -> None:
    one = check(SMALL, None, "e2e.mean>+500%", candidate_set=SLOW)
    two = check(SMALL, None, ["e2e.mean>+500%", "ttft.p99>+900%"], candidate_set=SLOW)
    assert one.outcome == two.outcome == "pass"
    assert two.rows[0]["low"] < one.rows[0]["low"]


def test_one_condition_that_holds_fails_the_check() -> None:
    found = check(SMALL, None, ["throughput.requests_per_s<-50%", "e2e.mean>+5%"], candidate_set=SLOW)
    assert found.outcome == "fail"
    assert [row["outcome"] for row in found.rows] == ["pass", "fail"]


def test_levels_and_absolute_changes() -> None:
    found = check(SMALL, None, ["e2e.mean>+20ms", "e2e.mean>1s", "throughput.requests_per_s<1"], candidate_set=SLOW)
    assert [row["outcome"] for row in found.rows] == ["fail", "pass", "pass"]


def test_policies_meet_in_a_scenario_and_a_scenario_meets_a_policy(tmp_path: Path) -> None:
    bundle = tmp_path / "best.yaml"
    Bundle.of("best", routing="random").write(str(bundle))
    by_name = check("least-loaded", "random", "e2e.mean>+300%", on=SMALL)
    by_file = check("least-loaded", str(bundle), "e2e.mean>+300%", on=SMALL)
    mixed = check(SMALL, Bundle.of("best", routing="random"), "e2e.mean>+300%")
    assert by_name.rows == by_file.rows == mixed.rows
    assert by_file.candidate == str(bundle) and mixed.candidate == "best"


def test_policies_meet_in_the_embedded_suite_under_seeds_that_no_search_has_seen() -> None:
    found = check("least-loaded", "always-busiest", "ttft.mean>+5%", overrides="workload.requests=30")
    assert found.outcome == "fail" and len(found.workloads) == 8
    assert set(found.rows[0]["workloads"]) == set(found.workloads)


def test_figures_by_tenant() -> None:
    tenants = {"workload": {**SMALL["workload"], "tenants": {"a": {"weight": 1}, "b": {"weight": 1}}}}
    found = check({**SMALL, **tenants}, None, "tenants.b.e2e.mean>+5%", candidate_set=SLOW)
    assert found.outcome == "fail" and found.rows[0]["figure"] == "tenants.b.latency.e2e.mean"


def test_the_figures_that_changed_most_are_told() -> None:
    found = check(SMALL, None, "cost.usd>+500%", candidate_set="policies.routing=always-busiest")
    assert 0 < len(found.changes) <= 3 and "balance" in {each.figure.split(".")[0] for each in found.changes}
    assert all(each.base != each.candidate for each in found.changes)
    assert "Changed most" in found.markdown()
    equal = check(SMALL, None, "cost.usd>+500%", candidate_set="signals.poll_interval=100ms")
    assert equal.changes == ()


def test_a_finding_turned_if_most_runs_of_one_side_have_it_and_most_of_the_other_do_not() -> None:
    def pairs(before: int, after: int) -> list[tuple[Run, Run]]:
        found = {"hot_spot": "One instance was hot."}
        return [(Run({}, found if n < before else {}), Run({}, found if n < after else {})) for n in range(4)]

    appeared, gone = turned({"chat": pairs(1, 4), "rag": pairs(3, 2), "agents": pairs(3, 4)})
    assert [(each.workload, each.base, each.candidate, each.runs) for each in appeared] == [("chat", 1, 4, 4)]
    assert [(each.kind, each.workload) for each in gone] == [("hot_spot", "rag")]
    assert turned({"chat": [(Run({}, None), Run({}, None))]}) == ([], []), "runs whose findings nobody searched for"


def test_a_relative_change_from_zero_cannot_be_told() -> None:
    crowded = {**SMALL, "workload": {**SMALL["workload"], "rate": "200/s"}}
    limited = "policies.admission={name: token-bucket, rate: 20}"
    found = check(crowded, None, "requests.rejected>+5%", candidate_set=limited)
    assert found.outcome == "cannot tell"
    assert "use an absolute limit" in found.rows[0]["reason"]
    assert check(crowded, None, "requests.rejected>+1", candidate_set=limited).outcome == "fail"


def test_a_budget_ends_the_check_by_the_clock_alone() -> None:
    # after how many pairs to look next, whether that is the last look, and whether the time makes it so
    assert _next(8, 64, None, 99.0) == (16, False, False)
    assert _next(32, 64, None, 99.0) == (64, True, False)
    assert _next(8, 64, 60.0, 1.0) == (16, False, False)
    assert _next(8, 64, 60.0, 20.0) == (16, False, False), "24 pairs fit, so one more look follows"
    assert _next(8, 64, 60.0, 30.0) == (16, True, True)
    assert _next(8, 64, 60.0, 40.0) == (12, True, True), "a smaller last look uses the rest of the time"
    assert _next(8, 64, 60.0, 55.0) == (8, True, True)


def test_a_check_that_the_time_ended_says_so() -> None:
    found = check(
        SMALL, None, "e2e.mean>+0%", overrides="policies.routing=random", candidate_set="seed.simulation=9",
        budget="1ms", seeds=64,
    )  # fmt: skip
    assert (found.outcome, found.pairs) == ("cannot tell", 2)
    assert "The time of 0.001 s ended the check after 2 of 64 seeds" in found.notes[0]


WRONG = [
    ((SMALL,), {}, "candidate: is missing. Name a second file"),
    ((SMALL, SMALL), {"candidate_set": "workload.rate=9/s"}, "workload.rate: is '12/s' in the base and '9/s'"),
    ((SMALL, SMALL), {"candidate_set": "seed.workload=3"}, "seed.workload: is 0 in the base and 3 in the candidate"),
    ((SMALL, SMALL), {"base_set": "cluster.instanzes=3"}, "base: cluster.instanzes"),
    ((SMALL, SMALL), {"candidate_set": "cluster"}, "candidate_set cluster: write it as key.path=value"),
    ((SMALL, SMALL), {"on": SMALL}, "on: the base is a scenario"),
    ((SMALL, "nowhere.yaml"), {}, "nowhere.yaml: there is no scenario file"),
    (
        (SMALL, "round-robbin"),
        {},
        "no file, preset or routing policy called 'round-robbin'. Did you mean 'round-robin'?",
    ),
    ((SMALL, "x" * 5000), {}, "candidate: there is no file, preset or routing policy called 'xxx"),
    ((SMALL, "my.py"), {}, "candidate: my.py: name the class in the file, as in my.py:MyRouter."),
    ((SMALL, str(ROOT / "examples/18_evolve.yaml")), {}, "is a suite. Name two policies, and the suite with on."),
    ((SMALL, SMALL), {"seeds": 1}, "seeds: must lie between 2 and 1,000, got 1"),
    ((SMALL, SMALL), {"error": 0.7}, "error: must lie between 0 and 0.5"),
    ((SMALL, SMALL), {"budget": "soon"}, "budget: 'soon' is not a duration"),
    ((SMALL, SMALL), {"git": "main"}, "git: name one file"),
    ((SMALL,), {"git": "main"}, "git: needs the path of a file"),
]


@pytest.mark.parametrize(("sides", "options", "message"), WRONG, ids=[message[:40] for *_, message in WRONG])
def test_a_mistake_is_one_sentence(sides: tuple[Any, ...], options: dict[str, Any], message: str) -> None:
    with pytest.raises(HeadwayError) as caught:
        check(*sides, **{"fail_if": "ttft.p99>+5%", **options})
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_figure_that_no_run_has_is_named() -> None:
    with pytest.raises(HeadwayError, match=r"no run has the figure tenants\.x\.latency\.ttft\.p99"):
        check(SMALL, None, "tenants.x.ttft.p99>+5%", candidate_set=SLOW)


def test_an_error_of_a_run_names_its_side(tmp_path: Path) -> None:
    file = tmp_path / "bad.py"
    file.write_text("class Bad:\n    def route(self, request, cluster):\n        raise ValueError('oh no')\n")
    with pytest.raises(HeadwayError, match=r"^candidate, small: .*oh no"):
        check(SMALL, f"{file}:Bad", "ttft.p99>+5%")
