"""The end of a search: compare the winner with the built-in policies on held-out cases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, NamedTuple

import msgspec
from msgspec import Struct

from headway.config.dated_defaults import SETS
from headway.display.displayed import Displayed, Types, columns_of
from headway.evolve.ablation import SIMPLIFIED, Ablated, ablate, candidate_id, simplify
from headway.evolve.cache import Cache
from headway.evolve.controls import STAGE, Control
from headway.evolve.evaluate import evaluate_many
from headway.evolve.evaluation import Evaluation
from headway.evolve.fitness import Gain, over, over_baseline, share
from headway.evolve.journal import Judged
from headway.evolve.objectives import PRIMARY
from headway.evolve.selection import Selection, select
from headway.evolve.suite import HELD_OUT, Suite
from headway.evolve.texts import readable
from headway.experiment.contenders import ALL, contenders, stage_label
from headway.experiment.runner import Runner
from headway.policies.bundle import Bundle
from headway.policies.context import BLOCK_TOKENS, LRU_BLOCKS
from headway.policies.registry import AUTO, DEFAULT_POLICIES
from headway.scenario.scenario import Scenario
from headway.types import Json

TOGETHER: Final = 4  # maximum number of policies that are evaluated and kept in memory at the same time
# the parameters that give a policy the same prefix index as evolved rules
AS_RULES: Final = {"block_tokens": BLOCK_TOKENS, "lru_blocks": int(LRU_BLOCKS)}
BELIEF: Final = {"block_tokens": BLOCK_TOKENS, "lru_blocks": AUTO}
ALWAYS: Final[tuple[Any, ...]] = (  # policies that every comparison includes
    {"name": "weighted", "scorers": {"prefix-affinity": 1, "load-balance": 1}},
    "lmetric",
    # Rules in the policy language use a prefix index with blocks of 16 tokens, LMetric by default blocks of 512.
    # LMetric with blocks of 16 tokens shows how much of a rule's gain comes from its smaller blocks.
    {"name": "lmetric", **AS_RULES},
    {"name": "lmetric-plus-one", **AS_RULES},
    # With the right belief: an index as large as the KV cache of an instance.
    {"name": "lmetric-plus-one", **BELIEF},
    {"name": "unified", **BELIEF},
    {"name": "weighted", "scorers": [{"name": "predicted-latency", "weight": 1, **BELIEF}]},
)
# It knows which blocks each instance truly caches, and weighs them against load and predicted TTFT. Of eight such
# mixes, this one has the highest mean gain on the train part of routing-2026-11.
ORACLE: Final = {
    "name": "weighted",
    "scorers": [
        {"name": "oracle-prefix", "weight": 1},
        {"name": "load-balance", "weight": 2},
        {"name": "predicted-latency", "weight": 1, **BELIEF},
    ],
}


class Headroom(NamedTuple):
    """What routing can gain on a workload: at least the best gain of any policy. If a policy beats the oracle, the
    policy counts."""

    winner: float
    oracle: float | None  # the best gain of an oracle
    best: float
    policy: Contestant  # the policy with the best gain


class Contestant(Struct, frozen=True):
    """A policy in the final comparison, and its result on the held-out part. `ahead` is the lead of the search's winner
    over this policy."""

    name: str
    kind: str  # winner, baseline, built-in, control, or oracle (needs signals that no live router has)
    bundle: Bundle
    evaluation: Evaluation
    gain: Gain  # the gain over the suite's baseline
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


class Conclusion(Displayed, Struct, frozen=True):
    """The result of a search. `contestants` is sorted from best to worst; without a held-out part, it is empty.
    `judged` has the candidates in the order of the search."""

    _view: ClassVar[str] = "headway.evolve.search_tables:conclusion_view"
    _types: ClassVar[Types] = {
        "id": str,
        "name": str,
        "generation": int,
        "ok": bool,
        PRIMARY: float,
        "validation": float,
        "front": bool,
        "winner": bool,
    }

    suite: Suite
    candidates: int
    selection: Selection
    contestants: list[Contestant]
    stage: str = "routing"
    judged: Sequence[Judged] = ()
    looks: int = 0  # number of winners of this search's folder that were compared on the held-out part
    ablation: Sequence[Ablated] = ()  # what the winner loses on the validation part without each of its parts
    model: Json | None = None  # what the search asked its language model for: prompts, tokens, retries, cost

    @property
    def winner(self) -> Bundle:
        return self.selection.winner.bundle

    @property
    def rival(self) -> Contestant | None:
        """The best built-in policy on the held-out part. If the winner beats this policy, it beats every built-in
        policy. None if the suite has no held-out part."""
        return next((rival for rival in self.contestants if rival.kind in ("built-in", "baseline")), None)

    @property
    def control(self) -> Contestant | None:
        """The best control on the held-out part. None if the search has no controls."""
        return next((other for other in self.contestants if other.kind == "control"), None)

    @property
    def headroom(self) -> dict[str, Headroom]:
        """Return the headroom of each workload of the held-out part."""
        working = [other for other in self.contestants if other.evaluation.ok]
        winner = next((other for other in working if other.kind == "winner"), None)
        rooms = {}
        for name, own in {} if winner is None else winner.gain.workloads.items():
            oracles = [other.gain.workloads[name] for other in working if other.kind == "oracle"]
            best = max(working, key=lambda one: one.gain.workloads[name])
            rooms[name] = Headroom(own, max(oracles, default=None), best.gain.workloads[name], best)
        return rooms

    @property
    def losses(self) -> str:
        """A sentence that says on which workloads the winner is behind the best other policy there, oracles aside."""
        working = [other for other in self.contestants if other.evaluation.ok]
        winner = next((other for other in working if other.kind == "winner"), None)
        others = [other for other in working if other.kind not in ("winner", "oracle")]
        gaps: dict[str, tuple[float, Contestant]] = {}
        for name, own in winner.gain.workloads.items() if winner and others else ():
            best = max(others, key=lambda one: one.gain.workloads[name])
            gaps[name] = own - best.gain.workloads[name], best
        behind = [name for name in gaps if gaps[name][0] < 0]
        if not gaps:
            return ""
        if not behind:
            return "No policy in this comparison is ahead of it on any workload."
        worst = min(behind, key=lambda name: gaps[name][0])
        gap, best = gaps[worst]
        count = f"On {len(behind)} of {len(gaps)} workloads another policy is ahead"
        return f"{count}: it loses most on {worst}, {points(-gap)[1:]} points behind {best.name}."

    @property
    def verdict(self) -> str:
        """A sentence that says whether the winner is better than the best built-in policy."""
        rival = self.rival
        if rival is None:
            return f"{self.suite.name} has no held-out part, so the winner is untested on unseen cases."
        ahead = rival.ahead
        if ahead is None:
            failed = next(other.evaluation.error for other in self.contestants if other.kind == "winner")
            return f"The winner failed on the held-out part: {failed}"
        if ahead.low is None or ahead.high is None:
            interval = "no confidence interval: a single seed, or seeds that change nothing"
        else:
            interval = f"95 % confidence interval {points(ahead.low)} to {points(ahead.high)}"
        outcome = "The difference is not significant"
        if ahead.certain:
            outcome = f"The winner is significantly {'better' if ahead.mean > 0 else 'worse'}"
        lead = f"leads {rival.name}, the best built-in policy there, by {points(ahead.mean)} points"
        worst = f"Its worst workload in this comparison is {ahead.worst}: {share(ahead.workloads[ahead.worst])}."
        first = self.winner
        known = first.generation == 0 and first.mutations in ((), SIMPLIFIED)
        start = " The search started from this policy." if known else ""
        control = self._against_control()
        losses = f" {self.losses}" if self.losses else ""
        return f"On the held-out part the winner {lead} ({interval}). {outcome}. {worst}{losses}{control}{start}"

    def _against_control(self) -> str:
        """Return a sentence about the best control, or an empty string if there are no controls."""
        control = self.control
        if control is None or control.ahead is None:
            return ""
        ahead = control.ahead
        half = "" if ahead.low is None or ahead.high is None else f" ± {points((ahead.high - ahead.low) / 2)[1:]}"
        sure = "" if ahead.certain else ", which is not significant"
        return f" Its lead over the best control, {control.name}, is {points(ahead.mean)}{half} points{sure}."

    def columns(self) -> dict[str, list[Any]]:
        """Return a row for each candidate in the order of the search: its fitness on train, and on validation if it was
        evaluated there. `document()["held_out"]` has the rows of the held-out part."""
        chosen = self.selection
        front = {judged.bundle.id for judged in chosen.front}
        winner = candidate_id(self.winner)
        rows = []
        for bundle, evaluation in self.judged:
            validated = chosen.validated.get(bundle.id)
            rows.append(
                {
                    "id": bundle.id,
                    "name": bundle.name,
                    "generation": bundle.generation,
                    "ok": evaluation.ok,
                    **evaluation.fitness,
                    "validation": None if validated is None else validated.fitness[PRIMARY],
                    "front": bundle.id in front,
                    "winner": bundle.id == winner,
                }
            )
        return columns_of(rows, self._types)

    def document(self) -> Json:
        chosen = self.selection
        return {
            "suite": self.suite.name,
            "candidates": self.candidates,
            "front": [_candidate(judged, chosen) for judged in chosen.front],
            "hypervolume": chosen.dominated,
            "chosen_on": chosen.chosen_on,
            "winner": {**_candidate(chosen.winner, chosen), "bundle": self.winner.document()},
            "source": readable(self.winner, self.stage),
            "held_out": [contestant.document() for contestant in self.contestants],
            "best_builtin": None if self.rival is None else self.rival.name,
            "headroom": {
                name: {"winner": room.winner, "oracle": room.oracle, "best": room.best, "policy": room.policy.name}
                for name, room in self.headroom.items()
            },
            "ablation": [part.document() for part in self.ablation],
            "losses": self.losses,
            "verdict": self.verdict,
            "looks": self.looks,
            **({} if self.model is None else {"model": self.model}),
        }


def conclude(
    judged: Sequence[Judged],
    suite: Suite,
    stage: str = "routing",
    builtins: Sequence[str] | None = None,
    cache: Cache | None = None,
    runner: Runner | None = None,
    progress: Callable[[int, int], None] | None = None,
    controls: Sequence[Control] = (),
    look: Callable[[str], int] = lambda _: 1,
) -> Conclusion:
    """Choose the winner, and compare it on the held-out part with the policies in `builtins`. By default, compare it
    with all built-in policies of the stage. `look` counts the looks at the held-out part."""
    seen = suite.for_search()
    chosen = simplify(select(judged, seen, cache=cache, runner=runner), seen, stage, cache, runner)
    ablation = ablate(chosen.winner.bundle, seen, stage, cache, runner)
    if not suite.parts.get(HELD_OUT):
        return Conclusion(suite, len(judged), chosen, [], stage, judged, ablation=ablation)
    winner = chosen.winner.bundle
    beside = [("control", control.name, control.bundle) for control in controls]
    rows = [("winner", winner.name, winner), *beside, *rivals(suite, stage, builtins)]
    looks = look(winner.id)
    runs, total = 0, len(rows) * len(suite.cases(HELD_OUT))

    def on_run() -> None:
        nonlocal runs
        runs += 1
        if progress is not None:
            progress(min(runs, total), total)

    evaluations: list[Evaluation] = []
    for start in range(0, len(rows), TOGETHER):
        bundles = [bundle for _, _, bundle in rows[start : start + TOGETHER]]
        evaluations += evaluate_many(bundles, suite, HELD_OUT, cache=cache, runner=runner, progress=on_run)
    contestants = []
    for (kind, name, bundle), evaluation in zip(rows, evaluations, strict=True):
        ahead = None if kind == "winner" else over(evaluations[0], evaluation, suite.objectives)
        contestants.append(Contestant(name, kind, bundle, evaluation, over_baseline(evaluation), ahead))
    contestants.sort(key=lambda contestant: contestant.evaluation.fitness[PRIMARY], reverse=True)
    return Conclusion(suite, len(judged), chosen, contestants, stage, judged, looks, ablation)


def rivals(suite: Suite, stage: str, builtins: Sequence[str] | None = None) -> list[tuple[str, str, Bundle]]:
    """Return the kind, the name and the bundle of each policy to compare with: the baseline, the policies in `ALWAYS`,
    for routing the oracle, and the built-in policies. In each bundle, the stages that this policy does not set have the
    policies of the baseline."""
    baseline = suite.baseline
    scenario = Scenario.load(suite.cases(HELD_OUT)[0].document())
    label = stage_label(stage, baseline.get(stage, DEFAULT_POLICIES[stage]))
    rows = [("baseline", label, Bundle("baseline", baseline))]
    for spec in ALWAYS:
        if isinstance(spec, dict) and "lru_blocks" in spec and SETS[scenario.defaults].auto:
            spec = {**spec, "lru_blocks": AUTO}
        label = stage_label("routing", spec)
        rows.append(("built-in", label, Bundle(label, {**baseline, "routing": spec})))
    if stage == STAGE:
        rows.append(("oracle", "true cache and load", Bundle("oracle", {**baseline, "routing": ORACLE})))
    for rival in contenders(scenario, ALL if builtins is None else builtins, stage):
        kind = "oracle" if rival.oracle else "built-in"
        rows.append((kind, rival.name, Bundle(rival.name, {**baseline, **rival.policies})))
    first: dict[str, tuple[str, str, Bundle]] = {}
    for row in rows:
        first.setdefault(row[2].id, row)
    return list(first.values())


def check_rivals(suite: Suite, stage: str, builtins: Sequence[str] | None) -> None:
    """Raise an error if a name in `builtins` is unknown. Called before the search starts."""
    if suite.parts.get(HELD_OUT):
        rivals(suite, stage, builtins)


def points(value: float) -> str:
    """Return a gain as a string: the percentage of the baseline's figure, without the percent sign."""
    return f"{100 * value:+.1f}"


def _candidate(judged: Judged, chosen: Selection) -> Json:
    bundle, validated = judged.bundle, chosen.validated.get(judged.bundle.id)
    return {
        "id": bundle.id,
        "name": bundle.name,
        "generation": bundle.generation,
        "parent": bundle.parent,
        "mutations": list(bundle.mutations),
        "train": judged.evaluation.fitness,
        "validation": None if validated is None else validated.fitness,
    }
