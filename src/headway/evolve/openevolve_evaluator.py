"""How good a program is, for OpenEvolve, and for SkyDiscover, which asks in the same way.

A folder has all that it takes: `evaluator.py` with the functions that the frameworks call, `initial_program.py`,
`config.yaml` of OpenEvolve, and `task.json` with the suite, its held-out part left out. Frameworks execute the
evaluator's file again and again, so it is short and what is dear is kept here.
"""

import json
import math
import sys
from collections.abc import Mapping
from functools import lru_cache
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from headway.config.wording import cut, one_line, shown
from headway.errors import HeadwayError
from headway.evolve.evaluate import evaluate
from headway.evolve.evaluation import Evaluation
from headway.evolve.feedback import cut_lines, harmless
from headway.evolve.fitness import FAILED, mean
from headway.evolve.objectives import COMPLEXITY, PRIMARY
from headway.evolve.suite import Suite
from headway.evolve.texts import bundle_of
from headway.policies.bundle import Bundle
from headway.types import Json

# Policies as one text for a framework that edits programs: each stage's source between markers of its own.
#
#     # EVOLVE-BLOCK-START routing
#     def score(request, instance, cluster):
#         ...
#     # EVOLVE-BLOCK-END
#
# What stands outside the markers is fixed. Frameworks promise to look after that and do not, so it is checked here.

START: Final = "# EVOLVE-BLOCK-START"
END: Final = "# EVOLVE-BLOCK-END"
HEAD: Final = "# Policies in Headway's policy language. Only what stands between the markers may change.\n"


def program_of(sources: Mapping[str, str]) -> str:
    """One text of several sources, by stage."""
    for stage, source in sources.items():
        if any(line.strip().startswith((START, END)) for line in source.split("\n")):
            raise HeadwayError(f"{stage}: the source has a line that begins with {START} or {END}; take it out.")
    blocks = [f"{START} {stage}\n{source.strip()}\n{END}\n" for stage, source in sources.items()]
    return "\n".join((HEAD, *blocks))


def sources_in(program: str, original: str) -> dict[str, str]:
    """The sources of a text that was edited, if nothing but them was."""
    fixed, sources = _split(program)
    for mine, theirs in zip_longest(_split(original)[0], fixed):
        if mine != theirs:
            change = f"{shown(mine)} was changed to {shown(theirs)}"
            if mine is None:
                change = f"{shown(theirs)} was added"
            elif theirs is None:
                change = f"{shown(mine)} is missing"
            raise HeadwayError(f"outside the markers {change}; edit between them.")
    return sources


def _split(text: str) -> tuple[list[str], dict[str, str]]:
    """The lines outside, markers among them and empty ones aside, and what is inside."""
    fixed: list[str] = []
    sources: dict[str, list[str]] = {}
    inside: list[str] | None = None
    for line in text.split("\n"):
        plain = line.strip()
        if plain.startswith(START) and inside is None:
            stage = plain.removeprefix(START).strip()
            if stage in sources:
                raise HeadwayError(f"{cut(plain)} stands there twice; keep every marker as it was.")
            inside = sources.setdefault(stage, [])
            fixed.append(plain)
        elif plain.startswith(END) and inside is not None:
            inside = None
            fixed.append(plain)
        elif inside is not None:
            inside.append(line.rstrip())
        elif plain:
            fixed.append(plain)
    return fixed, {stage: "\n".join(lines).strip() + "\n" for stage, lines in sources.items()}


TASK: Final = "task.json"
PROGRAM: Final = "initial_program.py"
EVALUATOR: Final = "evaluator.py"
CANDIDATES: Final = "candidates.jsonl"  # the programs that came through, a line each
SCORE: Final = "combined_score"
FEATURES: Final = {"cached": "cache.token_hit_ratio", "uneven": "balance.cv"}  # what a grid of programs is laid out by
OPENEVOLVE: Final = "openevolve.evaluation_result"
SKYDISCOVER: Final = "skydiscover.evaluation.evaluation_result"
PASSES: Final = -9.0  # stage 1 of a suite without a cascade: a program that works at all
SOURCE: Final = '''\
"""Judges a program of policies. Made by headway; see initial_program.py for the program."""

from pathlib import Path

from headway.evolve.openevolve_evaluator import judge

FOLDER = Path(__file__).resolve().parent


def evaluate(program_path):
    return judge(FOLDER, program_path)


def evaluate_stage1(program_path):
    return judge(FOLDER, program_path, stage=1)


def evaluate_stage2(program_path):
    return judge(FOLDER, program_path, stage=2)
'''


class Task(Struct, frozen=True):
    """What programs are to do, as a folder has it."""

    suite: Json
    base: Json  # the bundle whose other stages stay
    program: str
    deadline_s: float
    cache: str = "cache"  # the folder of figures, from that of the task

    def threshold(self) -> float:
        """What a program has to reach in stage 1 to be worth the rest."""
        cascade = self.suite.get("cascade")
        return PASSES if cascade is None else float(cascade["threshold"])


class Judge:
    """Judges programs, within `deadline_s` each: a framework's patience must be longer, for what it gives up on goes on
    and holds up the rest."""

    def __init__(self, folder: Path) -> None:
        try:
            task = msgspec.json.decode((folder / TASK).read_bytes(), type=Task)
        except (OSError, msgspec.MsgspecError) as error:
            raise HeadwayError(f"{folder / TASK}: cannot be read: {one_line(error)}.") from None
        self.task, self.folder = task, folder
        self.suite, self.base = Suite.of(task.suite), Bundle.read(task.base)

    def judge(self, program: str, stage: int) -> tuple[dict[str, float], dict[str, str]]:
        try:
            bundle = bundle_of(self.base, sources_in(program, self.task.program), "candidate")
        except HeadwayError as error:
            return self.report_failure(str(error))
        evaluation = self._evaluate_first(bundle) if stage == 1 else self._evaluate(bundle)
        if evaluation.ok and evaluation.stopped is None and stage != 1:
            with (self.folder / CANDIDATES).open("ab", buffering=0) as file:  # one write: processes do not mix lines
                file.write(json.dumps({"program": program}).encode() + b"\n")
        return metrics(self.suite, evaluation), {"summary": evaluation.summary}

    def _evaluate_first(self, bundle: Bundle) -> Evaluation:
        """Stage 1: a few cases. In words only where it goes no further."""
        count = 1 if self.suite.cascade is None else self.suite.cascade.first
        cases = self.suite.cases("train")[:count]
        evaluation = self._evaluate(bundle, cases=cases, told=False)
        passed = evaluation.fitness[PRIMARY] >= self.task.threshold()
        return evaluation if passed else self._evaluate(bundle, cases=cases)

    def _evaluate(self, bundle: Bundle, **how: Any) -> Evaluation:
        # Runs of other stages and processes are in the folder's cache.
        return evaluate(bundle, self.suite, deadline_s=self.task.deadline_s, cache=self.folder / self.task.cache, **how)

    def report_failure(self, why: str) -> tuple[dict[str, float], dict[str, str]]:
        return metrics(self.suite, None), {"summary": cut_lines(harmless(f"Failed: {why}"))}


def judge(folder: Path, program_path: str, stage: int = 0) -> Any:
    """The framework's result for a program: metrics, always the same and finite, and a summary in words. Stage 1 is
    the cascade's first cases, 2 the rest, and 0 all of it. Never raises."""
    try:
        folder_judge = _judge(str(folder))
    except Exception as error:  # the objectives are not known
        scores = {SCORE: FAILED, COMPLEXITY: 0.0, **dict.fromkeys(FEATURES, 0.0)}
        return result(scores, {"summary": f"Failed: {one_line(error)}.\n"})
    try:
        program = Path(program_path).read_text(encoding="utf-8")
        # SkyDiscover's own thresholds are for other scales: no program would ever reach its second stage.
        return result(*folder_judge.judge(program, 0 if SKYDISCOVER in sys.modules else stage))
    except Exception as error:  # whatever it is, the next candidate may be better
        return result(*folder_judge.report_failure(f"{one_line(error)}."))


@lru_cache(maxsize=8)
def _judge(folder: str) -> Judge:
    return Judge(Path(folder))


def metrics(suite: Suite, evaluation: Evaluation | None) -> dict[str, float]:
    """The score, every objective's gain, the complexity and the features; None is a program that failed."""
    fitness = {} if evaluation is None else evaluation.fitness
    cases = [] if evaluation is None else evaluation.cases
    scores = {SCORE: fitness.get(PRIMARY, FAILED)}
    scores |= {f"gain_{objective.name}": fitness.get(objective.name, FAILED) for objective in suite.objectives}
    scores[COMPLEXITY] = fitness.get(COMPLEXITY, 0.0)
    for name, path in FEATURES.items():
        values = [value for case in cases if (value := case.figures.get(path)) is not None and math.isfinite(value)]
        feature = max(0.0, mean(values)) if values else 0.0
        scores[name] = feature / (1.0 + feature)  # one outlier must not push all others into one cell of a grid
    return scores


def result(scores: dict[str, float], artifacts: dict[str, str]) -> Any:
    """As the framework that is loaded has results; several have a class of one name and look for their own."""
    places = (OPENEVOLVE, SKYDISCOVER)
    classes = tuple(sys.modules[place].EvaluationResult for place in places if place in sys.modules)
    if not classes:
        return {**scores}
    return type("EvaluationResult", classes, {})(metrics=scores, artifacts=artifacts)


def prepare(folder: Path, suite: Suite, base: Bundle, program: str, cache: str) -> Task:
    """Write the evaluator's files to a folder."""
    task = Task(suite.for_search().document(), base.document(), program, 4 * suite.deadline_s, cache)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / TASK).write_bytes(msgspec.json.format(msgspec.json.encode(task), indent=1) + b"\n")
        (folder / PROGRAM).write_text(program, encoding="utf-8")
        (folder / EVALUATOR).write_text(SOURCE, encoding="utf-8")
    except OSError as error:
        raise HeadwayError(f"{folder}: cannot be written: {error.strerror or error}.") from None
    return task


def candidates(folder: Path) -> list[str]:
    """The programs that came through so far, each once."""
    file = folder / CANDIDATES
    lines = file.read_text(encoding="utf-8").split("\n") if file.is_file() else []
    return list(dict.fromkeys(json.loads(line)["program"] for line in lines if line))
