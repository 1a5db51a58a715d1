"""One instance as a router sees it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar, Final, NoReturn, Protocol

from headway.errors import HeadwayError, UndeclaredSignal


class Estimator(Protocol):
    """Step times of an instance as a pure function, for those who predict."""

    def step_seconds(self, view: InstanceView, prefill_tokens: int, decodes: int, context: int) -> float: ...


class Recent(Protocol):
    """What the router has seen of an instance in the last 10 s, that is in (now - 10 s, now]."""

    @property
    def ttft(self) -> float | None:
        """Mean over the requests whose first token came."""

    @property
    def tpot(self) -> float | None:
        """Mean over the completed requests of two tokens and more."""

    @property
    def tokens_per_second(self) -> float:
        """Output tokens of the requests that ended, a second."""


NO_TIERS: Final[Mapping[str, int]] = {}


class InstanceView:
    """One instance as the router sees it. Long-lived and plain: whoever owns the truth writes the values before a
    policy looks, so a view leads nowhere but to itself, to an estimator of step times and to the router's own past. A
    signal that no policy of the run declares is hidden, so that a value nobody keeps true is told and never served."""

    hidden: ClassVar[tuple[str, ...]] = ()
    __slots__ = (
        "_estimator",
        "_recent",
        "adapter_slots",
        "adapters",
        "busy",
        "capacity",
        "completed",
        "decode_tokens",
        "hit_rate",
        "id",
        "index",
        "inflight",
        "inflight_tokens",
        "kv_blocks",
        "kv_used",
        "max_batch_size",
        "max_batch_tokens",
        "max_queue",
        "model",
        "observed_at",
        "offload_rate",
        "output_tokens",
        "pending_prefill_tokens",
        "pool",
        "queued",
        "reload_rate",
        "role",
        "routed",
        "routed_since_report",
        "running",
        "serves",
        "state",
        "tier_blocks",
        "tier_used",
        "watts",
    )

    def __init__(
        self,
        index: int,
        id: str,
        *,
        model: str = "",
        pool: str = "default",
        kv_blocks: int = 1,
        max_batch_size: int = 256,
        max_batch_tokens: int = 2048,
        max_queue: int = 256,
        capacity: float = 1.0,
        adapter_slots: int | None = None,
        serves: tuple[str, ...] = (),
        tier_blocks: Mapping[str, int] = NO_TIERS,
    ) -> None:
        # identity
        self.index = index
        self.id = id
        self.pool = pool
        self.model = model
        self.serves = serves  # names of models it answers to; empty where requests are not told apart by model
        self.role = "both"
        self.state = "ready"
        # exact: counted by this router itself
        self.inflight = 0  # requests routed here and not yet ended, each once
        self.inflight_tokens = 0  # their prompt tokens
        self.pending_prefill_tokens = 0  # prompt tokens believed uncached, of those without a first token
        self.decode_tokens = 0  # prompt tokens of those with one
        self.routed = 0  # requests that ever were
        self.completed = 0  # those of them that got all their tokens
        self.output_tokens = 0  # of all that have ended
        self._recent: Recent | None = None  # where somebody keeps it
        # reported by the instance, all at once
        self.observed_at: int | None = None  # when it said so, in ps; None where the signals are as of now
        self.queued = 0
        self.running = 0
        self.routed_since_report = 0  # requests that came to it then or later; counted by this router, so exact
        self.kv_used = 0  # blocks that some request holds
        self.hit_rate = 0.0  # share of prompt tokens found cached, over the last 100 requests that entered the batch
        self.tier_used: Mapping[str, int] = NO_TIERS  # blocks in use in each store below the GPU, by its name
        self.offload_rate = 0.0  # blocks a second that went down from the GPU, over the last 10 s
        self.reload_rate = 0.0  # and that were fetched up again
        self.busy = 0.0  # share of the last 5 s with work (the simulator's stand-in for SM utilisation)
        self.watts = 0.0  # mean over the last 30 s
        self.adapters: tuple[str, ...] = ()  # names of those it has loaded, sorted; empty where they are always there
        # static
        self.kv_blocks = kv_blocks
        self.max_batch_size = max_batch_size
        self.max_batch_tokens = max_batch_tokens
        self.max_queue = max_queue
        self.tier_blocks = tier_blocks  # what each store below the GPU holds, by its name, the fastest first
        self.capacity = capacity  # static figure in [0, 1] from TP, dtype, memory and free model slots
        self.adapter_slots = adapter_slots  # how many adapters it holds; None where they are always there
        self._estimator: Estimator | None = None

    @property
    def effective_load(self) -> int:
        """Each outstanding request once: reported queue and batch, and what was routed since that report."""
        return self.queued + self.running + self.routed_since_report

    @property
    def kv_utilization(self) -> float:
        return self.kv_used / self.kv_blocks

    @property
    def free_blocks(self) -> int:
        return self.kv_blocks - self.kv_used

    def tier_utilization(self, tier: str) -> float:
        """Share of a store below the GPU that is in use: cpu or storage; 0 where there is none."""
        return self.tier_used.get(tier, 0) / self.tier_blocks[tier] if tier in self.tier_blocks else 0.0

    @property
    def free_sequences(self) -> int:
        """How many more the batch could take."""
        return max(0, self.max_batch_size - self.running)

    @property
    def recent_ttft(self) -> float | None:
        """Mean seconds, of the requests whose first token came in the last 10 s; None where none did."""
        return self._past().ttft

    @property
    def recent_tpot(self) -> float | None:
        """Mean seconds, of the requests of two tokens and more that completed in the last 10 s; None where none did."""
        return self._past().tpot

    @property
    def tokens_per_second(self) -> float:
        """Output tokens of the requests that ended in the last 10 s, a second."""
        return self._past().tokens_per_second

    def _past(self) -> Recent:
        if self._recent is None:
            raise undeclared("recent", "exact")
        return self._recent

    @property
    def estimated_wait(self) -> float:
        """Seconds to compute the prefill that is pending here."""
        return self.estimated_ttft(0)

    def estimated_ttft(self, tokens: int) -> float:
        """Seconds to compute the prefill that is pending here and so many tokens more.

        It is done in steps of max_batch_tokens, of which each running sequence takes one token to decode, over the
        prompt tokens in flight that are no longer pending; the estimator's times of these steps add up.
        """
        return self.estimate(tokens, self.running, self.pending_prefill_tokens, self.inflight_tokens)

    def estimate(self, tokens: int, decodes: int, pending: int, inflight_tokens: int) -> float:
        """The same with other counts than those of now."""
        if self._estimator is None:
            raise HeadwayError(f"{self.id}: nothing estimates step times here; bind the policies to a Context first.")
        step_seconds = self._estimator.step_seconds
        context = max(0, inflight_tokens - pending) if decodes else 0
        chunk = max(1, self.max_batch_tokens - decodes)
        steps, rest = divmod(pending + tokens, chunk)
        seconds = step_seconds(self, rest, decodes, context) if rest else 0.0
        return seconds + steps * step_seconds(self, chunk, decodes, context) if steps else seconds

    def hide(self, *signals: str) -> None:
        """Nobody keeps these true in this run: to read one is told."""
        self.__class__ = _without(tuple(sorted({*self.hidden, *signals})))

    def __reduce__(self) -> tuple[Any, ...]:
        """The class of views that hide something has no name of its own, by which a copy could be made."""
        values = {name: getattr(self, name) for name in InstanceView.__slots__ if name not in self.hidden}
        return _made, (self.hidden,), (None, values)

    def __repr__(self) -> str:
        return f"InstanceView({self.id}, inflight={self.inflight}, queued={self.queued}, running={self.running})"


def undeclared(signal: str, kind: str) -> UndeclaredSignal:
    otherwise = ', or leave "reported" out there' if kind == "reported" else ""
    return UndeclaredSignal(
        f"policies: the signal {signal!r} was read, and no policy of this run declares it; write "
        f'{kind}=("{signal}",) in the @policy line of the one that reads it{otherwise}.'
    )


@cache
def _without(signals: tuple[str, ...]) -> type[InstanceView]:
    """A view on which these cannot be read. `__getattr__` would tell the same, but a class that has it makes every read
    of any attribute several times as slow."""
    return type(
        "InstanceView",
        (InstanceView,),
        {"__slots__": (), "hidden": signals} | {signal: property(_refusal(signal)) for signal in signals},
    )


def _refusal(signal: str) -> Any:
    def refuse(view: InstanceView) -> NoReturn:
        raise undeclared(signal, "reported")

    return refuse


def _made(hidden: tuple[str, ...]) -> InstanceView:
    return InstanceView.__new__(_without(hidden) if hidden else InstanceView)
