"""Random router states for the tests of policies: views with any values, and an index that answers what it is told."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from hypothesis import strategies as st

from headway.policies import registry
from headway.policies.context import Context
from headway.policies.prefix_index import PrefixIndex
from headway.types import Path, Request
from headway.views.cluster import ClusterView
from headway.views.events import Routed
from headway.views.instance import InstanceView


class ToldIndex(PrefixIndex):
    """Stands in for the prefix index: the matched leading blocks are what the test says."""

    def __init__(self, hits: list[int]) -> None:
        super().__init__(len(hits), 1000, 16)
        self.hits = hits

    def matches(self, path: Path) -> list[int]:
        return self.hits

    def touch(self, instance: int, path: Path) -> None:
        pass


class LinearSteps:
    """Estimates a step at 1 ms a prefill token and 100 ms a decode."""

    def step_seconds(self, view: InstanceView, prefill_tokens: int, decodes: int, context: int) -> float:
        return prefill_tokens / 1000 + decodes / 10


class ToldContext(Context):
    def __init__(self, instances: list[InstanceView], hits: list[int] | None = None, seed: int = 1) -> None:
        super().__init__(instances, lambda name: Random(f"{seed}/{name}"), LinearSteps(), 16)
        self.told = ToldIndex(hits if hits is not None else [0] * len(instances))

    def prefix_index(self, block_tokens: int, capacity: int, accesses: bool = False) -> PrefixIndex:
        return self.told


def views(count: int = 4, **columns: list[Any]) -> list[InstanceView]:
    """Instances whose attributes are given by column, as in views(3, inflight=[1, 0, 2])."""
    made = [InstanceView(index, f"i{index}") for index in range(count)]
    for name, values in columns.items():
        for view, value in zip(made, values, strict=True):
            setattr(view, name, value)
    return made


def prompt(tokens: int = 100, number: int = 0, **fields: Any) -> Request:
    """A request whose prompt is one run of its own."""
    return Request(number, 0, tokens, Path((4 * number + 1,), (tokens,)), **fields)


def bound(name: str, instances: list[InstanceView], hits: list[int] | None = None, **given: Any) -> Any:
    """A routing policy, bound to these instances and to an index that answers `hits`."""
    policy = registry.build("routing", {"name": name, **given}, "policies.routing")
    if hasattr(policy, "bind"):
        policy.bind(ToldContext(instances, hits))
    return policy


def choice(policy: Any, instances: list[InstanceView], request: Request, now_ps: int = 0) -> int:
    """The index of the instance that the policy routes to; it is told so, as the control plane does."""
    cluster = ClusterView(instances)
    cluster.now_ps = now_ps
    target = policy.route(request, cluster).target
    view = next(view for view in instances if view.id == target)
    if hasattr(policy, "observe"):
        policy.observe(Routed(now_ps, request, view))
    return view.index


def choose(
    name: str, instances: list[InstanceView], request: Request, hits: list[int] | None = None, **given: Any
) -> int:
    return choice(bound(name, instances, hits, **given), instances, request)


@st.composite
def states(draw: Callable[..., Any], block_tokens: int = 512) -> tuple[list[InstanceView], Request, list[int]]:
    """Instances with small values, so that ties are common; a prompt; the blocks of it believed cached on each."""
    count = draw(st.integers(1, 6))
    column = lambda values: [draw(values) for _ in range(count)]  # noqa: E731
    blocks = draw(st.integers(0, 3))
    tokens = blocks * block_tokens + draw(st.integers(1 if blocks == 0 else 0, block_tokens - 1))
    instances = views(
        count,
        inflight=column(st.integers(0, 4)),
        pending_prefill_tokens=column(st.sampled_from([0, 0, block_tokens, 2 * block_tokens, 700])),
        queued=column(st.integers(0, 3)),
        running=column(st.integers(0, 3)),
        routed_since_report=column(st.integers(0, 2)),
        kv_used=column(st.integers(0, 4)),
        kv_blocks=column(st.sampled_from([4, 8])),
        max_queue=column(st.sampled_from([4, 8, 10, 256])),
        max_batch_size=column(st.sampled_from([4, 8])),
        busy=column(st.sampled_from([0.0, 0.25, 0.5, 1.0])),
        watts=column(st.sampled_from([0.0, 100.0, 350.0, 700.0])),
        capacity=column(st.sampled_from([0.5, 1.0])),
    )
    return instances, prompt(tokens), column(st.integers(0, blocks))
