"""Search by GEPA: a language model rewrites one stage's policy at a time, having read how it fared.

A candidate is a text for each stage, an example is a case of the train part, and its score is the gain over the
baseline there. With a model that answers the same prompt the same, two runs are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, Final

from headway.errors import HeadwayError
from headway.evolve.cache import Cache
from headway.evolve.cases import Case
from headway.evolve.evaluate import evaluate
from headway.evolve.evaluation import CaseResult, Evaluation
from headway.evolve.model import Model, Prompt, code_in
from headway.evolve.objectives import PRIMARY
from headway.evolve.primer import primer, task
from headway.evolve.suite import Suite
from headway.evolve.texts import bundle_of, texts_of
from headway.experiment.runner import Runner
from headway.policies.bundle import Bundle
from headway.types import Json

MINIBATCH: Final = 3  # cases that a proposal is tried on first
PROMPT: Final = """\
{task}

{primer}

This is the present {stage} policy:
```
<curr_param>
```

This is how it fared:
<side_info>

Find out what costs it most, and write a better {stage} policy. Answer with a few sentences of reasons and then with the
whole of the policy in one ``` block."""


class Adapter:
    """What GEPA asks: how candidates fare, and what is to be learnt from it."""

    propose_new_texts = None  # GEPA asks the model itself

    def __init__(
        self,
        suite: Suite,
        base: Bundle,
        *,
        cache: Cache | None = None,
        runner: Runner | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.suite, self.base, self.runner, self.progress = suite.for_search(), base, runner, progress
        self.cache = Cache() if cache is None else cache
        self.calls = 0
        self._batch = import_module("gepa.core.adapter").EvaluationBatch

    def evaluate(
        self, batch: list[Case], candidate: dict[str, str], capture_traces: bool = False, **kwargs: Any
    ) -> Any:
        """Scores are primary gains, one a case, and objective scores the gains of each objective. Never raises."""
        bundle = bundle_of(self.base, candidate, "candidate")
        found = self._evaluated(bundle, batch, told=False)
        traces = [self._trace(bundle, case, found) for case in batch] if capture_traces else None
        self.calls += len(batch)
        if self.progress is not None:
            self.progress(self.calls)
        return self._batch(
            outputs=[_output(case) for case in found.cases],
            scores=[case.gains[PRIMARY] for case in found.cases],
            trajectories=traces,
            objective_scores=[_objectives(case) for case in found.cases],
            num_metric_calls=len(batch),
        )

    def make_reflective_dataset(
        self, candidate: dict[str, str], eval_batch: Any, components_to_update: list[str], **kwargs: Any
    ) -> dict[str, list[Json]]:
        """For each stage the same: what happened is the work of all of them."""
        rows = list(eval_batch.trajectories or [])
        return {stage: [dict(row) for row in rows] for stage in components_to_update}

    def _trace(self, bundle: Bundle, case: Case, found: Evaluation) -> Json:
        """One case in words. Who failed elsewhere is told of that, since nothing else matters then."""
        told = found if not found.ok else self._evaluated(bundle, [case], told=True)
        result = next(one for one in found.cases if (one.case, one.seed) == (case.name, case.seed))
        scores = {name: round(gain, 4) for name, gain in result.gains.items()}
        return {"Inputs": {"workload": case.label}, "Generated Outputs": scores, "Feedback": told.summary}

    def _evaluated(self, bundle: Bundle, cases: Sequence[Case], told: bool) -> Evaluation:
        return evaluate(bundle, self.suite, cases=cases, cache=self.cache, runner=self.runner, told=told)


def _output(case: CaseResult) -> Json:
    return {"case": case.case, "seed": case.seed, "figures": case.figures, "error": case.error}


def _objectives(case: CaseResult) -> dict[str, float]:
    return {name: gain for name, gain in case.gains.items() if name != PRIMARY}


def templates(suite: Suite, stages: Sequence[str]) -> dict[str, str]:
    """The prompt of each stage, as GEPA wants them: with places for the policy and for what became of it."""
    return {stage: PROMPT.format(task=task(suite, [stage]), primer=primer([stage]), stage=stage) for stage in stages}


class Asker:
    """A model as GEPA talks to one. Only the code of an answer is handed on, since GEPA takes all from the first fence
    to the last. GEPA goes on after an error for ever, so the first one ends the search."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.error: Exception | None = None

    def __call__(self, prompt: Prompt) -> str:
        if self.error is not None:
            raise self.error
        try:
            return f"```\n{code_in(self.model(prompt))}```"
        except Exception as error:
            self.error = error
            raise

    def stop(self, state: Any) -> bool:
        return self.error is not None


class _Log:
    """GEPA prints what it does unless somebody else hears it."""

    def log(self, message: str) -> None: ...


def search(
    suite: Suite,
    base: Bundle,
    stages: Sequence[str],
    model: Model,
    evaluations: int,
    *,
    seed: int = 0,
    cache: Cache | None = None,
    runner: Runner | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[Bundle]:
    """The candidates that GEPA took into its pool, the first one included. The budget is that of so many evaluations of
    the whole train part."""
    made = framework()
    texts = texts_of(base, stages)
    cases = list(suite.cases("train"))
    adapter = Adapter(suite, base, cache=cache, runner=runner, progress=progress)
    asker = Asker(model)
    result = made.optimize(
        seed_candidate=texts,
        trainset=cases,
        valset=cases,
        adapter=adapter,
        reflection_lm=asker,
        reflection_prompt_template=templates(suite, list(texts)),
        frontier_type="hybrid" if len(suite.objectives) > 1 else "instance",
        reflection_minibatch_size=min(MINIBATCH, len(cases)),
        skip_perfect_score=False,
        max_metric_calls=budget(suite, evaluations),
        stop_callbacks=[asker.stop],
        logger=_Log(),
        track_best_outputs=False,
        seed=seed,
    )
    if asker.error is not None:
        raise asker.error
    return _bundles(base, result.candidates, result.parents)


def budget(suite: Suite, evaluations: int) -> int:
    """In scores of single cases, which is what GEPA counts."""
    return evaluations * len(suite.cases("train"))


def _bundles(
    base: Bundle, candidates: Sequence[Mapping[str, str]], parents: Sequence[Sequence[int | None]]
) -> list[Bundle]:
    made: list[Bundle] = []
    for number, texts in enumerate(candidates):
        before = [place for place in parents[number] if place is not None]
        if not before:
            made.append(bundle_of(base, texts, f"gepa {number}"))
            continue
        mother = made[before[0]]
        changed = [f"{stage} rewritten" for stage in texts if texts[stage] != candidates[before[0]][stage]]
        made.append(bundle_of(base, texts, f"gepa {number}", mother.generation + 1, mother.id, changed))
    return made


def framework() -> Any:
    """GEPA, which has to be installed."""
    try:
        return import_module("gepa")
    except ImportError:
        raise HeadwayError("--engine: gepa is not installed; install headway[evolve].") from None
