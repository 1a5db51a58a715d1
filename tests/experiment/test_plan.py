"""Capacity planning: a plan agrees with brute force, gives its intervals, and rejects wrong input with an error."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headway
from conftest import Run
from drawing import draws
from headway.cli import status
from headway.errors import HeadwayError
from headway.experiment.bracket import Mixes, fewest, highest
from headway.experiment.load_levels import Load, load_of
from headway.experiment.plan import plan
from headway.experiment.space import Counts, Pool, Space, space_of
from headway.experiment.targets import Target, targets
from headway.experiment.trials import figures
from headway.policies import registry
from headway.results.statistics import interval, quantile
from headway.scenario.scenario import Scenario
from headway.types import Json

SEEDS = 2
MOST = 12
COMMON: Json = {
    "cluster": {"instances": 3},
    "policies": {"routing": "least-loaded"},
    "slo": {"ttft": "300ms", "tpot": "30ms"},
}
SHORT = {"prompt_tokens": 900, "output_tokens": {"dist": "lognormal", "mean": 24, "std": 16, "min": 2, "max": 90}}
SMALL: dict[str, tuple[Json, str | None]] = {
    "poisson": ({"requests": 150, "rate": "60/s", **SHORT}, None),
    "bursts": ({"requests": 150, "rate": "30/s", "arrival": {"process": "gamma", "cv": 4}, **SHORT}, "ttft_p95<=400ms"),
    "tenants": (
        {"requests": 150, "rate": "50/s", "tenants": {"a": {"weight": 3, **SHORT}, "b": {"prompt_tokens": 3000}}},
        "e2e_mean<=900ms, tpot_p99<=25ms",
    ),
    "users": ({"requests": 120, "closed_loop": {"concurrency": 40, "think_time": "50ms"}, **SHORT}, "e2e_p90<=500ms"),
    "chats": (
        {"requests": 120, "rate": "12/s", "kind": {"kind": "chat", "turns": 3, "think_time": "200ms"}, **SHORT},
        "ttft_p99<=150ms, tpot_p99<=15ms",
    ),
}
MIXED: Json = {
    "workload": {"requests": 150, "rate": "40/s", **SHORT},
    "cluster": {"deployments": {"a100": {"instances": 1, "gpu": "a100"}, "l40s": {"instances": 2, "gpu": "l40s"}}},
    "policies": {"routing": "least-loaded"},
}


def keeps(scenario: Json, slo: str | None, seeds: int = SEEDS) -> bool:
    """Return whether a scenario meets an SLO with each seed, computed from whole runs."""
    for seed in range(seeds):
        result = headway.simulate({**scenario, "seed": seed}).summary()
        requests = result["requests"]
        for text in (slo or "goodput>=0.99").split(","):
            name, sign, limit = text.strip().partition("<=") if "<=" in text else text.strip().partition(">=")
            if sign == ">=":
                value = result["slo"]["goodput_ratio"]
                if value < float(limit):
                    return False
            else:
                latency, _, at = name.rpartition("_")
                size = {"ms": 1.0, "s": 1000.0}["ms" if limit.endswith("ms") else "s"]
                if result["latency"][latency][at] > float(limit.rstrip("ms")) * size:
                    return False
        if requests["completed"] < 0.99 * requests["arrived"]:
            return False
    return True


def with_counts(scenario: Json, counts: dict[str, int]) -> Json:
    """Return the scenario with these instances of each deployment."""
    settings = scenario["cluster"]["deployments"]
    deployments = {name: {**settings[name], "instances": count} for name, count in counts.items() if count}
    return {**scenario, "cluster": {**scenario["cluster"], "deployments": deployments}}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.full if name in ("tenants", "users") else ()) for name in SMALL]
)
def test_the_fewest_replicas_are_those_of_brute_force(name: str) -> None:
    workload, slo = SMALL[name]
    scenario = {**COMMON, "workload": workload}
    fewest = next(count for count in range(1, MOST + 1) if keeps({**scenario, "cluster": {"instances": count}}, slo))
    result = plan(scenario, slo, seeds=SEEDS, max_replicas=MOST, points=0, workers=1)
    assert 1 < fewest < MOST  # otherwise the case proves nothing
    assert result.replicas == {"default": fewest}
    sure = plan(scenario, slo, seeds=SEEDS, max_replicas=MOST, points=0, every=True, workers=1)
    assert sure.counts == (fewest,)
    assert not any("every=True" in note for note in sure.notes)
    assert result.answer.meets() and result.answer.seeds_met == SEEDS
    assert [(each.counts, each.meets(), each.seeds_run) for each in result.less] == [((fewest - 1,), False, SEEDS)]


@pytest.mark.parametrize(
    "slo",
    ["ttft_p99<=250ms, tpot_p95<=40ms", pytest.param("ttft_p90<=120ms, tpot_mean<=30ms", marks=pytest.mark.full)],
)
def test_the_cheapest_mix_is_that_of_an_exhaustive_search(slo: str) -> None:
    prices = {"a100": 2.0, "l40s": 1.0}
    most = 6
    ways = [dict(zip(prices, counts, strict=True)) for counts in product(range(most + 1), repeat=2) if any(counts)]
    ways.sort(key=lambda way: (sum(prices[name] * way[name] for name in way), sum(way.values()), tuple(way.values())))
    best = next(way for way in ways if keeps(with_counts(MIXED, way), slo))
    result = plan(MIXED, slo, seeds=SEEDS, max_replicas=most, points=0, workers=1)
    assert result.replicas == best
    assert result.summary()["answer"]["usd_per_hour"] == sum(prices[name] * best[name] for name in best)
    assert len(result.tried) < len(ways)
    assert any("every=True" in note for note in result.notes)  # the note names the assumption
    assert not any(each.meets() for each in result.less)


def test_each_model_keeps_somebody_to_serve_it() -> None:
    cluster = {
        "deployments": {
            "chat": {"instances": 1, "serves": ["small"]},
            "large": {"instances": 1, "model": "llama-3.1-70b", "tp": 4},
        }
    }
    tenants = {"a": {"models": {"small": 1}, "weight": 9}, "b": {"models": {"llama-3.1-70b": 1}}}
    scenario = {"workload": {"requests": 100, "rate": "40/s", "tenants": tenants, **SHORT}, "cluster": cluster}
    slo = "ttft_p99<=200ms, tpot_p99<=25ms"
    ways = [dict(zip(("chat", "large"), counts, strict=True)) for counts in product((1, 2, 3), repeat=2)]
    enough = [way for way in ways if keeps(with_counts(scenario, way), slo, 1)]
    best = min(enough, key=lambda way: 3.5 * way["chat"] + 14 * way["large"])
    assert plan(scenario, slo, seeds=1, max_replicas=3, points=0, workers=1).replicas == best


def test_the_halves_of_a_disaggregated_deployment_are_sought_apart() -> None:
    cluster = {"architecture": "disaggregated", "prefill": {"instances": 1}, "decode": {"instances": 1}}
    scenario = {"workload": {"requests": 100, "rate": "40/s", **SHORT, "prompt_tokens": 3000}, "cluster": cluster}
    slo = "ttft_p99<=400ms, tpot_p99<=12ms"

    def enough(prefill: int, decode: int) -> bool:
        halves = {"prefill": {"instances": prefill}, "decode": {"instances": decode}}
        return keeps({**scenario, "cluster": {**cluster, **halves}}, slo, 1)

    ways = [way for way in product(range(1, 5), repeat=2) if enough(*way)]
    result = plan(scenario, slo, seeds=1, max_replicas=4, points=0, workers=1)
    assert result.counts == min(ways, key=lambda way: (sum(way), way))
    assert result.replicas == {"prefill": result.counts[0], "decode": result.counts[1]}


def test_the_knee_lies_where_a_fine_grid_has_it() -> None:
    workload = {"requests": 200, "rate": "20/s", "prompt_tokens": 900, "output_tokens": 24}
    scenario = {**COMMON, "workload": workload, "cluster": {"instances": 2}}
    slo = "ttft_mean<=100ms, e2e_mean<=500ms"
    result = plan(scenario, slo, find="load", seeds=1, points=0, workers=1)
    assert result.holds is not None and result.breaks is not None
    assert 1 < result.breaks / result.holds <= Fraction(102, 100)

    def at(rate: float) -> bool:
        return keeps({**scenario, "workload": {**workload, "rate": f"{rate:.6g}/s"}}, slo, 1)

    grid = [float(result.holds) * (0.95 + 0.01 * step) for step in range(11)]
    stored = [rate for rate in grid if at(rate)]
    assert stored == grid[: len(stored)], "the case is not monotone, so a grid has no one knee"
    assert at(float(result.holds)) and not at(float(result.breaks))
    assert stored[-1] < float(result.breaks) and grid[len(stored)] > float(result.holds)


@pytest.mark.full
def test_the_plan_is_the_same_whatever_the_number_of_workers() -> None:
    scenario = {**COMMON, "workload": SMALL["poisson"][0]}
    single, two, three = (plan(scenario, seeds=SEEDS, points=4, workers=workers).summary() for workers in (1, 2, 3))
    assert json.dumps(single) == json.dumps(two) == json.dumps(three)
    assert single["runs"] == sum(tried["seeds_run"] for tried in single["tried"])


def test_the_curve_goes_through_the_knee_and_no_run_is_made_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def counted(resolved: Json) -> Json:
        ran.append(json.dumps(resolved))
        return figures(resolved)

    monkeypatch.setattr("headway.experiment.trials.figures", counted)
    result = plan({**COMMON, "workload": SMALL["poisson"][0]}, seeds=SEEDS, points=6, workers=1)
    assert len(ran) == len(set(ran)) == result.runs
    assert result.holds is not None and result.breaks is not None and result.holds >= result.load.base
    loads = [point["load"] for point in result.curve]
    assert loads == sorted(loads) and len(loads) == 6 and float(result.holds) in loads
    assert loads[0] == pytest.approx(float(result.holds) / 4, rel=0.01)
    assert loads[-1] == pytest.approx(float(result.holds) * 1.5, rel=0.01)
    knee = result.curve[loads.index(float(result.holds))]
    assert knee["meets"] and knee["seeds_met"] == SEEDS
    assert result.curve[-1]["ttft_p99"] > result.curve[0]["ttft_p99"]


def test_figures_come_with_their_mean_and_interval_over_the_seeds() -> None:
    result = plan({**COMMON, "workload": SMALL["poisson"][0]}, "ttft_p99<=300ms", seeds=3, points=0, workers=1)
    values = [
        headway.simulate(
            {**COMMON, "workload": SMALL["poisson"][0], "cluster": {"instances": result.counts[0]}, "seed": seed}
        )
        for seed in range(3)
    ]
    observed = [value.summary()["latency"]["ttft"]["p99"] for value in values]
    estimate = result.summary()["answer"]["figures"]["ttft_p99"]
    mean = sum(observed) / 3
    spread = (sum((value - mean) ** 2 for value in observed) / 2) ** 0.5
    assert estimate["seeds"] == observed
    assert estimate["mean"] == pytest.approx(mean)
    assert estimate["high"] - estimate["mean"] == pytest.approx(4.302652730 * spread / 3**0.5)
    assert estimate["clear"] is (estimate["high"] < 300)
    assert "with all 3 seeds" in result.verdict and "of 3 seeds" in result.verdict


def test_an_interval_is_students() -> None:
    table = {1: 12.706204736, 2: 4.302652730, 9: 2.262157163, 30: 2.042272456, 31: 2.039513446, 999: 1.962341461}
    assert {freedom: quantile(freedom) for freedom in table} == table
    assert interval([1.0]) is not None and interval([1.0, None]) is None and interval([]) is None
    shares = interval([1.0, 0.9], share=True)
    assert shares is not None and (shares.low, shares.high) == (pytest.approx(0.95 - 12.7062 * 0.05), 1.0)


# --- the searches alone -----------------------------------------------------------------------------------------------


def space(prices: Sequence[float], most: int) -> Space:
    pools = [Pool(str(place), str(place), "", 1, price, 1, 0, most, ("m",)) for place, price in enumerate(prices)]
    return Space(tuple(pools), (), {})


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 60))
def test_bisection_finds_the_least_number(least: int, guess: int, most: int) -> None:
    questions: list[int] = []

    def ask(number: int, ahead: Sequence[int]) -> bool:
        questions.append(number)
        return number >= least

    assert fewest(ask, 1, most, guess) == (least if least <= most else None)
    assert len(questions) == len(set(questions)) <= 13


@given(st.lists(st.booleans(), min_size=2, max_size=30), st.integers(1, 30))
def test_where_more_is_not_always_better_the_answer_still_stands_on_an_edge(found: list[bool], guess: int) -> None:
    number = fewest(lambda one, ahead: found[one], 0, len(found) - 1, guess)
    assert number is None or (found[number] and (number == 0 or not found[number - 1]))


@given(st.lists(st.booleans(), min_size=1, max_size=20))
def test_every_needs_no_trust(found: list[bool]) -> None:
    least = next((number for number, yes in enumerate(found, 1) if yes), None)
    mixes = Mixes(lambda counts, ahead: found[counts[0] - 1], space([1.0], len(found)))
    assert mixes.cheapest(every=True) == (None if least is None else (least,))


@draws(60)
@given(
    st.lists(st.tuples(st.sampled_from([0.5, 1.0, 2.0, 3.5]), st.integers(1, 9)), min_size=1, max_size=3),
    st.integers(3, 30),
)
def test_the_mix_is_the_cheapest_of_all(pools: list[tuple[float, int]], load: int) -> None:
    """Each pool has a price and a power, and a mix will do where its power is that of the load."""
    most = 6 if len(pools) < 3 else 4
    box = space([price for price, _ in pools], most)
    questions: list[Counts] = []

    def enough(counts: Counts) -> bool:
        return sum(count * power for count, (_, power) in zip(counts, pools, strict=True)) >= load

    def ask(counts: Counts, ahead: Sequence[Counts]) -> bool:
        questions.append(counts)
        return enough(counts)

    ways = [way for way in product(range(most + 1), repeat=len(pools)) if any(way) and enough(way)]
    expected = min(ways, key=box.key, default=None)
    assert Mixes(ask, box).cheapest() == expected
    assert Mixes(lambda one, ahead: enough(one), box).cheapest(every=True) == expected


@given(st.fractions(Fraction(1, 100), Fraction(300)), st.sampled_from([0.02, 0.001, 0.3]))
def test_the_highest_load_is_found_to_its_tolerance(knee: Fraction, tolerance: float) -> None:
    yes, no = highest(lambda value, ahead: value <= knee, Load("rate", Fraction(1), []), 5, tolerance)
    assert yes is not None and no is not None
    assert yes <= knee < no <= yes * (1 + Fraction(tolerance)) + Fraction(1, 1000)


def test_a_load_without_end_or_without_beginning_is_told() -> None:
    load = Load("rate", Fraction(3), [])
    assert highest(lambda value, ahead: True, load, 4, 0.02) == (3 * 1024, None)
    assert highest(lambda value, ahead: False, load, 4, 0.02)[0] is None
    users = Load("users", Fraction(5), [])
    assert highest(lambda value, ahead: value <= 7, users, 4, 0.02) == (7, 8)


# --- loads ------------------------------------------------------------------------------------------------------------

KINDS: dict[str, tuple[Json, str, float]] = {
    "rate": ({"rate": "90/min", "arrival": "constant"}, "rate", 1.5),
    "interval": ({"arrival": {"process": "adversarial", "size": 2, "interval": "1s"}}, "rate", 2.0),
    "tenants": (
        {"rate": "3/s", "arrival": "constant", "tenants": {"a": {"weight": 2}, "b": {}, "c": {"rate": "1/s"}}},
        "rate",
        4.0,
    ),
    "users": ({"closed_loop": {"concurrency": 4, "think_time": "1s"}}, "users", 4.0),
    "both": ({"rate": "1/s", "tenants": {"a": {}, "b": {"closed_loop": {"concurrency": 2}}}}, "load", 1.0),
}


@pytest.mark.parametrize("name", KINDS)
def test_twice_the_load_brings_twice_the_requests(name: str) -> None:
    keys, unit, base = KINDS[name]
    # answers take so little time that users only think
    scenario = Scenario.load({"workload": {"requests": 200, "prompt_tokens": 8, "output_tokens": 1, **keys}})
    load = load_of(scenario)
    assert (load.unit, float(load.base)) == (unit, base)
    resolved = scenario.resolved()
    twice = {**resolved, "workload": load.scale(resolved["workload"], load.base * 2)}
    once_came, twice_came = (figures(each)["arrivals_per_s"] for each in (resolved, twice))
    assert twice_came == pytest.approx(2 * once_came, rel=0.1)
    assert load.scale(resolved["workload"], load.base) == resolved["workload"]


@pytest.mark.parametrize(
    ("starts", "unit", "changed"),
    [
        (None, "speed", {"speed": 6.0}),
        ({"rate": "5/s"}, "rate", {"starts": {"rate": "15/s"}}),
        ({"users": 3}, "users", {"starts": {"users": 9}}),
    ],
)
def test_the_load_of_a_trace_is_its_speed_or_that_of_its_sessions(
    root: Path, starts: Json | None, unit: str, changed: Json
) -> None:
    trace = {
        "path": str(root / "examples" / "08_sessions.jsonl"),
        "speed": 2.0,
        **({} if starts is None else {"starts": starts}),
    }
    scenario = Scenario.load({"workload": {"trace": trace}})
    load = load_of(scenario)
    assert load.unit == unit
    thrice = load.scale(scenario.resolved()["workload"], load.base * 3)["trace"]
    for key, value in changed.items():
        assert thrice[key] == value if not isinstance(value, dict) else value.items() <= thrice[key].items()
    assert figures({**scenario.resolved(), "workload": {"trace": thrice}})["requests"]["completed"]


def test_instants_as_recorded_have_no_load_to_scale(tmp_path: Path) -> None:
    (tmp_path / "times.txt").write_text("".join(f"{0.1 * place:.1f}\n" for place in range(60)))
    arrival = {"process": "trace", "path": str(tmp_path / "times.txt")}
    scenario = {**COMMON, "workload": {"requests": 60, "arrival": arrival, **SHORT}}
    with pytest.raises(HeadwayError, match=r"^workload\.arrival: .* Set a rate"):
        plan(scenario, find="load", workers=1)
    result = plan(scenario, seeds=1, workers=1)
    assert result.counts == (1,) and not result.curve
    assert any(note.startswith("No curve: workload.arrival") for note in result.notes)


# --- what goes with a plan --------------------------------------------------------------------------------------------


def test_autoscaled_pools_are_planned_at_a_fixed_size() -> None:
    cluster = {"instances": 2, "min_replicas": 1, "max_replicas": 9, "scaling": "queue-threshold"}
    scenario = {**COMMON, "workload": SMALL["poisson"][0]}
    scaled = {
        **scenario,
        "cluster": cluster,
        "scaling": {"interval": "1s"},
        "policies": {**COMMON["policies"], "scaling": "hpa"},
    }
    result = plan(scaled, seeds=1, points=0, workers=1)
    assert result.counts == plan(scenario, seeds=1, points=0, workers=1).counts
    assert any("autoscaler" in note for note in result.notes)


def test_a_fault_always_finds_its_instance() -> None:
    faults = [{"at": "1s", "instance": "instance-2", "kind": "slow", "factor": 3}]
    loaded = Scenario.load({**COMMON, "workload": {"requests": 40, "rate": "2/s", **SHORT}, "faults": faults})
    assert [pool.low for pool in space_of(loaded, None, 8).pools] == [3]
    assert plan(loaded, seeds=1, points=0, workers=1).counts == (3,)
    with pytest.raises(HeadwayError, match=r"^max: must be at least 3, because a fault strikes replica 2"):
        plan(loaded, max_replicas=2)


def test_pools_that_are_not_varied_stay_and_are_paid_for() -> None:
    result = plan(MIXED, "ttft_p99<=400ms, tpot_p95<=60ms", seeds=1, vary="l40s", points=0, workers=1)
    assert [pool.name for pool in result.space.pools] == ["l40s"]
    answer = result.summary()["answer"]
    assert answer["usd_per_hour"] == 2.0 + result.counts[0] and answer["gpus"] == 1 + result.counts[0]
    assert result.space.scenario((0,))["cluster"]["deployments"].keys() == {"a100"}


def test_a_policy_that_turns_requests_away_does_not_get_a_smaller_cluster() -> None:
    shed = {"name": "token-bucket", "rate": 5}
    workload = SMALL["poisson"][0]
    scenario = {**COMMON, "workload": workload, "policies": {**COMMON["policies"], "admission": shed}}
    assert headway.simulate(scenario).summary()["latency"]["ttft"]["p99"] < 300
    with pytest.raises(HeadwayError, match=r"^max: 4 replicas do not meet the SLO: completed is .* not at least 99 %"):
        plan(scenario, "ttft_p99<=300ms", max_replicas=4, seeds=1, workers=1)


def test_seeds_that_change_nothing_are_told(root: Path) -> None:
    scenario = {"workload": {"trace": {"path": str(root / "examples" / "05_trace.jsonl")}}, "cluster": {"instances": 1}}
    result = plan(scenario, "ttft_p99<=10s", seeds=2, points=0, workers=1)
    assert any("one seed is enough" in note for note in result.notes)


def test_a_policy_of_the_callers_own_program_runs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))

    @headway.policy("routing", "plan-test-first")
    class First:
        def route(self, request: Any, cluster: Any) -> Any:
            return headway.Route(cluster.instances[0].id)

    scenario = {
        **COMMON,
        "workload": {"requests": 20, "rate": "1/s", **SHORT},
        "policies": {"routing": "plan-test-first"},
    }
    assert plan(scenario, seeds=1, points=0, workers=2).counts == (1,)


# --- what cannot be ---------------------------------------------------------------------------------------------------

QUIET: Json = {
    **COMMON,
    "workload": {"requests": 60, "rate": "20/s", **SHORT},
    "cluster": {"instances": 3, "latency": {"model": "roofline"}},
}


@pytest.mark.parametrize(
    ("slo", "told"),
    [
        ("ttft_p98<=1s", r"slo: there is no figure 'ttft_p98'\. Did you mean 'ttft_p99'\?"),
        (
            "banana>=1",
            r"slo: there is no figure 'banana'\. Use a latency \(ttft, .*\) with a statistic \(mean, .*completed\.",
        ),
        ("ttft_p99>=1s", r"slo: ttft_p99>=1s: ttft_p99 takes upper bounds\. Write it as ttft_p99<=500ms\."),
        (
            "attainment<=0.9",
            r"slo: attainment<=0\.9: attainment takes lower bounds\. Write it as attainment>=0\.99\.",
        ),
        ("ttft_p99<=1", r"slo: ttft_p99: '1' is not a duration; write it with its unit"),
        ("ttft_p99<=0ms", r"slo: ttft_p99: must be greater than zero"),
        ("attainment>=2", r"slo: attainment: expected a share above 0 and up to 1, as in 0\.99 or 99%, got '2'\."),
        ("ttft_p99", r"slo: 'ttft_p99' is not a bound\. Write bounds as in"),
        ("ttft_p99=3s", r"slo: 'ttft_p99=3s' is not a bound"),
        ("", r"slo: '' is not a bound"),
        ("ttft_p99<=1s, ttft-p99<=2s", r"slo: ttft_p99 is bounded twice\. Remove one bound\."),
        ("e2e_attainment>=0.9", r"slo: e2e_attainment: the scenario has no such target\. Set 'slo\.e2e'"),
        (
            "tpot_p50<=1us",
            r"slo: no number of replicas meets the SLO\. Even at 1/1024 .* tpot_p50 is .* ms, not at most 0\.001 ms",
        ),
    ],
)
def test_an_slo_that_cannot_be_meant_is_refused(slo: str, told: str) -> None:
    with pytest.raises(HeadwayError, match=f"^{told}"):
        plan(QUIET, slo, seeds=1, max_replicas=2, workers=1)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"find": "rate"}, "find: a plan cannot find 'rate'"),
        ({"seeds": 0}, "seeds: must lie between 1 and 1,000, got 0"),
        ({"max_replicas": 0}, "max: must lie between 1 and 100,000, got 0"),
        ({"tolerance": 0.0}, r"tolerance: must be a fraction of the load between 0\.0001 and 1"),
        ({"points": -1}, "points: must lie between 0"),
        ({"vary": "chat"}, "vary: this cluster has no pool 'chat'. Known: default."),
        ({"overrides": "workload.rate=0/s"}, "workload.rate: '0/s' is not a rate"),
        ({"overrides": "slo=null"}, "slo: the scenario has no target to plan for"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(HeadwayError, match=f"^{told}"):
        plan(QUIET, **options)


def test_a_cluster_that_keeps_the_slo_under_no_load_is_told() -> None:
    with pytest.raises(HeadwayError, match=r"^slo: this cluster does not meet the SLO at any load\. At .*/s, tpot_p50"):
        plan(QUIET, "tpot_p50<=1us", find="load", seeds=1, workers=1)


def test_an_slo_that_no_load_breaks_is_told() -> None:
    result = plan(QUIET, "e2e_p99<=10h", find="load", seeds=1, points=0, workers=1)
    assert result.breaks is None and result.holds == 20 * 1024
    assert any(note.startswith("In a run this short no load up to ") for note in result.notes)


def test_targets_are_read_in_several_ways() -> None:
    loaded = Scenario.load(QUIET)
    expected = (Target("ttft_p99", "<=", 1500.0), Target("attainment", ">", 0.95))
    assert targets("ttft_p99 <= 1.5s, goodput_ratio > 95%", loaded) == expected
    assert targets(["latency.ttft.p99<=1500ms", "slo.attainment>0.95"], loaded) == expected
    assert targets("queue-wait-mean<1ms", loaded)[1] == Target("completed", ">=", 0.99)
    assert targets(None, loaded) == (Target("attainment", ">=", 0.99),)
    assert [each.describe() for each in expected] == ["ttft_p99<=1500ms", "attainment>0.95"]


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "s.json"
    path.write_text(json.dumps({**QUIET, "name": "quiet"}))
    return path


def test_the_command_prints_a_table_a_curve_and_a_sentence(headway: Run, file: Path) -> None:
    process = headway("plan", str(file), "--seeds", "2", "--points", "3")
    assert process.returncode == 0 and not process.stderr
    assert process.stdout.startswith("quiet: attainment>=0.99\n")
    assert " ▸        2  7.00   2/2" in process.stdout and "against the load, on 2 replicas" in process.stdout
    assert "2 replicas (2 GPUs, 7.00 USD/h) meet the SLO at 20/s with all 2 seeds" in " ".join(process.stdout.split())


def test_with_json_the_command_prints_one_document(headway: Run, file: Path) -> None:
    options = ("--slo", "ttft_p99<=300ms", "--seeds", "2", "--points", "2", "--find", "load")
    process = headway("plan", str(file), *options, "--json")
    document = json.loads(process.stdout)
    assert document == plan(str(file), "ttft_p99<=300ms", seeds=2, points=2, find="load", workers=1).summary()
    assert document["load"]["unit"] == "rate" and document["load"]["given"] == 20.0
    assert document["load"]["holds"] < document["load"]["breaks"]


@pytest.mark.parametrize(("suffix", "points"), [("html", "3"), ("json", "0")])
def test_a_plan_is_written_as_a_page_or_a_document(file: Path, suffix: str, points: str) -> None:
    target = file.with_name(f"plan.{suffix}")
    options = ["--seeds", "1", "--points", points, "--slo", "ttft_p99<=300ms", "-o", str(target)]
    assert status(["plan", str(file), *options]) == 0
    text = target.read_text(encoding="utf-8")
    checks: dict[str, Callable[[str], bool]] = {
        "html": lambda found: found.count('data-chart="') == 2 and "TTFT against the load" in found,
        "json": lambda found: json.loads(found)["answer"]["replicas"] == {"default": 1},
    }
    assert checks[suffix](text)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--slo", "ttft_p99"), "slo: 'ttft_p99' is not a bound"),
        (("-o", "plan.txt"), "--output: 'plan.txt' must end in .html or .json"),
        (("-o", "nowhere/plan.html"), "--output: there is no folder 'nowhere'"),
        (("--find", "peace"), 'Invalid value "peace" for --find'),
    ],
)
def test_a_mistake_on_the_command_line_is_a_sentence(
    file: Path, options: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(["plan", str(file), *options]) == 2
    output = capsys.readouterr()
    assert not output.out and output.err.startswith(f"headway: {told}") and output.err.count("\n") == 1
