"""The figures of a summary, each declared once: its unit, whether a low or a high value is better, and its meaning.

Rankings, objectives of a search and the reference page of figures read this table. docs/metrics.md has the formulas.
"""

from typing import Final, Literal

from msgspec import Struct

from headway.results.statistics import NAMES

Best = Literal["low", "high"]


class Figure(Struct, frozen=True):
    """One figure of a summary. If neither a low nor a high value of the figure is better, the figure cannot rank
    runs."""

    unit: str  # empty for a plain number
    better: Best | None
    meaning: str


MS: Final = "ms"
# A path without a statistic stands for the distribution: `latency.ttft` for `latency.ttft.mean` and so on.
# `*` stands for the name of a tier.
FIGURES: Final[dict[str, Figure]] = {
    "duration_s": Figure("s", "low", "simulated time from the first arrival to the last event"),
    "requests.arrived": Figure("", None, "requests that arrived after the warm-up"),
    "requests.completed": Figure("", "high", "requests that generated all their tokens"),
    "requests.rejected": Figure("", "low", "requests that admission, routing or a full queue rejected"),
    "requests.timed_out": Figure("", "low", "requests whose client gave up at the deadline"),
    "requests.failed": Figure("", "low", "requests that an instance lost and that were not retried"),
    "requests.in_flight": Figure("", "low", "requests that had not ended at the horizon"),
    "requests.retried": Figure("", "low", "attempts that clients made again after a failure"),
    "requests.not_issued": Figure("", "low", "planned requests that the horizon cut off"),
    "requests.abandoned": Figure("", "low", "turns that their session never sent, because an earlier turn did not end"),
    "latency.ttft": Figure(MS, "low", "time to first token, from the arrival"),
    "latency.tpot": Figure(MS, "low", "mean time per output token after the first"),
    "latency.itl": Figure(MS, "low", "gap between two tokens of one request"),
    "latency.e2e": Figure(MS, "low", "time from the arrival to the last token"),
    "latency.queue_wait": Figure(MS, "low", "time from the arrival to the first step that computes the request"),
    "throughput.requests_per_s": Figure("per second", "high", "completed requests"),
    "throughput.input_tokens_per_s": Figure("per second", "high", "prompt tokens of completed requests"),
    "throughput.output_tokens_per_s": Figure("per second", "high", "output tokens of completed requests"),
    "cache.token_hit_ratio": Figure("ratio", "high", "prompt tokens in the KV cache, of all prompt tokens"),
    "cache.block_hit_ratio": Figure("ratio", "high", "full prompt blocks in the KV cache, of all full prompt blocks"),
    "cache.request_hit_ratio": Figure(
        "ratio", "high", "requests with any cached prompt token, of all started requests"
    ),
    "balance.cv": Figure("ratio", "low", "coefficient of variation of the requests per instance; 0 means even"),
    "balance.jain": Figure("ratio", "high", "Jain index of the requests per instance; 1 means even"),
    "slo.ttft_attainment": Figure("ratio", "high", "completed requests within the TTFT target"),
    "slo.tpot_attainment": Figure("ratio", "high", "completed requests within the TPOT target"),
    "slo.e2e_attainment": Figure("ratio", "high", "completed requests within the E2E target"),
    "slo.goodput_requests_per_s": Figure("per second", "high", "completed requests that met every target"),
    "slo.goodput_ratio": Figure("ratio", "high", "completed requests that met every target, of all planned requests"),
    "cost.gpu_seconds_per_request": Figure("s", "low", "busy GPU time per completed request"),
    "cost.gpu_held_seconds": Figure("s", "low", "GPU time for which instances existed, busy or not"),
    "cost.usd": Figure("USD", "low", "held GPU time at the price of a GPU-hour"),
    "cost.usd_per_1k_tokens": Figure("USD", "low", "cost per thousand prompt and output tokens"),
    "cost.usd_per_1m_tokens": Figure("USD", "low", "cost per million prompt and output tokens"),
    "energy.kwh": Figure("kWh", "low", "energy of all GPUs, busy and idle"),
    "energy.wh_per_request": Figure("Wh", "low", "energy per completed request"),
    "energy.kwh_per_1m_tokens": Figure("kWh", "low", "energy per million prompt and output tokens"),
    "speculation.drafted_tokens": Figure("tokens", None, "drafts that decodes verified"),
    "speculation.accepted_tokens": Figure("tokens", None, "drafts that decodes accepted"),
    "speculation.acceptance_rate": Figure("ratio", "high", "accepted drafts, of all verified drafts"),
    "speculation.tokens_per_step": Figure("tokens", "high", "mean tokens of a decode per step"),
    "estimates.requests": Figure("", None, "completed requests whose answers an estimator expected"),
    "estimates.bias": Figure("ratio", None, "expected minus generated tokens, of the generated ones; 0 is best"),
    "estimates.error": Figure("ratio", "low", "absolute errors of the expected lengths, of the generated tokens"),
    "estimates.mape": Figure("ratio", "low", "mean of each request's own relative error"),
    "preemptions": Figure("", "low", "preemptions on all instances, warm-up included"),
    "rates.admission": Figure("ratio", "high", "admitted requests, of those that arrived"),
    "rates.preemptions_per_request": Figure("ratio", "low", "preemptions per started request"),
    "rates.preemptions_per_s": Figure("per second", "low", "preemptions, warm-up included"),
    "rates.kv_blocks_per_s": Figure("per second", "low", "blocks moved between the GPU and the stores below it"),
    "rates.kv_bytes_per_s": Figure("per second", "low", "bytes moved between the GPU and the stores below it"),
    "pathology.priority_inversions": Figure("", "low", "requests that a less important request overtook"),
    "pathology.head_of_line_blocking": Figure("ratio", "low", "part of the queue wait behind another, long prompt"),
    "pathology.tail_latency_blowup.ttft": Figure("ratio", "low", "p99 of TTFT divided by its p50"),
    "pathology.tail_latency_blowup.e2e": Figure("ratio", "low", "p99 of E2E divided by its p50"),
    "tiers.*.stores": Figure("", None, "number of stores of this tier"),
    "tiers.*.blocks": Figure("blocks", None, "total capacity of the tier"),
    "tiers.*.hit_tokens": Figure("tokens", None, "prompt tokens that requests had in this tier when their turn came"),
    "tiers.*.hit_ratio": Figure("ratio", "high", "these tokens, of the prompt tokens of instances with this tier"),
    "tiers.*.stored_blocks": Figure("blocks", None, "blocks stored that the tier did not have"),
    "tiers.*.loaded_blocks": Figure("blocks", None, "blocks loaded from the tier"),
    "tiers.*.thrashed_blocks": Figure("blocks", "low", "blocks loaded within 1 s after they were stored"),
    "tiers.*.transfer_bytes": Figure("bytes", None, "bytes that began to move over the links of the tier"),
    "tiers.*.transfer_bytes_per_s": Figure("per second", None, "these bytes over the duration of the run"),
    "tiers.*.link_utilization": Figure("ratio", None, "time with bytes on a link, mean over the links"),
    "tiers.*.utilization": Figure("ratio", None, "blocks in use, mean over time"),
    "tiers.*.peak_utilization": Figure("ratio", None, "maximum use of a store"),
    "tiers.*.samples.interval_s": Figure("s", None, "interval between two samples of the use"),
    "loads.count": Figure("", None, "loads from stores below the GPU that ended"),
    "loads.wait": Figure(MS, "low", "time from the start of a load to its last byte"),
    "transfer.count": Figure("", None, "requests handed from a prefill to a decode instance"),
    "transfer.bytes": Figure("bytes", "low", "bytes that began to move between these instances"),
    "transfer.bytes_per_s": Figure("per second", None, "these bytes over the duration of the run"),
    "transfer.wait": Figure(MS, "low", "time until the decode instance has room for a computed prompt"),
    "transfer.time": Figure(MS, "low", "time from then to the last byte"),
    "transfer.link_utilization": Figure("ratio", None, "time with bytes on a link, mean over the links"),
    "sessions.count": Figure("", None, "sessions that began"),
    "sessions.turns": Figure("", None, "turns per session that arrived"),
    "sessions.completed": Figure("", "high", "sessions whose arrived turns all completed"),
    "sessions.duration": Figure(MS, "low", "time from the first arrival of a completed session to its last token"),
    "fairness.jain_tokens": Figure("ratio", "high", "Jain index over the tenants of the tokens that they received"),
    "fairness.jain_goodput": Figure("ratio", "high", "Jain index over the tenants of their goodput ratios"),
    "scaling.replica_seconds": Figure("s", "low", "time for which replicas existed"),
    "scaling.mean_replicas": Figure("", "low", "replicas, mean over time"),
    "scaling.mean_serving": Figure("", None, "replicas that received requests, mean over time"),
    "scaling.slo_per_replica": Figure("ratio", "high", "goodput ratio divided by the mean number of replicas"),
    "scaling.scale_ups": Figure("", "low", "how often the autoscaler enlarged a pool"),
    "scaling.scale_downs": Figure("", "low", "how often the autoscaler reduced a pool"),
    "scaling.oscillations": Figure("", "low", "changes of a pool within 5 minutes after one in the other direction"),
    "scaling.failed": Figure("", "low", "requests that failed because their instance crashed, was cut off or stopped"),
    "scaling.retried": Figure("", "low", "requests that restarted on another instance"),
    "scaling.redirected": Figure("", "low", "requests that continued on another instance"),
    "scaling.faults.crash": Figure("", None, "crashes of an instance that was up"),
    "scaling.faults.slow": Figure("", None, "times that an instance became slow"),
    "scaling.faults.unreachable": Figure("", None, "times that an instance became unreachable"),
}


def declared(path: str) -> Figure | None:
    """Return the declaration of a figure. Metrics that policies define have no declaration; for these, return None."""
    parts = path.split(".")
    if parts[0] == "tiers" and len(parts) > 2:
        parts[1] = "*"
    if parts[-1] in NAMES:
        parts.pop()
    return FIGURES.get(".".join(parts))
