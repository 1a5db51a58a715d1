"""Several searches with different seeds, to tell a search that finds a better policy from one that was lucky."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from headway.errors import HeadwayError, argument
from headway.evolve.cache import Cache
from headway.evolve.evaluate import cache_in
from headway.evolve.evolution import Plan, evolve
from headway.evolve.final import Conclusion, Contestant, points
from headway.evolve.suite import DEFAULT, HELD_OUT, Suite
from headway.types import Json

FOLDER = "seed-{}"


class Searches(Struct, frozen=True):
    """The conclusions of searches that differ only in their seed."""

    conclusions: dict[int, Conclusion]  # by seed

    def leads(self, kind: str) -> dict[int, Contestant]:
        """Return, by seed, the policy to beat: the best built-in policy, or the best control if `kind` is `control`. It
        has the lead of the search's winner. A search without one is missing."""
        rivals = {}
        for seed, conclusion in self.conclusions.items():
            found = conclusion.rival if kind != "control" else conclusion.control
            if found is not None and found.ahead is not None:
                rivals[seed] = found
        return rivals

    def wins(self, kind: str = "built-in") -> int:
        """Return the number of searches whose winner leads with a confidence interval above zero."""
        return len([rival for rival in self.leads(kind).values() if rival.ahead and (rival.ahead.low or 0.0) > 0])

    @property
    def verdict(self) -> str:
        sentences = []
        for kind, name in (("built-in", "built-in policy"), ("control", "control")):
            leads = [rival.ahead.mean for rival in self.leads(kind).values() if rival.ahead is not None]
            if leads:
                lead = f"the median lead is {points(median(leads))} points"
                won = f"{self.wins(kind)} of {len(self.conclusions)} searches"
                sentences.append(f"{won} lead the best {name} with an interval above zero; {lead}.")
        return " ".join(sentences)

    def document(self) -> Json:
        searches = [{"seed": seed, **conclusion.document()} for seed, conclusion in self.conclusions.items()]
        wins = {kind: self.wins(kind) / len(searches) for kind in ("built-in", "control") if self.leads(kind)}
        return {"searches": searches, "winning_share": wins, "verdict": self.verdict}


def evolve_repeatedly(
    suite: Suite | str | Path | Mapping[str, Any] | None = None,
    plan: Plan | None = None,
    searches: int = 10,
    *,
    output: str | Path | None = None,
    **options: Any,
) -> Searches:
    """Run searches with consecutive seeds, beginning with the seed of the plan. `options` are those of `evolve`. Each
    search has its own folder in `output`, seed-N. All share one cache, so that a baseline runs once."""
    if searches < 1:
        raise HeadwayError(f"{argument('searches')}: must be at least 1, got {searches}.")
    plan, loaded = plan or Plan(), Suite.load(DEFAULT if suite is None else suite)
    if not loaded.parts.get(HELD_OUT):
        raise HeadwayError(f"{loaded.name}: several searches are compared on the held-out part, which has no cases.")
    folder = None if output is None else Path(output)
    cache = Cache() if folder is None else cache_in(str(folder / "cache"))
    conclusions = {}
    for seed in range(plan.seed, plan.seed + searches):
        own = None if folder is None else folder / FOLDER.format(seed)
        conclusions[seed] = evolve(loaded, replace(plan, seed=seed), output=own, cache=cache, **options)
    return Searches(conclusions)
