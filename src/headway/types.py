"""The vocabulary of the system: what a request is, what a router sees, what it may answer.

Nothing here knows whether it is used by the simulator or by a live gateway, and nothing here holds what a router
cannot know: the true output length of a request lives on the simulator's own `Job`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Protocol

from msgspec import Struct, field

from headway.errors import HeadwayError as HeadwayError
from headway.errors import InvariantError as InvariantError
from headway.errors import UndeclaredSignal as UndeclaredSignal
from headway.instance_view import Estimator as Estimator
from headway.instance_view import InstanceView as InstanceView
from headway.pool_view import LoadSample as LoadSample
from headway.pool_view import PoolView as PoolView

PS_PER_SECOND: Final = 1_000_000_000_000


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


class TenantView(Protocol):
    """One tenant as this router has seen it up to now."""

    @property
    def requests(self) -> int:
        """Requests that came so far, the one that is being decided on included."""

    @property
    def active(self) -> int:
        """Those of them that were let in and have not ended, in the router's queue or at an instance."""

    @property
    def rate(self) -> float:
        """Requests a second over the last 10 s, that is in (now - 10 s, now]."""

    @property
    def slo_class(self) -> str:
        """Of its latest request."""

    @property
    def burst(self) -> bool:
        """At least 5 requests in the last second, and more than twice as many as its rate over the last 10 s (or since
        its first request, where that is less long ago) would bring."""


class Totals(Protocol):
    """All that this router has seen up to now."""

    @property
    def inflight(self) -> int:
        """Requests that it sent to an instance and that have not ended."""

    @property
    def queued(self) -> int:
        """Requests that wait in its own queue."""

    @property
    def rate(self) -> float:
        """Requests that came, a second over the last 10 s, that is in (now - 10 s, now]."""

    @property
    def throughput(self) -> float:
        """Output tokens of the requests that ended in (now - 10 s, now], a second."""


# What a router keeps of its own past, only for the policies that say that they read it.
KEPT: Final = ("tenants", "totals", "recent")


class ClusterView:
    """What a policy sees of the cluster at one decision. `tenants` and `totals` are there where a policy of the run
    declares that it reads them, or declares nothing."""

    __slots__ = ("_tenants", "_totals", "explain", "group", "instances", "now_ps", "priority")

    def __init__(self, instances: Sequence[InstanceView]) -> None:
        self.instances = tuple(instances)  # those that can serve this request, in order of index
        self.group = 0  # number of that set of instances, for who keeps a count of each; one model has one
        self.now_ps = 0
        self.priority = NO_PRIORITY  # of the request that is being routed
        self.explain = False  # whether somebody reads the scorecards of routes
        self._tenants: Mapping[str, TenantView] | None = None
        self._totals: Totals | None = None

    @property
    def now(self) -> float:
        return self.now_ps / PS_PER_SECOND

    @property
    def tenants(self) -> Mapping[str, TenantView]:
        if self._tenants is None:
            raise undeclared("tenants")
        return self._tenants

    @property
    def totals(self) -> Totals:
        if self._totals is None:
            raise undeclared("totals")
        return self._totals

    def keep(self, tenants: Mapping[str, TenantView] | None, totals: Totals | None) -> None:
        """For whoever keeps them true."""
        self._tenants = tenants
        self._totals = totals


def undeclared(name: str) -> UndeclaredSignal:
    return UndeclaredSignal(
        f"policies: 'cluster.{name}' was read, and no policy of this run declares it; write "
        f'exact=("{name}",) in the @policy line of the one that reads it.'
    )


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


class Routed(Struct, frozen=True, gc=False):
    """Observation: the router sent a request to an instance."""

    at_ps: int
    request: Request
    instance: InstanceView
    prefill: InstanceView | None = None  # that which computes the prompt, where it is another


class Handed(Struct, frozen=True, gc=False):
    """Observation: a prompt was computed on one instance, and the request goes on to the other."""

    at_ps: int
    request: Request
    instance: InstanceView  # that which generates
    prefill: InstanceView


class FirstToken(Struct, frozen=True, gc=False):
    at_ps: int
    request: Request
    instance: InstanceView


class Finished(Struct, frozen=True, gc=False):
    at_ps: int
    request: Request
    instance: InstanceView
    outcome: str
    output_tokens: int


class InstanceChanged(Struct, frozen=True, gc=False):
    """Observation: an instance comes, goes, or is not to be sent anything for a time. `instance.state` is the new
    state; where that is `stopped`, whatever was cached there is gone."""

    at_ps: int
    instance: InstanceView
    was: str


Event = Routed | Handed | FirstToken | Finished | InstanceChanged

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
