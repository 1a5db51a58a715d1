"""The gateway's figures as a page that Prometheus reads. Every name is in METRICS, and in docs/observing.md."""

from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any, Final, Literal

from msgspec import Struct

from headway.errors import HeadwayError
from headway.gateway.observing.gateway_metrics import BETWEEN, BUCKETS, merge
from headway.types import PS_PER_SECOND, Json
from headway.views.instance import SIGNALS


class Metric(Struct, frozen=True):
    kind: Literal["counter", "gauge", "histogram"]
    figure: str  # its name among the figures
    help: str
    labels: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name that Prometheus shows."""
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
_DECLARED: Final = (
    Metric(
        "counter",
        "requests",
        "Requests that have ended, by outcome and by the status that the client got.",
        (*WHERE, "outcome", "status"),
    ),
    Metric("counter", "retries", "Requests that were sent to another engine.", ("reason",)),
    Metric("counter", "refusals", "Invalid or unauthorised requests, answered by the gateway itself.", ("status",)),
    Metric("counter", "prompt_tokens", "Prompt tokens sent to engines.", WHERE),
    Metric("counter", "output_tokens", "Tokens that engines answered.", WHERE),
    Metric(
        "counter", "believed_cached_tokens", "Prompt tokens that the policy believed cached where they went.", WHERE
    ),
    Metric("counter", "kv_events", "KV events heard of an engine, by kind; gaps are those lost.", (*ENGINE, "kind")),
    Metric("counter", "kv_events_of_nobody", "Messages that came where engines tell, and name none of them."),
    Metric("counter", "scrape_failures", "Pages of engines' metrics that did not come, or told nothing."),
    Metric(
        "counter", "unread_prompts", "Prompts that a tokenizer could not read, or not in time, and that went by bytes."
    ),
    Metric("counter", "handover_fallbacks", "Requests for two engines that one served alone.", ("reason",)),
    Metric("counter", "records_lost", "Requests that were not written down, as they came too fast."),
    Metric("histogram", "ttft", "From a request's coming to the first content of its stream.", WHERE),
    Metric("histogram", "tpot", "Between tokens of a completed stream, on average.", WHERE),
    Metric("histogram", "e2e", "From a request's coming to its completed answer.", WHERE),
    Metric("histogram", "queue_wait", "From a request's coming to its being sent to an engine.", WHERE),
    Metric("gauge", "inflight_requests", "Requests at an engine.", ENGINE),
    Metric("gauge", "inflight_tokens", "Their prompt tokens.", ENGINE),
    Metric(
        "gauge", "pending_prefill_tokens", "Prompt tokens believed uncached, of those without a first token.", ENGINE
    ),
    Metric("gauge", "waiting_requests", "Requests that the policies hold back."),
    Metric("gauge", "client_connections", "Connections of clients."),
    Metric("gauge", "held_bytes", "Bytes of requests that have not been answered."),
    Metric("gauge", "engine_connections", "Connections to an engine.", ENGINE),
    Metric("gauge", "backend_up", "1 where an engine takes requests.", ENGINE),
    Metric("gauge", "backend_ejected", "1 while failures keep an engine out.", ENGINE),
    Metric("gauge", "backend_cordoned", "1 while an engine is cordoned.", ENGINE),
    Metric("gauge", "backend_queued", "Requests that wait in an engine.", ENGINE),
    Metric("gauge", "backend_running", "Requests in an engine's batch.", ENGINE),
    Metric("gauge", "backend_kv_utilization", "Share of an engine's KV blocks in use.", ENGINE),
    Metric("gauge", "backend_hit_rate", "Share of prompt tokens that an engine found cached.", ENGINE),
    Metric("gauge", "backend_busy", "Share of time that an engine's GPU works.", ENGINE),
    Metric("gauge", "backend_watts", "Power that an engine draws.", ENGINE),
    Metric("gauge", "signal_age_seconds", "How long ago an engine's signal came.", (*ENGINE, "signal")),
    Metric("gauge", "policy_version", "How often the policies have been replaced."),
    Metric("counter", "policy_failures", "Decisions that a policy failed at, so that others took them.", ARM),
    Metric("gauge", "shadow_up", "1 while a candidate is asked.", CANDIDATE),
    Metric("counter", "shadow_decisions", "Live decisions that a candidate was asked about.", (*CANDIDATE, "agrees")),
    Metric(
        "counter",
        "shadow_believed_tokens",
        "Prompt tokens believed cached that a candidate's choice would have gained or forgone.",
        (*CANDIDATE, "kind"),
    ),
    Metric(
        "counter",
        "shadow_estimated_ttft_seconds",
        "Times to the first token as estimated, added up, where requests went and where a candidate would send them.",
        (*CANDIDATE, "choice"),
    ),
    Metric("counter", "shadow_skipped", "Decisions that a candidate was not asked about, being behind.", CANDIDATE),
    Metric("counter", "shadow_errors", "Failures of a candidate; it is asked no more after one.", CANDIDATE),
    Metric("counter", "shadow_seconds", "Time that a candidate took.", CANDIDATE),
    Metric("gauge", "canary_share", "Share of requests that the canary decides on."),
    Metric("counter", "canary_stops", "Canaries that were stopped."),
    Metric("counter", "canary_requests", "Requests that have ended while there was a canary.", ARM),
    Metric("counter", "canary_errors", "Those that did not complete.", ARM),
    Metric("counter", "canary_slo_missed", "Those that missed the canary's SLO.", ARM),
    Metric("counter", "canary_first_tokens", "Those that had a first token.", ARM),
    Metric("counter", "canary_ttft_seconds", "Their times to it, added up.", ARM),
    Metric(
        "gauge",
        "canary_ttft_difference_seconds",
        "Mean TTFT of the canary less that of the others, paired by time, and its 95 % interval.",
        ("bound",),
    ),
)
METRICS: Final = {metric.name: metric for metric in _DECLARED}
# The signals of an engine's view that are gauges, each called after its signal.
SIGNAL_GAUGES: Final = tuple(name for name in SIGNALS if f"headway_backend_{name}" in METRICS)
# What every process of a gateway sees alike: not added up, the highest counts.
SAME: Final = (
    *(metric.figure for metric in METRICS.values() if metric.figure.startswith("backend_")),
    "policy_version",
    "shadow_up",
    "canary_share",
    "canary_stops",
    "canary_ttft_difference_seconds",
    "signal_age_seconds",
    "kv_events",
)


def together(snapshots: Iterable[Json]) -> Json:
    """Merge the figures of several processes of one gateway, as `StatusBoard.figures` has them."""
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
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        families = {
            "counter": CounterMetricFamily,
            "gauge": GaugeMetricFamily,
            "histogram": HistogramMetricFamily,
        }
        for name, metric in METRICS.items():
            family = families[metric.kind](name, metric.help, labels=metric.labels)
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
    """The page, and its content type: OpenMetrics where that is asked for, else Prometheus's text."""
    try:
        from prometheus_client import CollectorRegistry, ProcessCollector
        from prometheus_client.exposition import choose_encoder
    except ImportError:
        raise HeadwayError("metrics: prometheus_client is not installed; install headway[gateway].") from None
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(figures))
    ProcessCollector(registry=registry)
    encode, kind = choose_encoder(accept)
    return encode(registry), kind
