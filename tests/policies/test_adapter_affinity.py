"""The adapter-affinity scorer."""

from __future__ import annotations

from states import ToldContext

from headway.policies import registry
from headway.policies.scorers import AdapterAffinity
from headway.types import Path, Request
from headway.views.cluster import ClusterView
from headway.views.events import Finished, FirstToken, Routed
from headway.views.instance import InstanceView


def request(number: int, adapter: str | None) -> Request:
    return Request(number, 0, 4, Path((number,), (4,)), adapter=adapter)


def scorer(views: list[InstanceView], **keys: object) -> AdapterAffinity:
    made = registry.build("scorer", {"name": "adapter-affinity", **keys}, "x")
    assert isinstance(made, AdapterAffinity)
    made.bind(ToldContext(views))
    return made


def views(*slots: int | None) -> list[InstanceView]:
    return [InstanceView(index, f"i{index}", adapter_slots=count) for index, count in enumerate(slots)]


def test_a_loaded_adapter_is_best_then_a_free_slot() -> None:
    found = views(2, 2, 2, None)
    found[0].adapters, found[1].adapters = ("a", "b"), ("b",)
    cluster = ClusterView(found)
    assert scorer(found).score(request(0, "a"), found, cluster) == [1.0, 0.5, 0.5, 1.0]
    assert scorer(found, free=0.2).score(request(0, "c"), found, cluster) == [0.0, 0.2, 0.2, 1.0]
    assert scorer(found).score(request(0, "b"), found[1:], cluster) == [1.0, 0.5, 1.0]
    assert scorer(found).score(request(0, None), found, cluster) == [1.0] * 4


def test_what_is_on_its_way_counts_as_loaded_until_it_has_ended() -> None:
    found = views(1, 1)
    cluster, affinity = ClusterView(found), scorer(found)
    for number in (0, 1):
        affinity.observe(Routed(0, request(number, "a"), found[0]))
    affinity.observe(Routed(0, request(2, None), found[1]))
    assert affinity.score(request(3, "a"), found, cluster) == [1.0, 0.5]
    assert affinity.score(request(3, "b"), found, cluster) == [0.0, 0.5]
    affinity.observe(FirstToken(1, request(0, "a"), found[0]))
    affinity.observe(Finished(1, request(0, "a"), found[0], "completed", 1))
    assert affinity.score(request(3, "a"), found, cluster) == [1.0, 0.5]
    affinity.observe(Finished(2, request(1, "a"), found[0], "timed_out", 0))
    assert affinity.score(request(3, "a"), found, cluster) == [0.5, 0.5]
