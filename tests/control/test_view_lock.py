"""A policy that writes to a view gets an error that names the policy, the field and the request."""

from __future__ import annotations

from copy import copy
from random import Random
from typing import Any

import pytest

import headway.policies  # noqa: F401  (declares the policies)
from headway import simulate
from headway.control.autoscaler import Autoscaler
from headway.control.plane import ControlPlane
from headway.control.view_lock import DECISIONS
from headway.errors import HeadwayError
from headway.policies import registry
from headway.policies.context import Context
from headway.types import ADMIT, PS_PER_SECOND, Path, Priority, Request, Route
from headway.views.instance import InstanceView
from headway.views.pool import PoolView

Answer = Any


class First:
    """Routes to the first instance. Each class below also writes to a view."""

    def route(self, request: Any, cluster: Any) -> Answer:
        self.write(request, cluster)
        return Route(cluster.instances[0].id)

    def write(self, request: Any, cluster: Any) -> None:
        pass


def request(number: int) -> Request:
    return Request(number, 0, 100, Path((4 * number + 1,), (100,)), tenant="guest")


def plane(routing: Any = None, admission: Any = None, priority: Any = None) -> ControlPlane:
    views = [InstanceView(index, f"i{index}") for index in range(3)]
    views[1].tier_blocks, views[1].tier_used = {"cpu": 9}, {"cpu": 4}
    stages = {"admission": admission, "priority": priority, "routing": routing}
    plain = {"admission": "always", "priority": "none", "routing": "least-loaded"}
    context = Context(views, lambda name: Random(0), None, 16)  # type: ignore[arg-type]
    return ControlPlane(
        context, *(stages[stage] or registry.build(stage, name, stage) for stage, name in plain.items())
    )


def inflight(request: Any, cluster: Any) -> None:
    cluster.instances[2].inflight += 1


def by_setattr(request: Any, cluster: Any) -> None:
    setattr(cluster.instances[1], "kv_used", 0)  # noqa: B010


def deletes(request: Any, cluster: Any) -> None:
    del cluster.instances[0].queued


def now(request: Any, cluster: Any) -> None:
    cluster.now_ps = 5


def tenant(request: Any, cluster: Any) -> None:
    cluster.tenants["guest"].active = 0


def every_tenant(request: Any, cluster: Any) -> None:
    for each in cluster.tenants.values():
        each.requests = 0


def totals(request: Any, cluster: Any) -> None:
    cluster.totals.queued += 1


def of_request(request: Any, cluster: Any) -> None:
    request.tenant = "payer"


def path(request: Any, cluster: Any) -> None:
    request.path.keys = ()


def tiers(request: Any, cluster: Any) -> None:
    cluster.instances[1].tier_used["cpu"] = 0


def no_tiers(request: Any, cluster: Any) -> None:
    cluster.instances[0].tier_used["cpu"] = 0


WRITES = [
    (inflight, r"InstanceView\.inflight of i2 in test_view_lock\.py line \d+"),
    (by_setattr, r"InstanceView\.kv_used of i1 in test_view_lock\.py line \d+"),
    (deletes, r"InstanceView\.queued of i0 in test_view_lock\.py line \d+"),
    (now, r"ClusterView\.now_ps in test_view_lock\.py line \d+"),
    (tenant, r"TenantView\.active in test_view_lock\.py line \d+"),
    (every_tenant, r"TenantView\.requests in test_view_lock\.py line \d+"),
    (totals, r"Totals\.queued in test_view_lock\.py line \d+"),
    (of_request, r"Request\.tenant in test_view_lock\.py line \d+"),
    (path, r"Request\.path"),
    (tiers, r"InstanceView\.tier_used of i1"),
    (no_tiers, r"InstanceView\.tier_used"),
]


@pytest.mark.parametrize(("write", "field"), WRITES, ids=[write.__name__ for write, _ in WRITES])
def test_a_write_is_refused_and_named(write: Any, field: str) -> None:
    control = plane(type("Greedy", (First,), {"write": staticmethod(write)})())
    before = [(view.inflight, view.kv_used, view.queued, dict(view.tier_used)) for view in control.ordered]
    asked = request(7)
    with pytest.raises(HeadwayError, match=rf"^policies: Greedy writes to {field}, at request 7\. A policy must not"):
        control.arrive(0, asked)
    assert [(view.inflight, view.kv_used, view.queued, dict(view.tier_used)) for view in control.ordered] == before
    assert {type(view) for view in control.ordered} == {InstanceView}
    assert asked.path.keys == (29,)


def test_every_stage_and_method_is_watched() -> None:
    class Counts(First):
        def admit(self, request: Any, cluster: Any) -> Answer:
            cluster.instances[0].routed = 0
            return ADMIT

        def prioritise(self, request: Any, cluster: Any) -> Answer:
            cluster.instances[0].completed = 0
            return Priority(1.0)

    class Hears(First):
        def observe(self, event: Any) -> None:
            event.instance.output_tokens = 0

    class Binds(First):
        def bind(self, context: Any) -> None:
            context.instances[0].model = "mine"

    class Hints(First):
        def write(self, request: Any, cluster: Any) -> None:
            cluster.priority.hints["slack"] = 0

    with pytest.raises(HeadwayError, match=r"Counts writes to InstanceView\.routed of i0 .* at request 0"):
        plane(admission=Counts()).arrive(0, request(0))
    with pytest.raises(HeadwayError, match=r"Counts writes to InstanceView\.completed of i0 .* at request 0"):
        plane(priority=Counts()).arrive(0, request(0))
    with pytest.raises(HeadwayError, match=r"Hears writes to InstanceView\.output_tokens of i0 .* at request 0"):
        plane(Hears()).arrive(0, request(0))
    with pytest.raises(HeadwayError, match=r"Binds writes to InstanceView\.model of i0 in test_view_lock"):
        plane(Binds())

    class Hinted:
        def prioritise(self, request: Any, cluster: Any) -> Answer:
            return Priority(1.0, {"slack": 3})

    with pytest.raises(HeadwayError, match=r"Hints writes to Priority\.hints, at request 0"):
        plane(Hints(), priority=Hinted()).arrive(0, request(0))


def test_the_part_of_a_policy_that_writes_is_named(tmp_path: Any) -> None:
    file = tmp_path / "mine.py"
    file.write_text("class Loads:\n def score(self, request, candidates, cluster):\n  candidates[0].watts = 1\n")
    routing = registry.build("routing", {"name": "weighted", "scorers": {f"{file}:Loads": 1}}, "policies.routing")
    with pytest.raises(HeadwayError, match=r"Loads writes to InstanceView\.watts of i0 in mine\.py line 3, at request"):
        plane(routing).arrive(0, request(0))


def test_the_pool_of_an_autoscaler_is_locked_too() -> None:
    class Grows:
        def scale(self, pool: Any) -> None:
            pool.maximum = 99

    class Forgets:
        def scale(self, pool: Any) -> None:
            pool.history.clear()

    for policy, field in ((Grows(), r"PoolView\.maximum of p in test"), (Forgets(), r"PoolView\.history")):
        pool = PoolView("p", "m", "both", 1, 4, [InstanceView(0, "i0")], block_tokens=16)
        scaler = Autoscaler([pool], [policy], PS_PER_SECOND, None, PS_PER_SECOND, lambda *_: None)
        scaler.start(0)
        name = type(policy).__name__
        with pytest.raises(HeadwayError, match=rf"{name} writes to {field}.* for pool p at 1 s"):
            scaler.decide(PS_PER_SECOND, "interval")
        assert pool.maximum == 4 and len(pool.samples) == 1


def test_a_policy_may_copy_what_it_sees_and_write_to_the_copy() -> None:
    class Copies(First):
        def write(self, request: Any, cluster: Any) -> None:
            view = copy(cluster.instances[1])
            view.inflight += 1
            assert not cluster.instances[1].inflight
            other = copy(cluster)
            other.now_ps = 5
            assert cluster.now_ps == 0

    assert plane(Copies()).arrive(0, request(0)) is not None


def test_the_lock_ends_after_the_first_decisions() -> None:
    control = plane(First())
    for number in range(DECISIONS):
        assert control.maker.lock is control.audience.lock is not None
        control.arrive(0, request(number))
    assert control.maker.lock is control.audience.lock is None
    control.join(0, [registry.build("admission", "always", "admission")])
    assert control.maker.lock is control.audience.lock is None  # Headway's own policies are trusted
    control.join(0, [First()])
    assert control.maker.lock is control.audience.lock is not None  # new policies are watched again


def test_a_run_ends_with_the_error() -> None:
    class Greedy(First):
        def write(self, request: Any, cluster: Any) -> None:
            if request.id == 5:
                inflight(request, cluster)

    small = {"workload": {"requests": 20, "rate": "50/s"}, "cluster": {"instances": 3}}
    with pytest.raises(HeadwayError, match=r"^policies: Greedy writes to InstanceView\.inflight of .*, at request 5\."):
        simulate(small, routing=Greedy())
