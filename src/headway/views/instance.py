"""One instance as a router sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import cache, partial
from typing import Annotated, Any, ClassVar, Final, NoReturn, Protocol

from headway.errors import HeadwayError, UndeclaredSignal
from headway.types import PS_PER_SECOND, LoadRule
from headway.views.signals import NOT_AVAILABLE, Signal, derived_signal, exact, reported, static, table
from headway.views.window import Recent


class Estimator(Protocol):
    """Estimates step times of an instance."""

    def step_seconds(self, view: InstanceView, prefill_tokens: int, decodes: int, context: int) -> float: ...


NO_TIERS: Final[Mapping[str, int]] = {}
SETTINGS_OR_PAGE: Final = "the engine's settings, or its metrics page"
PAGE_ELSE: Final = "the engine's metrics page or an agent, else "
GPU_EXPORTER: Final = "a GPU exporter on the metrics page, or an agent"
CACHE: Final = "the instance's KV cache"
TIERS: Final = "the instance's tiers"


@dataclass(slots=True, eq=False, repr=False)
class InstanceView:
    """One instance as the router sees it. Each annotated field declares a signal: freshness, kind, meaning and sources.

    A view exists as long as the simulation or gateway. The simulator or the gateway writes the values before a policy
    reads them. So a view refers to no simulator or gateway object; through it, a policy can reach only the step-time
    estimator and the router's own past. If no policy declares a signal, its value is not maintained, and reading it
    raises an error.
    """

    hidden: ClassVar[tuple[str, ...]] = ()

    index: Annotated[int, static("number", "Its position among all instances, from 0.", hint=True)]
    id: Annotated[str, static("name", "Its name.", language=False)]
    _: KW_ONLY
    kv_blocks: Annotated[int, static("blocks", "KV blocks of its GPU.", live=SETTINGS_OR_PAGE, hint=True, status=6)] = 1
    max_batch_size: Annotated[int, static("count", "Most requests in its batch.")] = 256
    max_batch_tokens: Annotated[int, static("tokens", "Most tokens that one step computes.")] = 2048
    max_queue: Annotated[int, static("count", "Queue length that load scores are relative to.")] = 256
    pool: Annotated[str, static("name", "Its deployment.")] = "default"
    model: Annotated[str, static("name", "The model that it runs.")] = ""
    role: Annotated[str, static("name", "both, prefill or decode.")] = "both"
    state: Annotated[
        str, static("name", "ready, or why it takes no requests.", simulated="its lifecycle", live="health checks")
    ] = "ready"
    serves: Annotated[
        tuple[str, ...], static("name", "Model names that it serves; empty if all instances serve any name.")
    ] = ()
    capacity: Annotated[float, static("share", "Figure from TP, dtype, memory and free model slots.")] = 1.0
    usd_per_hour: Annotated[float, static("number", "Price of its GPUs per hour; 0 if it is unknown.", unit="USD")] = (
        0.0
    )
    adapter_slots: Annotated[
        int | None, static("number", "Most loaded LoRA adapters; None if all are loaded.", live="its metrics page")
    ] = None
    tier_blocks: Annotated[
        Mapping[str, int],
        static("blocks", "Blocks of each store below the GPU, by name, the fastest first.", live=SETTINGS_OR_PAGE),
    ] = field(default_factory=lambda: NO_TIERS)

    inflight: Annotated[
        int,
        exact("count", "Requests sent there that have not ended.", hint=True, shared=True, recorded=True, status=0),
    ] = 0
    inflight_tokens: Annotated[
        int, exact("tokens", "Prompt tokens of requests in flight.", hint=True, shared=True, status=1)
    ] = 0
    pending_prefill_tokens: Annotated[
        int,
        exact(
            "tokens",
            "Prompt tokens believed uncached, of requests in flight without a first token.",
            hint=True,
            shared=True,
            recorded=True,
            status=2,
        ),
    ] = 0
    decode_tokens: Annotated[
        int, exact("tokens", "Prompt tokens of requests in flight with a first token.", hint=True, shared=True)
    ] = 0
    expected_output_tokens: Annotated[
        int,
        exact(
            "tokens",
            "Output tokens that requests in flight are expected to generate; 0 without an estimator.",
            hint=True,
            shared=True,
        ),
    ] = 0
    routed: Annotated[int, exact("count", "All requests sent there so far.", status=10, grows=True)] = 0
    completed: Annotated[int, exact("count", "Completed requests so far.", status=11, grows=True)] = 0
    output_tokens: Annotated[int, exact("tokens", "Output tokens of all ended requests.", grows=True)] = 0
    observed_at: Annotated[
        int | None,
        exact(
            "number",
            "Time of the last report; None if the reported signals are current.",
            unit="ps",
            simulated="the last poll",
            live="the last report",
            language=False,
        ),
    ] = None
    routed_since_report: Annotated[
        int, exact("count", "Requests sent there at or after the last report.", hint=True)
    ] = 0
    finished_since_report: Annotated[
        int,
        exact(
            "count",
            "Requests that have ended there since the last report, which may still count them as queued or running.",
            hint=True,
        ),
    ] = 0

    queued: Annotated[
        int,
        reported(
            "count",
            "Requests in its queue.",
            simulated="the instance's queue",
            live=PAGE_ELSE + "requests in flight beyond the batch",
            always=True,
            hint=True,
            recorded=True,
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
            hint=True,
            recorded=True,
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
            recorded=True,
            status=5,
        ),
    ] = 0
    tier_used: Annotated[
        Mapping[str, int],
        reported(
            "blocks",
            "Blocks in use in each store below the GPU, by name.",
            simulated=TIERS,
            live="the engine's metrics page",
            recorded=True,
        ),
    ] = field(default_factory=lambda: NO_TIERS)
    offload_rate: Annotated[
        float, reported("rate", "Blocks offloaded from the GPU, over the last 10 s.", unit="blocks/s", simulated=TIERS)
    ] = 0.0
    reload_rate: Annotated[
        float, reported("rate", "Blocks reloaded to the GPU, over the last 10 s.", unit="blocks/s", simulated=TIERS)
    ] = 0.0
    busy: Annotated[
        float,
        reported(
            "share",
            "Share of the last 5 s with work.",
            simulated="the instance's steps, in place of SM utilisation",
            live=GPU_EXPORTER,
            mean_if_missing=True,
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
            "Share of prompt tokens found cached, over the last 100 requests that entered the batch; 0 without any.",
            simulated=CACHE,
            live="counters of the metrics page over the last 60 s, or an agent",
            hint=True,
            mean_if_missing=True,
            recorded=True,
            status=7,
        ),
    ] = 0.0
    adapters: Annotated[
        tuple[str, ...],
        reported(
            "name",
            "Loaded LoRA adapters, sorted; empty if all are always loaded.",
            simulated="the instance's adapter slots",
            live="the engine's metrics page",
            always=True,
        ),
    ] = ()

    _recent: Recent | None = field(default=None, init=False)  # the router's own measurements; None: not recorded
    _estimator: Estimator | None = field(default=None, init=False)
    _decode_tokens: int = field(default=1, init=False)  # tokens that a decode computes in a step, drafts included
    _load_rule: LoadRule = field(default="snapshot", init=False)  # how `effective_load` is computed

    @property
    @derived_signal("exact", "seconds", "observed_at", grows=True)
    def observed(self) -> float | None:
        """Time of the last report in seconds; None if the reported signals are current."""
        return None if self.observed_at is None else self.observed_at / PS_PER_SECOND

    @property
    @derived_signal("reported", "count", "routed_since_report", "queued", "running")
    def snapshot_load(self) -> int:
        """queued + running + routed_since_report. Requests that have ended since the last report still count."""
        return self.queued + self.running + self.routed_since_report

    @property
    @derived_signal("reported", "count", "routed_since_report", "finished_since_report", "queued", "running", hint=True)
    def effective_load(self) -> int:
        """Outstanding requests. With `effective_load: outstanding` in `signals`: snapshot_load - finished_since_report,
        but at least inflight; with `effective_load: snapshot`: snapshot_load."""
        load = self.queued + self.running + self.routed_since_report
        if self._load_rule == "snapshot":
            return load
        load -= self.finished_since_report
        return load if load > self.inflight else self.inflight

    @property
    @derived_signal("exact", "tokens", "inflight_tokens", "expected_output_tokens", hint=True)
    def expected_kv_tokens(self) -> int:
        """Tokens in the KV cache if every request in flight were at its expected end. Shared prefixes count for each
        request."""
        return self.inflight_tokens + self.expected_output_tokens

    @property
    @derived_signal("reported", "share", "kv_used", hint=True)
    def kv_utilization(self) -> float:
        """Share of its KV blocks that requests hold."""
        return self.kv_used / self.kv_blocks

    @property
    @derived_signal("reported", "blocks", "kv_used")
    def free_blocks(self) -> int:
        """KV blocks that no request holds."""
        return self.kv_blocks - self.kv_used

    def tier_utilization(self, tier: str) -> float:
        """Return which fraction of a slower tier (`cpu` or `storage`) is in use. If the instance has no such tier,
        return 0."""
        return self.tier_used.get(tier, 0) / self.tier_blocks[tier] if tier in self.tier_blocks else 0.0

    @property
    @derived_signal("reported", "count", "running")
    def free_sequences(self) -> int:
        """Free places in its batch."""
        return max(0, self.max_batch_size - self.running)

    @property
    @derived_signal("exact", "seconds", "recent", steps=2, hint=True, recorded=True)
    def recent_ttft(self) -> float | None:
        """Mean time to first token in seconds, over the first tokens of the last 10 s; None without any."""
        return self._past().ttft

    @property
    @derived_signal("exact", "seconds", "recent", steps=2, hint=True, recorded=True)
    def recent_tpot(self) -> float | None:
        """Mean time per output token in seconds, over requests of at least two tokens that completed in the last 10 s;
        None without any."""
        return self._past().tpot

    @property
    @derived_signal("exact", "rate", "recent", unit="tokens/s", steps=2)
    def tokens_per_second(self) -> float:
        """Output tokens per second, of the requests that ended in the last 10 s."""
        return self._past().tokens_per_second

    def _past(self) -> Recent:
        if self._recent is None:
            raise undeclared_signal("the signal 'recent'", "recent")
        return self._recent

    @property
    @derived_signal("estimated", "seconds", "pending_prefill_tokens", "inflight_tokens", "running", steps=3, hint=True)
    def estimated_wait(self) -> float:
        """Seconds to compute the pending prefill tokens."""
        return self.estimated_ttft(0)

    def estimated_ttft(self, tokens: int) -> float:
        """Return the seconds to compute the pending prefill tokens and `tokens` more.

        The prefill is split into steps of at most max_batch_tokens. In each step, every running sequence also decodes
        one token, and verifies its drafts if the engine speculates. The total context of the running sequences is
        assumed to be the prompt tokens in flight minus the pending prefill tokens. The estimator returns the time of a
        step.
        """
        return self.estimate(tokens, self.running, self.pending_prefill_tokens, self.inflight_tokens)

    def estimate(self, tokens: int, decodes: int, pending: int, inflight_tokens: int) -> float:
        """Return the same estimate as `estimated_ttft`, but for the given counts instead of the current ones."""
        if self._estimator is None:
            raise HeadwayError(f"{self.id}: there is no estimator of step times. Bind the policies to a Context first.")
        step_seconds = self._estimator.step_seconds
        context = inflight_tokens - pending if decodes and inflight_tokens > pending else 0
        decoded = decodes * self._decode_tokens
        chunk = self.max_batch_tokens - decoded if self.max_batch_tokens > decoded else 1
        tokens += pending
        if tokens <= chunk:  # the usual case: one step
            return step_seconds(self, tokens, decodes, context) if tokens else 0.0
        steps, rest = divmod(tokens, chunk)
        seconds = step_seconds(self, rest, decodes, context) if rest else 0.0
        return seconds + steps * step_seconds(self, chunk, decodes, context)

    def hide(self, *signals: str) -> None:
        """Hide these signals: reading a hidden signal raises an error, because its value is not maintained."""
        self.__class__ = _without(tuple(sorted({*self.hidden, *signals})))

    def __reduce__(self) -> tuple[Any, ...]:
        """Support copying and pickling. Views that hide signals need this, because pickle cannot find their generated
        class by name."""
        values = {name: getattr(self, name) for name in InstanceView.__slots__ if name not in self.hidden}
        return _blank_view, (self.hidden,), (None, values)

    def __repr__(self) -> str:
        return f"InstanceView({self.id}, inflight={self.inflight}, queued={self.queued}, running={self.running})"


# Every signal of an instance by name. All other lists of signals are derived from this table.
SIGNALS: Final[Mapping[str, Signal]] = table(InstanceView)


def signal_names(accept: Callable[[Signal], bool]) -> tuple[str, ...]:
    """Return the names of the signals that `accept` accepts, in order of declaration. Derived signals are left out."""
    return tuple(name for name, signal in SIGNALS.items() if not signal.derived and accept(signal))


STATIC: Final = signal_names(lambda signal: signal.freshness == "static")
EXACT: Final = signal_names(lambda signal: signal.freshness == "exact")
REPORTED: Final = signal_names(lambda signal: signal.freshness == "reported")
SHARED: Final = signal_names(lambda signal: signal.shared)
MEAN_IF_MISSING: Final = signal_names(lambda signal: signal.mean_if_missing)
# Signals that a live engine may report. They include the sizes of its stores, since the settings may omit them.
REPORTED_LIVE: Final = (
    *signal_names(lambda signal: signal.freshness == "reported" and signal.live != NOT_AVAILABLE),
    "kv_blocks",
    "tier_blocks",
)


def undeclared_signal(subject: str, signal: str, kind: str = "exact") -> UndeclaredSignal:
    """Return the error for reading an undeclared signal. In the message, `subject` names the value that was read."""
    otherwise = ', or omit "reported" there' if kind == "reported" else ""
    return UndeclaredSignal(
        f"policies: {subject} was read, but no policy of this run declares it. "
        f'Add {kind}=("{signal}",) to the @policy line of the policy that reads it{otherwise}.'
    )


@cache
def _without(signals: tuple[str, ...]) -> type[InstanceView]:
    """Return a subclass of InstanceView in which reading one of these signals raises an error. The subclass uses
    properties, because `__getattr__` would slow down all reads."""
    return type(
        "InstanceView",
        (InstanceView,),
        {"__slots__": (), "hidden": signals} | {signal: property(partial(_refuse, signal)) for signal in signals},
    )


def _refuse(signal: str, view: InstanceView) -> NoReturn:
    raise undeclared_signal(f"the signal {signal!r}", signal, "reported")


def _blank_view(hidden: tuple[str, ...]) -> InstanceView:
    return InstanceView.__new__(_without(hidden) if hidden else InstanceView)
