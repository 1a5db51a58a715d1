"""What a run leaves beside its requests and its decisions, one struct a line of a file."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from msgspec import Struct

from headway.types import Json

Record = TypeVar("Record")
Key = TypeVar("Key", bound=Hashable)


class Preemption(Struct, frozen=True, gc=False):
    """A request had to yield its blocks to others."""

    at_ps: int
    instance: int
    request: int


class Thrash(Struct, frozen=True, gc=False):
    """A request loaded blocks from a store below the GPU that had been stored away less than a second before."""

    at_ps: int
    instance: int
    request: int
    tier: str
    blocks: int


class Batch(Struct, frozen=True, tag_field="event", tag="batch"):
    """The batch of an instance changed: who entered it, how many it then had, and how many waited beside."""

    at_ps: int
    instance: int
    entered: list[int]
    running: int
    queued: int
    prefill_tokens: int  # that the next step computes


class KvMove(Struct, frozen=True, gc=False, tag_field="event", tag="kv_move"):
    """Blocks set out from one store of an instance to another."""

    at_ps: int
    instance: int
    kind: str  # offload and reload; swap_out and swap_in of a request that had to yield
    tier: str  # the store below the GPU that they come from, or go into
    blocks: int
    request: int = -1  # where they are one request's


class Series(Struct, frozen=True):
    """A value of one instance over time: `values[k]` as the instant k·`interval_ps` after `start_ps` left it."""

    name: str  # kv_used
    instance: int
    start_ps: int
    interval_ps: int
    values: list[int]


class Counterfactual(Struct, frozen=True):
    """What another target would have given a request: the same run again, but for this decision and what followed. A
    time that never came is -1; an objective without a value is None."""

    request: int
    at_ps: int
    chosen: int  # the instance that generates
    alternative: int
    ttft_ps: int
    alternative_ttft_ps: int
    e2e_ps: int
    alternative_e2e_ps: int
    objective: str  # a figure of the summary, as in slo.goodput_ratio
    value: float | None  # in the run as it was
    alternative_value: float | None
    chosen_prefill: int = -1  # the instance that computes the prompt, where that is another
    alternative_prefill: int = -1
    # Of the prompt, found where it went, and where it would have gone; -1 where it would have been sent on from there.
    cached_tokens: int = 0
    alternative_cached_tokens: int = 0

    @property
    def changed(self) -> int:
        """The instance that the request would have gone to instead: of a pair one half is another."""
        return self.alternative if self.alternative != self.chosen else self.alternative_prefill

    @property
    def regret_ps(self) -> int | None:
        """By how much sooner the first token would have come; negative where later."""
        if self.ttft_ps < 0 or self.alternative_ttft_ps < 0:
            return None
        return self.ttft_ps - self.alternative_ttft_ps


def best_alternatives(tried: Sequence[Counterfactual]) -> dict[int, int]:
    """By request, where the alternative stands that gave the earliest first token; none where one never came."""
    best: dict[int, int] = {}
    for place, other in enumerate(tried):
        if other.regret_ps is not None:
            known = best.setdefault(other.request, place)
            if other.alternative_ttft_ps < tried[known].alternative_ttft_ps:
                best[other.request] = place
    return best


class Prompt(Struct, frozen=True):
    """What a prompt is made of, of live traffic: its blocks by their keys, never its text."""

    request: int
    tokens: int  # as the router counted them, which the ends below refer to
    keys: Sequence[int]  # each of which commits to all before it
    ends: Sequence[int]  # in tokens
    max_tokens: int | None = None  # what the client asked for


class Finding(Struct, frozen=True):
    """Something about a run that somebody should know: what, when, whom it concerns and by which figures."""

    kind: str  # priority_inversion, slo_violation, ...
    at_ps: int  # when it began
    until_ps: int  # when it ended
    severity: float  # from 0, hardly worth a word, to 1
    count: int  # requests, or events, that it is about
    title: str  # one sentence, with the figures that matter most
    requests: list[int] = []  # the first or worst of them, at most EXAMPLES
    instances: list[int] = []
    evidence: Json = {}  # the figures, each by its name


EXAMPLES = 20


def group_by(records: Iterable[Record], key: Callable[[Record], Key]) -> dict[Key, list[Record]]:
    """The records by a key, in order within each group."""
    groups: dict[Key, list[Record]] = {}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    return groups
