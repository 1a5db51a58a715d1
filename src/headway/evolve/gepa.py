"""Search with GEPA: a language model rewrites the policy of one stage at a time, based on feedback.

A candidate has one source text for each stage. GEPA's examples are the cases of the train part, and the score of an
example is the gain over the baseline. The search is reproducible if the model always gives the same answer to the same
prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, Final

from headway.evolve.attempts import Attempts
from headway.evolve.briefing import briefing
from headway.evolve.cache import Cache
from headway.evolve.dialogue import WritingTask, import_framework
from headway.evolve.evaluate import evaluate
from headway.evolve.evaluation import Case, Evaluation
from headway.evolve.model import Model, Prompt, code_in
from headway.evolve.objectives import PRIMARY
from headway.evolve.primer import primer, task
from headway.evolve.suite import Suite
from headway.evolve.texts import bundle_of, texts_of
from headway.experiment.runner import Runner
from headway.policies.bundle import Bundle
from headway.types import Json

ATTEMPTS: Final = "<attempts>"  # `Asker` replaces it by what the search has tried so far
MINIBATCH: Final = 3  # number of cases on which GEPA first tests a proposal
CURRENT: Final = "\nThis is the current "  # a prompt names its stage after these words
PROMPT: Final = """\
{task}

{primer}

{about}

<attempts>

This is the current {stage} policy:
```
<curr_param>
```

These are its results:
<side_info>

Find its largest losses and write a better {stage} policy. Answer with a few sentences of reasoning, and then with the
complete policy in one ``` block."""


class Adapter:
    """The interface through which GEPA evaluates candidates and gets feedback."""

    propose_new_texts = None  # None: GEPA calls the model itself

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
        self.attempts = Attempts(len(self.suite.cases("train")))
        self.calls = 0
        self._batch = import_module("gepa.core.adapter").EvaluationBatch

    def evaluate(
        self, batch: list[Case], candidate: dict[str, str], capture_traces: bool = False, **kwargs: Any
    ) -> Any:
        """Evaluate a candidate on a batch of cases. In the result, the scores are the primary gains of the cases, and
        the objective scores are the gains of the objectives."""
        bundle = bundle_of(self.base, candidate, "candidate", auto=self.suite.auto)
        evaluation = self._evaluate(bundle, batch, explain=False)
        self.attempts.add(candidate, batch, evaluation)
        traces = [self._trace(bundle, case, evaluation, list(candidate)) for case in batch] if capture_traces else None
        self.calls += len(batch)
        if self.progress is not None:
            self.progress(self.calls)
        return self._batch(
            outputs=[
                {"case": case.case, "seed": case.seed, "figures": case.figures, "error": case.error}
                for case in evaluation.cases
            ],
            scores=[case.gains[PRIMARY] for case in evaluation.cases],
            trajectories=traces,
            objective_scores=[
                {name: gain for name, gain in case.gains.items() if name != PRIMARY} for case in evaluation.cases
            ],
            num_metric_calls=len(batch),
        )

    def make_reflective_dataset(
        self, candidate: dict[str, str], eval_batch: Any, components_to_update: list[str], **kwargs: Any
    ) -> dict[str, list[Json]]:
        """Return the feedback for each stage. It is the same for every stage, because all stages together cause the
        results."""
        self.attempts.improve(candidate)
        rows = list(eval_batch.trajectories or [])
        return {stage: [dict(row) for row in rows] for stage in components_to_update}

    def _trace(self, bundle: Bundle, case: Case, evaluation: Evaluation, may: list[str]) -> Json:
        """Return a description of one case in words, with suggestions for the stages in `may`. If the candidate failed,
        describe the failure."""
        explained = self._evaluate(bundle, [case], explain=True, may=may) if evaluation.ok else evaluation
        gains = next(own.gains for own in evaluation.cases if (own.case, own.seed) == (case.name, case.seed))
        scores = {name: round(gain, 4) for name, gain in gains.items()}
        return {"Inputs": {"workload": case.label}, "Generated Outputs": scores, "Feedback": explained.summary}

    def _evaluate(
        self, bundle: Bundle, cases: Sequence[Case], explain: bool, may: Sequence[str] | None = None
    ) -> Evaluation:
        how: dict[str, Any] = {"cache": self.cache, "runner": self.runner, "progress": False}
        return evaluate(bundle, self.suite, cases=cases, told=explain, may=may, **how)


def templates(suite: Suite, stages: Sequence[str], about: str = "") -> dict[str, str]:
    """Return the prompt template of each stage, with GEPA's placeholders for the policy and the feedback. `about`
    describes the cluster, the workloads and the baseline."""
    return {
        stage: PROMPT.format(task=task(suite, [stage]), primer=primer([stage]), about=about, stage=stage)
        for stage in stages
    }


class Asker:
    """Passes GEPA's prompts to a model, with what the search has tried so far, and returns only the code block of the
    answer. GEPA itself would use all text between the first and the last fence (```) of an answer. The first error ends
    the search, because GEPA would retry forever."""

    def __init__(self, model: Model, attempts: Attempts | None = None) -> None:
        self.model, self.attempts = model, attempts
        self.error: Exception | None = None

    def __call__(self, prompt: Prompt) -> str:
        if self.error is not None:
            raise self.error
        try:
            return f"```\n{code_in(self.model(self._completed(prompt)))}```"
        except Exception as error:
            self.error = error
            raise

    def _completed(self, prompt: Prompt) -> Prompt:
        if not isinstance(prompt, str):
            return prompt
        stage = prompt.partition(CURRENT)[2].partition(" ")[0]
        return prompt.replace(ATTEMPTS, "" if self.attempts is None else self.attempts.describe(stage), 1)

    def stop(self, state: Any) -> bool:
        return self.error is not None


class _Log:
    """A logger that discards GEPA's messages, because GEPA would print them otherwise."""

    def log(self, message: str) -> None: ...


def search(task: WritingTask) -> list[Bundle]:
    """Return the candidates in GEPA's pool, including the initial candidate. The setting `evaluations` counts
    evaluations on all train cases."""
    suite, base, dialogue = task.suite, task.start, task.dialogue
    texts = texts_of(base, dialogue.stages)
    cases = list(suite.cases("train"))

    def on_calls(calls: int) -> None:
        task.progress(calls // len(cases))  # a candidate needs one call per case

    adapter = Adapter(suite, base, cache=task.cache, runner=task.runner, progress=on_calls)
    asker = Asker(task.model, adapter.attempts)
    about = briefing(suite, list(texts), task.cache, task.runner)
    result = framework().optimize(
        seed_candidate=texts,
        trainset=cases,
        valset=cases,
        adapter=adapter,
        reflection_lm=asker,
        reflection_prompt_template=templates(suite, list(texts), about),
        frontier_type="hybrid" if len(suite.objectives) > 1 else "instance",
        reflection_minibatch_size=min(MINIBATCH, len(cases)),
        skip_perfect_score=False,
        max_metric_calls=dialogue.evaluations * len(cases),  # GEPA counts the scores of single cases
        stop_callbacks=[asker.stop],
        logger=_Log(),
        track_best_outputs=False,
        seed=dialogue.seed,
    )
    if asker.error is not None:
        raise asker.error
    return _bundles(base, result.candidates, result.parents, suite.auto)


def _bundles(
    base: Bundle, candidates: Sequence[Mapping[str, str]], parents: Sequence[Sequence[int | None]], auto: bool
) -> list[Bundle]:
    bundles: list[Bundle] = []
    for number, texts in enumerate(candidates):
        before = [place for place in parents[number] if place is not None]
        if not before:
            bundles.append(bundle_of(base, texts, f"gepa {number}", auto=auto))
            continue
        parent = bundles[before[0]]
        changed = [f"{stage} rewritten" for stage in texts if texts[stage] != candidates[before[0]][stage]]
        bundles.append(bundle_of(base, texts, f"gepa {number}", parent.generation + 1, parent.id, changed, auto=auto))
    return bundles


def framework() -> Any:
    return import_framework("gepa")
