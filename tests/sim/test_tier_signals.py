"""What the stores below the GPU leave: signals for policies, figures for people. Worked out by hand.

One instance of five blocks of four tokens; the prompts A and B are four blocks and a token each, and take turns, a
second apart. B evicts A, whose four blocks come down. When A comes again it takes four blocks for its load: the empty
one, and three of B's, which come down meanwhile; and when it enters, one more.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import headway
from headway import ClusterView, HeadwayError, Request, Result, Route
from headway.errors import UndeclaredSignal
from headway.policies.registry import Entry
from headway.sim.recent_values import MoveRate, Ticks
from headway.sim.samples import FINEST_PS, MOST, Samples
from headway.types import PS_PER_SECOND

LEAPS = pytest.mark.parametrize("leap", [True, False, "random-cuts"])
ALL = ("tier_used", "offload_rate", "reload_rate")
BLOCK_BYTES = 131_072 * 4  # of Llama 3.1 8B
CPU = {"blocks": 20, "bandwidth": "1GB/s", "latency": "1ms"}
Seen = tuple[Mapping[str, int], float, float]


class Looker:
    """Sends all to the last instance and writes down what it is told of its stores."""

    def __init__(self, *reported: str) -> None:
        self.entry = Entry("routing", "looker", Looker, (), reported, False)
        self.seen: list[Seen] = []
        self.within: list[tuple[int, int, int]] = []

    def bind(self, context: Any) -> None:
        self.index = context.prefix_index(4, 1000)

    def route(self, request: Request, cluster: ClusterView) -> Route:
        view = cluster.instances[-1]
        self.seen.append((view.tier_used, view.offload_rate, view.reload_rate))
        found = [self.index.matches_within(request.path, tier)[view.index] for tier in ("gpu", "cpu", "storage")]
        self.within.append((found[0], found[1], found[2]))
        return Route(view.id)


def run(folder: Path, leap: bool | str, router: Any, prompts: str = "ABAB", **rest: Any) -> Result:
    rows = [
        f'{{"timestamp": {1000 * at}, "input_length": 17, "output_length": 1, "hash_ids": {ids}}}\n'
        for at, ids in enumerate([1, 2, 3, 4, 5] if name == "A" else [11, 12, 13, 14, 15] for name in prompts)
    ]
    file = folder / "trace.jsonl"
    file.write_text("".join(rows))
    kv = {"block_tokens": 4, "gpu_blocks": 5, "tiers": {"cpu": CPU}, **rest.pop("kv", {})}
    cluster = {"instances": rest.pop("instances", 1), "kv": kv, "latency": {"model": "fixed"}}
    trace = {"format": "mooncake", "path": str(file), "block_tokens": 4}
    return headway.simulate({"workload": {"trace": trace}, "cluster": cluster, "leap": leap, **rest}, routing=router)


@LEAPS
def test_fresh_signals_tell_what_lies_and_moves_below_the_gpu(tmp_path: Path, leap: bool | str) -> None:
    looker = Looker(*ALL)
    run(tmp_path, leap, looker)
    assert looker.seen == [({"cpu": 0}, 0, 0), ({"cpu": 0}, 0, 0), ({"cpu": 4}, 0.4, 0), ({"cpu": 4}, 0.8, 0.4)]


@LEAPS
def test_polled_ones_tell_what_did_before_a_tick(tmp_path: Path, leap: bool | str) -> None:
    looker = Looker(*ALL)
    run(tmp_path, leap, looker, signals={"poll_interval": "1s", "poll_delay": "500ms"})
    assert looker.seen == [({"cpu": 0}, 0, 0), ({"cpu": 0}, 0, 0), ({"cpu": 0}, 0, 0), ({"cpu": 4}, 0.4, 0)]


def test_a_signal_that_nobody_declares_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UndeclaredSignal, match="'offload_rate' was read"):
        run(tmp_path, True, Looker("tier_used", "reload_rate"))


def test_a_view_says_how_large_its_stores_are() -> None:
    view = headway.InstanceView(0, "a", tier_blocks={"cpu": 20})
    view.tier_used = {"cpu": 5}
    assert view.tier_utilization("cpu") == 0.25 and view.tier_utilization("storage") == 0.0


@LEAPS
def test_the_results_have_a_section_for_each_tier(tmp_path: Path, leap: bool | str) -> None:
    result = run(tmp_path, leap, Looker(*ALL), "ABA")
    summary = result.summary()
    cpu = summary["tiers"]["cpu"]
    samples = cpu.pop("samples")
    duration = summary["duration_s"]
    offloaded, loaded = 8 * BLOCK_BYTES, 4 * BLOCK_BYTES
    busy = 11 * BLOCK_BYTES / 1e9 + duration - 2.004670016  # the run ends before the last block is down
    assert cpu.pop("utilization") == pytest.approx((4 * (duration - 1) - 4.670016e-3) / duration / 20)
    assert cpu == {
        "stores": 1,
        "blocks": 20,
        "hit_tokens": 16,
        "hit_ratio": 16 / 51,
        "stored_blocks": 8,
        "loaded_blocks": 4,
        "thrashed_blocks": 0,
        "transfer_bytes": offloaded + loaded,
        "transfer_bytes_per_s": pytest.approx((offloaded + loaded) / duration),
        "link_utilization": pytest.approx(busy / duration),
        "peak_utilization": 4 / 20,
    }
    # Four blocks up and three down share the link until the latter are through; then comes the latency.
    wait = (3 * 2 + 1) * BLOCK_BYTES / 1e6 + 1
    assert summary["loads"]["count"] == 1 and summary["loads"]["wait"]["p99"] == pytest.approx(wait)
    assert summary["instances"][0]["tiers"]["cpu"]["hit_tokens"] == 16
    assert summary["instances"][0]["loads"] == summary["loads"]
    assert result.requests["loaded_tokens"] == [0, 0, 16] == result.requests["cached_tokens"]
    interval = samples["interval_s"]
    assert interval == 0.1 and len(samples["utilization"]) == int(duration / interval) + 1
    assert [samples["utilization"][round(at / interval)] for at in (0.5, 0.9, 1.1, 1.9)] == [0, 0, 0.2, 0.2]


def test_a_shared_store_stands_there_once(tmp_path: Path) -> None:
    storage = {"blocks": 50, "shared": True}
    result = run(tmp_path, True, Looker(*ALL), instances=2, kv={"tiers": {"storage": storage}})
    summary = result.summary()
    assert summary["tiers"]["storage"]["stores"] == 1 and summary["tiers"]["storage"]["blocks"] == 50
    assert summary["tiers"]["storage"]["hit_ratio"] == 32 / 68
    assert summary["tiers"]["gpu"]["hit_ratio"] == summary["cache"]["token_hit_ratio"] - 32 / 68
    assert [one["tiers"] for one in summary["instances"]] == [{}, {}]


def test_without_stores_nothing_is_said_of_them(tmp_path: Path) -> None:
    looker = Looker(*ALL)
    result = run(tmp_path, True, looker, kv={"tiers": None})
    assert looker.seen[-1] == ({}, 0, 0)
    summary = result.summary()
    assert "tiers" not in summary and "loads" not in summary and "tiers" not in summary["instances"][0]
    result.save(tmp_path / "run")
    assert "loaded_tokens" not in (tmp_path / "run" / "requests.jsonl").read_text()
    assert Result.load(tmp_path / "run") == result


def test_what_was_loaded_is_in_the_run_folder(tmp_path: Path) -> None:
    result = run(tmp_path, True, Looker(*ALL))
    result.save(tmp_path / "run")
    assert (tmp_path / "run" / "requests.jsonl").read_text().count('"loaded_tokens":16') == 2
    assert Result.load(tmp_path / "run") == result


@LEAPS
@pytest.mark.parametrize("offload", ["lazy", "eager"])
def test_the_index_hears_of_moves_and_of_what_is_gone(tmp_path: Path, leap: bool | str, offload: str) -> None:
    """A is computed, goes down, comes up and goes down again; what it moved on is believed on the GPU at once."""
    looker = Looker(*ALL)
    run(tmp_path, leap, looker, "ABABA", kv={"offload": offload}, signals={"kv_event_delay": "10ms"})
    assert looker.within == [(0, 0, 0), (0, 0, 0), (0, 4, 4), (0, 4, 4), (0, 4, 4)]
    small = Looker(*ALL)
    kv = {"offload": offload, "tiers": {"cpu": {**CPU, "blocks": 2}}}
    run(tmp_path, leap, small, "ABA", kv=kv, signals={"kv_event_delay": "10ms"})
    assert small.within[-1] == ((0, 2, 2) if offload == "lazy" else (0, 0, 0))  # B's copy took its place
    late = Looker(*ALL)
    run(tmp_path, leap, late, "ABA", kv=kv, signals={"kv_event_delay": "1500ms"})
    assert late.within[-1] == (4, 4, 4)


class All(Looker):
    """Sends all to the first instance and writes down where each is believed to find a prompt."""

    def route(self, request: Request, cluster: ClusterView) -> Route:
        self.believed = [self.index.matches_within(request.path, tier) for tier in ("gpu", "cpu", "storage")]
        assert self.believed[-1] == self.index.matches(request.path)
        return Route(cluster.instances[0].id)


@LEAPS
@pytest.mark.parametrize("offload", ["lazy", "eager"])
def test_what_lies_in_a_shared_store_is_believed_with_all_who_can_load_it(
    tmp_path: Path, leap: bool | str, offload: str
) -> None:
    def last(blocks: int, prompts: str = "ABA", delay: str = "10ms") -> list[list[int]]:
        kv = {"offload": offload, "tiers": {"cpu": {**CPU, "blocks": blocks, "shared": True}}}
        looker = All(*ALL)
        run(tmp_path, leap, looker, prompts, instances=3, kv=kv, signals={"kv_event_delay": delay})
        return looker.believed

    assert last(20) == [[0, 0, 0], [4, 4, 4], [4, 4, 4]]
    copied = 4 if offload == "eager" else 0
    assert last(20, "AA") == [[4, 0, 0], [4, copied, copied], [4, copied, copied]]
    assert last(20, "ABA", "1500ms") == [[4, 0, 0], [4, copied, copied], [4, copied, copied]]
    left = 2 if offload == "lazy" else 0  # B's copy took its place
    assert last(2) == [[0, 0, 0], [left, left, left], [left, left, left]]


def test_samples_keep_to_a_grid_that_grows_with_the_run() -> None:
    short, long = Samples(5), Samples(5)
    for at in range(6, 50_000, 7):
        short.until(at * FINEST_PS // 100, at)
        long.until(at * FINEST_PS, at)
    assert short.interval_ps == 4 * FINEST_PS and MOST // 2 <= len(short.values) < MOST
    assert long.interval_ps == 256 * FINEST_PS and MOST // 2 <= len(long.values) < MOST
    once = Samples(5)
    once.until(49_999 * FINEST_PS, 1)
    long.until(49_999 * FINEST_PS, 1)
    assert (once.interval_ps, len(once.values)) == (long.interval_ps, len(long.values))


def test_a_flow_is_over_the_last_ten_seconds() -> None:
    flow = MoveRate()
    for second in range(20):
        flow.add(second * PS_PER_SECOND, second)
    assert flow.rate(5 * PS_PER_SECOND, 5 * PS_PER_SECOND) == (1 + 2 + 3 + 4) / 10
    assert flow.rate(12 * PS_PER_SECOND, 12 * PS_PER_SECOND + 1) == sum(range(3, 13)) / 10


def test_ticks_remember_what_was_there_before_them() -> None:
    ticks = Ticks(10)
    for now, before in ((3, 1), (10, 2), (12, 3), (35, 4)):
        ticks.until(now, before)
    assert [ticks.at(tick, 5) for tick in (0, 10, 20, 30, 40)] == [1, 2, 4, 4, 5]


def test_an_eviction_must_be_known() -> None:
    with pytest.raises(HeadwayError, match=r"cluster\.kv\.eviction"):
        headway.Scenario.load({"workload": {"requests": 1, "rate": "1/s"}, "cluster": {"kv": {"eviction": "fifo"}}})
