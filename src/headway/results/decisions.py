"""The decisions of a run and what they rested on: who was refused or put off, how much each request mattered, and for
each that was sent to an instance what the router saw of every candidate, what it believed and how it chose.

Kept in columns, one entry a decision and one a candidate of it, since there are as many decisions as requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import msgspec
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
    # What it believed: prompt tokens cached there, and the time to first token that the latency model gives, which is
    # -1 of an instance that computes no prompts.
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

    def estimated_regret_ps(self) -> int:
        """By how much sooner the first token would have come from the best candidate, as far as the model told."""
        judged = self.prefill if self.prefill >= 0 else self.target
        return self.estimated_ttft_ps[self.place(judged)] - min(one for one in self.estimated_ttft_ps if one >= 0)

    def top(self, count: int) -> list[int]:
        """The best candidates as the policy ranked them, or as the latency model does where it gave no totals."""
        if self.totals:
            sign = 1 if self.lowest_wins else -1
            found = [(sign * total, place) for place, total in enumerate(self.totals) if total is not None]
        else:
            found = [(float(one), place) for place, one in enumerate(self.estimated_ttft_ps) if one >= 0]
        return [self.candidates[place] for _, place in sorted(found)[:count]]


class Decisions(Sequence[Decision]):
    """All routing decisions in order of time; `verdicts` are those of admission that let nobody in. One that was taken
    anew, since an instance lost the request or had to part with it, is an entry of its own."""

    def __init__(self, rows: Sequence[Decision], verdicts: Sequence[Verdict] = ()) -> None:
        self._rows = rows
        self.verdicts = list(verdicts)

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, place: int) -> Decision: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Decision]: ...
    def __getitem__(self, place: int | slice) -> Decision | Sequence[Decision]:
        return self._rows[place]

    def of(self, request: int) -> list[Decision]:
        """Those on one request, in order."""
        return [one for one in self if one.request == request]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Decisions) and self.verdicts == other.verdicts and encoded(self) == encoded(other)

    __hash__ = None  # type: ignore[assignment]


def encoded(decisions: Sequence[Decision]) -> bytes:
    """As they are written: a score that is no number is equal to itself there."""
    return msgspec.json.Encoder().encode_lines(decisions)
