"""One case of a suite, a workload on a cluster under one seed, and how a candidate is put to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import force_setattr

from headway.config.wording import one_line
from headway.errors import HeadwayError, InvariantError
from headway.evolve.objectives import figures_of
from headway.experiment.run import simulate
from headway.results.words import summarize
from headway.scenario.scenario import Scenario
from headway.types import Json

PLAY: Final = "headway.evolve.cases:play"
TOLD_TOKENS: Final = 1000  # of a run in words, so that a whole feedback stays below 6 KB


class Case(Struct, frozen=True):
    """A scenario as `Scenario.load` reads it; its seed stands apart, since cases are paired by it. The candidate brings
    the policies of all five stages."""

    name: str
    scenario: Json
    seed: int
    key: str = ""  # of the scenario, its seed aside; found if it is not given

    def __post_init__(self) -> None:
        if not self.key:
            force_setattr(self, "key", Scenario.load({**self.scenario, "seed": 0}).key())

    @property
    def label(self) -> str:
        return f"{self.name}, seed {self.seed}"

    def document(self) -> Json:
        """The scenario with its seed."""
        return {**self.scenario, "seed": self.seed}


def play(scenario: Json, policies: Json, figures: Sequence[str], told: bool = False) -> Json:
    """Simulate a scenario under a candidate's policies, in whatever process this is called in. Gives the figures asked
    for, and with `told` the run in words; or the error that the candidate made."""
    try:
        given: dict[str, Any] = policies
        result = simulate(scenario, trace="decisions" if told else "minimal", **given)
        found = figures_of(result.summary(), figures)
        return {"figures": found, "told": summarize(result, max_tokens=TOLD_TOKENS, examples=2) if told else None}
    except (HeadwayError, InvariantError) as error:
        if isinstance(error.__cause__, MemoryError):  # a limit of this machine, and not the candidate's own mistake
            raise
        return {"error": one_line(error) + "."}
