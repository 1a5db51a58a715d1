"""Compares the ranking of policies under fresh signals with their ranking under polled ones."""

from collections.abc import Sequence
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from headway.config.dated_defaults import SETS
from headway.config.units import duration_text
from headway.experiment.contenders import Contender
from headway.experiment.run import own_policy
from headway.policies import registry
from headway.scenario.scenario import STAGES, Scenario
from headway.types import Json

Age = Literal["fresh", "polled"]
# polling interval of the second ranking, if the signals of the first ranking are fresh
POLL_PS: Final = SETS["2026-12"].poll_interval_ps
MOST_REQUESTS: Final = 10_000  # up to this many simulated requests, a comparison ranks twice by default
MOST_MOVES: Final = 4  # number of policies whose places a sentence names


class OtherRanking(Struct, frozen=True):
    """The ranking of the same policies under other signals."""

    signals: str  # the signals of this ranking: fresh, or polled with an interval
    shown: str  # the signals of the comparison
    ranking: list[str]  # names of the policies, best first
    differs: bool
    sentence: str  # says how the ranking differs; empty if it does not

    @classmethod
    def of(cls, scenario: Scenario, ranking: Sequence[str], shown: Scenario, names: Sequence[str]) -> "OtherRanking":
        """Compare two rankings of the same policies. `ranking` is their ranking under the signals of `scenario`, and
        `names` is their ranking under the signals of `shown`."""
        words, differs = describe(scenario), list(ranking) != list(names)
        return cls(words, describe(shown), list(ranking), differs, _sentence(words, ranking, names) if differs else "")


def with_signals(scenario: Scenario, age: Age | None) -> Scenario:
    """Return the scenario with fresh or polled signals. Keep the interval and delay of a scenario that polls."""
    signals = scenario.signals
    if age == "fresh":
        signals = replace(signals, poll_interval_ps=0, poll_delay_ps=0)
    elif age == "polled" and not signals.poll_interval_ps:
        signals = replace(signals, poll_interval_ps=POLL_PS)
    return replace(scenario, signals=signals)


def other_age(scenario: Scenario) -> Age:
    return "fresh" if scenario.signals.poll_interval_ps else "polled"


def describe(scenario: Scenario) -> str:
    interval = scenario.signals.poll_interval_ps
    return f"polled every {duration_text(interval)}" if interval else "fresh"


def reads_reports(scenario: Scenario, contender: Contender) -> bool:
    """Return whether any policy of a run reads reported signals. If none does, fresh and polled signals give the same
    run."""
    if scenario.scaling is not None:  # a pool's own scaling policy may read reported signals
        return True
    for stage in STAGES:
        spec = contender.policies.get(stage, getattr(scenario.policies, stage))
        where = f"policies.{stage}"
        named = isinstance(spec, str | dict)
        policy = registry.build(stage, spec, where) if named else own_policy(stage, spec, where)
        if registry.entry_of(policy, stage).reported:
            return True
    return False


def is_cheap(summaries: Sequence[Sequence[Json]]) -> bool:
    """Return whether the runs with these summaries have few enough requests to be repeated even if the user did
    not ask for it."""
    requests: int = sum(summary["requests"]["arrived"] for each in summaries for summary in each)
    return requests <= MOST_REQUESTS


def _sentence(words: str, ranking: Sequence[str], names: Sequence[str]) -> str:
    """Return a sentence that names the policies whose ranks change most, best rank first."""
    places = {name: place for place, name in enumerate(ranking, 1)}
    moves = [(name, place, places[name]) for place, name in enumerate(names, 1) if places[name] != place]
    largest = sorted(moves, key=lambda move: -abs(move[1] - move[2]))[:MOST_MOVES]
    listed = [f"{name} {old} → {new}" for name, old, new in moves if (name, old, new) in largest]
    more = len(moves) - len(listed)
    if more:
        listed.append(f"and {more} more")
    signals = "fresh signals" if words == "fresh" else f"signals {words}"
    return f"With {signals} the ranking differs: {', '.join(listed)}."
