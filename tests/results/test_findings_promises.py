"""Findings about what was promised and what was paid for: SLO violations and scale oscillation."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from findings_made import drawn, kinds, of_kind, request, seen
from recorders import SECOND

import headway
from headway.results.findings import scale_oscillation, slo_violation
from headway.results.recorder import ScaleRecord
from headway.types import Scale

Json = dict[str, Any]
TENANTS: Json = {
    "shop": {"weight": 2, "priority": "realtime", "slo": {"ttft": "30ms", "tpot": "15ms"}},
    "mail": {"weight": 1, "slo": {"e2e": "6s"}},
    "index": {"weight": 1, "priority": "batch"},
}


# --- SLO violations --------------------------------------------------------------------------------------------------


def test_misses_are_told_by_class_and_add_up_to_what_the_summary_says() -> None:
    workload = {"requests": 1500, "rate": "60/s", "tenants": TENANTS}
    scenario = {"workload": workload, "cluster": {"instances": 2}, "slo": {"ttft": "1s"}, "warmup": 100}
    run = headway.simulate(scenario)
    findings = of_kind(run, "slo_violation")
    by_class = {finding.evidence["slo_class"]: finding for finding in findings}
    for group in run.summary()["classes"]:
        share = group["slo"]["goodput_ratio"]
        missed = by_class[group["id"]].count if group["id"] in by_class else 0
        counted = [row for row in range(100, 1500) if run.requests["slo_class"][row] == group["id"]]
        assert missed == round(len(counted) * (1 - share))
    assert by_class["realtime"].count > 100
    assert by_class["realtime"].evidence["tenant"] == "shop"
    assert len(findings) <= 3


@pytest.mark.full
def test_ten_thousand_misses_make_a_handful_of_findings() -> None:
    workload = {"requests": 10_500, "rate": "200/s", "prompt_tokens": 500, "output_tokens": 10, "tenants": TENANTS}
    run = headway.simulate({"workload": workload, "cluster": {"instances": 2}, "slo": {"e2e": "10ms"}})
    findings = of_kind(run, "slo_violation")
    assert len(findings) <= 3
    assert sum(finding.count for finding in findings) > 5000


@pytest.mark.parametrize("slo", [{}, {"ttft": "1h", "tpot": "10s", "e2e": "5h"}])
def test_without_targets_or_with_wide_ones_there_is_no_violation(slo: Json) -> None:
    workload = {"requests": 200, "rate": "80/s"}
    assert "slo_violation" not in kinds(
        headway.simulate({"workload": workload, "slo": slo, "cluster": {"instances": 1}})
    )


def test_the_only_tenants_own_targets_hold() -> None:
    workload = {"requests": 50, "rate": "5/s", "slo": {"e2e": "1ms"}}
    (finding,) = of_kind(headway.simulate({"workload": workload, "slo": {"e2e": "1h"}}), "slo_violation")
    assert finding.count == 50 and finding.severity == 1.0


def test_the_figures_of_a_violation_are_exact() -> None:
    ttfts = [0.1, 0.1, 3, 3, 0.1, 3, 0.1, 0.1, 2, 0.5]
    rows = [request(k, start=k, first=k + late, end=k + 4) for k, late in enumerate(ttfts)]
    rows.append(request(11, slo_class="batch", outcome="rejected", instance=-1))
    rows.append(request(12, outcome="timed_out"))
    (finding,) = slo_violation.find(seen(rows, scenario={"slo": {"ttft": "500ms", "tpot": "4s"}}))
    assert (finding.count, finding.severity) == (4, 0.4)
    assert (finding.at_ps, finding.until_ps) == (2 * SECOND, 12 * SECOND)
    assert finding.requests == [2, 3, 5, 8]  # the first three six times too late, the last four times
    assert finding.evidence == {
        "slo_class": "standard", "requests": 10, "missed": 4, "missed_ttft": 4, "missed_tpot": 0, "worst_from_s": 2.0,
        "worst_until_s": 3.0, "worst_requests": 2, "worst_missed": 2, "not_completed": 1, "of_this_kind": 1,
    }  # fmt: skip
    assert finding.title == (
        "4 of 10 standard requests (40.0 %) missed a target: 4 TTFT; the worst stretch is arrivals from 2.0 s to 3.0 "
        "s, of which 2 of 2 missed."
    )


@pytest.mark.parametrize("seed", range(30))
def test_the_worst_stretch_is_the_best_of_all_slices(seed: int) -> None:
    rng = Random(seed)
    good = [rng.random() < 0.6 for _ in range(rng.randrange(1, 30))] + [False]
    begin, end = slo_violation._worst_stretch(good)
    sums = {
        (a, b): sum(-1 if met else 1 for met in good[a:b])
        for a in range(len(good))
        for b in range(a + 1, len(good) + 1)
    }
    assert sums[begin, end] == max(sums.values())


@pytest.mark.parametrize("seed", range(30))
def test_misses_agree_with_an_independent_count(seed: int) -> None:
    rows = drawn(Random(seed), 40)
    scenario = {
        "slo": {"ttft": "9ps", "tpot": "2ps"},
        "workload": {"tenants": {"a": {"slo": {"e2e": "12ps"}}, "b": {}}},
    }
    missed: dict[str, int] = {}
    for row in rows:
        if row.get("outcome") != "completed":
            continue
        ttft, e2e = (row[name] - row["arrival_ps"] for name in ("first_token_ps", "finished_ps"))
        steps = row["output_tokens"] - 1
        late = e2e > 12 if row["tenant"] == "a" else ttft > 9 or (steps and (e2e - ttft) / steps > 2)
        missed[row["slo_class"]] = missed.get(row["slo_class"], 0) + bool(late)
    findings = {
        finding.evidence["slo_class"]: finding.count
        for finding in slo_violation.find(seen(rows, instances=3, scenario=scenario))
    }
    assert findings == {name: count for name, count in missed.items() if count}


# --- scale oscillation -----------------------------------------------------------------------------------------------


class UpAndDown:
    """One more at every other check, and one less at the others."""

    def scale(self, pool: Any) -> Scale:
        return Scale(pool.replicas + (1 if len(pool.history) % 2 else -1), "as it goes")


class Up:
    """One more at every check."""

    def scale(self, pool: Any) -> Scale:
        return Scale(pool.replicas + 1, "up")


LIVING: Json = {
    "workload": {"requests": 400, "rate": "40/s", "prompt_tokens": 200, "output_tokens": 60},
    "cluster": {"instances": 2, "min_replicas": 1, "max_replicas": 8},
    "scaling": {"interval": "1s", "provisioning": "300ms"},
}


def test_an_autoscaler_that_changes_its_mind_at_every_check_oscillates() -> None:
    run = headway.simulate(LIVING, scaling=UpAndDown())
    (finding,) = of_kind(run, "scale_oscillation")
    assert finding.count == run.summary()["scaling"]["oscillations"] >= 5
    assert finding.evidence["changes"] == len(run.scaling_events) == finding.count + 1
    assert finding.title.startswith("Pool default changed direction")


@pytest.mark.parametrize("policy", [Up, "static"])
def test_one_that_knows_what_it_wants_does_not(policy: Any) -> None:
    run = headway.simulate(LIVING, scaling=policy() if callable(policy) else policy)
    assert "scale_oscillation" not in kinds(run)


def scaled(*changes: tuple[float, int, int], pool: str = "chat") -> list[ScaleRecord]:
    return [ScaleRecord(round(at * SECOND), pool, before, after) for at, before, after in changes]


def test_the_figures_of_an_oscillation_are_exact() -> None:
    rows = [request(15, start=15, first=18, end=20), request(16, start=16, first=17, end=20)]
    events = scaled((1, 1, 2), (10, 2, 4), (40, 4, 3), (50, 3, 5), (500, 5, 4), (510, 4, 5))
    (finding,) = scale_oscillation.find(seen(rows, scaling_events=events))
    assert (finding.at_ps, finding.until_ps, finding.count) == (10 * SECOND, 50 * SECOND, 2)
    assert finding.requests == [0, 1]  # the slowest of those that came meanwhile
    assert finding.severity == 2 / scale_oscillation.MANY
    assert finding.title == (
        "Pool chat changed direction 2 times from 10.0 s to 50.0 s, on average every 20.0 s: it scaled up 2 times and "
        "down 1 time, between 2 and 5 replicas."
    )


def test_pools_do_not_oscillate_against_each_other() -> None:
    events = scaled((1, 1, 2), (3, 2, 3)) + scaled((2, 3, 2), (4, 2, 1), pool="code")
    events.sort(key=lambda one: one.at_ps)
    assert scale_oscillation.find(seen([request(0)], scaling_events=events)) == []
