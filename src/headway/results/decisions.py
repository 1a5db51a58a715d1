"""The decisions of a run: the verdicts of admission, and the routing decisions. Each routing decision includes what the
router knew about the candidates."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Protocol, overload

import msgspec
from msgspec import Struct

from headway.display.displayed import pandas_frame, polars_frame, types_of
from headway.policies.kv_aware import TERMS
from headway.results.router_past import RouterState, TenantState
from headway.views.instance import SIGNALS
from headway.views.signals import UNITS

# Columns of a data frame that describe the whole decision.
WHOLE: Final = (
    "request", "at_ps", "reason", "priority", "prompt_tokens", "prefix", "predicted_tokens", "cached_tokens", "tier",
    "ttft_ps", "e2e_ps", "expected_tokens",
)  # fmt: skip


class Verdict(Struct, frozen=True, gc=False):
    """Admission rejected or delayed a request. A request without a verdict was admitted on arrival."""

    at_ps: int
    request: int
    verdict: str  # "rejected" or "delayed"
    reason: str = ""
    delay_ps: int = 0


class PriorityRecord(Struct, frozen=True):
    """A priority policy set the importance of an admitted request. A request without a record has no priority."""

    at_ps: int
    request: int
    score: float
    hints: dict[str, float] = {}
    reason: str = ""  # the policy's reason, or its name


class Decision(Struct, frozen=True):
    """A decision to send a request to an instance. Lists have one entry per candidate, in the order of `candidates`."""

    request: int
    at_ps: int
    router: int
    target: int  # index of the instance that the request was sent to
    prefill: int  # index of the instance that computes the prompt; -1 if it is the target
    reason: str
    priority: float
    candidates: list[int]
    # Signals of the candidates that the router saw.
    inflight: list[int]
    pending_prefill_tokens: list[int]
    queued: list[int]
    running: list[int]
    kv_used: list[int]  # empty if no policy of the run declares this signal
    # Number of prompt tokens that the router believed to be cached, and the TTFT that the latency model estimates.
    # The TTFT is -1 for candidates that could not compute the prompt. These are the decode instances.
    # If the chosen decode instance computes the prompt itself, these are the prefill instances instead.
    believed_tokens: list[int]
    estimated_ttft_ps: list[int]
    # Scores by scorer, and total scores. Both are empty if the policy gives no scores.
    # An entry is None if a filter removed the candidate.
    scores: dict[str, list[float | None]]
    totals: list[float | None]
    lowest_wins: bool
    # The outcome: number of tokens that were actually cached, the slowest tier that had any of them (gpu, cpu or
    # storage; an empty string if no tier had any), and the latencies (-1 if the event never happened).
    predicted_tokens: int = 0  # number of tokens that the policy believed to be cached
    cached_tokens: int = 0
    tier: str = ""
    outcome: str = ""
    ttft_ps: int = -1
    e2e_ps: int = -1
    # The request, and what the routers knew of the load at the decision; None or empty in folders of older versions.
    prompt_tokens: int = 0
    prefix: str = ""  # key of the first run of the prompt's tokens, in hex: equal keys mean equal beginnings
    # What the estimator expected the request to generate, and its stated error; None if no estimator ran.
    expected_tokens: int | None = None
    expected_error: float | None = None
    router_state: RouterState | None = None
    tenant: TenantState | None = None
    # Further signals of the candidates. `tier_used` is empty if no policy of the run declares it. If no policy declares
    # `hit_rate`, it is computed from the requests. The recent latencies are in seconds, and None for a candidate that
    # has none in the last 10 s.
    tier_used: list[dict[str, int]] = []
    hit_rate: list[float] = []
    recent_ttft: list[float | None] = []
    recent_tpot: list[float | None] = []

    def place(self, instance: int) -> int:
        """Return the position of the instance's entry in the lists."""
        return self.candidates.index(instance)

    @property
    def judged(self) -> int:
        """Index of the instance that computes the prompt."""
        return self.prefill if self.prefill >= 0 else self.target

    def estimated_regret_ps(self) -> int | None:
        """Return how much earlier the best candidate would give the first token, according to the latency model; None
        if the chosen instance has no estimate."""
        chosen = self.estimated_ttft_ps[self.place(self.judged)]
        return None if chosen < 0 else chosen - min(estimate for estimate in self.estimated_ttft_ps if estimate >= 0)

    def top(self, count: int) -> list[int]:
        """Return the best candidates by the policy's totals or, if it gave no totals, by the latency model."""
        if self.totals:
            sign = 1 if self.lowest_wins else -1
            ranked = [(sign * total, place) for place, total in enumerate(self.totals) if total is not None]
        else:
            ranked = [(float(ttft), place) for place, ttft in enumerate(self.estimated_ttft_ps) if ttft >= 0]
        return [self.candidates[place] for _, place in sorted(ranked)[:count]]


# RECORDED: signals that a decision records for each candidate. EACH: columns of a data frame that describe a candidate.
RECORDED: Final = tuple(name for name, signal in SIGNALS.items() if signal.recorded)
# The same signals sorted by kind: first the numbers of requests.
RECORDED_BY_KIND: Final = sorted(RECORDED, key=lambda name: list(UNITS).index(SIGNALS[name].kind))
RECORDED_SINGLE: Final = [name for name in RECORDED_BY_KIND if name != "tier_used"]  # signals with a single value
EACH: Final = (*(name for name in RECORDED if name in RECORDED_SINGLE), "believed_tokens", "estimated_ttft_ps")
SECONDS: Final = {name: float for name in RECORDED if SIGNALS[name].kind == "seconds"}
# Without an estimator, the expected tokens are missing, which a column of pandas can only say with floats.
TYPES: Final = {**types_of(Decision), **SECONDS, "candidate": int, "chosen": bool, "expected_tokens": float}


class Rows(Protocol):
    """Storage that builds a decision when it is accessed."""

    def __len__(self) -> int: ...

    def __getitem__(self, place: int, /) -> Decision: ...

    def __iter__(self) -> Iterator[Decision]: ...

    def choices(self) -> Iterable[tuple[int, int]]:
        """Yield the request and the number of candidates of each decision."""


class Decisions(Sequence[Decision]):
    """All routing decisions in order of time, and the `verdicts` of admission that rejected or delayed requests. A
    request that was dispatched again has several entries."""

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

    def __iter__(self) -> Iterator[Decision]:
        return iter(self._rows)

    def choices(self) -> Iterable[tuple[int, int]]:
        """Return the request and the number of candidates of each decision, without building the decisions."""
        if isinstance(self._rows, Sequence):
            return [(decision.request, len(decision.candidates)) for decision in self._rows]
        return self._rows.choices()

    def of(self, request: int) -> list[Decision]:
        """Return the decisions on one request, in order."""
        return [self[place] for place, (row, _) in enumerate(self.choices()) if row == request]

    def find(self, at_ps: int, request: int) -> int | None:
        """Return the index of the decision on a request at time `at_ps`; None if there is no such decision."""
        place = bisect_left(self, at_ps, key=lambda decision: decision.at_ps)
        while place < len(self) and (decision := self[place]).at_ps == at_ps:
            if decision.request == request:
                return place
            place += 1
        return None

    def columns(self) -> dict[str, list[Any]]:
        """Return the columns of a data frame with a row per candidate of each decision, and a column per scorer."""
        scorers = list(dict.fromkeys(name for decision in self for name in decision.scores))
        stores = list(dict.fromkeys(name for decision in self for used in decision.tier_used for name in used))
        further = [*(f"tier_used.{name}" for name in stores), *(f"score.{name}" for name in scorers)]
        columns: dict[str, list[Any]] = {name: [] for name in (*WHOLE, "candidate", "chosen", *EACH, "total", *further)}
        for decision in self:
            empty: list[Any] = [None] * len(decision.candidates)
            for name in WHOLE:
                columns[name] += [getattr(decision, name)] * len(decision.candidates)
            columns["candidate"] += decision.candidates
            columns["chosen"] += [index in (decision.target, decision.prefill) for index in decision.candidates]
            for name in EACH:
                columns[name] += getattr(decision, name) or empty
            columns["total"] += decision.totals or empty
            for name in stores:
                columns[f"tier_used.{name}"] += [used.get(name) for used in decision.tier_used] or empty
            for name in scorers:
                columns[f"score.{name}"] += decision.scores.get(name, empty)
        return columns

    def to_pandas(self) -> Any:
        return pandas_frame(self.columns(), TYPES)

    def to_polars(self) -> Any:
        return polars_frame(self.columns(), TYPES)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Decisions) or self.verdicts != other.verdicts:
            return False
        encode = msgspec.json.Encoder().encode_lines  # compare encodings, because NaN is not equal to itself
        return encode(self) == encode(other)

    __hash__ = None  # type: ignore[assignment]


def scorer_weights(routing: object) -> dict[str, float]:
    """Return the weights of a policy's scorers, or of the terms of `kv-aware`, by the names that they have in a
    decision. If the policy has neither, return an empty dict."""
    if isinstance(routing, dict) and all(name in routing for name in TERMS):
        return {name: float(routing[name]) for name in TERMS}
    scorers = routing.get("scorers") if isinstance(routing, dict) else None
    weights: dict[str, float] = {}
    for scorer in scorers if isinstance(scorers, list) else ():
        if isinstance(scorer, dict) and isinstance(scorer.get("weight"), int | float):
            name = scorer["name"]
            times = sum(known.partition("#")[0] == name for known in weights)
            weights[f"{name}#{times + 1}" if times else name] = float(scorer["weight"])
    return weights
