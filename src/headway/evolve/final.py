"""How a search ends: the winner against every built-in policy, on cases that nobody has looked at before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from headway.evolve.cache import Cache
from headway.evolve.evaluate import evaluate_many
from headway.evolve.evaluation import Evaluation
from headway.evolve.fitness import Gain, over, over_baseline
from headway.evolve.journal import Judged
from headway.evolve.objectives import PRIMARY
from headway.evolve.selection import Selection, select
from headway.evolve.suite import HELD_OUT, Suite
from headway.evolve.texts import readable
from headway.experiment.contenders import ALL, contenders, stage_label
from headway.experiment.runner import Runner
from headway.policies.bundle import Bundle
from headway.scenario.scenario import Scenario
from headway.types import Json

TOGETHER: Final = 4  # policies whose held-out runs are made, and kept, at once
ALWAYS: Final = (  # in every table, whatever is compared
    {"name": "weighted", "scorers": {"prefix-affinity": 1, "load-balance": 1}},
    "lmetric",
    # Rules in the policy language ask a belief of blocks of 16 tokens, LMetric one of 512: what is gained by that alone
    # is no merit of a rule.
    {"name": "lmetric", "block_tokens": 16, "lru_blocks": 31_250},
    {"name": "lmetric-plus-one", "block_tokens": 16, "lru_blocks": 31_250},
)


class Contestant(Struct, frozen=True):
    """A policy on the held-out part. `ahead` is how far the winner is ahead of it."""

    name: str
    kind: str  # winner, baseline, built-in, or oracle for one that no live router can have
    bundle: Bundle
    evaluation: Evaluation
    gain: Gain  # over the suite's baseline
    ahead: Gain | None = None

    def document(self) -> Json:
        return {
            "name": self.name,
            "kind": self.kind,
            "ok": self.evaluation.ok,
            "error": self.evaluation.error,
            "fitness": self.evaluation.fitness,
            "gain": msgspec.to_builtins(self.gain),
            "ahead": None if self.ahead is None else msgspec.to_builtins(self.ahead),
        }


class Conclusion(Struct, frozen=True):
    """What a search came to. `contestants` are best first, none where the suite has no held-out part."""

    suite: Suite
    candidates: int
    selection: Selection
    contestants: list[Contestant]
    stage: str = "routing"

    @property
    def winner(self) -> Bundle:
        return self.selection.winner.bundle

    @property
    def rival(self) -> Contestant | None:
        """The best built-in of the held-out part: chosen there, so that whoever beats it beats all of them."""
        return next((one for one in self.contestants if one.kind in ("built-in", "baseline")), None)

    @property
    def verdict(self) -> str:
        return verdict(self)

    def document(self) -> Json:
        chosen = self.selection
        return {
            "suite": self.suite.name,
            "candidates": self.candidates,
            "front": [_candidate(one, chosen) for one in chosen.front],
            "hypervolume": chosen.dominated,
            "chosen_on": chosen.chosen_on,
            "winner": {**_candidate(chosen.winner, chosen), "bundle": self.winner.document()},
            "source": readable(self.winner, self.stage),
            "held_out": [one.document() for one in self.contestants],
            "best_builtin": None if self.rival is None else self.rival.name,
            "verdict": self.verdict,
        }


def conclude(
    found: Sequence[Judged],
    suite: Suite,
    *,
    stage: str = "routing",
    builtins: Sequence[str] | None = None,
    cache: Cache | None = None,
    runner: Runner | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Conclusion:
    """Choose the winner and put it to the held-out part, beside all built-in policies of a stage or those named."""
    chosen = select(found, suite.for_search(), cache=cache, runner=runner)
    if not suite.parts.get(HELD_OUT):
        return Conclusion(suite, len(found), chosen, [], stage)
    winner = chosen.winner.bundle
    rows = [("winner", winner.name, winner), *rivals(suite, stage, builtins)]
    runs, total = 0, len(rows) * len(suite.cases(HELD_OUT))

    def ran() -> None:
        nonlocal runs
        runs += 1
        if progress is not None:
            progress(min(runs, total), total)

    judged: list[Evaluation] = []
    for start in range(0, len(rows), TOGETHER):
        bundles = [bundle for _, _, bundle in rows[start : start + TOGETHER]]
        judged += evaluate_many(bundles, suite, HELD_OUT, cache=cache, runner=runner, progress=ran)
    made = []
    for (kind, name, bundle), one in zip(rows, judged, strict=True):
        ahead = None if kind == "winner" else over(judged[0], one, suite.objectives)
        made.append(Contestant(name, kind, bundle, one, over_baseline(one), ahead))
    made.sort(key=lambda one: one.evaluation.fitness[PRIMARY], reverse=True)
    return Conclusion(suite, len(found), chosen, made, stage)


def rivals(suite: Suite, stage: str, builtins: Sequence[str] | None = None) -> list[tuple[str, str, Bundle]]:
    """The baseline, LMetric (with the blocks of rules as well) and 1:1 always, and the built-in policies of a stage:
    their kind, name and bundle. What they leave open is as in the baseline."""
    baseline = suite.baseline
    scenario = Scenario.load(suite.cases(HELD_OUT)[0].document())
    found = [("baseline", stage_label(stage, baseline[stage]), Bundle("baseline", baseline))]
    for spec in ALWAYS:
        label = stage_label("routing", spec)
        found.append(("built-in", label, Bundle(label, {**baseline, "routing": spec})))
    for one in contenders(scenario, ALL if builtins is None else builtins, stage):
        kind = "oracle" if one.oracle else "built-in"
        found.append((kind, one.name, Bundle(one.name, {**baseline, **one.policies})))
    first: dict[str, tuple[str, str, Bundle]] = {}
    for row in found:
        first.setdefault(row[2].id, row)
    return list(first.values())


def check_rivals(suite: Suite, stage: str, builtins: Sequence[str] | None) -> None:
    """What is wrong with their names is told before a search, and not after it."""
    if suite.parts.get(HELD_OUT):
        rivals(suite, stage, builtins)


def verdict(found: Conclusion) -> str:
    """Plainly, whether the winner is better than the best built-in."""
    rival = found.rival
    if rival is None:
        return f"{found.suite.name} has no held-out part, so nothing is known of cases that the search has not seen."
    if rival.ahead is None:
        failed = next(one.evaluation.error for one in found.contestants if one.kind == "winner")
        return f"The winner failed on the held-out part: {failed}"
    ahead = rival.ahead
    if ahead.low is None or ahead.high is None:
        words = "one seed says nothing of chance, nor do several that change nothing"
    else:
        words = f"95 % interval {points(ahead.low)} to {points(ahead.high)}"
    told = "is not told apart from it"
    if ahead.certain:
        told = "beats it" if ahead.mean > 0 else "is worse"
    where = f"{points(ahead.mean)} points ahead of {rival.name}, the best built-in policy there"
    worst = f"Its worst workload against it is {ahead.worst}: {share(ahead.workloads[ahead.worst])}."
    first = found.winner
    known = first.generation == 0 and first.parent is None and not first.mutations
    start = " It is one that the search started from." if known else ""
    return f"On the held-out part the winner is {where} ({words}): it {told}. {worst}{start}"


def share(value: float) -> str:
    return f"{100 * value:+.1f} %"


def points(value: float) -> str:
    """Hundredths of the baseline's figure."""
    return f"{100 * value:+.1f}"


def _candidate(one: Judged, chosen: Selection) -> Json:
    validated = chosen.validated.get(one.bundle.id)
    return {
        "id": one.bundle.id,
        "name": one.bundle.name,
        "generation": one.bundle.generation,
        "parent": one.bundle.parent,
        "mutations": list(one.bundle.mutations),
        "train": one.evaluation.fitness,
        "validation": None if validated is None else validated.fitness,
    }
