"""What the charts of a report are made from, against plain computations of the same."""

from __future__ import annotations

import random
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reported import compared, counterfactual, example

from conftest import ROOT
from headway import simulate
from headway.report.digest import CELLS, CLASSES, calibration, curve, curves, digest, digest_decisions, regrets
from headway.report.number_format import brief
from headway.report.over_time import coarse, grid_of, loads
from headway.report.sections.sweep_lines import front, quantity
from headway.results.decisions import Decision, Decisions
from headway.results.findings.observed import Observed
from headway.results.records import Series
from headway.results.statistics import PS_PER_MS
from headway.results.time_grid import Grid, SpanSums
from headway.types import PS_PER_SECOND


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), max_size=30), st.integers(1, 20))
def test_sums_of_spans_over_time_are_exact(stays: list[tuple[int, int]], bins: int) -> None:
    grid = Grid(100, -(-1000 // bins), bins)
    sums = SpanSums(grid)
    for first, second in stays:
        sums.add(100 + min(first, second), 100 + max(first, second))
    for place, total in enumerate(sums.totals()):
        low, high = (grid.start_ps + edge * grid.step_ps for edge in (place, place + 1))
        inside = sum(max(0, min(high, 100 + max(each)) - max(low, 100 + min(each))) for each in stays)
        assert total == inside


def test_the_loads_of_a_run_are_those_of_its_requests() -> None:
    result = compared()[0]
    figures, table = loads(result), result.requests
    length = figures.grid.bins * figures.grid.step_ps
    waits = sum(start - arrival for start, arrival in zip(table["started_ps"], table["arrival_ps"], strict=True))
    assert fmean(figures.waiting) == pytest.approx(waits / length, rel=1e-4)
    for index, values in figures.instances.items():
        rows = [row for row in table.rows() if row["instance"] == index]
        there = sum(row["finished_ps"] - row["enqueued_ps"] for row in rows)
        assert fmean(values) == pytest.approx(there / length, rel=1e-4)


def test_a_prompt_that_is_computed_apart_counts_where_it_is() -> None:
    result = simulate(ROOT / "examples" / "13_disaggregated.yaml", overrides=["workload.requests=60"])
    figures = loads(result)
    length = figures.grid.bins * figures.grid.step_ps
    rows = list(result.requests.rows())
    apart = [row for row in rows if row["prefill_instance"] >= 0]
    assert apart
    for index, values in figures.instances.items():
        prompts = [row["handed_ps"] - row["enqueued_ps"] for row in apart if row["prefill_instance"] == index]
        answers = [row["finished_ps"] - row["transferred_ps"] for row in apart if row["instance"] == index]
        assert fmean(values) == pytest.approx((sum(prompts) + sum(answers)) / length, rel=1e-4)


def test_requests_in_flight_at_the_horizon_are_there_until_it() -> None:
    result = simulate(ROOT / "examples" / "01_first_run.yaml", overrides=["workload.requests=40", "horizon=1s"])
    assert result.summary()["requests"]["in_flight"]
    figures = loads(result)
    end, last = figures.grid.end_ps, figures.grid.end_ps - figures.grid.step_ps
    rows = [row for row in result.requests.rows() if row["started_ps"] >= 0]
    until = [row["finished_ps"] if row["finished_ps"] >= 0 else end for row in rows]
    ran = sum(max(0, at - max(last, row["started_ps"])) for row, at in zip(rows, until, strict=True))
    assert figures.running[-1] == brief(ran / figures.grid.step_ps) > 1


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=2000))
def test_a_curve_goes_through_exact_order_statistics(values: list[int]) -> None:
    points = curve([value * PS_PER_MS for value in values])
    assert len(points) <= 200
    assert points[0][0] == brief(min(values)) and points[-1] == (brief(max(values)), 1.0)
    ordered = sorted(values)
    for ms, share in points:
        rank = round(Fraction(share) * len(values))
        assert abs(rank / len(values) - share) < 1e-4 and ms == brief(ordered[rank - 1])
    assert all(each[0] <= other[0] and each[1] < other[1] for each, other in pairwise(points))


def test_the_curves_are_of_the_requests_that_statistics_are_about() -> None:
    result = simulate(ROOT / "examples" / "01_first_run.yaml", overrides=["workload.requests=150", "warmup=50"])
    figures = curves(Observed(result))
    for name, points in figures.items():
        spread = result.summary()["latency"][name]
        assert points[0][0] == brief(spread["min"]) and points[-1][0] == brief(spread["max"])


def test_beliefs_are_counted_by_what_was_found() -> None:
    result = compared()[1]
    figures = calibration(result)
    started = [row for row in result.requests.rows() if row["started_ps"] >= 0]
    assert sum(figures.values()) == len(started)
    believed = sum(10 * row["predicted_tokens"] // row["prompt_tokens"] >= 5 for row in started)
    assert sum(count for (x, _), count in figures.items() if x >= 5) == believed > 0
    assert all(0 <= part < CELLS for cell in figures for part in cell)


def test_a_sampled_value_is_its_mean_in_each_part_of_a_run() -> None:
    grid = Grid(0, 10, 3)
    assert coarse(Series("kv_used", 0, 0, 4, [1, 2, 6, 8, 10]), grid) == [3.0, 9.0, None]


def test_how_full_the_caches_are_is_a_share_of_their_blocks() -> None:
    figures = digest("run", compared()[0])
    shares = [share for row in figures.kv.values() for share in row if share is not None]
    assert len(figures.kv) == 3 and shares and all(0 <= share <= 1 for share in shares) and max(shares) > 0


def decision(request: int, at_s: int, target: int, estimated_ms: list[int], **more: object) -> Decision:
    count = range(len(estimated_ms))
    usual: dict[str, object] = {
        "router": 0,
        "prefill": -1,
        "reason": "",
        "priority": 0.0,
        "candidates": list(count),
        **{
            name: [0 for _ in count]
            for name in ("inflight", "pending_prefill_tokens", "queued", "running", "believed_tokens")
        },
        "kv_used": [],
        "scores": {},
        "totals": [],
        "lowest_wins": False,
    }
    estimated = [each * PS_PER_MS for each in estimated_ms]
    values = {**usual, "request": request, "at_ps": at_s * PS_PER_SECOND, "target": target, **more}
    return Decision(estimated_ttft_ps=estimated, **values)  # type: ignore[arg-type]


def test_regret_and_contributions_of_hand_made_decisions() -> None:
    result = example(5, routing={"name": "weighted", "scorers": {"queue-depth": 3, "prefix-affinity": 1}})
    result.decisions = Decisions(
        [
            decision(
                0, 1, 0, [50, 10, 30], scores={"queue-depth": [0.9, 0.3, 0.6], "prefix-affinity": [0.0, 1.0, 0.5]}
            ),
            decision(
                1, 2, 1, [50, 10, 30], scores={"queue-depth": [None, 0.8, 0.4], "prefix-affinity": [None, 1.0, 0.0]}
            ),
            decision(2, 3, 2, [50, 10, 30]),
        ]
    )
    figures = digest_decisions(result)
    assert figures is not None
    assert figures.estimated.spread["mean"] == 20.0 and figures.estimated.spread["max"] == 40.0
    assert figures.estimated.some == 2
    # Three quarters of what queue depth gave the chosen above the mean: 0.3 and 0.2.
    assert figures.contributions == pytest.approx({"queue-depth": 0.75 * 0.25, "prefix-affinity": 0.25 * 0.0})
    assert [bad.decision.request for bad in figures.worst] == [0, 2]
    assert [bad.best for bad in figures.worst] == [1, 1]


def test_where_the_lowest_total_wins_a_low_score_speaks_for_a_candidate() -> None:
    result = example(5)
    each = decision(0, 1, 1, [5, 5], scores={"load": [10.0, 4.0]}, lowest_wins=True)
    result.decisions = Decisions([each])
    figures = digest_decisions(result)
    assert figures is not None and figures.contributions == {"load": 3.0}


def test_the_worst_are_ranked_by_true_regret_where_that_is_known() -> None:
    result = example(40, trace="decisions")
    rows = [decision(number, number, 0, [100 - number, 10]) for number in range(40)]
    result.decisions = Decisions(rows)
    result.counterfactuals = [counterfactual(result, 30, 5 * PS_PER_SECOND), counterfactual(result, 0, 0)]
    figures = digest_decisions(result)
    assert figures is not None and figures.true is not None
    assert [bad.decision.request for bad in figures.worst] == [30, *range(1, 10)]
    assert figures.worst[0].true_ps == 5 * PS_PER_SECOND and figures.worst[1].true_ps is None
    assert figures.true.total == 2


def test_of_very_many_decisions_a_part_is_looked_at_and_the_simulated_ones_always(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headway.report.digest.MOST", 10)
    result = example(95)
    result.decisions = Decisions([decision(number, number // 3, 0, [20, 10]) for number in range(95)])
    result.counterfactuals = [counterfactual(result, 44, 7 * PS_PER_SECOND)]
    figures = digest_decisions(result)
    assert figures is not None and figures.step == 10 and figures.estimated.total == 10 and figures.count == 95
    assert figures.worst[0].decision.request == 44


def test_every_regret_falls_into_one_class() -> None:
    rng = random.Random(5)
    figures = regrets([rng.randrange(-(10**12), 10**13) for _ in range(500)])
    assert figures.total == 500 and len(figures.counts) == len(CLASSES)
    assert regrets([0, PS_PER_MS // 2, -PS_PER_MS // 2]).counts[CLASSES.index("within ±1")] == 3


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=12))
def test_the_front_is_who_nobody_beats(points: list[tuple[float, float]]) -> None:
    for (x, y), remaining in zip(points, front(points), strict=True):
        assert remaining is not any(a <= x and b >= y and (a, b) != (x, y) for a, b in points)


def test_quantities_are_read_with_their_units() -> None:
    assert [quantity(each) for each in (20, 0.5, "20/s", "250ms", "1e3")] == [
        (20.0, ""),
        (0.5, ""),
        (20.0, "/s"),
        (250.0, "ms"),
        (1000.0, ""),
    ]


def test_the_parts_of_a_run_cover_it_whole() -> None:
    grid = grid_of(compared()[0])
    table = compared()[0].requests
    assert grid.start_ps == min(table["arrival_ps"])
    assert grid.end_ps >= max(table["finished_ps"]) - 1000 and grid.end_ps - grid.step_ps < max(table["finished_ps"])


def test_the_versions_that_are_noted_are_those_of_the_scripts() -> None:
    assets = ROOT / "src" / "headway" / "report" / "assets"
    noted = [line.split(" | ") for line in (assets / "README.md").read_text().splitlines() if ".min.js" in line]
    assert len(noted) == 3
    for _, version, file in noted:
        assert f'"{version}"' in Path(assets / file.strip(" |")).read_text(encoding="utf-8")
