"""The sections `rates` and `pathology` of a summary, of the whole run and of its groups."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from findings_made import drawn, request
from recorders import SECOND, facts, fleet, record

import headway
from headway.results.metrics import summarise
from headway.results.recorder import InstanceStats, TierStats
from headway.results.waits import Waits

Json = dict[str, Any]


def summary(rows: list[Json], **more: Any) -> Json:
    return summarise(record(rows), more.pop("instances", fleet(3)), facts(**more))


def test_the_admission_rate_is_the_share_let_in() -> None:
    rows = [request(k, start=k, first=k, end=k) for k in range(3)]
    rows += [request(4, outcome="rejected", instance=-1, admitted_ps=-1, routed_ps=-1, enqueued_ps=-1)]
    assert summary(rows)["rates"]["admission"] == 0.75
    assert summary(rows, warmup=3)["rates"]["admission"] == 0
    assert summary([])["rates"]["admission"] is None


def test_preemptions_are_told_per_request_and_per_second() -> None:
    rows = [request(k, start=k, first=k, end=k + 1, preemptions=k) for k in range(4)] + [request(5)]
    stats = [InstanceStats("i0", kv_blocks=100, preemptions=6)]
    rates = summary(rows, instances=stats)["rates"]
    assert rates["preemptions_per_request"] == 6 / 4  # the last never started
    assert rates["preemptions_per_s"] == 6 / 10
    assert "kv_blocks_per_s" not in rates
    groups = summary([row | {"tenant": "ab"[k % 2]} for k, row in enumerate(rows)], instances=stats)["tenants"]
    assert [group["rates"]["preemptions_per_request"] for group in groups] == [(0 + 2) / 2, (1 + 3) / 2]


def test_what_moves_between_tiers_is_told_per_second_and_a_shared_store_once() -> None:
    def tier(owner: str, name: str, stored: int, loaded: int, moved: int) -> TierStats:
        return TierStats(owner, name, 10, 0, stored, loaded, 0, 1, 1, moved, 0, 1, [])

    shared = tier("pool", "storage", 7, 8, 3000)
    stats = [
        InstanceStats("i0", kv_blocks=9, tiers=[tier("i0", "cpu", 1, 2, 500), shared]),
        InstanceStats("i1", kv_blocks=9, tiers=[tier("i1", "cpu", 3, 4, 500), shared]),
    ]
    rates = summary([request(0, start=0, first=1, end=2)], instances=stats)["rates"]
    assert rates["kv_blocks_per_s"] == (1 + 2 + 3 + 4 + 7 + 8) / 10
    assert rates["kv_bytes_per_s"] == 4000 / 10


def test_a_blowup_is_the_99th_percentile_over_the_median() -> None:
    rows = [request(0, start=0, first=1 + k, end=10 + k) for k in range(5)]
    figures = summary(rows)
    for name in ("ttft", "e2e"):
        spread = figures["latency"][name]
        assert figures["pathology"]["tail_latency_blowup"][name] == spread["p99"] / spread["p50"]
    assert figures["pathology"]["tail_latency_blowup"]["ttft"] == pytest.approx(4.96 / 3)
    nothing = summary([request(0, start=0, first=0, end=0)])["pathology"]["tail_latency_blowup"]
    assert nothing == {"ttft": None, "e2e": None}


def test_inversions_and_blocking_are_exact() -> None:
    rows = [
        request(0, start=1, first=4, end=9, prompt_tokens=8192, slo_class="batch"),
        request(0.5, start=5, first=6, end=7, prompt_tokens=100),  # waits for 4.5 s, blocked for 3 of them, and passed
    ]
    figures = summary(rows)["pathology"]
    assert figures["priority_inversions"] == 1
    assert figures["head_of_line_blocking"] == 3 / 5.5
    assert summary([])["pathology"]["head_of_line_blocking"] is None


@pytest.mark.parametrize("seed", range(20))
def test_the_parts_of_groups_add_up_to_the_whole(seed: int) -> None:
    rows = drawn(Random(seed), 50)
    recorder, known = record(rows), facts(ended_ps=80, warmup=seed % 3)
    figures = summarise(recorder, fleet(3), known)
    waits = Waits(recorder, 80)
    waited = sum(waits.waited_ps()[known.warmup :])
    counted = range(known.warmup, 50)
    blocked = sum(time for row, time in waits.blocked_ps().items() if row in counted)
    whole = figures["pathology"]
    assert whole["head_of_line_blocking"] == blocked / waited
    assert whole["priority_inversions"] == sum(row in counted for row in waits.inversions())
    for name in ("tenants", "classes"):
        groups = figures[name]
        assert sum(group["pathology"]["priority_inversions"] for group in groups) == whole["priority_inversions"]
        for group in groups:
            own = [row for row in counted if rows[row]["tenant" if name == "tenants" else "slo_class"] == group["id"]]
            time = sum(waits.waited_ps()[row] for row in own)
            share = sum(waits.blocked_ps().get(row, 0) for row in own) / time if time else None
            assert group["pathology"]["head_of_line_blocking"] == share
            assert group["rates"] == {"admission": 1.0, "preemptions_per_request": 0.0}


def test_a_simulated_run_has_them_for_every_class_and_tenant() -> None:
    tenants = {"a": {"weight": 1, "priority": "realtime"}, "b": {"weight": 1, "priority": "batch"}}
    scenario = {"workload": {"requests": 200, "rate": "80/s", "tenants": tenants}, "cluster": {"instances": 1}}
    admission = {"name": "token-bucket", "per": "tenant", "rate": 20, "burst": 20}
    figures = headway.simulate(scenario, admission=admission).summary()
    rejected = figures["requests"]["rejected"]
    assert rejected > 0
    assert figures["rates"]["admission"] == (200 - rejected) / 200
    for name in ("tenants", "classes"):
        for group in figures[name]:
            counts = group["requests"]
            assert group["rates"]["admission"] == (counts["arrived"] - counts["rejected"]) / counts["arrived"]
            assert group["pathology"]["tail_latency_blowup"]["e2e"] >= 1


def test_the_run_ends_waits_that_never_ended() -> None:
    rows = [request(0, start=0, first=20, end=30, prompt_tokens=4096), request(5, prompt_tokens=50)]
    figures = summary(rows, ended_ps=10 * SECOND)["pathology"]
    assert figures["head_of_line_blocking"] == 1.0
