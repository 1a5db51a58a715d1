"""The gateway's figures as a page that Prometheus reads. Every name is in METRICS, and in docs/observing.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from msgspec import Struct

from headway.errors import HeadwayError
from headway.gateway.observing.gateway_metrics import BETWEEN, BUCKETS, merge
from headway.types import PS_PER_SECOND, Json

PREFIX: Final = "headway_"


class Metric(Struct, frozen=True):
    kind: str  # counter, gauge or histogram
    figure: str  # what it is called in the figures
    help: str
    labels: tuple[str, ...] = ()


WHERE: Final = ("model", "backend")
ENGINE: Final = ("backend",)
CANDIDATE: Final = ("candidate",)
METRICS: Final[dict[str, Metric]] = {
    "headway_requests_total": Metric(
        "counter",
        "requests",
        "Requests that have ended, by outcome and by the status that the client got.",
        (*WHERE, "outcome", "status"),
    ),
    "headway_retries_total": Metric("counter", "retries", "Requests that were sent to another engine.", ("reason",)),
    "headway_refusals_total": Metric(
        "counter", "refusals", "Answers to what was no request, or of nobody who may ask.", ("status",)
    ),
    "headway_prompt_tokens_total": Metric("counter", "prompt_tokens", "Prompt tokens sent to engines.", WHERE),
    "headway_output_tokens_total": Metric("counter", "output_tokens", "Tokens that engines answered.", WHERE),
    "headway_believed_cached_tokens_total": Metric(
        "counter", "believed_cached_tokens", "Prompt tokens that the policy believed cached where they went.", WHERE
    ),
    "headway_kv_events_total": Metric(
        "counter", "kv_events", "KV events heard of an engine, by kind; gaps are those lost.", (*ENGINE, "kind")
    ),
    "headway_kv_events_of_nobody_total": Metric(
        "counter", "kv_events_of_nobody", "Messages that came where engines tell, and name none of them."
    ),
    "headway_scrape_failures_total": Metric(
        "counter", "scrape_failures", "Pages of engines' metrics that did not come, or told nothing."
    ),
    "headway_unread_prompts_total": Metric(
        "counter", "unread_prompts", "Prompts that a tokenizer could not read, or not in time, and that went by bytes."
    ),
    "headway_handover_fallbacks_total": Metric(
        "counter", "handover_fallbacks", "Requests for two engines that one served alone.", ("reason",)
    ),
    "headway_records_lost_total": Metric(
        "counter", "records_lost", "Requests that were not written down, as they came too fast."
    ),
    "headway_time_to_first_token_seconds": Metric(
        "histogram", "ttft", "From a request's coming to the first content of its stream.", WHERE
    ),
    "headway_time_per_output_token_seconds": Metric(
        "histogram", "tpot", "Between tokens of a completed stream, on average.", WHERE
    ),
    "headway_request_duration_seconds": Metric(
        "histogram", "e2e", "From a request's coming to its completed answer.", WHERE
    ),
    "headway_queue_wait_seconds": Metric(
        "histogram", "queue_wait", "From a request's coming to its being sent to an engine.", WHERE
    ),
    "headway_inflight_requests": Metric("gauge", "inflight_requests", "Requests at an engine.", ENGINE),
    "headway_inflight_tokens": Metric("gauge", "inflight_tokens", "Their prompt tokens.", ENGINE),
    "headway_pending_prefill_tokens": Metric(
        "gauge", "pending_prefill_tokens", "Prompt tokens believed uncached, of those without a first token.", ENGINE
    ),
    "headway_waiting_requests": Metric("gauge", "waiting_requests", "Requests that the policies hold back."),
    "headway_client_connections": Metric("gauge", "client_connections", "Connections of clients."),
    "headway_held_bytes": Metric("gauge", "held_bytes", "Bytes of requests that have not been answered."),
    "headway_engine_connections": Metric("gauge", "engine_connections", "Connections to an engine.", ENGINE),
    "headway_backend_up": Metric("gauge", "backend_up", "1 where an engine takes requests.", ENGINE),
    "headway_backend_ejected": Metric("gauge", "backend_ejected", "1 while failures keep an engine out.", ENGINE),
    "headway_backend_cordoned": Metric("gauge", "backend_cordoned", "1 while an engine is cordoned.", ENGINE),
    "headway_backend_queued": Metric("gauge", "backend_queued", "Requests that wait in an engine.", ENGINE),
    "headway_backend_running": Metric("gauge", "backend_running", "Requests in an engine's batch.", ENGINE),
    "headway_backend_kv_utilization": Metric(
        "gauge", "backend_kv_utilization", "Share of an engine's KV blocks in use.", ENGINE
    ),
    "headway_backend_hit_rate": Metric(
        "gauge", "backend_hit_rate", "Share of prompt tokens that an engine found cached.", ENGINE
    ),
    "headway_backend_busy": Metric("gauge", "backend_busy", "Share of time that an engine's GPU works.", ENGINE),
    "headway_backend_watts": Metric("gauge", "backend_watts", "Power that an engine draws.", ENGINE),
    "headway_signal_age_seconds": Metric(
        "gauge", "signal_age_seconds", "How long ago an engine's signal came.", (*ENGINE, "signal")
    ),
    "headway_policy_version": Metric("gauge", "policy_version", "How often the policies have been replaced."),
    "headway_policy_failures_total": Metric(
        "counter", "policy_failures", "Decisions that a policy failed at, so that others took them.", ("arm",)
    ),
    "headway_shadow_up": Metric("gauge", "shadow_up", "1 while a candidate is asked.", CANDIDATE),
    "headway_shadow_decisions_total": Metric(
        "counter", "shadow_decisions", "Live decisions that a candidate was asked about.", (*CANDIDATE, "agrees")
    ),
    "headway_shadow_believed_tokens_total": Metric(
        "counter",
        "shadow_believed_tokens",
        "Prompt tokens believed cached that a candidate's choice would have gained or forgone.",
        (*CANDIDATE, "kind"),
    ),
    "headway_shadow_estimated_ttft_seconds_total": Metric(
        "counter",
        "shadow_estimated_ttft_seconds",
        "Times to the first token as estimated, added up, where requests went and where a candidate would send them.",
        (*CANDIDATE, "choice"),
    ),
    "headway_shadow_skipped_total": Metric(
        "counter", "shadow_skipped", "Decisions that a candidate was not asked about, being behind.", CANDIDATE
    ),
    "headway_shadow_errors_total": Metric(
        "counter", "shadow_errors", "Failures of a candidate; it is asked no more after one.", CANDIDATE
    ),
    "headway_shadow_seconds_total": Metric("counter", "shadow_seconds", "Time that a candidate took.", CANDIDATE),
    "headway_canary_share": Metric("gauge", "canary_share", "Share of requests that the canary decides on."),
    "headway_canary_stops_total": Metric("counter", "canary_stops", "Canaries that were stopped."),
    "headway_canary_requests_total": Metric(
        "counter", "canary_requests", "Requests that have ended while there was a canary.", ("arm",)
    ),
    "headway_canary_errors_total": Metric("counter", "canary_errors", "Those that did not complete.", ("arm",)),
    "headway_canary_slo_missed_total": Metric(
        "counter", "canary_slo_missed", "Those that missed the canary's SLO.", ("arm",)
    ),
    "headway_canary_first_tokens_total": Metric(
        "counter", "canary_first_tokens", "Those that had a first token.", ("arm",)
    ),
    "headway_canary_ttft_seconds_total": Metric(
        "counter", "canary_ttft_seconds", "Their times to it, added up.", ("arm",)
    ),
    "headway_canary_ttft_difference_seconds": Metric(
        "gauge",
        "canary_ttft_difference_seconds",
        "Mean TTFT of the canary less that of the others, paired by time, and its 95 % interval.",
        ("bound",),
    ),
}
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


def together(plains: Iterable[Json]) -> Json:
    """The figures of several processes of one gateway, as `status.figures_of` has them."""
    given = list(plains)
    found = merge({kind: figures for kind, figures in one.items() if kind != "gauges"} for one in given)
    found["gauges"] = merge({"gauges": one.get("gauges", {})} for one in given).get("gauges", {})
    for name in SAME:
        highest: dict[str, Any] = {}
        for one in given:
            for key, value in one.get("gauges", {}).get(name, {}).items():
                highest[key] = max(value, highest.get(key, value))
        if highest:
            found["gauges"][name] = highest
    return found


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
    found, below = [], 0
    for end, count in zip((*map(float, ends), float("inf")), counts[:-1], strict=True):
        below += count
        found.append(("+Inf" if end == float("inf") else repr(end), below))
    return found


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
