"""The vocabulary of the system: what a request is, and what a policy may answer.

Nothing here knows whether it is used by the simulator or by a live gateway, and nothing here holds what a router
cannot know: the true output length of a request lives on the simulator's own `Job`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from msgspec import Struct, field

PS_PER_SECOND: Final = 1_000_000_000_000
PS_PER_MS: Final = 1_000_000_000
PS_PER_US: Final = 1_000_000
PS_PER_NS: Final = 1_000
NEVER: Final = 1 << 120  # in picoseconds: later than any instant


class Path(Struct, eq=False, gc=False):
    """A prompt as runs of tokens. `keys[i]` names the tokens from `ends[i-1]` up to `ends[i]` *and everything before
    them*, so equal key means equal prefix; a shorter run with the same key is the beginning of the longer one.

    Runs, not blocks, so that a long prompt that shares long stretches with others stays a handful of numbers.
    """

    keys: tuple[int, ...]
    ends: tuple[int, ...]
    _size: int = 0  # of the blocks asked for last
    _blocks: tuple[tuple[int, int], ...] = ()

    def blocks(self, size: int) -> tuple[tuple[int, int], ...]:
        """The full blocks of `size` tokens as (key, end block) runs; a block belongs to the run of its last token."""
        if size != self._size:
            keys = self.keys  # as many as there are ends; to check takes longer
            stops = [end // size for end in self.ends]
            runs = list(zip(keys, stops))  # noqa: B905
            if stops and (not stops[0] or len(set(stops)) < len(stops)):  # some runs have no block of their own
                before = [0, *stops]
                runs = [run for run, last in zip(runs, before) if run[1] > last]  # noqa: B905
            self._blocks = tuple(runs)
            self._size = size
        return self._blocks

    @property
    def tokens(self) -> int:
        return self.ends[-1] if self.ends else 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Path) and self.keys == other.keys and self.ends == other.ends

    def __hash__(self) -> int:
        return hash((self.keys, self.ends))

    def __repr__(self) -> str:
        return f"Path(keys={self.keys}, ends={self.ends})"


class Request(Struct, frozen=True, gc=False):
    """What a router may know of a request."""

    id: int  # position in order of arrival
    arrival_ps: int
    prompt_tokens: int
    path: Path
    model: str = ""
    tenant: str = "default"
    slo_class: str = "standard"
    session: str | None = None
    turn: int = 0  # of the session, from 0
    max_tokens: int | None = None  # what the client asked for, never derived from the true length
    deadline_ps: int | None = None
    adapter: str | None = None
    shared_prefix_tokens: int = 0  # leading tokens that the client declares as shared (a system prompt), 0 if none
    kind: str = "completion"  # completion, chat, agentic or reasoning

    @property
    def arrival(self) -> float:
        return self.arrival_ps / PS_PER_SECOND


Hints = Mapping[str, float]


class Priority(Struct, frozen=True, gc=False):
    """How much a request matters, higher is more, and hints for whoever schedules it."""

    score: float = 0.0
    hints: Hints = MappingProxyType({})


NO_PRIORITY: Final = Priority()


class Admit(Struct, frozen=True, gc=False):
    pass


class Reject(Struct, frozen=True, gc=False):
    reason: str


class Delay(Struct, frozen=True, gc=False):
    """Not now: ask again after so long."""

    duration_ps: int


class Scorecard(Struct, frozen=True):
    """How a routing decision came about. A policy writes one where `ClusterView.explain` asks for it."""

    candidates: list[str]  # ids of the instances at first
    picked: str  # id
    removed: dict[str, list[str]] = field(default_factory=dict)  # by filter, in turn: ids that it would not keep
    passed_over: list[str] = field(default_factory=list)  # filters that would have left nobody, and so left all
    left: list[str] = field(default_factory=list)  # ids that were scored
    scores: dict[str, list[float]] = field(default_factory=dict)  # by scorer, for those that were left
    totals: list[float] = field(default_factory=list)  # by which it was picked
    lowest_wins: bool = False  # of the totals; else the highest
    prefill: Scorecard | None = None  # of a pair: that of the instance which computes the prompt


class Route(Struct, frozen=True, gc=False):
    target: str  # an instance's id
    reason: str = ""
    cached_tokens: int = 0  # prompt tokens the policy believes cached on the target
    priority: float | None = None  # for the instance's scheduler; None leaves the priority stage's score
    scorecard: Scorecard | None = None
    prefill: str | None = None  # the instance that computes the prompt, where that is not the target


class Scale(Struct, frozen=True, gc=False):
    """How many replicas a pool is to have."""

    replicas: int
    reason: str = ""


ADMIT: Final = Admit()


# What an instance goes through. Requests go to it while it is warming (slower than usual) and ready.
STATES: Final = ("provisioning", "loading", "warming", "ready", "draining", "unreachable", "stopped")
SERVING: Final = ("warming", "ready")
STARTING: Final = ("provisioning", "loading")
REPLICAS: Final = (*STARTING, *SERVING, "unreachable")  # those that count as such: neither about to go nor gone

# How a request's stay on one instance may end, while it goes on elsewhere or is sent again: no outcome of the request.
REDIRECTED: Final = "redirected"
RETRIED: Final = "retried"
OUTCOMES: Final = ("completed", "rejected", "timed_out", "failed", "in_flight")


Json = dict[str, Any]
