"""A whole search with a language model: from a suite to a policy and what is known of it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

from msgspec import Struct

from headway.errors import HeadwayError
from headway.evolve import gepa, openevolve
from headway.evolve.cache import Cache
from headway.evolve.evaluate import cache_in, evaluate_many
from headway.evolve.evolution import TEMPLATE, Progress, template_of
from headway.evolve.final import Conclusion, check_rivals, conclude, rivals
from headway.evolve.journal import Journal, Judged, digest
from headway.evolve.model import KEY, Endpoint, Model, Recorder, Replay
from headway.evolve.selection import FINALISTS
from headway.evolve.suite import DEFAULT, HELD_OUT, Suite
from headway.evolve.texts import bundle_of, texts_of
from headway.experiment.runner import Runner, runner_of
from headway.policies.bundle import Bundle
from headway.types import Json

Writer = Literal["openevolve", "gepa"]
WRITERS: Final[tuple[Writer, ...]] = ("openevolve", "gepa")
TRANSCRIPT: Final = "transcript.jsonl"
Say = Callable[[str], None]


class Dialogue(Struct, frozen=True):
    """Which search it is, but for the suite and the model."""

    engine: Writer = "gepa"
    template: str | Json | None = None  # what the model begins with, as in `Plan`
    stages: tuple[str, ...] = ("routing",)  # whose policies it writes
    seed: int = 0
    evaluations: int = 50

    def start(self, suite: Suite) -> Bundle:
        """The first candidate, every stage that is to be written in the policy language."""
        if self.engine not in WRITERS:
            raise HeadwayError(f"--engine: expected {' or '.join(WRITERS)}, got {self.engine!r}.")
        if self.evaluations < 1:
            raise HeadwayError(f"--evaluations: one candidate at least is wanted, got {self.evaluations}.")
        (gepa if self.engine == "gepa" else openevolve).framework()
        base = template_of(TEMPLATE if self.template is None else self.template, suite, self.stages[0])
        base.check("--template")
        return bundle_of(base, texts_of(base, self.stages), f"{self.engine} 0")

    def document(self, suite: Suite, start: Bundle) -> Json:
        """What a folder remembers of it."""
        return {
            "suite": suite.name,
            "cases": digest(suite),
            "engine": self.engine,
            "seed": self.seed,
            "stages": list(self.stages),
            "template": start.policies,
        }

    def cost(self, suite: Suite, builtins: Sequence[str] | None = None) -> str:
        """What it will take at most, in simulations."""
        train = len(suite.cases("train"))
        words = (
            f"{self.engine}: {self.evaluations:,} candidates × {train} cases = {self.evaluations * train:,} simulations"
        )
        words += " on train" if self.engine == "openevolve" else " on train (and what its last step takes)"
        words += ", and at most as many again to tell the model what happened"
        if suite.parts.get("validation"):
            words += f"; {FINALISTS * len(suite.cases('validation')):,} on validation"
        if suite.parts.get(HELD_OUT):
            contestants = 1 + len(rivals(suite, self.stages[0], builtins))
            words += f"; {contestants * len(suite.cases(HELD_OUT)):,} on held-out"
        return words + ". What has been run is not run again."


def model_of(
    engine: Writer,
    name: str | None,
    api_base: str | None,
    key_variable: str = KEY,
    record: str | Path | None = None,
    replay: str | Path | None = None,
) -> Model:
    """A model as it is named on the command line. OpenEvolve's prompts differ from run to run, so there a transcript is
    replayed in order."""
    if replay is not None:
        if name is not None or api_base is not None or record is not None:
            raise HeadwayError("--replay: takes the place of --model, --api-base and --record; leave them out.")
        return Replay(replay, in_order=engine == "openevolve")
    if name is None or api_base is None:
        missing = "--model" if name is None else "--api-base"
        raise HeadwayError(f"--engine {engine}: {missing} is missing; name a model and its endpoint, or --replay FILE.")
    model = Endpoint(name, api_base, key_variable)
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
    """Search on a suite's train part, choose on validation, compare on held-out, as `evolve` does. What it may cost is
    said before. With `output` all prompts and answers are kept there, and a search that is there is gone on with."""
    dialogue = dialogue or Dialogue()
    chosen = Suite.load(DEFAULT if suite is None else suite)
    if dialogue.engine == "openevolve" and ray is not None:
        raise HeadwayError("--ray: OpenEvolve runs on one machine alone; take --workers.")
    start = dialogue.start(chosen)
    check_rivals(chosen, dialogue.stages[0], builtins)
    journal = Journal(None if output is None else Path(output), dialogue.document(chosen, start))
    if say is not None:
        say(dialogue.cost(chosen, builtins))
    with _folder(journal) as folder, runner_of(workers, ray) as runner:
        cache = cache_in(str(folder / "cache"))
        first = judged([start], chosen, cache, runner)[0].evaluation
        if not first.ok:
            raise HeadwayError(f"--template: does not come through the train part: {first.error}")
        asked = Recorder(model, folder / TRANSCRIPT, go_on=True) if journal.folder is not None else model
        search = _by_gepa if dialogue.engine == "gepa" else _by_openevolve
        bundles = search(dialogue, chosen.for_search(), start, asked, folder, cache, runner, progress, say)
        found = judged(bundles, chosen, cache, runner)
        journal.keep(0, found)
        conclusion = conclude(
            found,
            chosen,
            stage=dialogue.stages[0],
            builtins=builtins,
            cache=cache,
            runner=runner,
            progress=None if progress is None else progress.final,
        )
    journal.conclude(conclusion.document(), conclusion.winner)
    return conclusion


def judged(bundles: Sequence[Bundle], suite: Suite, cache: Cache, runner: Runner | None) -> list[Judged]:
    """What a framework has kept, judged by us on the whole train part."""
    distinct: dict[str, Bundle] = {}
    for one in bundles:
        distinct.setdefault(one.id, one)
    found = evaluate_many(list(distinct.values()), suite.for_search(), "train", cache=cache, runner=runner)
    return [Judged(*pair) for pair in zip(distinct.values(), found, strict=True)]


@contextmanager
def _folder(journal: Journal) -> Iterator[Path]:
    """The search's, or one that is gone afterwards."""
    if journal.folder is not None:
        yield journal.folder
        return
    with tempfile.TemporaryDirectory(prefix="headway-evolve-") as made:
        yield Path(made)


def _by_gepa(
    dialogue: Dialogue,
    suite: Suite,
    start: Bundle,
    model: Model,
    folder: Path,
    cache: Cache,
    runner: Runner,
    progress: Progress | None,
    say: Say | None,
) -> list[Bundle]:
    train, total = len(suite.cases("train")), dialogue.evaluations

    def told(calls: int) -> None:  # single cases; as many as a train part has are one candidate
        if progress is not None:
            progress(min(calls // train, total), total, None)

    return gepa.search(
        suite, start, dialogue.stages, model, total, seed=dialogue.seed, cache=cache, runner=runner, progress=told
    )


def _by_openevolve(
    dialogue: Dialogue,
    suite: Suite,
    start: Bundle,
    model: Model,
    folder: Path,
    cache: Cache,
    runner: Runner,
    progress: Progress | None,
    say: Say | None,
) -> list[Bundle]:
    def told(iterations: int) -> None:
        if progress is not None:
            progress(min(1 + iterations, dialogue.evaluations), dialogue.evaluations, None)

    place = folder / "openevolve"
    found = openevolve.search(
        place,
        suite,
        start,
        dialogue.stages,
        model,
        dialogue.evaluations,
        seed=dialogue.seed,
        workers=1 if _replays(model) else runner.slots,
        cache="../cache",
        progress=told,
    )
    failures = openevolve.errors(place)
    if failures and say is not None:
        say(f"{len(failures)} prompts got no answer; the last: {failures[-1]}")
    return found


def _replays(model: Model) -> bool:
    """In order, so by one process."""
    while isinstance(model, Recorder):
        model = model.model
    return isinstance(model, Replay)
