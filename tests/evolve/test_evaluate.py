"""Evaluations: the figures of a plain run, failures as results instead of exceptions, cascade, cache and runner."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from small import CODE, code, document, suite

import headway
from headway.errors import HeadwayError
from headway.evolve import Bundle, Cache, Evaluation, Limits, Suite, evaluate, evaluate_many, evaluation
from headway.evolve.feedback import MOST_BYTES, cut_lines, harmless
from headway.experiment.runner import runner_of
from headway.policies.code import CodeError
from headway.results.store import pretty

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="disposable processes want fork")
KEYS = ["primary", "ttft", "e2e", "complexity"]
MINE = code(CODE)
HALF = "def admit(request, cluster):\n    n = recall('n', 0)\n    remember('n', n + 1)\n    return n % 2 == 0\n"
SLOW = (
    "def score(request, instance, cluster):\n    x = 0.0\n    for i in range(9000):\n        x = x + i\n    return x\n"
)


@pytest.fixture(scope="module")
def cache() -> Cache:
    return Cache()


def by_hand(policies: dict[str, Any], made: Suite, part: str = "train") -> dict[str, float]:
    """Compute the fitness of policies by plain simulations and arithmetic."""
    gains: dict[str, dict[str, list[float]]] = {}
    for case in made.cases(part):
        runs = [
            headway.simulate(case.scenario, overrides=f"seed={case.seed}", **chosen).summary()
            for chosen in (policies, {"routing": "round-robin"})
        ]
        (mine, base), (completed, base_done) = (
            [run["latency"] for run in runs],
            [run["requests"]["completed"] for run in runs],
        )
        lost = max(1.0, base_done / completed)
        e2e, base_e2e = (each["e2e"]["mean"] / 2 + each["e2e"]["p95"] / 2 for each in (mine, base))
        of = gains.setdefault(case.name, {"ttft": [], "e2e": []})
        of["ttft"].append(1 - lost * mine["ttft"]["mean"] / base["ttft"]["mean"])
        of["e2e"].append(1 - lost * e2e / base_e2e)
    means = {name: sum(sum(of[name]) / len(of[name]) for of in gains.values()) / len(gains) for name in ("ttft", "e2e")}
    return {"primary": (means["ttft"] + 3 * means["e2e"]) / 4, **means}


@pytest.mark.parametrize("policies", [{"routing": "least-loaded"}, MINE.policies], ids=["by name", "code"])
def test_a_fitness_is_what_plain_runs_and_arithmetic_give(policies: dict[str, Any], cache: Cache) -> None:
    result = evaluate(Bundle("candidate", policies), suite(), cache=cache, told=False)
    assert result.ok and result.error is None
    expected = by_hand(policies, suite())
    assert any(abs(value) > 0.001 for value in expected.values())
    assert {name: result.fitness[name] for name in expected} == pytest.approx(expected, rel=1e-12)


def test_the_baseline_gains_nothing_over_itself(cache: Cache) -> None:
    result = evaluate(Bundle.of(routing="round-robin"), suite(), "held_out", cache=cache)
    assert result.fitness == {"primary": 0.0, "ttft": 0.0, "e2e": 0.0, "complexity": 0.0}
    assert len(result.cases) == 11 and all(case.ok for case in result.cases)


def test_who_sheds_half_of_the_requests_has_latencies_counted_twice(cache: Cache) -> None:
    shedding = {"admission": {"name": "code", "source": HALF}, "routing": "round-robin"}
    result = evaluate(Bundle("sheds", shedding), suite(), cache=cache, told=False)
    assert result.ok
    assert [case.figures["requests.completed"] for case in result.cases] == [30, 30, 25]
    expected = by_hand(shedding, suite())
    assert {name: result.fitness[name] for name in expected} == pytest.approx(expected, rel=1e-12)
    base = evaluate({"policies": {"routing": "round-robin"}}, suite(), cache=cache)
    latencies = [[case.figures["latency.e2e.mean"] or 0.0 for case in each.cases] for each in (result, base)]
    assert all(mine < other for mine, other in zip(*latencies, strict=True)), "to shed does shorten latencies"
    assert result.fitness["primary"] < 0, "and does not pay all the same"


HOSTILE = {
    "no bundle": {"policies": {"routing": 3}},
    "no such key": {"format": 1, "policies": {}, "polices": {}},
    "no mapping": {"policies": ["routing"]},
    "no file": "nowhere/bundle.yaml",
    "no such policy": Bundle.of(routing="nobody"),
    "a parameter that is no number": Bundle.of(routing={"name": "kv-aware", "kv": math.nan}),
    "a parameter of a wrong type": Bundle.of(routing={"name": "kv-aware", "kv": "much"}),
    "an object": Bundle.of(routing={"name": "kv-aware", "kv": object()}),
    "an endless loop": code("def score(request, instance, cluster):\n    while True:\n        pass\n"),
    "an import": code("import os\ndef score(request, instance, cluster):\n    return 1"),
    "a division by zero": code("def score(request, instance, cluster):\n    return 1 / (instance.inflight * 0)"),
    "not a number": code("def score(request, instance, cluster):\n    x = exp(700.0) * exp(700.0)\n    return x - x"),
    "a text": code("def score(request, instance, cluster):\n    return 'best'"),
    "no Python": code("def score(request, instance, cluster)\n    return 1"),
    "deep nesting": code("def score(request, instance, cluster):\n    return " + "-" * 20000 + "1"),
    "nothing": code(""),
    "no document at all": 7,
    "a stage that is a number": {"policies": {1: "lmetric"}},
    "half a character in a stage": {"policies": {"\ud800": "lmetric"}},
    "half a character in a name": Bundle("\ud800", {"routing": "nobody"}),
    "half a character in a source": code("x = '\ud800'"),
    "a file without end": {"policies": {"routing": {"type": "code", "path": "/dev/zero"}}},
    "a name too long for a file": {"policies": {"routing": {"type": "code", "path": "a" * 5000}}},
}


@pytest.mark.parametrize("candidate", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_bad_candidate_is_told_of_and_not_raised(candidate: Any, cache: Cache) -> None:
    result = evaluate(candidate, suite(), cache=cache)
    assert not result.ok and result.error
    assert list(result.fitness) == KEYS and result.fitness["primary"] == -10.0
    assert all(math.isfinite(value) for value in result.fitness.values())
    assert [case.gains for case in result.cases] == [dict.fromkeys(KEYS[:3], -10.0)] * 3
    assert harmless(result.error) in result.summary


def test_after_a_failure_the_other_cases_are_not_run(cache: Cache) -> None:
    broken = code("def score(request, instance, cluster):\n    return 'x' if request.arrival > 2.0 else 1.0")
    result = evaluate(broken, suite(), cache=cache)
    assert not result.ok and result.error is not None and result.error.startswith("prefixes, seed 1: ")
    assert [case.error for case in result.cases][1:] == [
        "skipped, because the candidate had failed in an earlier case."
    ] * 2


def test_a_run_that_takes_too_long_is_ended_and_not_remembered() -> None:
    own = Cache()
    made = suite(
        deadline="200ms", train=[{"workload": {"requests": 1000, "rate": "9/s"}, "name": "long", "seeds": [1]}]
    )
    quick = Limits(deadline_s=60)
    evaluate(Bundle.of(routing="round-robin"), made, cache=own, limits=quick, told=False)
    result = evaluate(code(SLOW), made, cache=own, told=False)
    assert not result.ok and result.error is not None and "0.2 s" in result.error
    misses = own.misses
    evaluate(code(SLOW), made, cache=own, told=False)
    assert own.misses == misses + 1


def test_a_deadline_for_the_whole_leaves_later_cases_unrun(cache: Cache) -> None:
    result = evaluate(Bundle.of(routing="least-kv"), suite(), cache=Cache(), deadline_s=1e-6)
    assert not result.ok and result.error is not None and "the evaluation reached its deadline of" in result.error
    assert evaluate(Bundle.of(routing="least-kv"), suite(), cache=cache, deadline_s=120).ok


def test_a_cascade_stops_who_disappoints_in_the_first_cases_and_says_so(cache: Cache) -> None:
    made = suite(cascade={"first": 2, "threshold": -0.05})
    bad, good = evaluate_many([Bundle.of(routing="always-busiest"), MINE], made, cache=cache)
    assert bad.ok and len(bad.cases) == 2 and list(bad.fitness) == KEYS
    assert bad.stopped is not None and bad.stopped.startswith("stopped after 2 of 3 cases: primary -")
    assert bad.stopped in bad.summary
    assert max(bad.fitness["ttft"], bad.fitness["e2e"]) <= -0.05
    assert good.ok and len(good.cases) == 3 and good.stopped is None
    whole = evaluate(Bundle.of(routing="always-busiest"), suite(), cache=cache)
    assert len(whole.cases) == 3 and whole.stopped is None


def test_no_cascade_ends_a_validation_or_a_choice_of_cases(cache: Cache) -> None:
    made = suite(cascade={"first": 1, "threshold": 5})
    bundle = Bundle.of(routing="always-busiest")
    assert len(evaluate(bundle, made, cache=cache, told=False).cases) == 1
    assert len(evaluate(bundle, made, "held_out", cache=cache, told=False).cases) == 11
    assert len(evaluate(bundle, made, cases=made.cases("train")[1:], cache=cache, told=False).cases) == 2


def test_nothing_is_run_twice_be_it_a_candidate_or_the_baseline(tmp_path: Path) -> None:
    runs: list[int] = []
    for bundles, expected in (([MINE, MINE], 6), ([MINE], 0), ([Bundle.of(routing="random"), MINE], 3)):
        runs.clear()
        evaluate_many(bundles, suite(), cache=Cache(tmp_path), progress=lambda: runs.append(1))
        assert len(runs) == expected
    renamed = Bundle("another name", MINE.policies, 5, "0123456789abcdef", ("renamed",))
    evaluate_many([renamed], suite(), cache=Cache(tmp_path), progress=lambda: runs.append(1))
    assert len(runs) == 3


OWN = """
import headway

class Own:
    def route(self, request, cluster):
        return headway.Route(cluster.instances[PLACE].id)
"""


def test_a_policy_in_a_file_is_run_again_when_the_file_has_changed(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    result = []
    for place in ("0", "request.id % 2"):
        file.write_text(OWN.replace("PLACE", place))
        result.append(evaluate(Bundle.of(routing=f"{file}:Own"), suite(), cache=tmp_path / "kept", told=False))
    assert [one.error for one in result] == [None, None]
    assert result[0].fitness["primary"] < result[1].fitness["primary"]


def test_a_policy_in_a_file_is_executed_in_no_process_but_the_disposable_one(tmp_path: Path, cache: Cache) -> None:
    file, trace = tmp_path / "own.py", tmp_path / "trace"
    file.write_text(f"open({str(trace)!r}, 'w').write('here')\n" + OWN.replace("PLACE", "0"))
    result = evaluate(Bundle.of(routing=f"{file}:Own"), suite(), cache=cache, told=False)
    assert not result.ok and not trace.exists()


def documents(found: list[Evaluation]) -> list[str]:
    return [pretty(msgspec.to_builtins(one)) for one in found]


@pytest.mark.full
def test_evaluations_are_the_same_however_many_processes_there_are() -> None:
    bundles = [MINE, Bundle.of(routing="lmetric"), code("import os"), Bundle.of(routing="nobody")]
    alone = documents([evaluate(one, suite(), cache=Cache()) for one in bundles])
    for workers in (1, 2):
        with runner_of(workers) as runner:
            assert documents(evaluate_many(bundles, suite(), cache=Cache(), runner=runner, told=True)) == alone


def test_the_summary_tells_gains_figures_and_what_went_wrong_in_the_worst_case(cache: Cache) -> None:
    result = evaluate(Bundle.of("mine", routing="always-busiest"), suite(), cache=cache)
    worst = min(result.cases, key=lambda case: case.gains["primary"])
    assert result.summary.startswith("## mine on small, train\n")
    assert f"primary {result.fitness['primary']:+.1%}".replace("%", " %") in result.summary
    assert f"# The worst case: {worst.case}, seed {worst.seed}" in result.summary
    for heading in ("| prefixes |", "| plain |", "## Key Issues", "## Worst Decisions"):
        assert heading in result.summary
    assert len(result.summary.encode()) <= MOST_BYTES
    plain = evaluate(Bundle.of("mine", routing="always-busiest"), suite(), cache=cache, told=False)
    assert "worst case:" not in plain.summary and plain.fitness == result.fitness


def test_a_search_is_told_only_to_change_its_own_stages() -> None:
    workloads = {"crowded": {"requests": 120, "rate": "200/s", "prompt_tokens": 2000, "output_tokens": 40}}
    made = suite(
        workloads=workloads,
        train=[{"workload": "crowded", "seeds": [1]}],
        validation=[{"workload": "crowded", "seeds": [2]}],
        held_out=[{"workload": "crowded", "seeds": [3, 4]}],
    )
    whole = Bundle.of("whole", routing="always-busiest", admission="always", scheduler="fcfs")

    def stages(**how: Any) -> set[str]:
        return set(re.findall(r"(?m)^- (\w+): .* It should improve ", evaluate(whole, made, **how).summary))

    shared = Cache()
    assert stages(may=["routing"], cache=shared) == {"Routing"}
    assert stages(may=["admission"], cache=shared) <= {"Admission"}  # not the text of the other stages
    assert "Routing" in stages(cache=shared) <= {"Routing", "Admission", "Scheduler"}


def test_a_summary_has_nothing_that_a_filter_for_secrets_would_blank() -> None:
    text = harmless("token: 847, Token=3, tokens: 5, password: x, " + "a1" * 20 + " " + "b" * 31)
    assert not re.search(r"[A-Za-z0-9]{32,}", text)
    assert not re.search(r"(?:token|password)\s*[=:]\s*\S+", text, re.IGNORECASE)
    assert "b" * 31 in text and "tokens: 5" in text


def test_a_long_summary_is_cut_at_a_line() -> None:
    text = cut_lines("\n".join(["é" * 100] * 100))
    assert len(text.encode()) <= MOST_BYTES and text.endswith("é\n...\n")


def test_a_baseline_that_fails_is_the_suites_fault() -> None:
    made = suite(baseline={"routing": {"name": "code", "source": HOSTILE["a text"].policies["routing"]["source"]}})  # type: ignore[union-attr]
    with pytest.raises(HeadwayError, match="baseline: the baseline fails in prefixes, seed 1: "):
        evaluate(MINE, made, cache=Cache())


def test_an_objective_that_the_baseline_has_no_figure_of_is_the_suites_fault(cache: Cache) -> None:
    made = suite(objectives=["slo.tpot_attainment"])
    with pytest.raises(
        HeadwayError, match=r"'slo\.tpot_attainment' has no value in prefixes, seed 1 under the baseline"
    ):
        evaluate(MINE, made, cache=cache)


@pytest.mark.full
def test_in_the_embedded_suite_a_good_router_wins_some_workloads_and_loses_others() -> None:
    result = evaluate(Bundle.of(routing="lmetric"), cache=Cache(), told=False)
    gains = {case.case: case.gains["primary"] for case in result.cases}
    assert result.ok and len(gains) == 6
    assert gains["hot-prefixes"] > 0.1 and gains["bursts"] < -0.1


def test_the_package_is_at_hand_from_the_top() -> None:
    assert headway.evolve.evaluate is evaluate and headway.evolve.Suite is Suite
    assert headway.evolve.evaluate(MINE, document(), told=False).ok


def test_a_want_of_memory_in_a_decision_is_a_limit_and_no_mistake_that_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def wanting(*given: Any, **rest: Any) -> Any:
        raise CodeError("policies.routing: more than the interpreter bears.") from MemoryError()

    monkeypatch.setattr(evaluation, "simulate", wanting)
    with pytest.raises(CodeError):
        evaluation.play({}, {}, [])
