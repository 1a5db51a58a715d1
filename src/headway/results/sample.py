"""The requests that the statistics cover (those completed after the warm-up), and the targets that they met."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import compress, repeat
from operator import ge, sub
from typing import Final

from msgspec import Struct, structs

from headway.results.recorder import COMPLETED, IN_FLIGHT, RequestColumns, RunFacts, Targets
from headway.results.statistics import spread_of
from headway.types import PS_PER_SECOND, Json

Met = list[bool | None]  # for each request, whether it met a target; None if it has no such target


class Sample(Struct):
    """Columns of equal length, one entry per request."""

    ttft_ps: list[int]
    queue_wait_ps: list[int]
    e2e_ps: list[int]
    decode_ps: list[int]  # time from the first token to the last
    prompt_tokens: list[int]
    output_tokens: list[int]
    met: dict[str, Met]  # name of a target -> its column; only targets that at least one request has
    good: list[bool] | None  # whether each request met all its targets; None if no request has a target

    def __len__(self) -> int:
        return len(self.e2e_ps)

    def tpot_ps(self) -> list[float]:
        """Return the time per output token of the requests with more than one output token."""
        pairs = zip(self.decode_ps, self.output_tokens, strict=True)
        return [decode / (tokens - 1) for decode, tokens in pairs if tokens > 1]

    def part(self, positions: Sequence[int]) -> Sample:
        """Return a sample of the requests at these positions."""
        columns = {name: values for name, values in structs.asdict(self).items() if isinstance(values, list)}
        picked = {name: [values[position] for position in positions] for name, values in columns.items()}
        met = {name: [flags[position] for position in positions] for name, flags in self.met.items()}
        return structs.replace(self, met=met, **picked)


def completed_flags(recorder: RequestColumns, warmup: int) -> list[bool]:
    """Return for each request after the warm-up whether it was completed."""
    return [code == COMPLETED for code in recorder.outcome[warmup:]]


# How a request ended, for `missed_targets`.
MET: Final = 0
MISSED: Final = 1
UNCOUNTED: Final = -1


def missed_targets(requests: RequestColumns, sample: Sample, warmup: int) -> array[int]:
    """Return for each request MET, MISSED (also if it was not completed), or UNCOUNTED (in the warm-up, or in flight).
    `sample` has the completed requests."""
    flags = array("b", [UNCOUNTED]) * len(requests)
    good = iter(sample.good or [True] * len(sample))
    for row, outcome in enumerate(requests.outcome[warmup:], warmup):
        if outcome == COMPLETED:
            flags[row] = MET if next(good) else MISSED
        elif outcome != IN_FLIGHT:
            flags[row] = MISSED
    return flags


def column_of_started(recorder: RequestColumns, facts: RunFacts, column: str) -> list[int]:
    """Return the values of a column for the requests after the warm-up whose first step has begun."""
    started = map(ge, recorder.started_ps[facts.warmup :], repeat(0))
    return list(compress(getattr(recorder, column)[facts.warmup :], started))


def completed_sample(recorder: RequestColumns, facts: RunFacts) -> Sample:
    warmup = facts.warmup
    flags = completed_flags(recorder, warmup)

    def column(values: Sequence[int]) -> list[int]:
        return list(compress(values[warmup:], flags))

    arrival = column(recorder.arrival_ps)
    first = column(recorder.first_token_ps)
    finished = column(recorder.finished_ps)
    sample = Sample(
        ttft_ps=list(map(sub, first, arrival)),
        queue_wait_ps=list(map(sub, column(recorder.started_ps), arrival)),
        e2e_ps=list(map(sub, finished, arrival)),
        decode_ps=list(map(sub, finished, first)),
        prompt_tokens=column(recorder.prompt_tokens),
        output_tokens=column(recorder.output_tokens),
        met={},
        good=None,
    )
    by_tenant = [facts.tenant_slos.get(name, facts.slo) for name in recorder.names["tenant"]]
    _judge(sample, by_tenant, column(recorder.tenant))
    return sample


def _judge(sample: Sample, by_tenant: Sequence[Targets], tenants: Sequence[int]) -> None:
    """Compare the times with the targets of the tenants. A request with a single output token has no TPOT, so it meets
    any TPOT target."""
    times = {"ttft": sample.ttft_ps, "tpot": sample.decode_ps, "e2e": sample.e2e_ps}
    for name, values in times.items():
        targets: list[int | None] = [getattr(slo, f"{name}_ps") for slo in by_tenant]
        if all(target is None for target in targets):
            continue
        factors: Iterable[int] = (tokens - 1 for tokens in sample.output_tokens) if name == "tpot" else repeat(1)
        rows = zip(values, map(targets.__getitem__, tenants), factors, strict=False)
        sample.met[name] = [None if target is None else value <= target * factor for value, target, factor in rows]
    if sample.met:
        sample.good = [False not in flags for flags in zip(*sample.met.values(), strict=True)]


def latency(sample: Sample) -> Json:
    """Return all latencies except the gaps between tokens, which are not recorded by request."""
    return {
        "ttft": spread_of(sample.ttft_ps),
        "tpot": spread_of(sample.tpot_ps()),
        "e2e": spread_of(sample.e2e_ps),
        "queue_wait": spread_of(sample.queue_wait_ps),
    }


def throughput(sample: Sample, window_ps: int | None) -> Json:
    return {
        "requests_per_s": rate(len(sample), window_ps),
        "input_tokens_per_s": rate(sum(sample.prompt_tokens), window_ps),
        "output_tokens_per_s": rate(sum(sample.output_tokens), window_ps),
    }


def attainment(sample: Sample, planned: int, window_ps: int | None) -> Json:
    """Return, for each target, which fraction of the requests with this target met it. Also return the goodput: the
    requests that met all their targets."""
    section: Json = {}
    for name in ("ttft", "tpot", "e2e"):
        met = sample.met.get(name, ())
        section[f"{name}_attainment"] = ratio(met.count(True), len(met) - met.count(None))
    section["goodput_requests_per_s"] = rate(good(sample), window_ps)
    section["goodput_ratio"] = ratio(good(sample), planned)
    return section


def good(sample: Sample) -> int:
    """Count the requests that met all their targets."""
    return len(sample) if sample.good is None else sample.good.count(True)


def ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def rate(count: int, window_ps: int | None) -> float | None:
    """Return a count per second. `window_ps` is the time in which the count was taken. If the time is None, return
    None. If the time is 0, return 0."""
    if window_ps is None:
        return None
    return count * PS_PER_SECOND / window_ps if window_ps > 0 else 0.0
