"""The watch raises when the engine breaks what must hold after every event.

`watch` works out from the requests themselves that blocks, ownership, tokens and times add up, and `exact_runs` has it
watch every drawn scenario. Here one thing at a time is broken in the engine: a watch that nothing alarms would prove
nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import watch
from drawn_scenarios import scattered
from exact_runs import run
from headway.control.flights import Flights
from headway.sim.handovers import Handovers
from headway.sim.instance import Instance
from headway.sim.kv_cache import KvCache
from headway.sim.link import Link
from headway.sim.loader import Loader
from headway.sim.step_scheduler import StepScheduler
from headway.sim.store import Store
from headway.sim.tiers import Tiers

Plain = Callable[..., Any]


def leak(plain: Plain, cache: KvCache, *given: Any) -> None:
    plain(cache, *given)
    cache.held += 1


def hold_twice(plain: Plain, cache: KvCache, *given: Any) -> Any:
    plain(cache, *given)
    return plain(cache, *given)


def evict_nothing(plain: Plain, cache: KvCache, count: int) -> None:
    cache.idle -= count


def one_block_more(plain: Plain, loader: Loader, job: Any, *given: Any) -> None:
    plain(loader, job, *given)
    job.blocks += 1


def yield_and_stay(plain: Plain, scheduler: StepScheduler, job: Any) -> None:
    plain(scheduler, job)
    scheduler.batch.running[job] = job


def vanish(plain: Plain, instance: Instance, job: Any) -> None:
    plain(instance, job)
    instance.ended.remove(job)


def store_twice(plain: Plain, store: Store, content: Any, at: int) -> Any:
    found = plain(store, content, at)
    for key, *_ in content:
        store.spans[key].append(store.spans[key][-1])
    return found


def stay_below(plain: Plain, tiers: Tiers, *given: Any) -> None:
    shared = [tier.shared for tier in tiers.tiers]
    for tier in tiers.tiers:
        tier.shared = True
    plain(tiers, *given)
    for tier, was in zip(tiers.tiers, shared, strict=True):
        tier.shared = was


def lend_for_good(plain: Plain, tiers: Tiers, now: int, job: Any) -> None:
    tiers.lent.pop(job, None)


def keep_swapped(plain: Plain, tiers: Tiers, now: int, job: Any) -> None:
    kept = job.swapped
    plain(tiers, now, job)
    tiers.tiers[0].swapped += kept


def invent(plain: Plain, tiers: Tiers, now: int, content: Any) -> None:
    plain(tiers, now, [*content, (77, 0, 1, 0.0)])


def copy_down(plain: Plain, tiers: Tiers, now: int) -> None:
    plain(tiers, now)
    if not tiers.eager and tiers.cache.lru:
        piece = next(iter(tiers.cache.lru))
        tiers.come_down(now, [(piece.key, piece.start, piece.end, 0.0)])


def load_more(plain: Plain, tiers: Tiers, *given: Any) -> None:
    plain(tiers, *given)
    tiers.tiers[0].loaded += 1


def count_incoming_twice(plain: Plain, handovers: Handovers, now: int, handover: Any, *given: Any) -> None:
    handover.incoming.count += not handover.begun
    plain(handovers, now, handover, *given)


def count_request_twice(plain: Plain, handovers: Handovers, job: Any, prefill: int, decode: int) -> Any:
    handovers.cluster.instances[decode].stats.requests += 1
    return plain(handovers, job, prefill, decode)


def stay_in_flight(plain: Plain, flights: Flights, request_id: int) -> Any:
    flight = flights.by_id[request_id]
    return flight, flight.prefill


def receive_nothing(plain: Plain, handovers: Handovers, *given: Any) -> None:
    pass


def keep_on_handing(plain: Plain, instance: Instance, *given: Any) -> bool:
    return False


def cache_too_early(plain: Plain, loader: Loader, handover: Any, *given: Any) -> None:
    plain(loader, handover, *given)
    loader.blocks.offer(handover.target, handover.target.known // loader.size, 0)


def keep_a_copy(plain: Plain, cache: KvCache, *given: Any) -> list[Any]:
    cache.release(*given)
    return []


def send_more(plain: Plain, link: Link, *given: Any) -> Any:
    link.moved_bytes += 1
    return plain(link, *given)


def wait_for_more(plain: Plain, link: Link, now: int, amount: int, load: Any, after: Any) -> Any:
    if load is not None:
        load.left += 1
    return plain(link, now, amount, load, after)


def count_prompt_twice(plain: Plain, instance: Instance, job: Any, computed: int) -> None:
    if job.handover is None:
        job.prefilled = 0
    plain(instance, job, computed)


def count_first_token_twice(plain: Plain, instance: Instance, *given: Any) -> None:
    plain(instance, *given)
    instance.stats.output_tokens += 1


def count_hits_every_time(plain: Plain, scheduler: StepScheduler, job: Any, cached: int, now: int) -> None:
    if job.started:
        scheduler.stats.cached_tokens += cached
    plain(scheduler, job, cached, now)


def end_early(plain: Plain, instance: Instance, job: Any) -> None:
    plain(instance, job)
    job.generated -= 1


def hide_preemption(plain: Plain, scheduler: StepScheduler, job: Any) -> None:
    plain(scheduler, job)
    scheduler.recorder.preemptions[job.row] -= 1


def start_later(plain: Plain, scheduler: StepScheduler, job: Any, cached: int, now: int) -> None:
    plain(scheduler, job, cached, now + 1)


def start_again(plain: Plain, scheduler: StepScheduler, job: Any, cached: int, now: int) -> None:
    plain(scheduler, job, cached, now)
    scheduler.recorder.started_ps[job.row] = now


BROKEN: list[tuple[str, Any, str, Any, str]] = [
    ("tiered", KvCache, "release", leak, r"says \d+ held blocks, requests hold"),
    ("tiered", KvCache, "hold", hold_twice, r"counts holders"),
    ("tiered", KvCache, "evict", evict_nothing, r"says -?\d+ idle blocks and has"),
    ("tiered", Loader, "load", one_block_more, r"\(loading\) has \d+ blocks, not"),
    ("tiered", StepScheduler, "preempt", yield_and_stay, r"is in two places"),
    ("tiered", Instance, "finish_expired", vanish, r"is in 0 places at a time"),
    ("tiered", Store, "put", store_twice, r"(cpu|storage) has blocks \S+ of \d+ twice"),
    ("tiered", Tiers, "on_loaded", stay_below, r"which still lie in (cpu|storage)"),
    ("tiered", Tiers, "take_back", lend_for_good, r"says \d+ blocks are lent, requests have 0"),
    ("tiered", Tiers, "end_swap", keep_swapped, r"keeps \d+ blocks of requests that had to yield"),
    ("tiered", Tiers, "come_down", invent, r"Blocks \[\(0, 1\)\] of 77 came into \w+ from nowhere"),
    ("tiered", Tiers, "settle", copy_down, r"came into \w+ and are still in the GPU"),
    ("tiered", Tiers, "load", load_more, r"blocks went up, requests asked for"),
    ("split", Handovers, "pass_on", count_incoming_twice, r"is to get \d+ requests, and says"),
    ("split", Handovers, "split", count_request_twice, r"says \d+ requests, \d+ were sent there"),
    ("split", Flights, "hand_over", stay_in_flight, r"router says \d+ in flight on \S+, there are"),
    ("split", Handovers, "on_received", receive_nothing, r"is to get \d+ requests, and says"),
    ("split", Instance, "let_go", keep_on_handing, r"has two owners"),
    ("split", Loader, "fetch", cache_too_early, r"two owners: blocks on their way to it are already in the cache"),
    ("split", KvCache, "remove", keep_a_copy, r"two owners: instance \d+ keeps a copy"),
    ("split", Link, "start", send_more, r"Link \d+ has moved \d+ bytes"),
    ("split", Link, "start", wait_for_more, r"waits for \d+ transfers, \d+ are on their way"),
    ("split", Instance, "count_prefill", count_prompt_twice, r"says \d+ prompt tokens computed, it was"),
    ("split", Instance, "hand_over", count_first_token_twice, r"say \d+ tokens, requests that have ended got"),
    ("tiered", StepScheduler, "take_turn", count_hits_every_time, r"says \d+ tokens found cached, it was"),
    ("tiered", Instance, "leave", end_early, r"ends with \d+ tokens, \d+ were generated"),
    ("tiered", StepScheduler, "preempt", hide_preemption, r"had to yield \d+ times, the record says"),
    ("tiered", StepScheduler, "take_turn", start_later, r"started_ps is \d+"),
    ("tiered", StepScheduler, "take_turn", start_again, r"started_ps was \d+ and becomes \d+"),
]


@pytest.mark.parametrize(
    ("family", "owner", "method", "wrong", "sentence"), BROKEN, ids=[one[3].__name__ for one in BROKEN]
)
def test_the_watch_notices(
    family: str, owner: Any, method: str, wrong: Any, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the first of the drawn scenarios in which it shows, and before the engine stumbles over it."""
    plain = getattr(owner, method)
    monkeypatch.setattr(owner, method, lambda self, *given: wrong(plain, self, *given))

    with pytest.raises(watch.Broken, match=sentence):
        for number in range(150):
            run(scattered(family, number, tmp_path), look=watch.attach)
