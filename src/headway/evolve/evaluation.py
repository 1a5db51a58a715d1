"""A case of a suite, the run of a candidate on a case, and the evaluation of a candidate over all cases."""

from collections.abc import Sequence
from typing import Any, ClassVar, Final

from msgspec import Struct
from msgspec.structs import asdict, force_setattr

from headway.config.wording import one_line
from headway.display.displayed import Displayed, Types, cells, columns_of
from headway.errors import HeadwayError, InvariantError
from headway.evolve.objectives import figures_of
from headway.evolve.shared_cases import SharedCases
from headway.experiment.run import prepare, run_prepared, simulate
from headway.results.words import summarize
from headway.scenario.scenario import STAGES, Scenario
from headway.types import Json

PLAY: Final = "headway.evolve.evaluation:play"
SUMMARY_TOKENS: Final = 1000  # maximum length of a run's summary, so that the whole feedback stays below 6 KB


class Case(Struct, frozen=True):
    """A scenario without policies, in the form that `Scenario.load` reads. The seed is a separate field, because
    candidates are compared on cases with the same seed."""

    name: str
    scenario: Json
    seed: int
    key: str = ""  # identifies the scenario without its seed; if empty, it is computed

    def __post_init__(self) -> None:
        if not self.key:
            force_setattr(self, "key", Scenario.load({**self.scenario, "seed": 0}).key())

    @property
    def label(self) -> str:
        return f"{self.name}, seed {self.seed}"

    def document(self) -> Json:
        return {**self.scenario, "seed": self.seed}


_SHARED: Final = SharedCases()  # filled only in a zygote


def prepare_play(scenario: Json, *_: object) -> bool:
    """Prepare what all runs of a case share, and return whether there is something new to share. A zygote calls this
    before it forks a process for `play`."""
    return _SHARED.prepare(scenario)


def play(
    scenario: Json, policies: Json, figures: Sequence[str], explain: bool = False, may: Sequence[str] | None = None
) -> Json:
    """Simulate a scenario with the policies of a candidate, in this process. Return the figures and, if `explain` is
    true, the summary of the run in words, with suggestions only for the stages that the search `may` change. Without
    `may`, these are the stages of the candidate. If the candidate fails, return its error instead."""
    try:
        stages: dict[str, Any] = policies
        shared = _SHARED.take(scenario) if not explain and stages.keys() <= set(STAGES) else None
        if shared is not None:
            prepared = prepare(shared.scenario, built=shared.engines, **stages)
            result = run_prepared(prepared, traffic=shared.traffic, figures=figures)
            return {"figures": figures_of(result.summary(), figures), "told": None}
        result = simulate(scenario, trace="decisions" if explain else "minimal", progress=False, **stages)
        scope = list(policies) if may is None else may
        words = summarize(result, max_tokens=SUMMARY_TOKENS, examples=2, may=scope) if explain else None
        return {"figures": figures_of(result.summary(), figures), "told": words}
    except (HeadwayError, InvariantError) as error:
        if isinstance(error.__cause__, MemoryError):  # the memory limit caused this, not a mistake in the candidate
            raise
        return {"error": one_line(error) + "."}


class CaseResult(Struct, frozen=True):
    """The result of one case. `gains` has the gain of every objective and `primary`, even if the case failed."""

    case: str  # the workload's name in the suite
    seed: int
    ok: bool
    gains: dict[str, float]
    figures: dict[str, float | None] = {}
    error: str | None = None


class Evaluation(Displayed, Struct, frozen=True):
    """The result of a candidate. `fitness` has `primary`, every objective and `complexity`. All values are finite, even
    if the candidate failed."""

    _view: ClassVar[str] = "headway.evolve.search_tables:evaluation_view"
    _types: ClassVar[Types] = {"case": str, "seed": int, "ok": bool, "error": str}

    ok: bool
    error: str | None  # one sentence with the reason why the candidate failed
    fitness: dict[str, float]
    cases: list[CaseResult]
    summary: str
    bundle_id: str
    part: str = "train"
    stopped: str | None = None  # the reason why the cascade skipped the other cases

    def columns(self) -> dict[str, list[Any]]:
        """Return a row for each case: its gains over the baseline, as fractions, and its figures."""
        return columns_of((cells(asdict(case)) for case in self.cases), self._types)

    def workloads(self) -> dict[str, list[CaseResult]]:
        return by_workload(self.cases)


def by_workload(cases: Sequence[CaseResult]) -> dict[str, list[CaseResult]]:
    """Group cases by workload, in the suite's order."""
    workloads: dict[str, list[CaseResult]] = {}
    for case in cases:
        workloads.setdefault(case.case, []).append(case)
    return workloads
