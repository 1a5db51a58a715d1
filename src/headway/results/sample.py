"""The requests that statistics are about: completed and not of the warm-up, with what they were promised."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress, repeat
from operator import le, sub

from msgspec import Struct, structs

from headway.results.recorder import COMPLETED, RequestColumns, RunFacts, Targets
from headway.results.statistics import spread_of
from headway.types import PS_PER_SECOND, Json

Met = list[bool | None]  # of each request: whether it met a target; None where it has none


class Sample(Struct):
    """Columns of equal length, one entry a request."""

    ttft_ps: list[int]
    queue_wait_ps: list[int]
    e2e_ps: list[int]
    decode_ps: list[int]  # first token to last
    prompt_tokens: list[int]
    output_tokens: list[int]
    met: dict[str, Met]  # by target, of those that anybody has
    good: list[bool] | None  # whether it met all its targets; None where nobody has any

    def __len__(self) -> int:
        return len(self.e2e_ps)

    def part(self, positions: Sequence[int]) -> Sample:
        """The requests at these positions."""
        columns = {name: values for name, values in structs.asdict(self).items() if isinstance(values, list)}
        picked = {name: [values[position] for position in positions] for name, values in columns.items()}
        met = {name: [flags[position] for position in positions] for name, flags in self.met.items()}
        return structs.replace(self, met=met, **picked)


def completed_flags(recorder: RequestColumns, warmup: int) -> list[bool]:
    """Of each request after the warm-up whether it was completed."""
    return [code == COMPLETED for code in recorder.outcome[warmup:]]


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
    if facts.tenant_slos:
        by_tenant = [facts.tenant_slos.get(name, facts.slo) for name in recorder.names["tenant"]]
        _judge_each(sample, [by_tenant[code] for code in column(recorder.tenant)])
    else:
        _judge_all(sample, facts.slo)
    if sample.met:
        sample.good = [False not in flags for flags in zip(*sample.met.values(), strict=True)]
    return sample


def _judge_all(sample: Sample, slo: Targets) -> None:
    """A target is met at or below it; a single output token has no TPOT and misses none."""
    if slo.ttft_ps is not None:
        sample.met["ttft"] = list(map(le, sample.ttft_ps, repeat(slo.ttft_ps)))
    if slo.tpot_ps is not None:
        target, pairs = slo.tpot_ps, zip(sample.decode_ps, sample.output_tokens, strict=True)
        sample.met["tpot"] = [decode <= target * (tokens - 1) for decode, tokens in pairs]
    if slo.e2e_ps is not None:
        sample.met["e2e"] = list(map(le, sample.e2e_ps, repeat(slo.e2e_ps)))


def _judge_each(sample: Sample, slos: list[Targets]) -> None:
    """The same where tenants are promised different things."""
    limits = {
        "ttft": (sample.ttft_ps, [slo.ttft_ps for slo in slos]),
        "tpot": (
            sample.decode_ps,
            [
                None if slo.tpot_ps is None else slo.tpot_ps * (tokens - 1)
                for slo, tokens in zip(slos, sample.output_tokens, strict=True)
            ],
        ),
        "e2e": (sample.e2e_ps, [slo.e2e_ps for slo in slos]),
    }
    for name, (values, targets) in limits.items():
        met: Met = [None if target is None else value <= target for value, target in zip(values, targets, strict=True)]
        if met.count(None) < len(met):
            sample.met[name] = met


def latency(sample: Sample) -> Json:
    """All but the gaps between tokens, which are not kept by request."""
    pairs = zip(sample.decode_ps, sample.output_tokens, strict=True)
    return {
        "ttft": spread_of(sample.ttft_ps),
        "tpot": spread_of([decode / (tokens - 1) for decode, tokens in pairs if tokens > 1]),
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
    """Of the requests that have a target the share that met it, and those that met all of theirs."""
    section: Json = {}
    for name in ("ttft", "tpot", "e2e"):
        met = sample.met.get(name, ())
        section[f"{name}_attainment"] = ratio(met.count(True), len(met) - met.count(None))
    section["goodput_requests_per_s"] = rate(good(sample), window_ps)
    section["goodput_ratio"] = ratio(good(sample), planned)
    return section


def good(sample: Sample) -> int:
    """How many met all their targets; without any, all."""
    return len(sample) if sample.good is None else sample.good.count(True)


def ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def rate(count: int, window_ps: int | None) -> float | None:
    """Per second; unknown where no request counts, and a run in which no time passed completed nothing."""
    if window_ps is None:
        return None
    return count * PS_PER_SECOND / window_ps if window_ps > 0 else 0.0
