"""A real Ray cluster for tests, with two machines that are both this one."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

ATTEMPTS = 5
HEAD, OTHER = ("127.0.0.2", "127.0.0.3") if sys.platform == "linux" else ("127.0.0.1", "127.0.0.1")


@contextmanager
def two_machines() -> Iterator[Any]:
    """Start two machines with one core each at `cluster.address`; `lose(cluster)` ends the second."""
    pytest.importorskip("ray", reason="Ray is not installed")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    cluster = _start()
    try:
        yield cluster
    finally:
        cluster.shutdown()


def _start() -> Any:
    """Start the cluster. Ray gives a node 30 s to come up, which a busy machine may miss: try again then."""
    from ray.cluster_utils import Cluster

    common = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 100 << 20}
    for attempt in range(ATTEMPTS):
        cluster = Cluster()
        try:
            cluster.add_node(**common, node_ip_address=HEAD)
            cluster.other = cluster.add_node(**common, node_ip_address=OTHER)
            return cluster
        except Exception:
            cluster.shutdown()
            if attempt == ATTEMPTS - 1:
                raise
    raise AssertionError


def lose(cluster: Any) -> None:
    """End the second machine without a shutdown."""
    cluster.remove_node(cluster.other, allow_graceful=False)


def when(condition: Any, act: Any) -> threading.Thread:
    """Call `act` in a thread once a condition holds."""

    def watch() -> None:
        while not condition():
            threading.Event().wait(0.05)
        act()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread
