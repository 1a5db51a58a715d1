"""Paired seeds: intervals agree with an independent computation, and noise makes no winner."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
import yaml

import headway
from conftest import Run
from headway import HeadwayError, Route
from headway.experiment.paired import HEADLINE, difference, mean_summary
from headway.policies.basic import Random
from headway.results import study
from headway.results.ranking import value
from headway.results.statistics import mean_of, quantile, within

SCENARIO: dict[str, Any] = {
    "name": "small",
    "seed": {"workload": 5, "simulation": 11, "jitter": 3},
    "workload": {
        "requests": 60,
        "rate": "20/s",
        "prompt_tokens": {"dist": "normal", "mean": 400, "std": 150, "min": 50, "max": 900},
        "output_tokens": {"dist": "normal", "mean": 20, "std": 8, "min": 2, "max": 60},
        "prefix": {"groups": 5, "tokens": 128},
    },
    "cluster": {"instances": 3, "kv": {"gpu_blocks": 200}, "latency": {"model": "fixed"}},
    "slo": {"ttft": "120ms", "tpot": "30ms"},
}
# Student's t, two-sided 95 %, from a printed table.
PRINTED = {2: 4.303, 3: 3.182, 4: 2.776, 9: 2.262}


def rows(found: headway.Comparison) -> dict[tuple[str, str], dict[str, Any]]:
    assert found.paired is not None
    return {(row["policy"], row["figure"]): row for row in found.paired}


def single(policy: str, number: int) -> dict[str, Any]:
    """Return a single run with its seeds increased by hand."""
    seeds = {name: seed + number for name, seed in SCENARIO["seed"].items()}
    return headway.simulate({**SCENARIO, "seed": seeds}, routing=policy).summary()


@pytest.fixture(scope="module")
def four() -> headway.Comparison:
    return headway.compare(SCENARIO, ["round-robin", "random", "lmetric"], seeds=4, workers=1)


# --- the interval -----------------------------------------------------------------------------------------------------


def test_the_quantiles_are_those_of_students_law() -> None:
    """The density is integrated here, by Simpson's rule; the code sums a finite series instead."""
    from math import exp, lgamma, log, pi

    for freedom in (1, 2, 3, 9, 10, 37, 200):
        scale = exp(lgamma((freedom + 1) / 2) - lgamma(freedom / 2) - 0.5 * log(freedom * pi))

        def density(t: float, n: int = freedom, scale: float = scale) -> float:
            return scale * (1 + t * t / n) ** (-(n + 1) / 2)

        t, steps = quantile(freedom), 4000
        inner = [density(t * place / steps) * (4 if place % 2 else 2) for place in range(1, steps)]
        area = 2 * (t / steps) / 3 * (density(0.0) + density(t) + statistics.fsum(inner))
        assert area == pytest.approx(0.95, abs=1e-8)
        assert within(t, freedom) == pytest.approx(0.95, abs=1e-9)


def test_the_interval_covers_the_true_mean_as_often_as_it_says() -> None:
    from random import Random as Draw

    draw = Draw(17)
    held = 0
    for _ in range(2000):
        result = mean_of([draw.gauss(3.0, 2.0) for _ in range(5)])
        assert result.low is not None and result.high is not None
        held += result.low <= 3.0 <= result.high
    assert 0.935 < held / 2000 < 0.965


def test_deltas_and_intervals_are_what_single_runs_give(four: headway.Comparison) -> None:
    runs = {name: [single(name, number) for number in range(4)] for name in ("round-robin", "random", "lmetric")}
    checked = 0
    for (policy, figure), row in rows(four).items():
        values = [value(summary, figure) for summary in runs[policy]]
        assert row["mean"] == pytest.approx(statistics.fmean(v for v in values if v is not None))
        if policy == "round-robin":
            assert (row["delta"], row["low"], row["high"], row["word"]) == (None, None, None, "baseline")
            continue
        base = [value(summary, figure) for summary in runs["round-robin"]]
        apart = [mine - its for mine, its in zip(values, base, strict=True) if mine is not None and its is not None]
        half = PRINTED[3] * statistics.stdev(apart) / 4**0.5
        assert row["delta"] == pytest.approx(statistics.fmean(apart))
        assert row["high"] - row["delta"] == pytest.approx(half, rel=2e-4, abs=1e-12)
        assert row["delta"] - row["low"] == pytest.approx(half, rel=2e-4, abs=1e-12)
        holds = row["low"] <= 0 <= row["high"]
        assert row["word"] == "no difference" if not any(apart) else (row["word"] == "within noise") is holds
        checked += 1
    assert checked == 2 * len(HEADLINE)


def test_better_and_worse_go_by_the_figures_own_direction() -> None:
    def runs(figure: float) -> list[dict[str, Any]]:
        return [{"latency": {"ttft": {"mean": figure + n}}, "slo": {"goodput_ratio": figure / 100}} for n in range(3)]

    lower = difference(runs(10), runs(20), "latency.ttft.mean")
    fewer = difference(runs(10), runs(20), "slo.goodput_ratio")
    assert lower is not None and (lower[1], lower[0].mean, lower[0].low, lower[0].high) == ("better", -10, -10, -10)
    assert fewer is not None and fewer[1] == "worse"


def test_a_run_without_the_figure_has_no_difference_to_tell() -> None:
    some = [{"latency": {"ttft": {"mean": 1.0}}}, {"latency": {"ttft": {"mean": None}}}]
    assert difference(some, some, "latency.ttft.mean") is None


# --- pairing ----------------------------------------------------------------------------------------------------------


def test_a_policy_compared_with_itself_shows_no_difference_of_zero_width() -> None:
    result = headway.compare(SCENARIO, ["lmetric", "lmetric"], seeds=3, workers=1)
    theirs = [row for row in result.paired or [] if row["policy"] == "lmetric#2"]
    assert len(theirs) == len(HEADLINE)
    assert {(row["delta"], row["low"], row["high"], row["word"]) for row in theirs} == {(0, 0, 0, "no difference")}
    assert result.verdict.startswith("There is no difference between lmetric and lmetric#2: ")


def test_the_command_line_says_no_difference_too(headway: Run, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(SCENARIO))
    arguments = ("compare", "s.yaml", "--policies", "random,random", "--seeds", "3")
    output = headway(*arguments, cwd=tmp_path)
    assert output.returncode == 0, output.stderr
    line = next(line for line in output.stdout.splitlines() if line.startswith(" random#2") and "no diff" in line)
    assert "±" not in line and "noise" not in line
    assert "There is no difference between random and random#2" in " ".join(output.stdout.split())
    document = json.loads(headway(*arguments, "--json", cwd=tmp_path).stdout)
    assert (document["seeds"], document["baseline"]) == (3, "random")
    assert {row["word"] for row in document["paired"]} == {"baseline", "no difference"}


def test_two_streams_of_the_same_random_policy_are_within_noise() -> None:
    class OtherDraws(Random):
        def bind(self, context: headway.Context) -> None:
            self.draw = context.rng("another routing").random

    result = headway.compare(SCENARIO, ["random", OtherDraws], seeds=10)
    theirs = {figure: row for (policy, figure), row in rows(result).items() if policy != "random"}
    assert {row["word"] for row in theirs.values()} == {"within noise"}
    assert theirs["latency.ttft.mean"]["delta"] != 0
    assert "within noise of each other" in result.verdict and "best" not in result.verdict


def test_a_difference_that_is_more_than_noise_is_claimed() -> None:
    result = headway.compare(SCENARIO, ["round-robin", "always-busiest"], seeds=6, workers=1)
    assert rows(result)[("always-busiest", "latency.ttft.mean")]["word"] == "worse"
    assert result.verdict.startswith("round-robin serves this best") and result.verdict.endswith("Means over 6 seeds.")


def test_neither_workers_nor_order_change_the_figures(four: headway.Comparison) -> None:
    other = headway.compare(SCENARIO, ["lmetric", "round-robin", "random"], seeds=4, workers=2)
    assert rows(other) == rows(four)
    assert (other.verdict, other.ranked, other.baseline) == (four.verdict, four.ranked, "round-robin")
    alone = headway.compare(SCENARIO, ["round-robin", "lmetric"], seeds=4, workers=1)
    assert rows(alone)[("lmetric", "latency.ttft.p99")] == rows(four)[("lmetric", "latency.ttft.p99")]


def test_the_baseline_is_the_plain_policy_else_the_first_else_whoever_is_named(four: headway.Comparison) -> None:
    assert four.baseline == "round-robin"
    assert headway.compare(SCENARIO, ["lmetric", "random"], seeds=2, workers=1).baseline == "lmetric"
    named = headway.compare(SCENARIO, ["round-robin", "random"], seeds=2, baseline="random", workers=1)
    assert rows(named)[("random", "cost.usd")]["word"] == "baseline"
    with pytest.raises(HeadwayError, match=r"baseline: .*'randm'.* Did you mean 'random'\?"):
        headway.compare(SCENARIO, ["round-robin", "random"], seeds=2, baseline="randm")


def test_one_seed_tells_what_it_told_before() -> None:
    result = headway.compare(SCENARIO, ["round-robin", "lmetric"], workers=1)
    assert list(result.summary()) == ["scenario", "stage", "by", "policies", "best", "verdict", "other_signals"]
    assert dict(result.ranked) == {name: single(name, 0) for name in ("round-robin", "lmetric")}
    assert "seeds" not in result.verdict


def test_an_object_of_ones_own_starts_afresh_under_every_seed() -> None:
    class Counts:
        def __init__(self) -> None:
            self.seen = 0

        def route(self, request: headway.Request, cluster: headway.ClusterView) -> Route:
            self.seen += 1
            return Route(cluster.instances[0 if self.seen <= 60 else 1].id)

    mine = Counts()
    result = headway.compare(SCENARIO, [mine, "always-busiest"], seeds=2, workers=1)
    assert mine.seen == 0
    assert all(run["instances"][0]["requests"] == 60 for run in result.runs["Counts"])


def test_seeds_that_change_nothing_are_said_to_tell_no_more_than_one() -> None:
    workload = {"requests": 20, "rate": "20/s", "arrival": "constant", "prompt_tokens": 200, "output_tokens": 10}
    result = headway.compare({**SCENARIO, "workload": workload}, ["round-robin", "always-busiest"], seeds=3, workers=1)
    assert "All 3 seeds gave the same figures" in result.verdict


@pytest.mark.parametrize("seeds", [0, -1, 1001])
def test_a_number_of_seeds_that_makes_no_sense_is_told(seeds: int) -> None:
    with pytest.raises(HeadwayError, match=r"^seeds: must lie between 1 and 1,000, got "):
        headway.compare(SCENARIO, ["random"], seeds=seeds)


def test_a_mean_summary_has_the_mean_of_every_figure() -> None:
    item = {"n": 1, "same": 3, "p": None, "id": "x", "tenants": [{"id": "a", "v": 1}, {"id": "b", "v": 5}]}
    two = {"n": 4, "same": 3, "p": 2.0, "id": "x", "tenants": [{"id": "b", "v": 6}], "more": {"v": 1}}
    assert mean_summary([item, two]) == {
        "n": 2.5,
        "same": 3,
        "p": None,
        "id": "x",
        "tenants": [{"id": "a", "v": 1}, {"id": "b", "v": 5.5}],
        "more": {"v": 1},
    }


# --- the study folder -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.full)])
def test_a_study_has_a_run_folder_for_each_policy_of_the_first_seed(workers: int, tmp_path: Path) -> None:
    chosen = ["round-robin", *({"name": "weighted", "scorers": {each: 2}} for each in ("queue-depth", "oracle-prefix"))]
    result = headway.compare(SCENARIO, chosen, seeds=2, workers=workers, output=tmp_path / "study")
    document = study.read(tmp_path / "study")
    assert (document["kind"], document["scenario"], document["stage"]) == ("comparison", "small", "routing")
    assert (document["baseline"], document["verdict"], document["paired"]) == (
        "round-robin",
        result.verdict,
        result.paired,
    )
    assert [run["label"] for run in document["runs"]] == list(result.runs)
    for run, spec in zip(document["runs"], chosen, strict=True):
        assert run["seeds"] == 2 and run["oracle"] is ("oracle" in run["label"])
        assert headway.Result.load(tmp_path / "study" / run["folder"]) == headway.simulate(SCENARIO, routing=spec)
    assert not list((tmp_path / "study").glob(".*"))


def test_a_study_is_written_over_its_predecessor_but_over_nothing_else(tmp_path: Path) -> None:
    place = tmp_path / "study"
    headway.compare(SCENARIO, ["random", "lmetric"], workers=1, output=place)
    headway.compare(SCENARIO, ["random"], workers=1, output=place)
    assert sorted(item.name for item in place.iterdir()) == ["random", "study.json"]
    assert study.read(place)["paired"] is None
    with pytest.raises(HeadwayError, match="contains a comparison; use another folder for this sweep"):
        headway.sweep(SCENARIO, "seed=1,2", output=place)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("all of it")
    with pytest.raises(HeadwayError, match="contains other files and is not a study folder"):
        headway.compare(SCENARIO, ["random"], output=tmp_path / "mine")


def test_the_runs_of_a_study_have_as_much_of_them_as_is_asked_for(tmp_path: Path) -> None:
    headway.compare(SCENARIO, ["random"], seeds=2, workers=1, output=tmp_path / "study", trace="decisions")
    read = headway.Result.load(tmp_path / "study" / "random")
    assert read == headway.simulate(SCENARIO, routing="random", trace="decisions")
    with pytest.raises(HeadwayError, match=r"^trace: needs an output folder"):
        headway.compare(SCENARIO, ["random"], trace="decisions")


def test_the_command_line_writes_a_study_and_says_where(headway: Run, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(SCENARIO))
    plain = headway("compare", "s.yaml", "--policies", "random,lmetric", cwd=tmp_path)
    process = headway("compare", "s.yaml", "--policies", "random,lmetric", "-o", "out", cwd=tmp_path)
    assert process.stdout == plain.stdout
    assert process.stderr == "headway: wrote 2 runs and study.json to out\n"
    assert [run["folder"] for run in study.read(tmp_path / "out")["runs"]] == ["random", "lmetric"]
