"""The decisions of a run and what they rested on: who was refused or put off, how much each request mattered, and for
each that was sent to an instance what the router saw of every candidate, what it believed and how it chose.

Kept in columns, one entry a decision and one a candidate of it, since there are as many decisions as requests.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol, overload

import msgspec
from msgspec import Struct

from headway.results.table import library
from headway.views.instance import SIGNALS
from headway.views.signals import UNITS

# What a data frame has of a decision.
WHOLE: Final = (
    "request", "at_ps", "reason", "priority", "predicted_tokens", "cached_tokens", "tier", "ttft_ps", "e2e_ps",
)  # fmt: skip


class Verdict(Struct, frozen=True, gc=False):
    """Admission refused a request, or put it off. Who has no verdict was let in when it came."""

    at_ps: int
    request: int
    verdict: str  # rejected or delayed
    reason: str = ""
    delay_ps: int = 0


class Decision(Struct, frozen=True):
    """One request was sent to an instance. The lists have an entry for each candidate, in the order of `candidates`."""

    request: int
    at_ps: int
    router: int
    target: int  # index of the instance
    prefill: int  # that which computes the prompt, where it is another, else -1
    reason: str
    priority: float
    candidates: list[int]
    # What the router saw of them.
    inflight: list[int]
    pending_prefill_tokens: list[int]
    queued: list[int]
    running: list[int]
    kv_used: list[int]  # empty if no policy of the run declares it
    # What it believed: prompt tokens cached there, and the time to first token that the latency model gives, which is
    # -1 of an instance that could not compute the prompt: one that generates only or, where the chosen one of those was
    # left to compute it itself, one for prompts alone.
    believed_tokens: list[int]
    estimated_ttft_ps: list[int]
    # What it chose by, where the policy says: each scorer's scores, and the totals; None where a filter said no.
    scores: dict[str, list[float | None]]
    totals: list[float | None]
    lowest_wins: bool
    # What came of the request in the end: tokens that were cached where it went, the slowest store that had any of them
    # (gpu, cpu or storage; empty without a hit), and its times, -1 where they never came.
    predicted_tokens: int = 0  # that the policy believed cached there
    cached_tokens: int = 0
    tier: str = ""
    outcome: str = ""
    ttft_ps: int = -1
    e2e_ps: int = -1

    def place(self, instance: int) -> int:
        """Where a candidate stands in the lists."""
        return self.candidates.index(instance)

    @property
    def judged(self) -> int:
        """The instance that computes the prompt."""
        return self.prefill if self.prefill >= 0 else self.target

    def estimated_regret_ps(self) -> int | None:
        """By how much sooner, by the latency model, the first token would have come from the best candidate. None where
        the model has no estimate for the chosen one."""
        chosen = self.estimated_ttft_ps[self.place(self.judged)]
        return None if chosen < 0 else chosen - min(estimate for estimate in self.estimated_ttft_ps if estimate >= 0)

    def top(self, count: int) -> list[int]:
        """The best candidates as the policy ranked them, or as the latency model does where it gave no totals."""
        if self.totals:
            sign = 1 if self.lowest_wins else -1
            ranked = [(sign * total, place) for place, total in enumerate(self.totals) if total is not None]
        else:
            ranked = [(float(ttft), place) for place, ttft in enumerate(self.estimated_ttft_ps) if ttft >= 0]
        return [self.candidates[place] for _, place in sorted(ranked)[:count]]


# Signals that a decision records of each candidate, and what a data frame has of each.
RECORDED: Final = tuple(name for name in Decision.__struct_fields__ if name in SIGNALS)
RECORDED_BY_KIND: Final = sorted(RECORDED, key=lambda name: list(UNITS).index(SIGNALS[name].kind))  # requests first
EACH: Final = (*RECORDED, "believed_tokens", "estimated_ttft_ps")


class Rows(Protocol):
    """Where decisions are kept: each is put together when somebody asks for it."""

    def __len__(self) -> int: ...

    def __getitem__(self, place: int, /) -> Decision: ...

    def choices(self) -> Iterable[tuple[int, int]]:
        """Of each the request and how many candidates there were, without the rest."""


class Decisions(Sequence[Decision]):
    """All routing decisions in order of time; `verdicts` are those of admission that let nobody in. One that was taken
    anew, since an instance lost the request or had to part with it, is an entry of its own."""

    def __init__(self, rows: Rows | Sequence[Decision], verdicts: Sequence[Verdict] = ()) -> None:
        self._rows = rows
        self.verdicts = list(verdicts)

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, place: int) -> Decision: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Decision]: ...
    def __getitem__(self, place: int | slice) -> Decision | Sequence[Decision]:
        if isinstance(place, slice):
            return [self._rows[row] for row in range(len(self))[place]]
        return self._rows[range(len(self))[place]]

    def choices(self) -> Iterable[tuple[int, int]]:
        """Of each the request and how many candidates there were, which is read much faster than the whole."""
        if isinstance(self._rows, Sequence):
            return [(decision.request, len(decision.candidates)) for decision in self._rows]
        return self._rows.choices()

    def of(self, request: int) -> list[Decision]:
        """Those on one request, in order."""
        return [self[place] for place, (row, _) in enumerate(self.choices()) if row == request]

    def find(self, at_ps: int, request: int) -> int | None:
        """Where the decision stands that was taken on a request at an instant."""
        place = bisect_left(self, at_ps, key=lambda decision: decision.at_ps)
        while place < len(self) and (decision := self[place]).at_ps == at_ps:
            if decision.request == request:
                return place
            place += 1
        return None

    def columns(self) -> dict[str, list[Any]]:
        """A row for each candidate of each decision, for data frames; `scores` has a column for every scorer."""
        scorers = list(dict.fromkeys(name for decision in self for name in decision.scores))
        scores = [f"score.{name}" for name in scorers]
        columns: dict[str, list[Any]] = {name: [] for name in (*WHOLE, "candidate", "chosen", *EACH, "total", *scores)}
        for decision in self:
            empty: list[Any] = [None] * len(decision.candidates)
            for name in WHOLE:
                columns[name] += [getattr(decision, name)] * len(decision.candidates)
            columns["candidate"] += decision.candidates
            columns["chosen"] += [index in (decision.target, decision.prefill) for index in decision.candidates]
            for name in EACH:
                columns[name] += getattr(decision, name) or empty
            columns["total"] += decision.totals or empty
            for name in scorers:
                columns[f"score.{name}"] += decision.scores.get(name, empty)
        return columns

    def to_pandas(self) -> Any:
        return library("pandas").DataFrame(self.columns())

    def to_polars(self) -> Any:
        return library("polars").DataFrame(self.columns())

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Decisions)
            and self.verdicts == other.verdicts
            and encode_decisions(self) == encode_decisions(other)
        )

    __hash__ = None  # type: ignore[assignment]


def scorer_weights(routing: object) -> dict[str, float]:
    """The weights of a policy's scorers by the names that they have in a decision; empty where it has none."""
    scorers = routing.get("scorers") if isinstance(routing, dict) else None
    weights: dict[str, float] = {}
    for scorer in scorers if isinstance(scorers, list) else ():
        if isinstance(scorer, dict) and isinstance(scorer.get("weight"), int | float):
            name = scorer["name"]
            times = sum(known.partition("#")[0] == name for known in weights)
            weights[f"{name}#{times + 1}" if times else name] = float(scorer["weight"])
    return weights


def encode_decisions(decisions: Sequence[Decision]) -> bytes:
    """As they are written: a score that is no number is equal to itself there."""
    return msgspec.json.Encoder().encode_lines(decisions)
