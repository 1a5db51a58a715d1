"""The vocabulary of the system: requests, and the answers that a policy may return.

The simulator and the live gateway share these types. They contain only what a router can know. The true output length
of a request is therefore not here, but in the simulator's `Job`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Literal

from msgspec import Struct, field

PS_PER_SECOND: Final = 1_000_000_000_000
PS_PER_MS: Final = 1_000_000_000
PS_PER_US: Final = 1_000_000
PS_PER_NS: Final = 1_000
NEVER: Final = 1 << 120  # a time in picoseconds that is later than any event
# Rules for the load of an instance, see `InstanceView.effective_load`
LoadRule = Literal["snapshot", "outstanding"]
# Which blocks a router's prefix indexes contain. `routed`: the blocks of the prompts that the router sent. `stored`:
# the blocks that instances report as stored. `both`: all of these.
Belief = Literal["routed", "both", "stored"]


class Path(Struct, eq=False, gc=False):
    """A prompt, divided into runs of consecutive tokens. `keys[i]` names the tokens from `ends[i-1]` up to `ends[i]`
    *and all tokens before them*, so equal keys mean equal prefixes. If two runs have the same key, the shorter run is a
    prefix of the longer one.

    A prompt is stored as runs, not blocks, so that a long prompt with long shared prefixes needs only a few numbers.
    """

    keys: tuple[int, ...]
    ends: tuple[int, ...]
    _size: int = 0  # the block size for which `_blocks` was computed, in tokens
    _blocks: tuple[tuple[int, int], ...] = ()

    def blocks(self, size: int) -> tuple[tuple[int, int], ...]:
        """Return the full blocks of `size` tokens, grouped by run. Each element is the key of a run and the number of
        blocks from the start of the prompt to the end of the run. A block belongs to the run that contains its last
        token."""
        if size != self._size:
            keys = self.keys  # `keys` and `ends` have equal lengths; `strict=True` would be slower
            stops = [end // size for end in self.ends]
            runs = list(zip(keys, stops))  # noqa: B905
            if stops and (not stops[0] or len(set(stops)) < len(stops)):  # drop short runs, in which no block ends
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
    """A request as the router sees it."""

    id: int  # position in the order of arrival
    arrival_ps: int
    prompt_tokens: int
    path: Path
    model: str = ""
    tenant: str = "default"
    slo_class: str = "standard"
    session: str | None = None
    turn: int = 0  # index of the request's turn in its session, from 0
    max_tokens: int | None = None  # output limit that the client sets; never derived from the true length
    deadline_ps: int | None = None
    adapter: str | None = None
    shared_prefix_tokens: int = 0  # number of leading tokens that the client declares as shared (system prompt)
    kind: str = "completion"  # completion, chat, agentic or reasoning

    @property
    def arrival(self) -> float:
        return self.arrival_ps / PS_PER_SECOND

    @property
    def deadline(self) -> float | None:
        """The time in seconds at which the client gives up; None if it waits without limit."""
        return None if self.deadline_ps is None else self.deadline_ps / PS_PER_SECOND


Hints = Mapping[str, float]


class Priority(Struct, frozen=True, gc=False):
    """The importance of a request (higher is more important) and hints for schedulers."""

    score: float = 0.0
    hints: Hints = MappingProxyType({})
    reason: str = ""  # why the request has this score; only recorded


NO_PRIORITY: Final = Priority()


class Estimate(Struct, frozen=True, gc=False):
    """How many tokens a request is expected to generate."""

    tokens: int
    error: float | None = None  # stated error: mean absolute error ÷ mean length of earlier answers; None: unknown


class Admit(Struct, frozen=True, gc=False):
    pass


class Reject(Struct, frozen=True, gc=False):
    reason: str


class Delay(Struct, frozen=True, gc=False):
    """Delay the request and decide again after the duration."""

    duration_ps: int


class Scorecard(Struct, frozen=True):
    """The steps of a routing decision. A policy returns a scorecard if `ClusterView.explain` is set."""

    candidates: list[str]  # ids of all instances before filtering
    picked: str  # id of the chosen instance
    removed: dict[str, list[str]] = field(default_factory=dict)  # filter -> ids of the instances that it removed
    passed_over: list[str] = field(default_factory=list)  # filters skipped because they would remove all instances
    left: list[str] = field(default_factory=list)  # ids of the instances that were scored
    scores: dict[str, list[float]] = field(default_factory=dict)  # scores by name of the scorer, in the order of `left`
    totals: list[float] = field(default_factory=list)  # total scores that the picker compared, in the order of `left`
    lowest_wins: bool = False  # whether the lowest total wins instead of the highest
    prefill: Scorecard | None = None  # scorecard of the prefill instance, if the policy chooses one


class Route(Struct, frozen=True, gc=False):
    target: str  # id of the chosen instance
    reason: str = ""
    cached_tokens: int = 0  # number of prompt tokens that the policy expects in the target's cache
    priority: float | None = None  # priority for the instance's scheduler; None: the score of the priority stage
    scorecard: Scorecard | None = None
    prefill: str | None = None  # id of the instance that computes the prompt; None: the target computes it


class Scale(Struct, frozen=True, gc=False):
    """The number of replicas that a pool should have."""

    replicas: int
    reason: str = ""


ADMIT: Final = Admit()

# Groups of instance states. A warming instance serves requests, but more slowly than a ready one.
# The remaining states, `draining` and `stopped`, belong to no group.
SERVING: Final = ("warming", "ready")
STARTING: Final = ("provisioning", "loading")
REPLICAS: Final = (*STARTING, *SERVING, "unreachable")  # the states that count towards a pool's replicas

# Reasons why a request left its instance before it ended. They are not outcomes, because the request continues.
REDIRECTED: Final = "redirected"
RETRIED: Final = "retried"
OUTCOMES: Final = ("completed", "rejected", "timed_out", "failed", "in_flight")

Json = dict[str, Any]
