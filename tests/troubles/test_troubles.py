"""The planted troubles: their scenarios, and the table of the causes that findings name."""

from __future__ import annotations

from typing import Any

import pytest

from conftest import ROOT
from headway.results.records import Blame, Finding
from headway.scenario.scenario import Scenario
from headway.testing.follow import follow
from headway.testing.troubles import DROP, NONE, SEVERITIES, TROUBLES, Diagnosis, changed, diagnose, matches, table


def test_each_trouble_has_its_own_name_and_a_sentence() -> None:
    assert len({trouble.name for trouble in TROUBLES}) == len(TROUBLES)
    assert all(trouble.text.endswith(".") and trouble.causes for trouble in TROUBLES)


@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda trouble: trouble.name)
def test_each_severity_is_a_valid_scenario_of_its_own(trouble: Any) -> None:
    scenarios = [Scenario.load(trouble.build(severity, seed=3)) for severity in (NONE, *SEVERITIES)]
    assert all(scenario.seed.workload == 3 for scenario in scenarios)
    assert len({scenario.key() for scenario in scenarios}) == len(scenarios)


def test_changes_are_nested_and_may_remove_keys() -> None:
    base = {"a": {"b": 1, "c": [1]}, "d": 2}
    assert changed(base, {"a": {"b": 3}, "d": DROP}) == {"a": {"b": 3, "c": [1]}}
    assert changed(base, {"a": {"c": [2]}, "e": {"f": 1}})["a"] == {"b": 1, "c": [2]}
    assert base == {"a": {"b": 1, "c": [1]}, "d": 2}


def made(kind: str, resource: str = "", *blames: Blame) -> Finding:
    return Finding(
        kind=kind, at_ps=0, until_ps=1, severity=1, count=1, title="", resource=resource, blames=list(blames)
    )


def test_a_cause_may_name_a_resource_or_the_first_blame() -> None:
    assert matches(made("hot_spot"), "hot_spot") and not matches(made("hot_spot"), "herding")
    assert matches(made("bottleneck", "kv"), "bottleneck:kv") and not matches(
        made("bottleneck", "kv"), "bottleneck:slots"
    )
    burst = made("tenant_burst", "", Blame("tenant", "gold", 0.8), Blame("tenant", "free", 0.1))
    assert matches(burst, "tenant_burst:tenant=gold") and not matches(burst, "tenant_burst:tenant=free")
    assert not matches(made("tenant_burst"), "tenant_burst:tenant=gold")


def test_the_table_marks_wrong_causes() -> None:
    def named(severity: str, cause: str, right: bool) -> Diagnosis:
        return Diagnosis(
            trouble="x", severity=severity, seed=0, late=0.1, cause=cause, right=right, finding=None, all=()
        )

    text = table([named("mild", "", False), named("severe", "herding", True), named("severe", "hot_spot", False)])
    assert text.splitlines() == [
        "| Trouble | mild | severe |",
        "|---|---|---|",
        "| x | **none** | `herding` (1), **`hot_spot`** (1) |",
        "",
        "Right: mild 0 of 1, severe 1 of 2.",
    ]


@pytest.mark.parametrize("name", ["tenant-burst", "few-slots", "herd"])
def test_a_healthy_scenario_meets_its_targets(name: str) -> None:
    assert diagnose(name, NONE).late <= 0.03


@pytest.mark.long
def test_most_figures_improve_if_the_first_suggestion_is_followed() -> None:
    cases = [follow(trouble, severity) for trouble in TROUBLES for severity in SEVERITIES]
    suggested = [case for case in cases if case.suggestion is not None]
    assert len(suggested) >= 0.9 * len(cases)
    assert sum(case.improved for case in suggested) >= 0.8 * len(suggested)


@pytest.mark.parametrize("name", ["link-bound", "starvation", "slow-start"])
def test_the_planted_cause_is_named_first(name: str) -> None:
    assert diagnose(name, "medium").right


@pytest.fixture(scope="module")
def diagnoses() -> list[Diagnosis]:
    """Every trouble at every severity, and without the trouble."""
    return [diagnose(trouble, severity) for trouble in TROUBLES for severity in (NONE, *SEVERITIES)]


@pytest.mark.full
def test_healthy_scenarios_meet_their_targets_and_severe_troubles_do_not(diagnoses: list[Diagnosis]) -> None:
    late = {(each.trouble, each.severity): each.late for each in diagnoses}
    assert not {name for (name, severity), share in late.items() if severity == NONE and share > 0.03}
    for trouble in TROUBLES:
        mild, medium, severe = (late[trouble.name, severity] for severity in SEVERITIES)
        assert 0 < mild <= 0.3 and mild < medium < severe and severe >= 0.3, trouble.name


@pytest.mark.full
def test_most_planted_causes_are_named_first(diagnoses: list[Diagnosis]) -> None:
    assert len(TROUBLES) >= 40
    for severity, least in ((NONE, 1.0), ("mild", 0.7), ("medium", 0.9), ("severe", 0.9)):
        right = [each.right for each in diagnoses if each.severity == severity]
        assert sum(right) >= least * len(right), severity


@pytest.mark.full
def test_the_table_of_the_docs_is_what_the_command_prints(diagnoses: list[Diagnosis]) -> None:
    page = (ROOT / "docs" / "findings.md").read_text("utf-8")
    written = page.split("<!-- troubles -->\n")[1].split("\n<!-- /troubles -->")[0]
    assert written == table(each for each in diagnoses if each.severity != NONE)
