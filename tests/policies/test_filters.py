"""Filters and pickers, alone and inside `weighted`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path as FilePath
from random import Random
from typing import Any

import pytest

import headway.policies.weighted  # noqa: F401  (registers filters and pickers)
from headway.errors import HeadwayError
from headway.policies import registry
from headway.policies.context import Context
from headway.types import Path, Request
from headway.views.cluster import ClusterView
from headway.views.instance import InstanceView

REQUEST = Request(0, 0, 64, Path((1,), (64,)))


class Still:
    def step_seconds(self, view: InstanceView, prefill_tokens: int, decodes: int, context: int) -> float:
        return 0.0


def fleet(instances: int = 4) -> list[InstanceView]:
    return [InstanceView(index, f"i{index}", kv_blocks=100) for index in range(instances)]


def kept(spec: Any, views: list[InstanceView]) -> list[int]:
    made = registry.build("filter", spec, "filter")
    return [view.index for view in made.keep(REQUEST, views, ClusterView(views))]


def bound(stage: str, spec: Any, views: list[InstanceView], seed: int = 1) -> Any:
    made = registry.build(stage, spec, f"policies.{stage}")
    made.bind(Context(views, lambda name: Random(f"{seed} {name}"), Still(), 16))
    return made


def targets(policy: Any, views: list[InstanceView], count: int) -> list[str]:
    cluster = ClusterView(views)
    return [policy.route(Request(n, 0, 64, Path((n,), (64,))), cluster).target for n in range(count)]


def test_kv_below_drops_instances_above_the_threshold() -> None:
    views = fleet()
    for view, used in zip(views, (95, 90, 91, 0), strict=True):
        view.kv_used = used
    assert kept("kv-below", views) == [1, 3]
    assert kept({"name": "kv_below", "threshold": 0.5}, views) == [3]


def test_load_below_drops_instances_above_the_load_limit() -> None:
    views = fleet()
    views[0].queued, views[1].running, views[2].routed_since_report = 3, 4, 5
    assert kept({"name": "load-below", "max_load": 4}, views) == [0, 1, 3]


def test_load_spread_keeps_only_the_least_loaded_of_an_unbalanced_fleet() -> None:
    views = fleet()
    for view, inflight in zip(views, (70, 2, 5, 2), strict=True):
        view.inflight = inflight
    assert kept("load-spread", views) == [1, 3]
    assert kept({"name": "load-spread", "absolute": 68}, views) == [0, 1, 2, 3]
    assert kept({"name": "load-spread", "relative": 35.0}, views) == [0, 1, 2, 3]


def test_weighted_routes_among_what_the_filters_keep() -> None:
    views = fleet()
    for view, used in zip(views, (0, 10, 20, 95), strict=True):
        view.kv_used, view.inflight = used, 3 - view.index
    plain = bound("routing", {"name": "weighted", "scorers": "load-balance:1"}, views)
    sifted = bound("routing", {"name": "weighted", "scorers": "load-balance:1", "filters": ["kv-below"]}, views)
    assert targets(plain, views, 1) == ["i3"]
    assert targets(sifted, views, 1) == ["i2"]
    assert sifted.entry.reported == ("kv_used",)


def test_a_filter_that_would_drop_every_candidate_is_passed_over() -> None:
    views = fleet()
    for view, used in zip(views, (10, 99, 20, 30), strict=True):
        view.kv_used, view.queued, view.inflight = used, 50, 3 - view.index
    filters = [{"name": "load-below", "max_load": 10}, {"name": "kv-below", "threshold": 0.25}]
    for order in (filters, filters[::-1]):
        policy = bound("routing", {"name": "weighted", "scorers": "load-balance:1", "filters": order}, views)
        assert targets(policy, views, 1) == ["i2"]


def test_weighted_random_draws_in_proportion_to_the_totals() -> None:
    picker = bound("picker", {"name": "weighted-random", "seed": 5}, fleet())
    drawn = Counter(picker.pick(fleet(), [1.0, 0.0, 3.0, 0.0], None) for _ in range(4000))
    assert set(drawn) == {0, 2}
    assert drawn[2] / 4000 == pytest.approx(0.75, abs=0.03)


def test_weighted_random_is_uniform_where_all_totals_are_zero() -> None:
    picker = bound("picker", "weighted-random", fleet())
    drawn = Counter(picker.pick(fleet(), [0.0] * 4, None) for _ in range(4000))
    assert sorted(drawn) == [0, 1, 2, 3]
    assert min(drawn.values()) > 900


def test_a_draw_next_to_one_still_picks_a_candidate_with_a_share() -> None:
    picker = bound("picker", "weighted-random", fleet())

    class Last(Random):
        def random(self) -> float:
            return 1.0 - 2.0**-53

    picker._rng = Last()
    assert picker.pick(fleet(), [0.1, 0.2, 0.3, 0.0], None) == 2
    assert picker.pick(fleet(3), [0.0] * 3, None) == 2


def test_the_picker_has_a_seed_of_its_own() -> None:
    def drawn(seed: int, spec: dict[str, Any]) -> list[str]:
        views = fleet()
        policy = bound("routing", {"name": "weighted", "scorers": "load-balance:1", "picker": spec}, views, seed)
        return targets(policy, views, 50)

    own = {"name": "weighted-random", "seed": 5}
    assert drawn(1, own) == drawn(2, own) != drawn(1, {"name": "weighted-random", "seed": 6})
    run = {"name": "weighted-random"}
    assert drawn(1, run) == drawn(1, run) != drawn(2, run)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"filters": ["kv-bellow"]}, r"policies.routing.filters\[0\]: no filter is called 'kv-bellow'. Did you mean"),
        ({"filters": [{"name": "kv-below", "threshold": 2.0}]}, r"filters\[0\].threshold: must lie between 0 and 1"),
        (
            {"filters": [{"threshold": 0.5}]},
            r"policies.routing.filters\[0\]: the mapping has no name. Give the policy's",
        ),
        ({"picker": "best"}, "policies.routing.picker: no picker is called 'best'"),
        ({"picker": {"name": "weighted-random", "sed": 1}}, "picker.sed: 'weighted-random' has no such parameter"),
    ],
)
def test_a_wrong_filter_or_picker_is_told_at_its_place(given: dict[str, Any], message: str) -> None:
    with pytest.raises(HeadwayError, match=message):
        registry.build("routing", {"name": "weighted", **given}, "policies.routing")


def test_a_users_filter_is_held_to_the_candidates_and_their_order(tmp_path: FilePath) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "class Upside:\n    def keep(self, request, candidates, cluster):\n        return candidates[:0:-1]\n"
    )
    views = fleet()
    policy = bound("routing", {"name": "weighted", "scorers": "load-balance:1", "filters": [f"{file}:Upside"]}, views)
    assert targets(policy, views, 1) == ["i1"]


def test_a_users_picker_must_pick_a_candidate(tmp_path: FilePath) -> None:
    file = tmp_path / "mine.py"
    file.write_text("class Far:\n    def pick(self, candidates, totals, cluster):\n        return 9\n")
    views = fleet()
    policy = bound("routing", {"name": "weighted", "scorers": "load-balance:1", "picker": f"{file}:Far"}, views)
    with pytest.raises(HeadwayError, match=r"picker.Far: pick must return a position from 0 to 3, got 9"):
        targets(policy, views, 1)
