"""What an autoscaler sees of the requests that wait at the router, and which pools it leaves alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headway.types import ADMIT, PS_PER_SECOND, Admit, Delay, Request, Scale
from headway.views.cluster import ClusterView
from headway.views.pool import PoolView
from lived import lived, requests, scenario, states


class Looks:
    """Tells what it was shown, and does as it is told."""

    def __init__(self, tell: Callable[[Any], None], window_s: float, *orders: int | None) -> None:
        self.tell = tell
        self.windows_s = (window_s,)
        self.orders = list(orders)

    def scale(self, pool: PoolView) -> Scale | None:
        self.tell((pool.now, pool.pending, pool.inflight, pool.concurrency(self.windows_s[0])))
        order = self.orders.pop(0) if self.orders else None
        return None if order is None else Scale(order, "as told")


def test_requests_that_wait_for_a_first_replica_are_load_as_long_as_they_wait(tmp_path: Path) -> None:
    """Three come at 11, 12 and 13 s, when there is nobody, are sent at 23 s, and take 15 s."""
    workload = requests(tmp_path, (0, 16, 1), *((at, 16, 1500) for at in (11_000, 12_000, 13_000)), (40_000, 16, 10))
    given = scenario(
        workload, min_replicas=0, max_replicas=2, scaling={"interval": "10s", "provisioning": "3s", "patience": "1m"}
    )
    seen: list[Any] = []
    lived(given, lambda: Looks(seen.append, 10.0, 0, 1))
    assert seen[1] == (20.0, 3, 0, 2.4)
    assert seen[2] == (30.0, 0, 3, 3.0)


def test_a_request_that_passes_the_routers_queue_at_once_is_counted_once(tmp_path: Path) -> None:
    """It comes at 0 s, and nothing happens before its prompt is computed at 8 s."""
    given = scenario(
        requests(tmp_path, (0, 80_000, 1), (20_000, 16, 1)),
        min_replicas=0,
        kv={"gpu_blocks": 6000},
        scaling={"interval": "4s"},
        policies={"routing": "least-loaded", "flow": "bands"},
    )
    seen: list[Any] = []
    lived(given, lambda: Looks(seen.append, 4.0))
    assert seen[0] == (4.0, 0, 1, 1.0)


@pytest.mark.parametrize("other", ["static", "queue-threshold"])
def test_a_static_pool_stays_as_a_crash_leaves_it_whoever_scales_the_others(tmp_path: Path, other: str) -> None:
    model = {"model": "llama-3.1-8b"}
    given = scenario(
        requests(tmp_path, *((1000 * number, 16, 50) for number in range(60))),
        faults=[{"at": "20s", "instance": "a-0", "kind": "crash"}],
        deployments={"a": {**model, "instances": 2}, "b": {**model, "max_replicas": 2, "scaling": other}},
        scaling={"interval": "10s", "triggers": {"rate_change": 0.1}},
    )
    result = lived(given)
    assert states(result, 0) == [(0, "ready"), (20_000, "stopped")]
    assert result.scaling_events == []


class DelaysWhileBusy:
    """Delays a request while each instance serves one."""

    def admit(self, request: Request, cluster: ClusterView) -> Admit | Delay:
        return Delay(PS_PER_SECOND) if all(view.inflight for view in cluster.instances) else ADMIT


def test_requests_that_admission_delays_are_pending_so_that_the_pool_grows(tmp_path: Path) -> None:
    """Six requests of 10 s each arrive in the first seconds; each replica serves one, and the others are delayed."""
    given = scenario(
        requests(tmp_path, *((1000 * number, 16, 1000) for number in range(6))),
        min_replicas=1,
        max_replicas=6,
        scaling={"interval": "4s", "provisioning": "1s"},
        policies={"routing": "least-loaded", "scaling": {"name": "concurrency", "target": 1}},
    )
    seen: list[Any] = []
    lived(given, lambda: Looks(seen.append, 4.0), admission=DelaysWhileBusy())
    assert [(pending, inflight) for _, pending, inflight, _ in seen[:2]] == [(4, 1), (5, 1)]
    grown = lived(given, admission=DelaysWhileBusy())
    assert max(event.after for event in grown.scaling_events) > 2
