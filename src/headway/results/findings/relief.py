"""Suggestions that relieve a resource, for findings that name the resource that limits requests."""

from collections.abc import Callable, Iterator
from typing import Final

from headway.results.findings.cluster_remedies import (
    earlier_scaling,
    faster_link,
    faster_tiers,
    larger_cache,
    more_incoming,
    more_replicas,
    scaled,
)
from headway.results.findings.observed import Observed
from headway.results.findings.policy_remedies import (
    CACHED,
    adapter_affinity,
    balance,
    cached_prefixes,
    limit_rate,
    reject_late,
    use,
    wider_limits,
)
from headway.results.findings.run_settings import TPOT, aim, hit_ratio, pool_of
from headway.results.records import SCHEDULER, Finding, Suggestion

SMALL_BATCH: Final = 128
QUICK: Final = 0.98  # from this fraction of requests within their TPOT target on, larger batches are acceptable


def relieve(run: Observed, finding: Finding, resource: str) -> Iterator[Suggestion]:
    """Suggest how to relieve a resource."""
    yield from _RELIEF[resource](run, finding)


def _kv(run: Observed, finding: Finding) -> Iterator[Suggestion]:
    yield from larger_cache(run, finding)
    yield from more_replicas(run, finding)
    yield from balance(run)
    yield from limit_rate(run)
    yield from reject_late(run)


def _slots(run: Observed, finding: Finding) -> Iterator[Suggestion]:
    larger = scaled(run, finding, "max_batch_size", 2, ", so that more requests run at a time")
    attained = run.summary.get("slo", {}).get("tpot_attainment") or 1.0
    quick = attained >= QUICK  # otherwise larger batches slow decode down
    pool = pool_of(run, finding)
    if quick and pool is not None and (pool.get("max_batch_size") or 0) <= SMALL_BATCH:
        yield from larger
    yield from more_replicas(run, finding)
    yield from balance(run)
    yield from limit_rate(run)
    yield from reject_late(run)


def _prefill(run: Observed, finding: Finding) -> Iterator[Suggestion]:
    if hit_ratio(run) >= CACHED:
        yield from cached_prefixes(run)
    yield from more_replicas(run, finding)
    yield from balance(run)
    yield from reject_late(run)
    yield from limit_rate(run)
    yield from use(run, SCHEDULER, "shortest-prefill", ", which starts the most requests early")


def _decode(run: Observed, finding: Finding) -> Iterator[Suggestion]:
    figure = aim(run, TPOT)
    yield from more_replicas(run, finding, "decode", figure)
    yield from balance(run, figure)
    yield from limit_rate(run)
    reason = ", so that steps are shorter"
    yield from scaled(run, finding, "max_batch_size", 0.5, reason, role="decode", figure=figure)
    yield from reject_late(run)


def _store(run: Observed, finding: Finding) -> Iterator[Suggestion]:
    yield from larger_cache(run, finding)
    yield from faster_tiers(run, finding)
    yield from cached_prefixes(run)
    yield from more_replicas(run, finding)


def _adapters(run: Observed, finding: Finding) -> Iterator[Suggestion]:
    yield from scaled(run, finding, "adapters.slots", 2, ", so that fewer requests wait for a slot")
    yield from adapter_affinity(run)
    yield from more_replicas(run, finding)


def _router(run: Observed, finding: Finding) -> Iterator[Suggestion]:
    yield from wider_limits(run)
    yield from more_replicas(run, finding)
    yield from reject_late(run)


def _replicas(run: Observed, finding: Finding) -> Iterator[Suggestion]:
    yield from more_replicas(run, finding)
    yield from earlier_scaling(run)
    yield from reject_late(run)


def _handover(run: Observed, finding: Finding) -> Iterator[Suggestion]:
    yield from more_incoming(run, finding)
    yield from more_replicas(run, finding, "decode")
    yield from balance(run)


_RELIEF: Final[dict[str, Callable[[Observed, Finding], Iterator[Suggestion]]]] = {
    "kv": _kv,
    "slots": _slots,
    "prefill": _prefill,
    "decode": _decode,
    "link": faster_link,
    "store": _store,
    "adapters": _adapters,
    "replicas": _replicas,
    "router": _router,
    "handover": _handover,
}
