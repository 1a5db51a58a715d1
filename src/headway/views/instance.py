"""One instance as a router sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import cache, partial
from typing import Annotated, Any, ClassVar, Final, NoReturn, Protocol

from headway.errors import HeadwayError, UndeclaredSignal
from headway.views.signals import NOT_AVAILABLE, Signal, derived_signal, exact, reported, static, table
from headway.views.window import Recent


class Estimator(Protocol):
    """Step times of an instance as a pure function."""

    def step_seconds(self, view: InstanceView, prefill_tokens: int, decodes: int, context: int) -> float: ...


NO_TIERS: Final[Mapping[str, int]] = {}
SETTINGS_OR_PAGE: Final = "the engine's settings, or its metrics page"
PAGE_ELSE: Final = "the engine's metrics page or an agent, else "
GPU_EXPORTER: Final = "a GPU exporter on the metrics page, or an agent"
CACHE: Final = "the instance's KV cache"
TIERS: Final = "the instance's tiers"


@dataclass(slots=True, eq=False, repr=False)
class InstanceView:
    """One instance as the router sees it. Each annotated field is a signal: its freshness, kind, meaning and sources.

    A view is long-lived and plain: the owner of the truth writes the values before a policy reads them, so a view leads
    only to an estimator of step times and to the router's own past. Reading a signal that no policy of the run declares
    raises an error, since the run does not maintain its value.
    """

    hidden: ClassVar[tuple[str, ...]] = ()

    index: Annotated[int, static("number", "Its place among all instances.", hint="its place, from 0", wasm=0)]
    id: Annotated[str, static("name", "Its name.", language=False)]
    _: KW_ONLY
    kv_blocks: Annotated[
        int,
        static(
            "blocks", "KV blocks that its GPU holds.", live=SETTINGS_OR_PAGE, hint="of its cache", wasm=13, status=6
        ),
    ] = 1
    max_batch_size: Annotated[int, static("count", "Requests that it runs at a time.", wasm=15)] = 256
    max_batch_tokens: Annotated[int, static("tokens", "Tokens that one step computes at most.", wasm=16)] = 2048
    max_queue: Annotated[int, static("count", "Requests that wait there at most.", wasm=17)] = 256
    pool: Annotated[str, static("name", "Its deployment.")] = "default"
    model: Annotated[str, static("name", "The model that it runs.")] = ""
    role: Annotated[str, static("name", "both, prefill or decode.")] = "both"
    state: Annotated[
        str, static("name", "ready, or why it takes no requests.", simulated="its life", live="health checks")
    ] = "ready"
    serves: Annotated[
        tuple[str, ...],
        static("name", "Names of models it answers to; empty if the cluster does not tell models apart."),
    ] = ()
    capacity: Annotated[float, static("share", "Figure from TP, dtype, memory and free model slots.", wasm=14)] = 1.0
    adapter_slots: Annotated[
        int | None,
        static(
            "number", "LoRA adapters that it holds; None if all are always loaded.", live=NOT_AVAILABLE, language=False
        ),
    ] = None
    tier_blocks: Annotated[
        Mapping[str, int],
        static("blocks", "What each store below the GPU holds, by its name, the fastest first.", live=NOT_AVAILABLE),
    ] = field(default_factory=lambda: NO_TIERS)

    inflight: Annotated[
        int,
        exact(
            "count",
            "Requests sent there that have not ended, each once.",
            hint="requests sent there that have not ended",
            shared=True,
            wasm=1,
            status=0,
        ),
    ] = 0
    inflight_tokens: Annotated[
        int, exact("tokens", "Their prompt tokens.", hint="their prompt tokens", shared=True, wasm=2, status=1)
    ] = 0
    pending_prefill_tokens: Annotated[
        int,
        exact(
            "tokens",
            "Prompt tokens believed uncached, of those of them without a first token.",
            hint="uncached prompt tokens still to be computed",
            shared=True,
            wasm=3,
            status=2,
        ),
    ] = 0
    decode_tokens: Annotated[
        int,
        exact(
            "tokens",
            "Prompt tokens of those with a first token.",
            hint="prompt tokens of those that generate",
            shared=True,
            wasm=4,
        ),
    ] = 0
    routed: Annotated[int, exact("count", "Requests ever sent there.", wasm=5, status=10)] = 0
    completed: Annotated[int, exact("count", "Those of them that got all their tokens.", wasm=6, status=11)] = 0
    output_tokens: Annotated[int, exact("tokens", "Output tokens of all that have ended.")] = 0
    observed_at: Annotated[
        int | None,
        exact(
            "number",
            "When it reported; None if the reported signals are as of now.",
            unit="ps",
            simulated="the last poll",
            live="the last report",
            language=False,
        ),
    ] = None
    routed_since_report: Annotated[
        int,
        exact(
            "count", "Requests sent there at or after that report.", hint="requests sent since it last reported", wasm=7
        ),
    ] = 0

    queued: Annotated[
        int,
        reported(
            "count",
            "Requests that wait there.",
            simulated="the instance's queue",
            live=PAGE_ELSE + "requests in flight beyond the batch",
            always=True,
            hint="waiting there, as last reported",
            wasm=8,
            status=3,
        ),
    ] = 0
    running: Annotated[
        int,
        reported(
            "count",
            "Requests in its batch.",
            simulated="the instance's batch",
            live=PAGE_ELSE + "requests in flight within the batch",
            always=True,
            hint="in its batch, as last reported",
            wasm=9,
            status=4,
        ),
    ] = 0
    kv_used: Annotated[
        int,
        reported(
            "blocks",
            "KV blocks that requests hold.",
            simulated=CACHE,
            live=PAGE_ELSE + "prompt tokens in flight",
            wasm=10,
            status=5,
        ),
    ] = 0
    tier_used: Annotated[
        Mapping[str, int],
        reported("blocks", "Blocks in use in each store below the GPU, by its name, cpu or storage.", simulated=TIERS),
    ] = field(default_factory=lambda: NO_TIERS)
    offload_rate: Annotated[
        float,
        reported(
            "rate", "Blocks a second that went down from the GPU, over the last 10 s.", unit="blocks/s", simulated=TIERS
        ),
    ] = 0.0
    reload_rate: Annotated[
        float,
        reported(
            "rate",
            "Blocks a second that came up to the GPU again, over the last 10 s.",
            unit="blocks/s",
            simulated=TIERS,
        ),
    ] = 0.0
    busy: Annotated[
        float,
        reported(
            "share",
            "Share of the last 5 s with work.",
            simulated="the instance's steps, in place of SM utilisation",
            live=GPU_EXPORTER,
            mean_if_missing=True,
            wasm=12,
            status=8,
        ),
    ] = 0.0
    watts: Annotated[
        float,
        reported(
            "power",
            "Mean power over the last 30 s.",
            simulated="idle and full power of its hardware, by its busy share",
            live=GPU_EXPORTER,
            mean_if_missing=True,
            status=9,
        ),
    ] = 0.0
    hit_rate: Annotated[
        float,
        reported(
            "share",
            "Share of prompt tokens found cached, of the last 100 requests that entered the batch; 0 before the first.",
            simulated=CACHE,
            live="counters of the metrics page over the last 60 s, or an agent",
            hint="of its cache, as last reported",
            mean_if_missing=True,
            wasm=11,
            status=7,
        ),
    ] = 0.0
    adapters: Annotated[
        tuple[str, ...],
        reported(
            "name",
            "LoRA adapters that it has loaded, sorted; empty if all are always loaded.",
            simulated="the instance's adapter slots",
            live="the engine's metrics page",
            always=True,
        ),
    ] = ()

    _recent: Recent | None = field(default=None, init=False)  # if the router maintains it
    _estimator: Estimator | None = field(default=None, init=False)

    @property
    @derived_signal(
        "reported", "count", "routed_since_report", "queued", "running", hint="queued + running + routed_since_report"
    )
    def effective_load(self) -> int:
        """Each outstanding request once: reported queue and batch, and what was routed since that report."""
        return self.queued + self.running + self.routed_since_report

    @property
    @derived_signal("reported", "share", "kv_used", hint="0 to 1, as last reported")
    def kv_utilization(self) -> float:
        """Share of its KV blocks that requests hold."""
        return self.kv_used / self.kv_blocks

    @property
    @derived_signal("reported", "blocks", "kv_used")
    def free_blocks(self) -> int:
        """KV blocks that no request holds."""
        return self.kv_blocks - self.kv_used

    def tier_utilization(self, tier: str) -> float:
        """Share of a store below the GPU that is in use: cpu or storage; 0 where there is none."""
        return self.tier_used.get(tier, 0) / self.tier_blocks[tier] if tier in self.tier_blocks else 0.0

    @property
    @derived_signal("reported", "count", "running")
    def free_sequences(self) -> int:
        """Requests that its batch could take in addition."""
        return max(0, self.max_batch_size - self.running)

    @property
    @derived_signal("exact", "seconds", "recent", steps=2, hint="seconds, None where nothing was seen")
    def recent_ttft(self) -> float | None:
        """Mean time to first token of the requests whose first token came in the last 10 s; None where none did."""
        return self._past().ttft

    @property
    @derived_signal("exact", "seconds", "recent", steps=2, hint="seconds, None where nothing was seen")
    def recent_tpot(self) -> float | None:
        """Mean time per output token of the requests of two tokens and more that completed in the last 10 s; None where
        none did."""
        return self._past().tpot

    @property
    @derived_signal("exact", "rate", "recent", unit="tokens/s", steps=2)
    def tokens_per_second(self) -> float:
        """Output tokens of the requests that ended in the last 10 s, a second."""
        return self._past().tokens_per_second

    def _past(self) -> Recent:
        if self._recent is None:
            raise undeclared_signal("the signal 'recent'", "recent")
        return self._recent

    @property
    @derived_signal(
        "estimated",
        "seconds",
        "pending_prefill_tokens",
        "inflight_tokens",
        "running",
        steps=3,
        hint="seconds of prefill pending there",
    )
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
        """Raise an error when one of these is read: the run does not maintain them."""
        self.__class__ = _without(tuple(sorted({*self.hidden, *signals})))

    def __reduce__(self) -> tuple[Any, ...]:
        """The class of views that hide something has no name of its own, by which a copy could be made."""
        values = {name: getattr(self, name) for name in InstanceView.__slots__ if name not in self.hidden}
        return _blank_view, (self.hidden,), (None, values)

    def __repr__(self) -> str:
        return f"InstanceView({self.id}, inflight={self.inflight}, queued={self.queued}, running={self.running})"


# Every signal of an instance by name: the one table that everything else about signals is derived from.
SIGNALS: Final[Mapping[str, Signal]] = table(InstanceView)


def signal_names(accept: Callable[[Signal], bool]) -> tuple[str, ...]:
    """The fields of a view, derived ones excluded, that `accept` accepts, in order of declaration."""
    return tuple(name for name, signal in SIGNALS.items() if not signal.derived and accept(signal))


STATIC: Final = signal_names(lambda signal: signal.freshness == "static")
EXACT: Final = signal_names(lambda signal: signal.freshness == "exact")
REPORTED: Final = signal_names(lambda signal: signal.freshness == "reported")
SHARED: Final = signal_names(lambda signal: signal.shared)
MEAN_IF_MISSING: Final = signal_names(lambda signal: signal.mean_if_missing)
# What a live engine may report: its size too, since its settings may not know it.
REPORTED_LIVE: Final = (
    *signal_names(lambda signal: signal.freshness == "reported" and signal.live != NOT_AVAILABLE),
    "kv_blocks",
)


def undeclared_signal(subject: str, signal: str, kind: str = "exact") -> UndeclaredSignal:
    """The error of a read that no policy declares; `subject` is what was read, in words."""
    otherwise = ', or leave "reported" out there' if kind == "reported" else ""
    return UndeclaredSignal(
        f"policies: {subject} was read, and no policy of this run declares it; write "
        f'{kind}=("{signal}",) in the @policy line of the one that reads it{otherwise}.'
    )


@cache
def _without(signals: tuple[str, ...]) -> type[InstanceView]:
    """A class of views on which reading these raises an error. `__getattr__` would do too, but makes every read of any
    attribute several times as slow."""
    return type(
        "InstanceView",
        (InstanceView,),
        {"__slots__": (), "hidden": signals} | {signal: property(partial(_refuse, signal)) for signal in signals},
    )


def _refuse(signal: str, view: InstanceView) -> NoReturn:
    raise undeclared_signal(f"the signal {signal!r}", signal, "reported")


def _blank_view(hidden: tuple[str, ...]) -> InstanceView:
    return InstanceView.__new__(_without(hidden) if hidden else InstanceView)
