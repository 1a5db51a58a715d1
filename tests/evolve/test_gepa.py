"""GEPA with a model that answers by rule: its prompts, and reproducible runs."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from small import document, suite
from stub_models import SOURCE, Counting, heavier, silent

from headway.config.documents import presets
from headway.errors import HeadwayError
from headway.evolve import Bundle, Suite, evaluate
from headway.evolve.dialogue import Dialogue, WritingTask, evolve_with_model
from headway.evolve.final import Conclusion
from headway.evolve.gepa import Adapter, search, templates
from headway.evolve.journal import Judged
from headway.evolve.model import Replay
from headway.evolve.primer import primer
from headway.evolve.texts import DEFAULTS, bundle_of, texts_of
from headway.policies.bundle import EVERY, STAGES
from headway.policies.code import check, language
from installed import need

need("gepa", "evolve")
HERD = "def score(request, instance, cluster):\n    return -instance.index\n"  # a poor policy
START = {"name": "code", "source": HERD}


def few() -> Suite:
    return suite(
        train=[{"workload": "prefixes", "seeds": [1]}, {"workload": "plain", "seeds": [1]}],
        validation=[{"workload": "prefixes", "seeds": [11]}],
        held_out=[{"workload": "prefixes", "seeds": [101, 102]}],
    )


def started(**policies: Any) -> Bundle:
    return Bundle.of("start", **{"routing": START, **policies})


def conversed(output: Path | None, model: Any = heavier, evaluations: int = 5, **rest: Any) -> Conclusion:
    dialogue = Dialogue("gepa", START, evaluations=evaluations)
    return evolve_with_model(few(), model, dialogue, builtins=["lmetric"], output=output, **rest)


def rows(found: list[Judged]) -> list[Any]:
    return [(one.bundle.document(), one.evaluation) for one in found]


@pytest.mark.full
def test_two_searches_with_one_model_are_the_same(tmp_path: Path) -> None:
    one, two = conversed(tmp_path / "one", workers=1), conversed(tmp_path / "two", workers=2)
    assert one.document() == two.document()
    for name in ("transcript.jsonl", "batches/0000.json", "best.yaml", "result.json", "search.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    assert one.candidates > 1 and "W = parameter(" in one.document()["source"]


def test_a_recorded_search_is_replayed_without_a_model(tmp_path: Path) -> None:
    live = conversed(tmp_path / "live")
    assert conversed(None, Replay(tmp_path / "live" / "transcript.jsonl")).document() == live.document()


def test_a_prompt_that_was_never_asked_ends_the_replay(tmp_path: Path) -> None:
    conversed(tmp_path / "live")
    transcript = tmp_path / "live" / "transcript.jsonl"
    transcript.write_text(transcript.read_text().replace("language models", "models of language", 1))
    with pytest.raises(HeadwayError, match=r"no further answer, to prompt 1"):
        conversed(None, Replay(transcript))


@pytest.mark.full
def test_a_search_goes_on_from_its_folder_and_asks_nothing_twice(tmp_path: Path) -> None:
    first, rest, whole = Counting(heavier), Counting(heavier), Counting(heavier)
    conversed(tmp_path / "steps", first, 3)
    longer = conversed(tmp_path / "steps", rest, 6)
    assert longer.document() == conversed(tmp_path / "once", whole, 6).document()
    assert first.asked > 0 and first.asked + rest.asked == whole.asked


def test_a_model_that_fails_ends_the_search_and_is_quoted() -> None:
    with pytest.raises(RuntimeError, match="no line to the model"):
        search(WritingTask(few(), started(), Dialogue(evaluations=5), silent, Path()))


def test_the_cost_is_said_before_anything_is_run() -> None:
    told: list[str] = []

    def model(prompt: Any) -> str:
        assert told
        return heavier(prompt)

    conversed(None, model, 3, say=told.append)
    assert told[0].startswith("gepa: 3 candidates × 2 cases = 6 simulations on train")
    assert "12 on validation; 18 on held-out" in told[0]


def test_scores_are_gains_case_by_case_and_feedback_is_the_summary() -> None:
    chosen = few()
    cases = list(chosen.cases("train"))
    adapter = Adapter(chosen, started())
    batch = adapter.evaluate(cases, {"routing": SOURCE}, capture_traces=True, unheard_of=1)
    result = evaluate(bundle_of(started(), {"routing": SOURCE}, "x", auto=True), chosen, cases=cases)
    assert batch.scores == [case.gains["primary"] for case in result.cases]
    assert batch.objective_scores == [{"ttft": one.gains["ttft"], "e2e": one.gains["e2e"]} for one in result.cases]
    assert len(batch.outputs) == len(batch.trajectories) == batch.num_metric_calls == 2
    assert adapter.evaluate(cases, {"routing": SOURCE}).trajectories is None
    data = adapter.make_reflective_dataset({"routing": SOURCE}, batch, ["routing", "admission"], metadata={})
    assert json.loads(json.dumps(data)) == data and list(data) == ["routing", "admission"]
    assert "The worst case: plain, seed 1" in data["routing"][1]["Feedback"]


@pytest.mark.parametrize(
    "source",
    [
        "import os\n",
        "def score(request, instance, cluster):\n    while True:\n        pass\n",
        "def score(request, instance, cluster):\n    return 'x'\n",
        "",
        "(" * 10_000,
        "\x00\ud800",
    ],
)
def test_a_bad_candidate_has_scores_and_a_reason_like_any_other(source: str) -> None:
    adapter = Adapter(few(), started())
    batch = adapter.evaluate(list(few().cases("train")), {"routing": source}, capture_traces=True)
    assert batch.scores == [-10.0, -10.0]
    assert all("Failed: " in row["Feedback"] for row in batch.trajectories)


def test_all_five_stages_are_components_that_begin_as_the_defaults() -> None:
    base = started()
    texts = texts_of(base, STAGES)
    assert tuple(texts) == STAGES and all(not check(text, stage) for stage, text in texts.items())
    chosen = suite()
    plain, written = (evaluate(one, chosen, told=False) for one in (base, bundle_of(base, texts, "all", auto=True)))
    assert [case.figures for case in written.cases] == [case.figures for case in plain.cases]
    assert written.fitness["complexity"] > plain.fitness["complexity"]


@pytest.mark.full
def test_five_components_can_be_written_at_once() -> None:
    asked: list[str] = []

    def model(prompt: Any) -> str:
        stage = str(prompt).partition("This is the current ")[2].partition(" ")[0]
        asked.append(stage)
        return f"```\n{DEFAULTS.get(stage, SOURCE)}\n```"

    result = search(WritingTask(few(), started(), Dialogue(stages=STAGES, evaluations=14), model, Path()))
    assert sorted(set(asked)) == sorted(STAGES)
    assert result[0].policies["scaling"] == {"name": "code", "source": DEFAULTS["scaling"]}


def test_every_prompt_teaches_the_language_of_its_stage() -> None:
    for stage, template in templates(few(), STAGES).items():
        assert "<curr_param>" in template and "<side_info>" in template
        assert f"This is the current {stage} policy" in template and "There is no import" in template
    assert "cached_tokens(instance)" in templates(few(), ["routing"])["routing"]
    assert "cached_tokens" not in templates(few(), ["scaling"])["scaling"]


def test_a_prompt_has_the_task_the_baseline_and_what_was_tried() -> None:
    asked: list[str] = []
    better = SOURCE.replace("parameter(1.0,", "parameter(4.0,")
    answers = iter([SOURCE, "def score(request, instance, cluster):\n    return 1 / 0\n", HERD + "# worse\n", better])

    def model(prompt: Any) -> str:
        asked.append(str(prompt))
        return f"```\n{next(answers, better)}```"

    search(WritingTask(few(), started(), Dialogue(evaluations=9), model, Path()))
    first, last = asked[0], asked[3]
    assert "2 instances of llama-3.1-8b" in first and "400 KV blocks each" in first  # the cluster
    assert "- prefixes: 60 requests at 20/s; poisson arrivals; prompts of 900 tokens" in first  # a workload
    assert "round-robin" in first and re.search(r"\| prefixes \| \d+ ms \|", first)  # the baseline and its figures
    assert "no improvement" not in first and "was made from" not in first and "<attempts>" not in first
    assert "The current policy was made from this one, which had a gain of -" in last and HERD in last
    assert "It failed: prefixes, seed 1: " in last and "return 1 / 0" in last
    assert "# worse" in last and "and its parent had" in last
    assert "## Worst Decisions" in last and "Regret: by the latency model" in last
    assert "`headway" not in last  # the candidate cannot call commands


def test_the_best_policy_is_told_where_another_one_is_improved() -> None:
    chosen = few()
    adapter, cases = Adapter(chosen, started()), list(chosen.cases("train"))
    for texts in ({"routing": SOURCE}, {"routing": HERD}):
        batch = adapter.evaluate(cases, texts, capture_traces=texts["routing"] == HERD)
        adapter.make_reflective_dataset(texts, batch, ["routing"])
    told = adapter.attempts.describe("routing")
    assert told.startswith("The best routing policy so far has a gain of ") and SOURCE.strip() in told


@pytest.mark.parametrize("name", ["lmetric", "weighted"])
def test_a_policy_of_the_cookbook_can_be_begun_with_and_decides_as_before(name: str) -> None:
    base = Bundle.of("start", routing=name)
    text = texts_of(base, ["routing"])
    assert text["routing"] == presets("cookbook", ".py")[name]
    chosen = few()
    old, new = (evaluate(one, chosen, told=False) for one in (base, bundle_of(base, text, "new", auto=chosen.auto)))
    assert [case.figures for case in new.cases] == [case.figures for case in old.cases]


@pytest.mark.parametrize(
    ("date", "routing", "belief"),
    [
        ("2026-11", "lmetric", {"block_tokens": 512, "lru_blocks": 976}),
        ("2026-12", "lmetric", {"block_tokens": 512}),  # code without `lru_blocks` has `auto` there, as `lmetric` has
        ("2026-11", {"name": "lmetric", "lru_blocks": 31250}, {"block_tokens": 512}),
        ("2026-12", {"name": "lmetric", "lru_blocks": 31250}, {"block_tokens": 512, "lru_blocks": 31250}),
        ("2026-12", {"name": "lmetric", "lru_blocks": 20}, {"block_tokens": 512, "lru_blocks": 20}),
    ],
)
def test_a_source_has_the_prefix_index_of_the_policy_that_it_replaces(date: str, routing: Any, belief: Any) -> None:
    chosen = suite(scenario={**document()["scenario"], "defaults": date})
    sources = {"routing": presets("cookbook", ".py")["lmetric"]}
    first = bundle_of(Bundle.of("start", routing=routing), sources, "first", auto=chosen.auto)
    again = bundle_of(first, sources, "again", auto=chosen.auto)
    assert first.policies == again.policies
    assert first.policies["routing"] == {"name": "code", "source": sources["routing"], **belief}


def test_a_policy_without_a_source_cannot_be_begun_with() -> None:
    with pytest.raises(HeadwayError, match="'random' has no source in the policy language"):
        texts_of(Bundle.of("start", routing="random"), ["routing"])
    with pytest.raises(HeadwayError, match=r"there is no stage 'rooting'\. Did you mean 'routing'"):
        texts_of(started(), ["rooting"])


@pytest.mark.parametrize("engine", ["gepa", "openevolve"])
def test_a_framework_that_is_missing_is_named(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, engine, None)
    with pytest.raises(
        HeadwayError, match=rf"engine: {engine} is not installed\. Run: pip install 'headway\[evolve\]'"
    ):
        evolve_with_model(few(), heavier, Dialogue(engine, START))


@pytest.mark.parametrize(
    "line",
    [
        "import os",
        "f = lambda x: x",
        "x = 2 ** 3",
        "x = {1, 2}",
        "x = f'{1}'",
        "global y",
        "print(1)",
        "with request: pass",
        "try: pass\n    except KeyError: pass",
        "x = instance.id",
        "x = score(request, instance, cluster)",
    ],
)
def test_what_the_model_is_told_is_not_there_is_refused(line: str) -> None:
    assert check(f"def score(request, instance, cluster):\n    {line}\n    return 1\n", "routing")


def test_the_model_is_told_of_every_function_and_field() -> None:
    told = primer(EVERY)
    words = set(re.findall(r"\w+", told))
    fields = {name for kind in language.RECORDS for name in language.FIELDS[kind]}
    entrances = {name for stage in language.ENTRANCES.values() for name in stage}
    assert fields | entrances | set(language.FUNCTIONS) <= words
    assert f"{language.STEPS:,} steps" in told
