"""The decisions of a run and what they rested on: who was refused or put off, how much each request mattered, and for
each that was sent to an instance what the router saw of every candidate, what it believed and how it chose.

Kept in columns, one entry a decision and one a candidate of it, since there are as many decisions as requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isnan

from msgspec import Struct


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
    kv_used: list[int]  # empty where no policy of the run reads it
    # What it believed: prompt tokens cached there, and the time to first token that the latency model gives.
    believed_tokens: list[int]
    estimated_ttft_ps: list[int]
    # What it chose by, where the policy says: each scorer's scores, and the totals; NaN of those that a filter removed.
    scores: dict[str, list[float]]
    totals: list[float]
    lowest_wins: bool

    def place(self, instance: int) -> int:
        """Where a candidate stands in the lists."""
        return self.candidates.index(instance)

    def estimated_regret_ps(self) -> int:
        """By how much sooner the first token would have come from the best candidate, as far as the model told."""
        judged = self.prefill if self.prefill >= 0 else self.target
        return self.estimated_ttft_ps[self.place(judged)] - min(self.estimated_ttft_ps)

    def top(self, count: int) -> list[int]:
        """The best candidates as the policy ranked them, or as the latency model does where it gave no totals."""
        order = range(len(self.candidates))
        if self.totals:
            sign = 1 if self.lowest_wins else -1
            ranked = sorted(
                (one for one in order if not isnan(self.totals[one])), key=lambda one: sign * self.totals[one]
            )
        else:
            ranked = sorted(order, key=self.estimated_ttft_ps.__getitem__)
        return [self.candidates[place] for place in ranked[:count]]


class Decisions(Sequence[Decision]):
    """All routing decisions in order of time; `verdicts` are those of admission that let nobody in. One that was taken
    anew, since an instance lost the request or had to part with it, is an entry of its own."""

    __slots__ = ("_rows", "verdicts")

    def __init__(self, rows: Sequence[Decision], verdicts: Sequence[Verdict] = ()) -> None:
        self._rows = rows
        self.verdicts = list(verdicts)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, place: int) -> Decision:  # type: ignore[override]
        return self._rows[place]

    def __iter__(self) -> Iterator[Decision]:
        return iter(self._rows)

    def of(self, request: int) -> list[Decision]:
        """Those on one request, in order."""
        return [one for one in self if one.request == request]
