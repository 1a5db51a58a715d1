"""How much of the prompts an instance has found cached of late, as it reports it."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

import pytest

import headway
from headway import ClusterView, HeadwayError, Request, Route
from headway.policies.registry import Entry
from headway.sim.recent_values import HIT_REQUESTS, HitRate

LEAPS = pytest.mark.parametrize("leap", [True, False, "random-cuts"])


def test_the_share_is_over_the_last_hundred() -> None:
    rate, draws = HitRate(), Random(5)
    assert rate.share() == 0.0
    came: list[tuple[int, int]] = []
    for _ in range(350):
        tokens = draws.randint(1, 5000)
        came.append((draws.randint(0, tokens - 1), tokens))
        rate.add(*came[-1])
        last = came[-HIT_REQUESTS:]
        assert rate.share() == float(Fraction(sum(cached for cached, _ in last), sum(tokens for _, tokens in last)))
    assert len(rate.last) == HIT_REQUESTS == 100


class Looker:
    """Sends all to the first instance and writes down the hit rates it reports."""

    def __init__(self, *reported: str) -> None:
        self.entry = Entry("routing", "looker", Looker, (), reported, False)
        self.seen: list[tuple[float, float]] = []

    def route(self, request: Request, cluster: ClusterView) -> Route:
        first, second = cluster.instances
        assert second.hit_rate == 0.0
        self.seen.append((cluster.now, first.hit_rate))
        return Route(first.id)


def look(folder: Path, leap: bool | str, arrivals_ms: list[int], **signals: Any) -> list[tuple[float, float]]:
    """Prompts of nine tokens with the same beginning of eight, in blocks of four; a token takes a millisecond. One at a
    time is in the batch."""
    rows = [
        f'{{"timestamp": {at}, "input_length": 9, "output_length": 3, "hash_ids": [0, 1, {10 + number}]}}\n'
        for number, at in enumerate(arrivals_ms)
    ]
    file = folder / "trace.jsonl"
    file.write_text("".join(rows))
    scenario = {
        "defaults": "2026-11",
        "workload": {"trace": {"format": "mooncake", "path": str(file), "block_tokens": 4}},
        "cluster": {
            "instances": 2,
            "max_batch_size": 1,
            "kv": {"block_tokens": 4, "gpu_blocks": 50},
            "latency": {"model": "fixed", "prefill_tokens_per_s": 1000, "decode_tokens_per_s": 1000},
        },
        "signals": signals,
        "leap": leap,
    }
    looker = Looker("hit_rate")
    headway.simulate(scenario, routing=looker)
    return looker.seen


@LEAPS
def test_it_changes_when_a_request_enters_the_batch(leap: bool | str, tmp_path: Path) -> None:
    """The first computes all its nine tokens until 9 ms and leaves at 11 ms; the second enters then, with eight of nine
    found, and leaves at 14 ms; then the third does."""
    seen = look(tmp_path, leap, [0, 1, 2, 11, 12, 15])
    assert seen == [(0, 0.0), (0.001, 0.0), (0.002, 0.0), (0.011, 0.0), (0.012, 8 / 18), (0.015, 16 / 27)]


@LEAPS
def test_a_poller_sees_that_of_its_tick(leap: bool | str, tmp_path: Path) -> None:
    """Ticks every 6 ms: that of 12 ms sees the second request's entry, also when somebody looks at 15 ms; that of 18 ms
    the third's and fourth's, at 14 and 17 ms."""
    seen = look(tmp_path, leap, [0, 1, 2, 11, 15, 17, 18], poll_interval="6ms")
    assert seen == [
        (0, 0.0),
        (0.001, 0.0),
        (0.002, 0.0),
        (0.011, 0.0),
        (0.015, 8 / 18),
        (0.017, 8 / 18),
        (0.018, 24 / 36),
    ]


def test_a_request_that_was_preempted_counts_once() -> None:
    """With what it found when it entered for the first time."""

    class Last(Looker):
        def route(self, request: Request, cluster: ClusterView) -> Route:
            self.seen.append((cluster.now, cluster.instances[0].hit_rate))
            return Route(cluster.instances[0].id)

    looker = Last("hit_rate")
    scenario = {
        "workload": {
            "requests": 60,
            "rate": "50/s",
            "prompt_tokens": 64,
            "output_tokens": 60,
            "prefix": {"groups": 1, "tokens": 48},
        },
        "cluster": {"instances": 1, "kv": {"gpu_blocks": 20}},
    }
    done = headway.simulate(scenario, routing=looker)
    assert sum(done.requests["preemptions"]) > 0
    # At the last decision: those that had entered by then, as the table has them.
    now = done.requests["arrival_ps"][-1]
    entered = [row for row, at in enumerate(done.requests["started_ps"]) if 0 <= at < now]
    cached = sum(done.requests["cached_tokens"][row] for row in entered)
    assert looker.seen[-1][1] == cached / (64 * len(entered)) > 0


@pytest.mark.parametrize("signals", [{}, {"poll_interval": "50ms"}])
def test_who_does_not_declare_it_is_refused_it(signals: dict[str, str]) -> None:
    scenario = {"workload": {"requests": 3, "rate": "1/s"}, "cluster": {"instances": 2}, "signals": signals}
    with pytest.raises(HeadwayError, match=r'the signal \'hit_rate\' was read, .* Add reported=\("hit_rate",\)'):
        headway.simulate(scenario, routing=Looker("queued", "kv_used"))
    headway.simulate(scenario, routing=Looker("hit_rate"))

    class Silent:
        def route(self, request: Request, cluster: ClusterView) -> Route:
            return Route(min(cluster.instances, key=lambda view: view.hit_rate).id)

    headway.simulate(scenario, routing=Silent())
