"""A whole search with a language model: from a suite to a winner and its held-out comparison."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

from msgspec import Struct
from msgspec.structs import asdict, replace

from headway.errors import HeadwayError, argument, missing_extra, worded
from headway.evolve.cache import Cache
from headway.evolve.evaluate import cache_in, evaluate_many
from headway.evolve.evolution import TEMPLATE, Progress, load_engine, template_of
from headway.evolve.final import Conclusion, check_rivals, conclude, rivals
from headway.evolve.journal import Journal, Judged, digests
from headway.evolve.knees import Knees
from headway.evolve.model import KEY, Conversation, Endpoint, Model, Recorder, Replay
from headway.evolve.racing import FINALISTS
from headway.evolve.search import distinct
from headway.evolve.suite import DEFAULT, HELD_OUT, Suite
from headway.evolve.texts import bundle_of, texts_of
from headway.evolve.worker import cpu_s
from headway.experiment.runner import Runner, runner_of
from headway.policies.bundle import Bundle
from headway.types import Json

TRANSCRIPT: Final = "transcript.jsonl"
Say = Callable[[str], None]


def asks_model(engine: str) -> bool:
    try:
        return hasattr(load_engine(engine), "framework")
    except ImportError:
        return False


def import_framework(name: str, *modules: str) -> Any:
    """Import the package of an engine and these modules of the package, and return the package."""
    try:
        for module in modules:
            import_module(f"{name}.{module}")
        return import_module(name)
    except ImportError:
        raise missing_extra(argument("engine"), name, "evolve") from None


class Dialogue(Struct, frozen=True):
    """The settings of a search with a language model, except its suite and its model."""

    engine: str = "gepa"
    template: str | Json | None = None  # the first candidate, as in `Plan`
    stages: tuple[str, ...] = ("routing",)  # stages whose policies the model writes
    seed: int = 0
    evaluations: int = 50
    prices: tuple[float, float] | None = None  # USD per million tokens of prompts and of answers

    def start(self, suite: Suite) -> Bundle:
        """Return the first candidate. The candidate's policies at `stages` are written in the policy language."""
        if not asks_model(self.engine):
            raise HeadwayError(f"{argument('engine')}: expected openevolve or gepa, got {self.engine!r}.")
        if self.evaluations < 1:
            raise HeadwayError(f"{argument('evaluations')}: must be at least 1, got {self.evaluations}.")
        load_engine(self.engine).framework()
        base = template_of(TEMPLATE if self.template is None else self.template, suite, self.stages[0])
        base.check(argument("template"))
        return bundle_of(base, texts_of(base, self.stages), f"{self.engine} 0", auto=suite.auto)

    def cost(self, suite: Suite, builtins: Sequence[str] | None = None) -> str:
        """Return a description of the cost of the search: the maximum number of simulations."""
        train = len(suite.cases("train"))
        simulations = f"{self.evaluations:,} candidates × {train} cases = {self.evaluations * train:,} simulations"
        words = f"{self.engine}: {simulations} on train"
        words += "" if self.engine == "openevolve" else " (plus those of the last step)"
        words += ", and at most as many again for feedback to the model"
        if suite.parts.get("validation"):
            words += f"; {FINALISTS * len(suite.cases('validation')):,} on validation"
        if suite.parts.get(HELD_OUT):
            contestants = 1 + len(rivals(suite, self.stages[0], builtins))
            words += f"; {contestants * len(suite.cases(HELD_OUT)):,} on held-out"
        return words + ". Cached simulations are not repeated."


class WritingTask(NamedTuple):
    """The task of an engine: to write candidates for a suite, with a language model."""

    suite: Suite  # without its held-out part
    start: Bundle
    dialogue: Dialogue
    model: Model
    folder: Path
    cache: Cache | None = None  # the cache in the search's folder
    runner: Runner | None = None
    progress: Callable[[int], None] = lambda _: None  # called with the number of evaluated candidates
    say: Say = lambda _: None


def model_of(
    engine: str,
    name: str | None,
    api_base: str | None,
    key_variable: str = KEY,
    record: str | Path | None = None,
    replay: str | Path | None = None,
    **request: Any,
) -> Model:
    """Return the model that the command line describes; `request` has further arguments of `Endpoint`. OpenEvolve's
    prompts differ from search to search, so the answers of its transcripts are replayed in order."""
    if replay is not None:
        if name is not None or api_base is not None or record is not None:
            others = f"{argument('name', '--model')}, {argument('api_base')} and {argument('record')}"
            raise HeadwayError(f"{argument('replay')}: a replay needs no model. Remove {others}.")
        return Replay(replay, in_order=engine == "openevolve")
    if name is None or api_base is None:
        needed = argument("name", "--model"), argument("api_base")
        place, missing = worded(f"--engine {engine}", engine), needed[name is not None]
        remedy = f"Pass {' and '.join(needed)}, or {argument('replay')} with a transcript"
        raise HeadwayError(f"{place}: {missing} is missing. {remedy}.")
    model = Endpoint(name, api_base, key_variable, **request)
    return model if record is None else Recorder(model, record)


def evolve_with_model(
    suite: Suite | str | Path | Mapping[str, Any] | None,
    model: Model,
    dialogue: Dialogue | None = None,
    *,
    builtins: Sequence[str] | None = None,
    workers: int | None = None,
    ray: str | None = None,
    output: str | Path | None = None,
    progress: Progress | None = None,
    say: Say | None = None,
) -> Conclusion:
    """Search on a suite's train part, choose the winner on its validation part, and compare the winner with built-in
    policies on its held-out part. Before the search, `say` receives the cost. `output` is a folder for all prompts and
    answers. If the folder already has a search, that search resumes."""
    dialogue = dialogue or Dialogue()
    knees = Knees.read(output)
    chosen = Suite.load(DEFAULT if suite is None else suite, knees)
    if dialogue.engine == "openevolve" and ray is not None:
        raise HeadwayError(f"{argument('ray')}: OpenEvolve runs on one machine. Use {argument('workers')} instead.")
    start = dialogue.start(chosen)
    check_rivals(chosen, dialogue.stages[0], builtins)
    journal = Journal(
        None if output is None else Path(output),
        {
            "suite": chosen.name,
            **digests(chosen),
            "engine": dialogue.engine,
            "seed": dialogue.seed,
            "stages": list(dialogue.stages),
            "template": start.policies,
        },
    )
    knees.write(output)
    say = say or (lambda _: None)
    say(dialogue.cost(chosen, builtins))
    own: AbstractContextManager[str] = nullcontext(str(journal.folder)) if journal.folder else TemporaryDirectory()
    with own as name, runner_of(workers, ray) as runner:
        folder, start_s = Path(name), cpu_s()
        cache = cache_in(str(folder / "cache"))
        first = judge([start], chosen, cache, runner)[0].evaluation
        if not first.ok:
            raise HeadwayError(f"{argument('template')}: the policy fails on the train part: {first.error}")
        recorded = Recorder(model, folder / TRANSCRIPT, go_on=True)

        def on_judged(count: int) -> None:
            if progress is not None:
                progress(min(count, dialogue.evaluations), dialogue.evaluations, None)

        task = WritingTask(chosen.for_search(), start, dialogue, recorded, folder, cache, runner, on_judged, say)
        judged = judge(load_engine(dialogue.engine).search(task), chosen, cache, runner)
        journal.keep(0, judged)
        journal.keep_cpu_s([sum(journal.cpu_s()[:1]) + cpu_s() - start_s])
        final = None if progress is None else progress.final
        conclusion = conclude(judged, chosen, dialogue.stages[0], builtins, cache, runner, final, look=journal.look)
        conversation = Conversation.of(folder / TRANSCRIPT)
    say(conversation.describe(dialogue.prices))
    usd = {} if dialogue.prices is None else {"usd": conversation.usd(dialogue.prices)}
    conclusion = replace(conclusion, model={**asdict(conversation), **usd})
    journal.conclude(conclusion.document(), conclusion.winner)
    return conclusion


def judge(bundles: Sequence[Bundle], suite: Suite, cache: Cache, runner: Runner | None) -> list[Judged]:
    """Evaluate each distinct candidate of an engine once, on the whole train part."""
    candidates = distinct(bundles)
    evaluations = evaluate_many(candidates, suite.for_search(), cache=cache, runner=runner, progress=False)
    return [Judged(*pair) for pair in zip(candidates, evaluations, strict=True)]
