"""The end of a search: the winner, the comparison and the verdict."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import yaml
from small import CODE, document, suite

import headway.evolve.final as final
import headway.evolve.selection as selection
from headway.evolve import Bundle, CaseResult, Evaluation, Suite, evaluate
from headway.evolve.fitness import over, over_baseline
from headway.evolve.journal import Judged
from headway.evolve.search_tables import beaten_oracles, report
from headway.evolve.texts import readable

Run = Callable[..., CompletedProcess[str]]
SEEDS = range(101, 111)


def evaluation(latency: dict[str, list[float]], bundle: Bundle, part: str = "held_out") -> Evaluation:
    """Return the evaluation of runs with these latencies, by workload and seed; the baseline's are 100."""
    cases = []
    for name, several in latency.items():
        for seed, value in zip(SEEDS, several, strict=False):
            figures: dict[str, float | None] = dict.fromkeys(PATHS, value) | {"requests.completed": 10.0}
            gain = 1 - value / 100
            cases.append(CaseResult(name, seed, True, {"primary": gain, "ttft": gain, "e2e": gain}, figures))
    means = [sum(one) / len(one) for one in latency.values()]
    primary = 1 - sum(means) / len(means) / 100
    fitness = {"primary": primary, "ttft": primary, "e2e": primary, "complexity": float(bundle.complexity)}
    return Evaluation(True, None, fitness, cases, "", bundle.id, part)


PATHS = ("latency.ttft.mean", "latency.e2e.mean", "latency.e2e.p95")


def flat(value: float) -> dict[str, list[float]]:
    return {"plain": [value + place % 3 for place in range(10)], "prefixes": [value - place % 3 for place in range(10)]}


def concluded(
    monkeypatch: pytest.MonkeyPatch, train: dict[str, float], validation: dict[str, float], held: dict[str, Any]
) -> final.Conclusion:
    """Conclude a search over built-in policies with made-up fitness in each part."""

    def judged(bundles: Any, made: Suite, part: str, **_: Any) -> list[Evaluation]:
        if part == "validation":
            return [evaluation(flat(100 - 100 * validation[one.name]), one) for one in bundles]
        return [evaluation(held[one.name.partition("(block")[0]], one) for one in bundles]  # without the block size

    monkeypatch.setattr(selection, "evaluate_many", judged)
    monkeypatch.setattr(final, "evaluate_many", judged)
    result = [Judged(one, evaluation(flat(100 - 100 * train[one.name]), one)) for one in map(rule, train)]
    return final.conclude(result, suite(), builtins=["lmetric"])


def rule(name: str) -> Bundle:
    source = f"def score(request, instance, cluster):\n    return {len(name)} - {ord(name[0])} * instance.inflight\n"
    return Bundle.of(name, routing={"name": "code", "source": source})


BUILTINS = {
    "baseline": flat(100),
    "oracle": flat(95),
    "lmetric": flat(90),
    "lmetric-plus-one": flat(92),
    "unified": flat(94),
    "weighted(predicted-latency:1 lru_blocks=auto)": flat(94),
    "weighted(prefix-affinity:1, load-balance:1)": flat(95),
}


def test_the_winner_is_chosen_on_validation_not_on_train_and_never_on_held_out(monkeypatch: pytest.MonkeyPatch) -> None:
    train, validation = {"a": 0.3, "b": 0.2, "c": 0.1}, {"a": 0.0, "b": 0.2, "c": 0.1}
    held = {**BUILTINS, "a": flat(50), "b": flat(80), "c": flat(10)}
    result = concluded(monkeypatch, train, validation, held)
    assert result.winner.name == "b" and result.selection.chosen_on == "validation"
    assert [one.name for one in result.contestants if one.kind == "winner"] == ["b"]


def test_lmetric_and_one_to_one_are_always_in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    result = concluded(monkeypatch, {"a": 0.1}, {"a": 0.1}, {**BUILTINS, "a": flat(80)})
    names = {one.name for one in result.contestants}
    assert {"lmetric", "weighted(prefix-affinity:1, load-balance:1)"} <= names
    blocks = {one.bundle.policies["routing"].get("block_tokens") for one in result.contestants if "(block" in one.name}
    assert blocks == {16}  # the block size of rules


def test_a_winner_that_is_better_under_every_seed_is_said_to_beat_the_best_built_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result = concluded(monkeypatch, {"a": 0.1}, {"a": 0.1}, {**BUILTINS, "a": flat(80)})
    assert result.rival is not None and result.rival.name == "lmetric"
    assert "the winner leads lmetric, the best built-in policy there, by +10.0 points" in result.verdict
    assert "The winner is significantly better. Its worst workload in this comparison is " in result.verdict
    assert result.rival.ahead is not None and min(result.rival.ahead.workloads.values()) == pytest.approx(
        10 / 90, rel=0.02
    )


def test_the_headroom_of_a_workload_is_the_best_gain_of_any_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    split = {"plain": [50.0] * 10, "prefixes": [99.0] * 10}
    result = concluded(monkeypatch, {"a": 0.1}, {"a": 0.1}, {**BUILTINS, "a": split})
    plain, prefixes = result.headroom["plain"], result.headroom["prefixes"]
    assert plain.winner == plain.best == pytest.approx(0.5) and plain.policy.kind == "winner"
    assert prefixes.winner == pytest.approx(0.01) and prefixes.policy.name == "lmetric" and prefixes.best > 0.1
    assert result.document()["headroom"]["prefixes"]["policy"] == "lmetric"
    assert any("Headroom" in str(part) for part in report(result))


def test_an_oracle_bounds_the_headroom_unless_a_policy_beats_it() -> None:
    kinds = {kind: name for kind, name, _ in final.rivals(suite(), "routing", ["lmetric"])}
    assert kinds["oracle"] == "true cache and load"
    assert "oracle" not in {kind for kind, _, _ in final.rivals(suite(), "scheduler", ["fcfs"])}
    judged = [Judged(rule("a"), evaluate(rule("a"), suite(), told=False))]
    result = final.conclude(judged, suite(), builtins=["lmetric"])
    for name, room in result.headroom.items():
        gains = {other.name: other.gain.workloads[name] for other in result.contestants}
        assert room.oracle == gains["true cache and load"] <= room.best == max(gains.values())
    assert beaten_oracles([(0.1, 0.1), (0.1, 0.2), (None, 0.3)]).startswith("On 1 of 3 workloads, a policy beats")
    assert beaten_oracles([(0.1, 0.1)]) == ""


def test_a_gain_that_chance_may_have_made_is_not_called_one(monkeypatch: pytest.MonkeyPatch) -> None:
    wild = {"plain": [60.0, 120.0] * 5, "prefixes": [130.0, 45.0] * 5}
    result = concluded(monkeypatch, {"a": 0.1}, {"a": 0.1}, {**BUILTINS, "a": wild})
    assert "The difference is not significant" in result.verdict


def test_a_winner_that_is_worse_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    result = concluded(monkeypatch, {"a": 0.1}, {"a": 0.1}, {**BUILTINS, "a": flat(97)})
    assert "The winner is significantly worse" in result.verdict


def test_intervals_are_of_paired_differences_over_the_seeds() -> None:
    bundle = rule("a")
    mine, its = {"plain": [50.0, 99.0, 148.0]}, {"plain": [100.0, 150.0, 200.0]}
    result = over(evaluation(mine, bundle), evaluation(its, bundle), suite().objectives)
    assert result is not None and result.mean == pytest.approx((0.50 + 0.51 + 0.52) / 3)
    half = 4.302652730 * 0.01 / 3**0.5  # Student's t for two degrees of freedom, and the spread of the three
    assert (result.low, result.high) == (pytest.approx(result.mean - half), pytest.approx(result.mean + half))
    assert result.workloads == {"plain": pytest.approx(1 - (50 + 99 + 148) / (100 + 150 + 200))}


def test_being_ahead_by_chance_alone_favours_nobody() -> None:
    bundle = rule("a")
    low, high = [50.0, 200.0] * 5, [200.0, 50.0] * 5
    one, other = (evaluation({"plain": values}, bundle) for values in (low, high))
    result, back = over(one, other, suite().objectives), over(other, one, suite().objectives)
    assert result is not None and back is not None
    assert result.mean == back.mean == result.workloads["plain"] == back.workloads["plain"] == 0.0


def test_seeds_that_change_nothing_give_no_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    same, better = ({"plain": [value] * 10} for value in (90.0, 80.0))
    one, other = (evaluation(values, rule("a")) for values in (better, same))
    result = over(one, other, suite().objectives)
    assert result is not None and (result.low, result.high) == (None, None) and not result.certain
    assert (over_baseline(one).mean, over_baseline(one).low) == (pytest.approx(0.2), None)
    held = {name: {"plain": [value] * 10} for name, value in (("baseline", 100.0), ("lmetric", 90.0), ("a", 80.0))}
    held |= {name: {"plain": [95.0] * 10} for name in BUILTINS if name not in held}
    told = concluded(monkeypatch, {"a": 0.1}, {"a": 0.1}, {**BUILTINS, **held}).verdict
    assert told.endswith("The search started from this policy.")
    assert "seeds that change nothing" in told and "The difference is not significant" in told


def test_a_bundle_among_the_rivals_brings_all_its_stages(tmp_path: Path) -> None:
    Bundle.of("mine", admission={"name": "token-bucket", "rate": 5}, routing="lmetric").write(tmp_path / "mine.yaml")
    rows = final.rivals(suite(), "routing", [str(tmp_path / "mine.yaml")])
    assert rows[-1][2].policies["admission"] == {"name": "token-bucket", "rate": 5}


def test_one_seed_gives_no_interval() -> None:
    result = over_baseline(evaluation({"plain": [90.0], "prefixes": [80.0]}, rule("a")))
    assert (result.mean, result.low, result.high) == (pytest.approx(0.15), None, None)
    assert not result.certain and result.worst == "plain"


def test_of_equals_on_validation_the_simplest_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    long = Bundle.of("long", routing={"name": "code", "source": CODE})
    short = rule("short")
    alike: Callable[..., Any] = lambda bundles, *_, **__: [evaluation(flat(90), one) for one in bundles]  # noqa: E731
    monkeypatch.setattr(selection, "evaluate_many", alike)
    result = [Judged(one, evaluation(flat(80), one)) for one in (long, short)]
    assert selection.select(result, suite()).winner.bundle is short


def test_the_front_holds_what_is_simpler_or_better_in_some_objective() -> None:
    long, short = Bundle.of("long", routing={"name": "code", "source": CODE}), rule("short")
    made = suite(validation=[])
    fast, slow = flat(80), flat(90)
    better = selection.select([Judged(long, evaluation(fast, long)), Judged(short, evaluation(slow, short))], made)
    assert [one.bundle for one in better.front] == [long, short] and better.winner.bundle is long
    beaten = selection.select([Judged(long, evaluation(slow, long)), Judged(short, evaluation(fast, short))], made)
    assert [one.bundle for one in beaten.front] == [short]


def test_a_template_is_shown_as_source_with_the_numbers_that_were_chosen() -> None:
    shown = readable(Bundle.of(routing={"name": "prefill-cost-routing", "load_offset": 5.25}))
    assert "\nload_offset = 5.25\n" in shown and "\nload_exponent = parameter(1, 0, 3)\n" in shown
    assert shown.startswith("pending_weight = ")  # without the docstring, which describes the defaults
    shown = readable(Bundle.of(routing={"name": "code", "source": CODE, "parameters": {"W": 2.5}}))
    assert "W = 2.5\n" in shown and "parameter(" not in shown
    typed = CODE.replace("W =", "W: float =")
    assert readable(Bundle.of(routing={"name": "code", "source": typed, "parameters": {"W": 2.5}})) == shown
    shown = readable(Bundle.of(routing={"name": "weighted", "scorers": {"prefix-affinity": 2, "load-balance": 1}}))
    assert yaml.safe_load(shown)["routing"]["scorers"] == {"prefix-affinity": 2, "load-balance": 1}


@pytest.fixture(scope="module")
def suite_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("suites") / "small.yaml"
    held_out = [{"workload": "prefixes", "seeds": [101, 102]}]
    file.write_text(yaml.safe_dump(document(train=[{"workload": "prefixes", "seeds": [1]}], held_out=held_out)))
    return file


@pytest.mark.full
def test_the_verb_prints_tables_code_and_a_verdict_and_writes_a_bundle_that_runs(
    headway: Run, suite_file: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "found"
    options = ["--engine", "gp", "--evaluations", "12", "--builtins", "lmetric", "-o", str(folder)]
    completed = headway("evolve", str(suite_file), *options)
    assert completed.returncode == 0, completed.stderr
    assert (
        "def " in completed.stdout
        and "On the held-out part the winner" in completed.stdout
        and "lmetric" in completed.stdout
    )
    assert f"wrote best.yaml, result.json and 12 evaluations to {folder}" in completed.stderr
    best = Bundle.read(folder / "best.yaml")
    assert readable(best) in "\n".join(line.rstrip() for line in completed.stdout.splitlines()) + "\n"
    again = headway("run", "--policy", str(folder / "best.yaml"), "--set", "workload.requests=50", "--json")
    assert again.returncode == 0, again.stderr


def test_with_json_the_verb_prints_one_document(headway: Run, suite_file: Path) -> None:
    completed = headway(
        "evolve", str(suite_file), "--evaluations", "4", "--batch", "4", "--builtins", "lmetric", "--json"
    )
    assert completed.returncode == 0, completed.stderr
    result = json.loads(completed.stdout)
    assert result["candidates"] == 4 and result["chosen_on"] == "validation"
    assert {row["kind"] for row in result["held_out"]} == {"winner", "baseline", "built-in", "control", "oracle"}
    assert result["looks"] == 1
    assert result["winner"]["bundle"]["format"] == 1


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["no-such-suite"], "no suite file and no preset has this name"),
        (["--evaluations", "0"], "--evaluations: must be at least 1"),
        (["--template", "least-loaded"], "has no numbers to search"),
        (["--template", "missing.yaml"], "missing.yaml"),
        (["--engine", "gp", "--stage", "scheduler"], "supports routing, decider or estimator"),
        (["--engine", "gp", "--template", "lmetric"], "--template: genetic programming has its own first rules"),
        (["--engine", "gp", "--sampler", "tpe"], "--sampler: only --engine numeric has a sampler"),
        (["--engine", "gp", "--builtins", "nobody"], "nobody"),
    ],
)
def test_mistakes_are_sentences(headway: Run, options: list[str], why: str) -> None:
    completed = headway("evolve", *options)
    assert (
        completed.returncode == 2
        and why in completed.stderr
        and "Traceback" not in completed.stderr
        and not completed.stdout
    )


def drawn(chart: Any) -> list[dict[str, Any]]:
    """Return the rows of a chart."""
    [rows] = chart.to_dict()["datasets"].values()
    return list(rows)


@pytest.mark.full
def test_a_search_shows_itself_in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("altair", reason="the extra `notebook` is not installed")
    train = {"a": 0.3, "b": 0.2, "c": 0.1}
    held = {**BUILTINS, "a": flat(50), "b": flat(80), "c": flat(10)}
    result = concluded(monkeypatch, train, {"a": 0.0, "b": 0.2, "c": 0.1}, held)
    assert len(repr(result).splitlines()) < 40 and "Held out" in repr(result) and "<table" in result._repr_html_()
    columns = result.columns()
    assert columns["name"] == ["a", "b", "c"] and columns["winner"] == [False, True, False]
    assert columns["primary"] == pytest.approx([0.3, 0.2, 0.1], abs=0.02)
    assert list(result.to_pandas()["name"]) == columns["name"]
    [best] = {row["best"] for row in drawn(result.plot("search"))}
    assert best == pytest.approx(0.3, abs=0.02)
    assert len(drawn(result.plot("front"))) == 3
    bars = drawn(result.plot("held-out"))
    assert bars[0]["name"] == "b" and all(bar["low"] <= bar["value"] <= bar["high"] for bar in bars)


def test_an_evaluation_shows_itself_in_a_notebook() -> None:
    pytest.importorskip("altair", reason="the extra `notebook` is not installed")
    result = evaluation(flat(80), rule("a"))
    assert len(repr(result).splitlines()) < 40 and "prefixes" in result._repr_html_()
    assert result.columns()["gains.primary"] == pytest.approx(
        [1 - value / 100 for each in flat(80).values() for value in each]
    )
    assert [bar["name"] for bar in drawn(result.plot())] == ["plain", "prefixes"]
    failed = Evaluation(False, "plain, seed 1: it broke.", result.fitness, [], "", "id")
    assert "it broke" in repr(failed)
