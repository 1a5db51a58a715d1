"""SLO violation: a completed request exceeds one of its targets.

A request misses the SLO if its TTFT, TPOT or end-to-end time is above its target, as in `slo` of the summary. There is
one finding per class. The worst stretch of a class is the series of consecutive arrivals in which misses outnumber the
other requests most. Severity: the fraction of requests that missed a target among the requests with a target.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import compress
from typing import Final

from headway.results.findings import bottleneck
from headway.results.findings.cluster_remedies import faster_link, more_replicas
from headway.results.findings.observed import SYMPTOM, Observed, busiest, examples, many, percent, seconds, span, worst
from headway.results.findings.policy_remedies import balance, reject_late
from headway.results.findings.run_settings import link_binds
from headway.results.recorder import COMPLETED, IN_FLIGHT
from headway.results.records import Finding, Suggestion
from headway.results.sample import Sample, completed_flags

KIND: Final = "slo_violation"
ROLE: Final = SYMPTOM
AREA: Final = "latency"
ORDER: Final = 2
NAMES: Final = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "end to end"}


def find(run: Observed) -> list[Finding]:
    sample = run.sample
    if sample.good is None or all(sample.good):
        return []
    rows = list(compress(range(run.warmup, len(run.requests)), completed_flags(run.requests, run.warmup)))
    missed = Counter(run.requests.slo_class[rows[place]] for place, good in enumerate(sample.good) if not good)
    by_class: dict[int, list[int]] = {code: [] for code in missed}
    for place, row in enumerate(rows):
        code = run.requests.slo_class[row]
        if code in by_class:
            by_class[code].append(place)
    return worst(_finding(run, code, rows, sample, places) for code, places in by_class.items())


def suggest(run: Observed, finding: Finding) -> Iterator[Suggestion]:
    """Suggest how to relieve the resource that explains most of the loss."""
    for other in run.findings:
        if other.kind == bottleneck.KIND:
            yield from bottleneck.suggest(run, other)
            return
    if link_binds(run):
        yield from faster_link(run, finding)
    else:
        yield from more_replicas(run, finding)
        yield from reject_late(run)
        yield from balance(run)


def _finding(run: Observed, code: int, rows: list[int], sample: Sample, places: list[int]) -> Finding:
    """Describe the misses of one class; `places` are the class's indexes in the sample, in order of arrival."""
    assert sample.good is not None
    requests, name, good = run.requests, run.classes[code], sample.good
    judged = [place for place in places if any(flags[place] is not None for flags in sample.met.values())]
    missed = [place for place in judged if not good[place]]
    targets = {target: sum(flags[place] is False for place in judged) for target, flags in sample.met.items()}
    begin, end = _worst_stretch(good[place] for place in judged)
    stretch = judged[begin:end]
    inside = sum(not good[place] for place in stretch)
    from_ps, to_ps = (requests.arrival_ps[rows[place]] for place in (stretch[0], stretch[-1]))
    tenants = Counter(requests.tenant[rows[place]] for place in missed)
    where = Counter(requests.instance[rows[place]] for place in missed)
    parts = [f"{count:,} {NAMES[target]}" for target, count in targets.items() if count]
    return Finding(
        kind=KIND,
        at_ps=min(requests.arrival_ps[rows[place]] for place in missed),
        until_ps=max(requests.finished_ps[rows[place]] for place in missed),
        severity=len(missed) / len(judged),
        count=len(missed),
        title=(
            f"{len(missed):,} of {many(len(judged), f'{name} request')} ({percent(len(missed) / len(judged))}) missed "
            f"a target: {', '.join(parts)}; the worst stretch is arrivals {span(from_ps, to_ps)}, of which "
            f"{inside:,} of {len(stretch):,} missed."
        ),
        requests=examples((_excess(run, sample, place, rows[place]), rows[place]) for place in missed),
        instances=busiest(where),
        evidence={
            "slo_class": name,
            "requests": len(judged),
            "missed": len(missed),
            **{f"missed_{target}": count for target, count in targets.items()},
            "worst_from_s": seconds(from_ps),
            "worst_until_s": seconds(to_ps),
            "worst_requests": len(stretch),
            "worst_missed": inside,
            "not_completed": _lost(run, code),
            **run.most_hit(tenants, "missed"),
        },
        explains=run.loss.share(rows[place] for place in missed),
    )


def _worst_stretch(good: Iterable[bool]) -> tuple[int, int]:
    """Return the start and end of the series of consecutive requests in which misses outnumber the other requests most.
    Among equal series, return the first and shortest one."""
    best, stretch = 0, (0, 0)
    total, begin = 0, 0
    for place, met in enumerate(good):
        if total <= 0:
            total, begin = 0, place
        total += -1 if met else 1
        if total > best:
            best, stretch = total, (begin, place + 1)
    return stretch


def _excess(run: Observed, sample: Sample, place: int, row: int) -> float:
    """Return the greatest ratio of a request's time to its target."""
    slo = run.facts.tenant_slos.get(run.tenants[run.requests.tenant[row]], run.facts.slo)
    tokens = max(1, sample.output_tokens[place] - 1)
    times = [(sample.ttft_ps[place], slo.ttft_ps), (sample.e2e_ps[place], slo.e2e_ps)]
    times.append((sample.decode_ps[place], None if slo.tpot_ps is None else slo.tpot_ps * tokens))
    return max(time / target for time, target in times if target)


def _lost(run: Observed, code: int) -> int:
    """Count the requests of the class that were rejected, timed out or failed. They do not count as misses."""
    pairs = run.requests.select("slo_class", "outcome", start=run.warmup)
    return sum(own == code and outcome not in (COMPLETED, IN_FLIGHT) for own, outcome in pairs)
