"""A whole search: from a suite to a policy and what is known of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from msgspec import Struct

from headway.config.documents import read_text, read_yaml
from headway.config.wording import shown, suggest
from headway.errors import HeadwayError
from headway.evolve.evaluation import Searcher
from headway.evolve.final import Conclusion, check_rivals, conclude
from headway.evolve.islands import Islands
from headway.evolve.journal import Journal, digest
from headway.evolve.numeric import Numeric, Sampler, dimensions
from headway.evolve.search import Search
from headway.evolve.suite import DEFAULT, Suite
from headway.experiment.runner import runner_of
from headway.policies.bundle import STAGES, Bundle, is_bundle
from headway.scenario.overrides import parse_yaml
from headway.types import Json

# Searchers by name, with what each needs.

Engine = Literal["numeric", "gp"]
BATCH: Final[dict[Engine, int]] = {"numeric": 10, "gp": 20}
TEMPLATE: Final = "prefill-cost-routing"


class Plan(Struct, frozen=True):
    """Which search it is, but for the suite and its length."""

    engine: Engine = "numeric"
    sampler: Sampler = "tpe"
    template: str | Json | None = None  # of a numeric search: a policy, a bundle's file or a source's
    stages: tuple[str, ...] = ("routing",)  # whose numbers are looked for
    seed: int = 0
    batch: int | None = None

    @property
    def size(self) -> int:
        """Of a batch."""
        return BATCH[self.engine] if self.batch is None else self.batch

    def searcher(self, suite: Suite) -> Searcher:
        for stage in self.stages:
            if stage not in STAGES:
                raise HeadwayError(f"--stage: there is no stage {shown(stage)}.{suggest(stage, STAGES)}")
        if self.size < 2:
            raise HeadwayError(f"--batch: expected 2 candidates or more, got {self.size}.")
        if self.engine == "gp":
            if self.template is not None:
                raise HeadwayError("--template: genetic programming starts from rules of its own; leave it out.")
            if self.stages != ("routing",):
                raise HeadwayError("--stage: genetic programming is for routing alone; take --engine numeric.")
            return Islands(suite, self.seed)
        bundle = self._template(suite)
        bundle.check("--template")
        return Numeric(suite, bundle, dimensions(bundle, self.stages), self.sampler, self.seed, self.size)

    def document(self, suite: Suite) -> Json:
        """What a folder remembers of it."""
        found: Json = {"engine": self.engine, "seed": self.seed, "batch": self.size}
        if self.engine == "numeric":
            template = self._template(suite).policies
            found |= {"sampler": self.sampler, "stages": list(self.stages), "template": template}
        return found

    def _template(self, suite: Suite) -> Bundle:
        return template_of(TEMPLATE if self.template is None else self.template, suite, self.stages[0])


def template_of(given: Any, suite: Suite, stage: str) -> Bundle:
    """A policy's name or mapping, a source in the policy language (.py), or a bundle (.yaml). The other stages are as
    in the suite's baseline."""
    spec = given
    if isinstance(given, str) and given.endswith((".yaml", ".yml")):
        document = read_yaml(given)
        if is_bundle(document):
            return Bundle.read(given)
        spec = document
    elif isinstance(given, str) and given.endswith(".py"):
        spec = {"name": "code", "source": read_text(given)}
    elif isinstance(given, str) and given.lstrip().startswith("{"):
        spec = parse_yaml(given, "--template")
    name = Path(given).stem if isinstance(given, str) and "{" not in given else str(spec.get("name", "template"))
    return Bundle(name, {**suite.baseline, stage: spec})


class Progress(Protocol):
    """Hears of candidates as they are judged, and of the runs of the held-out part."""

    def __call__(self, done: int, total: int, best: float | None) -> None: ...

    def final(self, done: int, total: int) -> None: ...


def evolve(
    suite: Suite | str | Path | Mapping[str, Any] | None = None,
    plan: Plan | None = None,
    *,
    evaluations: int = 50,
    builtins: Sequence[str] | None = None,
    workers: int | None = None,
    ray: str | None = None,
    output: str | Path | None = None,
    progress: Progress | None = None,
) -> Conclusion:
    """Search on a suite's train part, choose on validation, compare on held-out. With `output` every batch is written,
    and a search that is there is gone on with; it comes to what it had come to without a break."""
    plan = plan or Plan()
    chosen = Suite.load(DEFAULT if suite is None else suite)
    searcher = plan.searcher(chosen.for_search())
    check_rivals(chosen, plan.stages[0], builtins)
    journal = Journal(
        None if output is None else Path(output),
        {"suite": chosen.name, "cases": digest(chosen), **plan.document(chosen)},
    )
    with runner_of(workers, ray) as runner:
        search = Search(searcher, chosen, plan.size, journal=journal, runner=runner, progress=progress)
        found = search.run(evaluations)
        conclusion = conclude(
            found,
            chosen,
            stage=plan.stages[0],
            builtins=builtins,
            cache=search.cache,
            runner=runner,
            progress=None if progress is None else progress.final,
        )
    journal.conclude(conclusion.document(), conclusion.winner)
    return conclusion
