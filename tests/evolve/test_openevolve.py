"""OpenEvolve with a model that answers by rule, and the evaluator's file for OpenEvolve and SkyDiscover."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import logging
import math
import random
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from small import suite
from stub_models import SOURCE, editor, hostile, silent, text_of

import headway.evolve.openevolve as openevolve_module
from headway.errors import HeadwayError
from headway.evolve import Bundle, Suite, evaluate
from headway.evolve.dialogue import Dialogue, evolve_with_model
from headway.evolve.final import Conclusion
from headway.evolve.model import Replay
from headway.evolve.openevolve import Client, prepared
from headway.evolve.openevolve_evaluator import FEATURES, candidates, program_of, sources_in
from installed import need

need("openevolve", "evolve")
START = {"name": "code", "source": SOURCE}
BASE = Bundle.of("start", routing=START)
KEYS = ["combined_score", "gain_ttft", "gain_e2e", "complexity", *FEATURES]


def few(**changes: Any) -> Suite:
    parts: dict[str, Any] = {
        "train": [{"workload": "prefixes", "seeds": [1]}, {"workload": "plain", "seeds": [1]}],
        "validation": [{"workload": "prefixes", "seeds": [11]}],
        "held_out": [{"workload": "prefixes", "seeds": [101, 102]}],
        "cascade": {"first": 1, "threshold": -0.5},
    }
    return suite(**parts | changes)


def loaded(folder: Path) -> ModuleType:
    """Execute the evaluator's file as frameworks do."""
    spec = importlib.util.spec_from_file_location("evaluation_module", folder / "evaluator.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Judge:
    """Calls the functions of the evaluator's file."""

    def __init__(self, folder: Path, chosen: Suite) -> None:
        self.folder = folder
        self.config = prepared(folder, chosen, BASE)
        self.program = (folder / "initial_program.py").read_text()

    def __call__(self, program: str, function: str = "evaluate") -> Any:
        file = self.folder / "candidate.py"
        file.write_text(program, encoding="utf-8", errors="surrogateescape")
        return getattr(loaded(self.folder), function)(str(file))


@pytest.fixture
def judge(tmp_path: Path) -> Judge:
    import openevolve  # noqa: F401  (as when it asks)

    return Judge(tmp_path, few())


def test_a_program_has_the_fitness_that_headway_gives_it(judge: Judge) -> None:
    result, mine = judge(judge.program), evaluate(BASE, few())
    assert list(result.metrics) == KEYS
    assert result.metrics["combined_score"] == mine.fitness["primary"]
    assert result.metrics["gain_ttft"] == mine.fitness["ttft"]
    assert result.artifacts["summary"].splitlines()[1:] == mine.summary.splitlines()[1:]
    assert 0 < result.metrics["cached"] < 1


@pytest.mark.parametrize(
    "source",
    [
        "import os\n\n\ndef score(request, instance, cluster):\n    return 1\n",
        "def score(request, instance, cluster):\n    while True:\n        pass\n",
        "def score(request, instance, cluster):\n    return 1 / 0\n",
        "def score(request, instance, cluster):\n    return 'a' * 10000000000\n",
        "def score(request, instance, cluster):\n    return exp(1000) - exp(1000)\n",
        "def score(:\n",
        "",
    ],
)
@pytest.mark.parametrize("function", ["evaluate", "evaluate_stage1", "evaluate_stage2"])
def test_who_fails_has_the_same_metrics_and_a_reason(judge: Judge, source: str, function: str) -> None:
    result = judge(program_of({"routing": source}), function)
    assert list(result.metrics) == KEYS and all(math.isfinite(value) for value in result.metrics.values())
    assert result.metrics["combined_score"] == -10.0
    assert "Failed: " in result.artifacts["summary"]
    assert candidates(judge.folder) == []


def test_prompts_have_the_last_programs_that_failed_and_the_reasons(judge: Judge) -> None:
    asked: list[str] = []
    client = Client(None, lambda prompt: asked.append(text_of(prompt)) or "yes", str(judge.folder))
    asyncio.run(client.generate("first"))
    judge(judge.program + "import os\n")
    judge(program_of({"routing": "def score(request, instance, cluster):\n    return 1 / 0\n"}), "evaluate_stage1")
    judge(judge.program)
    asyncio.run(client.generate_with_context("system", [{"role": "user", "content": "second"}]))
    assert asked[0] == "first" and asked[1].startswith("second\n")
    assert "outside the markers, 'import os' was added" in asked[1] and "return 1 / 0" in asked[1]
    assert asked[1].count("This attempt was no improvement. ") == 2


def test_the_system_message_has_the_cluster_the_workloads_and_the_baseline(judge: Judge) -> None:
    told = judge.config["prompt"]["system_message"]
    assert "2 instances of llama-3.1-8b" in told and "- plain: 50 requests at 15/s" in told
    assert "The routing policy of the baseline:" in told and "| prefixes | " in told


def test_an_edit_outside_the_markers_is_refused(judge: Judge) -> None:
    program = judge.program
    for wrong, why in [
        (program + "import os\n", "'import os' was added"),
        ("import os\n" + program, "was changed to 'import os'"),
        (program.replace("# EVOLVE-BLOCK-END", ""), "'# EVOLVE-BLOCK-END' is missing"),
        (program.replace("-START routing", "-START admission"), "was changed to '# EVOLVE-BLOCK-START admission'"),
        (program + program[program.index("# EVOLVE") :], "appears twice"),
        (SOURCE, "outside the markers"),
        ("", "is missing"),
    ]:
        result = judge(wrong)
        assert list(result.metrics) == KEYS and result.metrics["combined_score"] == -10.0
        assert why in result.artifacts["summary"]


def test_programs_that_cannot_be_read_are_failures_too(judge: Judge, tmp_path: Path) -> None:
    (tmp_path / "bytes.py").write_bytes(b"\xff\xfe\x00")
    for place in (tmp_path / "bytes.py", tmp_path / "nowhere.py"):
        result = loaded(tmp_path).evaluate(str(place))
        assert list(result.metrics) == KEYS and result.metrics["combined_score"] == -10.0
    (tmp_path / "task.json").write_text("{}")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "evaluator.py").write_text((tmp_path / "evaluator.py").read_text())
    lost = loaded(elsewhere).evaluate("x.py")
    assert lost.metrics["combined_score"] == -10.0 and "task.json" in lost.artifacts["summary"]


def test_the_first_stage_has_the_first_cases_and_the_second_all(judge: Judge) -> None:
    first, second = judge(judge.program, "evaluate_stage1"), judge(judge.program, "evaluate_stage2")
    chosen = few()
    assert first.metrics["combined_score"] == evaluate(BASE, chosen, cases=chosen.cases("train")[:1]).fitness["primary"]
    assert second.metrics["combined_score"] == evaluate(BASE, chosen).fitness["primary"]
    assert judge.config["evaluator"]["cascade_thresholds"] == [-0.5]
    assert candidates(judge.folder) == [judge.program]  # only complete evaluations


def test_ours_is_the_first_deadline_and_the_held_out_part_is_not_in_the_folder(judge: Judge) -> None:
    task = json.loads((judge.folder / "task.json").read_text())
    assert judge.config["evaluator"]["timeout"] > task["deadline_s"] + 30
    assert list(task["suite"]["parts"]) == ["train", "validation"]
    assert judge.config["prompt"]["suggest_simplification_after_chars"] > 5 * len(SOURCE)
    assert "cached_tokens(instance)" in judge.config["prompt"]["system_message"]


def test_a_program_that_takes_too_long_is_ended_by_us(judge: Judge) -> None:
    task = json.loads((judge.folder / "task.json").read_text())
    hurried = judge.folder / "hurried"
    hurried.mkdir()
    (hurried / "evaluator.py").write_text((judge.folder / "evaluator.py").read_text())
    (hurried / "task.json").write_text(json.dumps(task | {"deadline_s": 1e-9}))
    result = loaded(hurried).evaluate(str(judge.folder / "initial_program.py"))
    assert list(result.metrics) == KEYS and result.metrics["combined_score"] == -10.0
    assert "the evaluation reached its deadline of" in result.artifacts["summary"]


def test_a_summary_gets_through_the_filter_of_prompts(judge: Judge) -> None:
    from openevolve.config import PromptConfig
    from openevolve.prompt.sampler import PromptSampler

    summary = judge(judge.program).artifacts["summary"]
    assert PromptSampler(PromptConfig())._apply_security_filter(summary) == summary


@dataclass
class TheirResult:
    metrics: dict[str, float]
    artifacts: dict[str, Any] = field(default_factory=dict)


def test_skydiscover_is_given_results_of_its_own(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    from openevolve.evaluation_result import EvaluationResult

    theirs = ModuleType("skydiscover.evaluation.evaluation_result")
    theirs.EvaluationResult = TheirResult  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, theirs.__name__, theirs)
    both = judge(judge.program)
    assert isinstance(both, TheirResult) and isinstance(both, EvaluationResult)
    monkeypatch.delitem(sys.modules, "openevolve.evaluation_result")
    alone = judge(judge.program)
    assert isinstance(alone, TheirResult) and "summary" in alone.artifacts
    assert judge(judge.program, "evaluate_stage1").metrics == alone.metrics  # its thresholds have another scale
    monkeypatch.delitem(sys.modules, theirs.__name__)
    assert list(judge(judge.program)) == KEYS  # without a framework the result is a dict


def test_blocks_of_several_stages_come_back_as_they_were() -> None:
    texts = {"admission": "def admit(request, cluster):\n    return True\n", "routing": SOURCE}
    assert sources_in(program_of(texts), program_of(texts)) == texts


def conversed(output: Path | None, model: Any = editor, evaluations: int = 4, **rest: Any) -> Conclusion:
    dialogue = Dialogue("openevolve", START, evaluations=evaluations)
    return evolve_with_model(few(), model, dialogue, builtins=["lmetric"], workers=1, output=output, **rest)


def test_a_search_leaves_programs_that_are_judged_again_and_the_process_as_it_was(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    handlers, path = list(logging.getLogger().handlers), list(sys.path)
    random.seed(7)
    expected, heard = random.Random(7).random(), signal.getsignal(signal.SIGINT)
    result = conversed(tmp_path / "out")
    assert random.random() == expected and signal.getsignal(signal.SIGINT) is heard
    assert logging.getLogger().handlers == handlers and sys.path == path
    assert capfd.readouterr() == ("", "")
    assert 2 <= result.candidates <= 4
    rows = json.loads((tmp_path / "out" / "batches" / "0000.json").read_text())
    for row in rows:
        assert row["evaluation"]["fitness"] == evaluate(row["bundle"], few()).fitness
    last = rows[-1]["bundle"]
    assert last["generation"] >= 1 and "W = parameter" in last["mutations"][0]
    assert last["parent"] in [Bundle.read(row["bundle"]).id for row in rows[:-1]]


def test_programs_that_never_end_do_not_stop_the_search(tmp_path: Path) -> None:
    result = conversed(tmp_path / "out", hostile, 5)
    assert result.candidates == 1  # only the first
    assert len((tmp_path / "out" / "transcript.jsonl").read_text().splitlines()) == 4


@pytest.mark.full
def test_a_search_goes_on_from_its_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openevolve_module, "CHECKPOINTS", 2)
    conversed(tmp_path / "out", evaluations=3)
    before = json.loads((tmp_path / "out" / "batches" / "0000.json").read_text())
    asked = len((tmp_path / "out" / "transcript.jsonl").read_text().splitlines())
    conversed(tmp_path / "out", evaluations=3)  # the search is complete
    assert json.loads((tmp_path / "out" / "batches" / "0000.json").read_text()) == before
    conversed(tmp_path / "out", evaluations=5)
    after = json.loads((tmp_path / "out" / "batches" / "0000.json").read_text())
    assert after[: len(before)] == before and asked == 2
    assert len((tmp_path / "out" / "transcript.jsonl").read_text().splitlines()) == 4


@pytest.mark.full
def test_a_transcript_is_replayed_in_order(tmp_path: Path) -> None:
    conversed(tmp_path / "live", evaluations=2)
    again = conversed(tmp_path / "again", Replay(tmp_path / "live" / "transcript.jsonl", in_order=True), 2)
    assert again.candidates == 2


def test_a_model_that_never_answers_is_an_error_that_says_why() -> None:
    with pytest.raises(HeadwayError, match="the model returned no usable answer: no line to the model"):
        conversed(None, silent, 3)


def test_a_start_that_fails_is_told_before_anything_is_asked(tmp_path: Path) -> None:
    broken = {"name": "code", "source": "def score(request, instance, cluster):\n    return 1 / 0\n"}
    dialogue = Dialogue("openevolve", broken, evaluations=3)
    with pytest.raises(HeadwayError, match=r"template: the policy fails on the train part: .*division by zero"):
        evolve_with_model(few(), silent, dialogue, workers=1)


def test_openevolve_has_one_machine() -> None:
    with pytest.raises(HeadwayError, match="ray: OpenEvolve runs on one machine"):
        conversed(None, ray="auto")
