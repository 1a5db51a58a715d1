"""Suggestions that relieve a resource, for findings that name the resource that limits requests."""

from collections.abc import Callable, Iterator
from typing import Final

from headway.results.findings.observed import Observed
from headway.results.findings.remedies import (
    CACHED,
    TPOT,
    adapter_affinity,
    aim,
    balance,
    cached_prefixes,
    earlier_scaling,
    faster_link,
    faster_tiers,
    hit_ratio,
    hold_back,
    larger_cache,
    more_incoming,
    more_replicas,
    reject_late,
    scaled,
    use,
    wider_limits,
)
from headway.results.records import ROUTING, SCHEDULER, Finding, Suggestion


def relieve(run: Observed, finding: Finding, resource: str) -> Iterator[Suggestion]:
    """Suggest how to relieve a resource."""
    yield from _RELIEF[resource](run, finding)


def _kv(run: Observed, finding: Finding) -> Iterator[Suggestion]:
    yield from larger_cache(run, finding)
    yield from more_replicas(run, finding)
    yield from use(run, ROUTING, "least-kv", ", which avoids instances with few free KV blocks")
    yield from hold_back(run)
    yield from reject_late(run)


def _slots(run: Observed, finding: Finding) -> Iterator[Suggestion]:
    yield from scaled(run, finding, "max_batch_size", 2, ", so that more requests run at a time")
    yield from more_replicas(run, finding)
    yield from balance(run)
    yield from reject_late(run)


def _prefill(run: Observed, finding: Finding) -> Iterator[Suggestion]:
    if hit_ratio(run) >= CACHED:
        yield from cached_prefixes(run)
    yield from more_replicas(run, finding)
    yield from scaled(run, finding, "max_batch_tokens", 2, ", so that a step computes more of the prompts")
    yield from balance(run)
    yield from reject_late(run)
    yield from use(run, SCHEDULER, "shortest-prefill", ", which starts the most requests early")


def _decode(run: Observed, finding: Finding) -> Iterator[Suggestion]:
    figure = aim(run, TPOT)
    yield from more_replicas(run, finding, "decode", figure)
    reason = ", so that prefill slows decode down less"
    yield from scaled(run, finding, "max_batch_tokens", 0.5, reason, role="decode", figure=figure)
    reason = ", so that steps are shorter"
    yield from scaled(run, finding, "max_batch_size", 0.5, reason, role="decode", figure=figure)
    yield from balance(run, figure)
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
    yield from more_replicas(run, finding, "decode")
    yield from more_incoming(run, finding)
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
