"""The gateway's metrics page for Prometheus. METRICS and docs/observing.md list every metric."""

from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any, Final, Literal

from msgspec import Struct

from headway.errors import missing_extra
from headway.gateway.observing.gateway_metrics import BETWEEN, BUCKETS, merge
from headway.types import PS_PER_SECOND, Json
from headway.views.instance import SIGNALS


class Metric(Struct, frozen=True):
    kind: Literal["counter", "gauge", "histogram"]
    figure: str  # name of the metric inside the gateway
    help: str
    labels: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name on the metrics page."""
        return f"headway_{DURATIONS.get(self.figure, self.figure)}{'_total' if self.kind == 'counter' else ''}"


DURATIONS: Final = {
    "ttft": "time_to_first_token_seconds",
    "tpot": "time_per_output_token_seconds",
    "e2e": "request_duration_seconds",
    "queue_wait": "queue_wait_seconds",
}
WHERE: Final = ("model", "backend")
ENGINE: Final = ("backend",)
CANDIDATE: Final = ("candidate",)
ARM: Final = ("arm",)
POOL: Final = ("pool",)
_DECLARED: Final = (
    Metric("counter", "requests", "Ended requests, by outcome and HTTP status.", (*WHERE, "outcome", "status")),
    Metric("counter", "retries", "Requests sent again to another engine, by reason.", ("reason",)),
    Metric("counter", "refusals", "Invalid or unauthorised requests, answered by the gateway itself.", ("status",)),
    Metric("counter", "prompt_tokens", "Prompt tokens sent to engines.", WHERE),
    Metric("counter", "output_tokens", "Tokens that engines generated.", WHERE),
    Metric("counter", "believed_cached_tokens", "Prompt tokens that the policy believed cached there.", WHERE),
    Metric("counter", "kv_events", "KV events of an engine, and problems with them, by kind.", (*ENGINE, "kind")),
    Metric("counter", "kv_events_of_nobody", "KV events whose topic belongs to no engine."),
    Metric("counter", "scrape_failures", "Failed polls of engines' metrics pages."),
    Metric("counter", "unread_prompts", "Prompts hashed by bytes, because the tokenizer failed or timed out."),
    Metric("counter", "handover_fallbacks", "Requests for two engines that one engine served alone.", ("reason",)),
    Metric("counter", "records_lost", "Requests not recorded, because they came faster than the writer could write."),
    Metric("histogram", "ttft", "Time from a request's arrival to the first content of its stream.", WHERE),
    Metric("histogram", "tpot", "Mean time between the tokens of a completed stream.", WHERE),
    Metric("histogram", "e2e", "Time from a request's arrival to the end of its completed answer.", WHERE),
    Metric("histogram", "queue_wait", "Time from a request's arrival to its dispatch to an engine.", WHERE),
    Metric("gauge", "inflight_requests", "Requests in flight at an engine.", ENGINE),
    Metric("gauge", "inflight_tokens", "Prompt tokens of the requests in flight at an engine.", ENGINE),
    Metric("gauge", "pending_prefill_tokens", "Uncached prompt tokens of requests without a first token.", ENGINE),
    Metric("gauge", "waiting_requests", "Requests that the policies have queued or delayed."),
    Metric("gauge", "client_connections", "Open connections from clients."),
    Metric("gauge", "held_bytes", "Bytes of requests that have not been answered."),
    Metric("gauge", "engine_connections", "Open connections to an engine.", ENGINE),
    Metric("gauge", "backend_up", "1 if an engine takes requests, else 0.", ENGINE),
    Metric("gauge", "backend_ejected", "1 while an engine is ejected after failures.", ENGINE),
    Metric("gauge", "backend_cordoned", "1 while an engine is cordoned.", ENGINE),
    Metric("gauge", "backend_queued", "Requests in an engine's queue.", ENGINE),
    Metric("gauge", "backend_running", "Requests in an engine's batch.", ENGINE),
    Metric("gauge", "backend_kv_utilization", "Share of an engine's KV blocks in use.", ENGINE),
    Metric("gauge", "backend_hit_rate", "Share of prompt tokens that an engine found cached.", ENGINE),
    Metric("gauge", "backend_busy", "Share of time that an engine's GPUs are busy.", ENGINE),
    Metric("gauge", "backend_watts", "Power of an engine's GPUs, in watts.", ENGINE),
    Metric("gauge", "signal_age_seconds", "Seconds since an engine's signal arrived.", (*ENGINE, "signal")),
    Metric("gauge", "etcd_up", "1 while the gateway is connected to etcd, 0 otherwise; absent without etcd."),
    Metric(
        "gauge",
        "certificate_expiry_timestamp_seconds",
        "Unix time at which the certificate of a listening socket expires.",
        ("listener",),
    ),
    Metric("gauge", "policy_version", "How often the policies have been replaced."),
    Metric("counter", "policy_failures", "Decisions that a policy failed to take; a fallback took them.", ARM),
    Metric("gauge", "wanted_replicas", "Replicas that the scaling policy wants in a pool.", POOL),
    Metric("counter", "scaling_failures", "Checks at which a scaling policy failed; the number stays.", POOL),
    Metric("gauge", "shadow_up", "1 while a candidate is asked.", CANDIDATE),
    Metric("counter", "shadow_decisions", "Live decisions that a candidate was asked about.", (*CANDIDATE, "agrees")),
    Metric("counter", "shadow_believed_tokens", "Cached tokens a candidate would gain or lose.", (*CANDIDATE, "kind")),
    Metric("counter", "shadow_estimated_ttft_seconds", "Sum of the estimated TTFT by choice.", (*CANDIDATE, "choice")),
    Metric("counter", "shadow_skipped", "Decisions a candidate was not asked about, because it was behind.", CANDIDATE),
    Metric("counter", "shadow_errors", "Failures of a candidate; after one, it is not asked again.", CANDIDATE),
    Metric("counter", "shadow_seconds", "Time that a candidate spent on decisions.", CANDIDATE),
    Metric("gauge", "canary_share", "Share of requests that the canary decides on."),
    Metric("counter", "canary_stops", "Canaries that were stopped."),
    Metric("counter", "canary_requests", "Requests that ended while a canary was running.", ARM),
    Metric("counter", "canary_errors", "Requests during a canary that did not complete.", ARM),
    Metric("counter", "canary_slo_missed", "Requests during a canary that missed its SLO.", ARM),
    Metric("counter", "canary_first_tokens", "Requests during a canary that had a first token.", ARM),
    Metric("counter", "canary_ttft_seconds", "Sum of the TTFT of requests during a canary.", ARM),
    Metric(
        "gauge",
        "canary_ttft_difference_seconds",
        "Mean TTFT of the canary minus that of the other requests, paired by time, and its 95 % interval.",
        ("bound",),
    ),
)
METRICS: Final = {metric.name: metric for metric in _DECLARED}
SIGNAL_GAUGES: Final = tuple(name for name in SIGNALS if f"headway_backend_{name}" in METRICS)
# All processes of a gateway have the same value of these metrics, so the page shows the maximum instead of the sum.
SAME: Final = (
    *(metric.figure for metric in METRICS.values() if metric.figure.startswith("backend_")),
    "policy_version",
    "etcd_up",
    "certificate_expiry_timestamp_seconds",
    "shadow_up",
    "canary_share",
    "canary_stops",
    "canary_ttft_difference_seconds",
    "signal_age_seconds",
    "kv_events",
)


def together(snapshots: Iterable[Json]) -> Json:
    """Merge the metrics of several processes of one gateway, as `StatusBoard.figures` returns them."""
    snapshots = list(snapshots)
    merged = merge(snapshots)
    gauges = merged.setdefault("gauges", {})
    for name in [name for name in SAME if name in gauges]:
        values = [snapshot.get("gauges", {}).get(name, {}) for snapshot in snapshots]
        gauges[name] = {key: max(value[key] for value in values if key in value) for key in gauges[name]}
    return merged


class _Collector:
    def __init__(self, figures: Json) -> None:
        self.figures = figures

    def collect(self) -> Iterator[Any]:
        from prometheus_client import core

        for name, metric in METRICS.items():
            family_type = getattr(core, f"{metric.kind.capitalize()}MetricFamily")
            family = family_type(name, metric.help, labels=metric.labels)
            for kind in ("counters", "histograms", "gauges"):
                for key, value in self.figures.get(kind, {}).get(metric.figure, {}).items():
                    labels = key.split(BETWEEN) if metric.labels else []
                    if metric.kind == "histogram":
                        family.add_metric(labels, _buckets(value, BUCKETS[metric.figure]), value[-1] / PS_PER_SECOND)
                    else:
                        family.add_metric(labels, value)
            yield family


def _buckets(counts: list[int], ends: tuple[float, ...]) -> list[tuple[str, int]]:
    names = [*(repr(float(end)) for end in ends), "+Inf"]
    return list(zip(names, accumulate(counts[:-1]), strict=True))


def render(figures: Json, accept: str = "") -> tuple[bytes, str]:
    """Return the page and its content type: Prometheus text or, if the header `accept` asks for it, OpenMetrics."""
    try:
        from prometheus_client import CollectorRegistry, ProcessCollector
        from prometheus_client.exposition import choose_encoder
    except ImportError:
        raise missing_extra("metrics", "prometheus-client", "gateway") from None
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(figures))
    ProcessCollector(registry=registry)
    encode, kind = choose_encoder(accept)
    return encode(registry), kind
