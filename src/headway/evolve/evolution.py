"""A whole search without a language model: from a suite to a winner and its held-out comparison."""

import math
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from msgspec import Struct

from headway.config.arguments import check_fields, checked
from headway.config.documents import parse_yaml, read_text, read_yaml
from headway.config.wording import shown, suggest
from headway.display.progress import watch
from headway.errors import HeadwayError, argument
from headway.evolve.cache import Cache
from headway.evolve.controls import STAGE, find_controls
from headway.evolve.final import Conclusion, check_rivals, conclude
from headway.evolve.journal import Journal, digests
from headway.evolve.knees import Knees
from headway.evolve.search import Budget, Search, Searcher
from headway.evolve.suite import DEFAULT, HELD_OUT, Suite
from headway.evolve.texts import check_stages
from headway.experiment.runner import runner_of
from headway.policies.bundle import Bundle, is_bundle
from headway.types import Json

TEMPLATE: Final = "prefill-cost-routing"
Sampler = Literal["nsga2", "tpe", "cmaes"]
ENGINES: Final = ("numeric", "gp", "openevolve", "gepa")


def load_engine(name: str) -> Any:
    """Return the module of a search engine, `evolve/NAME.py`.

    The module of an engine without a language model defines three names. `BATCH` is the default batch size,
    `searcher(plan, suite)` returns a `Searcher`, and `describe(plan, suite)` returns the engine's entries for
    search.json. The module of an engine with a language model has two functions. `framework()` imports the engine's
    package, and `search(task)` returns the candidates of a `WritingTask`.
    """
    if name not in ENGINES:
        raise HeadwayError(f"{argument('engine')}: there is no engine {shown(name)}.{suggest(str(name), ENGINES)}")
    return import_module(f"headway.evolve.{name}")


class Plan(Struct, frozen=True):
    """The settings of a search without a language model, except its suite and its length."""

    engine: str = "numeric"
    sampler: Sampler = "tpe"
    template: str | Json | None = None  # first candidate of a numeric search: a policy, a bundle's file or a source
    stages: tuple[str, ...] = ("routing",)  # stages whose numbers are searched
    seed: int = 0
    batch: int | None = None
    race: bool = True  # whether candidates that fall behind all finalists skip their remaining cases

    @property
    def size(self) -> int:
        """The number of candidates in a batch."""
        return int(load_engine(self.engine).BATCH) if self.batch is None else self.batch

    @property
    def races(self) -> bool:
        """Whether candidates race. NSGA-II needs every objective in full, so its candidates do not."""
        return self.race and not (self.engine == "numeric" and self.sampler == "nsga2")

    def searcher(self, suite: Suite) -> Searcher:
        check_stages(self.stages)
        if self.size < 2:
            raise HeadwayError(f"{argument('batch')}: expected 2 candidates or more, got {self.size}.")
        searcher: Searcher = load_engine(self.engine).searcher(self, suite)
        return searcher

    def document(self, suite: Suite) -> Json:
        """Return the entries of search.json that describe this plan."""
        own = load_engine(self.engine).describe(self, suite)
        return {"engine": self.engine, "seed": self.seed, "batch": self.size, "race": self.races, **own}

    def start(self, suite: Suite) -> Bundle:
        return template_of(TEMPLATE if self.template is None else self.template, suite, self.stages[0])


def template_of(template: Any, suite: Suite, stage: str) -> Bundle:
    """Return the bundle of a template. The template is a policy's name or mapping, a source file in the policy language
    (.py), or a bundle's file (.yaml). The policies of the other stages are those of the suite's baseline."""
    spec, text = template, template if isinstance(template, str) else ""
    if text.endswith((".yaml", ".yml")):
        spec = read_yaml(text)
        if is_bundle(spec):
            return Bundle.read(text)
    elif text.endswith(".py"):
        spec = {"name": "code", "source": read_text(text)}
    elif text.lstrip().startswith("{"):
        spec = parse_yaml(text, argument("template"))
    named = isinstance(template, str) and "{" not in template
    return Bundle(Path(text).stem if named else str(spec.get("name", "template")), {**suite.baseline, stage: spec})


EVALUATIONS: Final = 50
MOST: Final = 10_000_000  # number of candidates at which a search with another budget ends


def budget_of(evaluations: int | None, cpu_minutes: float | None) -> Budget:
    if evaluations is not None and evaluations < 1:
        raise HeadwayError(f"{argument('evaluations')}: must be at least 1, got {evaluations}.")
    if cpu_minutes is None:
        return Budget(EVALUATIONS if evaluations is None else evaluations)
    if not 0 < cpu_minutes < math.inf:
        raise HeadwayError(f"{argument('cpu_minutes', '--cpu-minutes')}: must be above 0, got {cpu_minutes:g}.")
    return Budget(MOST if evaluations is None else evaluations, 60.0 * cpu_minutes)


class Progress(Protocol):
    """Receives the number of evaluated candidates during the search. After the search, `final` receives the number of
    held-out runs."""

    def __call__(self, completed: int, total: int, best: float | None, /) -> None: ...

    def final(self, completed: int, total: int, /) -> None: ...


@checked
def evolve(
    suite: Suite | str | Path | Mapping[str, Any] | None = None,
    plan: Plan | None = None,
    *,
    evaluations: int | None = None,
    cpu_minutes: float | None = None,
    builtins: str | Sequence[str] | None = None,
    workers: int | None = None,
    ray: str | None = None,
    output: str | Path | None = None,
    progress: Progress | bool = True,
    controls: bool = True,
    cache: Cache | None = None,
) -> Conclusion:
    """Search on a suite's train part, choose the winner on its validation part, and compare the winner with built-in
    policies and controls on its held-out part. The controls are the linear rule with tuned constants and the best of
    random rules, each with the budget of the search; only searches for routing have them.
    The search ends after `evaluations` candidates (default: 50), or after the batch in which `cpu_minutes` of CPU time
    are spent, whichever comes first. The controls have as many candidates as the search had.
    `output` is a folder that stores every batch. If the folder already has a search, that search resumes, and has the
    same result as an uninterrupted search. Several searches may share a `cache`; by default, it is in the folder."""
    from headway.evolve.search_tables import EvolveProgress  # imported here, because it imports the report

    budget = budget_of(evaluations, cpu_minutes)
    plan = plan or Plan()
    check_fields(plan)
    knees = Knees.read(output)
    chosen = Suite.load(DEFAULT if suite is None else suite, knees)
    searcher = plan.searcher(chosen.for_search())
    check_rivals(chosen, plan.stages[0], builtins)
    journal = Journal(
        None if output is None else Path(output),
        {"suite": chosen.name, **digests(chosen), **plan.document(chosen)},
    )
    knees.write(output)
    folder = None if output is None else Path(output)
    with watch(progress, lambda: EvolveProgress(folder)) as report, runner_of(workers, ray) as runner:
        search = Search(
            searcher, chosen, plan.size, journal=journal, runner=runner, progress=report, race=plan.races, cache=cache
        )
        judged = search.run(budget)
        final = None if report is None else report.final
        beside = []
        if controls and plan.stages == (STAGE,) and chosen.parts.get(HELD_OUT):
            beside = find_controls(
                chosen.for_search(), plan.seed, len(judged), plan.size, search.cache, runner, plan.races, report
            )
        conclusion = conclude(
            judged, chosen, plan.stages[0], builtins, search.cache, runner, final, beside, journal.look
        )
    journal.conclude(conclusion.document(), conclusion.winner)
    return conclusion
