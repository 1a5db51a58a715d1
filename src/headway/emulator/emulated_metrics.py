"""A replica's Prometheus page, with vLLM's metric names, and LMCache's for the stores below the GPU. Times are
wall-clock times, as clients measure them."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, NamedTuple

from headway.sim.instance import Instance

FIRST: Final = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0)
FIRST_TOKEN: Final = (*FIRST, 80.0, 160.0, 640.0, 2560.0)
GAPS: Final = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, *FIRST[-3:], 80.0)
WHOLE: Final = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0)
LENGTHS: Final = tuple(float(base * 10**power) for power in range(6) for base in (1, 2, 5))
HISTOGRAMS: Final = {
    "time_to_first_token_seconds": FIRST_TOKEN,
    "inter_token_latency_seconds": GAPS,
    "request_time_per_output_token_seconds": GAPS,
    "e2e_request_latency_seconds": (*WHOLE, 960.0, 1920.0, 7680.0),
    "request_queue_time_seconds": (*WHOLE, 960.0, 1920.0, 7680.0),
    "request_prompt_tokens": LENGTHS,
    "request_generation_tokens": LENGTHS,
}
STORES: Final = {"cpu": "local_cache_usage", "storage": "local_storage_usage"}  # LMCache's names, without `lmcache:`
REASONS: Final = ("stop", "length", "abort", "error")


class Histogram:
    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class Moment(NamedTuple):
    """A snapshot of the page's values that can change with every step."""

    running: int
    waiting: int
    held: int  # number of KV blocks that are allocated to requests in flight
    queries: int  # number of prompt tokens of all requests that have started
    hits: int
    preemptions: int
    stored: tuple[tuple[str, int], ...]  # names of the stores below the GPU, and the bytes in use there


class EmulatedMetrics:
    def __init__(self, instance: Instance, model: str, block_tokens: int, caching: bool, rank: int = 0) -> None:
        """`rank` is the number of the data-parallel rank, which vLLM writes as the label `engine`."""
        self.instance, self.model, self.block_tokens, self.caching = instance, model, block_tokens, caching
        self.rank = rank
        self.histograms = {name: Histogram(bounds) for name, bounds in HISTOGRAMS.items()}
        self.first_token = self.histograms["time_to_first_token_seconds"]
        self.gap = self.histograms["inter_token_latency_seconds"]
        self.prompt_tokens = self.generation_tokens = self.cached_tokens = 0
        self.ended = dict.fromkeys(REASONS, 0)
        self.frozen: Moment | None = None

    def record_finish(self, prompt: int, output: int, queued_s: float, each_s: float | None, whole_s: float) -> None:
        histograms = self.histograms
        histograms["request_prompt_tokens"].add(prompt)
        histograms["request_generation_tokens"].add(output)
        histograms["request_queue_time_seconds"].add(queued_s)
        histograms["e2e_request_latency_seconds"].add(whole_s)
        if each_s is not None:
            histograms["request_time_per_output_token_seconds"].add(each_s)

    def moment(self) -> Moment:
        instance = self.instance
        stats, running, queued = instance.stats, len(instance.batch.running), instance.scheduler.count_queued()
        tokens = stats.prompt_tokens, stats.cached_tokens
        tiers = instance.tiers
        stored = () if tiers is None else tuple((x.name, x.count_used() * tiers.block_bytes) for x in tiers.tiers)
        return Moment(running, queued, instance.cache.held, *tokens, stats.preemptions, stored)

    def freeze(self) -> None:
        """Store the current values. Pages show these values until the next call."""
        self.frozen = self.moment()

    def page(self) -> str:
        labels, cache = f'engine="{self.rank}",model_name="{_escape(self.model)}"', self.instance.cache
        now = self.frozen or self.moment()
        lines: list[str] = []
        for name, kind, value in (
            ("num_requests_running", "gauge", now.running),
            ("num_requests_waiting", "gauge", now.waiting),
            ("kv_cache_usage_perc", "gauge", now.held / cache.total),
            ("prefix_cache_queries_total", "counter", now.queries),
            ("prefix_cache_hits_total", "counter", now.hits),
            ("num_preemptions_total", "counter", now.preemptions),
            ("prompt_tokens_total", "counter", self.prompt_tokens),
            ("prompt_tokens_cached_total", "counter", self.cached_tokens),
            ("generation_tokens_total", "counter", self.generation_tokens),
        ):
            lines += [f"# TYPE vllm:{name} {kind}", f"vllm:{name}{{{labels}}} {float(value)}"]
        for store, size in now.stored:
            name = f"lmcache:{STORES[store]}"
            lines += [f"# TYPE {name} gauge", f"{name}{{{labels}}} {float(size)}"]
        lines.append("# TYPE vllm:request_success_total counter")
        for reason, count in self.ended.items():
            lines.append(f'vllm:request_success_total{{{labels},finished_reason="{reason}"}} {float(count)}')
        for name, histogram in self.histograms.items():
            lines.append(f"# TYPE vllm:{name} histogram")
            below = 0
            for bound, count in zip((*map(str, histogram.bounds), "+Inf"), histogram.counts, strict=True):
                below += count
                lines.append(f'vllm:{name}_bucket{{{labels},le="{bound}"}} {float(below)}')
            lines += [f"vllm:{name}_count{{{labels}}} {float(below)}", f"vllm:{name}_sum{{{labels}}} {histogram.sum}"]
        config = f'block_size="{self.block_tokens}",enable_prefix_caching="{self.caching}",engine="{self.rank}"'
        config += f',num_gpu_blocks="{cache.total}"'
        lines += ["# TYPE vllm:cache_config_info gauge", f"vllm:cache_config_info{{{config}}} 1.0"]
        return "\n".join(lines) + "\n"


def page_of(ranks: Sequence[EmulatedMetrics]) -> str:
    """Return the page of an engine: its ranks' lines, together for each metric."""
    if len(ranks) == 1:
        return ranks[0].page()
    metrics: dict[str, list[str]] = {}
    for rank in ranks:
        lines: list[str] = []
        for line in rank.page().splitlines():
            if line.startswith("#"):
                lines = metrics.setdefault(line, [])
            else:
                lines.append(line)
    return "".join(f"{line}\n" for head, lines in metrics.items() for line in (head, *lines))


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
