"""Findings about memory: cache thrashing, shadow divergence, preemption storms."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from findings_made import kinds, of_kind, request, seen
from recorders import SECOND

import headway
from headway.results.findings import cache_thrashing, preemption_storm, shadow_divergence
from headway.results.records import Preemption, Thrash

Json = dict[str, Any]


def shared(groups: int, blocks: int | None, *, tiers: bool = False, **more: Any) -> Json:
    """Prompts that share their beginnings, and GPUs that hold so many blocks."""
    kv: Json = {"gpu_blocks": blocks} if blocks else {}
    kv |= {"tiers": {"cpu": {"blocks": 20000}}} if tiers else {}
    prefix = {"groups": groups, "tokens": 1200}
    workload = {"requests": 500, "rate": "15/s", "prompt_tokens": 1500, "output_tokens": 20, "prefix": prefix}
    return {"defaults": "2026-11", "workload": workload | more, "cluster": {"instances": 2, "kv": kv}}


# --- cache thrashing -------------------------------------------------------------------------------------------------


def test_a_gpu_too_small_for_its_prompts_thrashes() -> None:
    run = headway.simulate(shared(30, 600, tiers=True, kind="chat"), routing="round-robin")
    finding = of_kind(run, "cache_thrashing")[0]
    assert finding.evidence["tier"] == "cpu"
    assert finding.evidence["loaded_blocks"] == run.summary()["tiers"]["cpu"]["loaded_blocks"]
    blocks = run.summary()["tiers"]["cpu"]["thrashed_blocks"]
    assert finding.evidence["blocks"] <= blocks == sum(each.blocks for each in run.thrashes)
    assert finding.severity == finding.evidence["blocks"] / finding.evidence["loaded_blocks"]


def test_a_gpu_that_holds_them_does_not() -> None:
    run = headway.simulate(shared(30, 20000, tiers=True, kind="chat"), routing="round-robin")
    assert run.summary()["cache"]["token_hit_ratio"] > 0.5
    assert "cache_thrashing" not in kinds(run)


def thrashed(*at: float, tier: str = "cpu", instance: int = 0) -> list[Thrash]:
    return [Thrash(round(time * SECOND), instance, 0, tier, 5) for time in at]


def test_an_episode_of_thrashing_needs_ten_loads_with_little_time_between() -> None:
    rows = [request(0, start=0, first=1, end=99)]
    loads = thrashed(*range(9), 18, 30, 31, 32, 50)  # ten, the last of them ten seconds after the ninth
    summary = {"tiers": {"cpu": {"loaded_blocks": 200}}}
    (finding,) = cache_thrashing.find(seen(rows, thrashes=loads, summary=summary))
    assert (finding.at_ps, finding.until_ps, finding.count, finding.requests) == (0, 18 * SECOND, 10, [0])
    assert (finding.severity, finding.evidence["blocks"]) == (50 / 200, 50)
    assert finding.title == (
        "10 loads on i0 from 0.0 s to 18.0 s fetched 50 blocks from the cpu tier less than one second after storing "
        "them there: 25.0 % of all blocks loaded from that tier."
    )
    assert cache_thrashing.find(seen(rows, thrashes=loads[1:], summary=summary)) == []
    mixed = thrashed(*range(9)) + thrashed(*range(9), tier="storage")
    assert cache_thrashing.find(seen(rows, thrashes=mixed, summary=summary)) == []


# --- shadow divergence -----------------------------------------------------------------------------------------------


def test_an_index_that_remembers_more_than_the_gpus_hold_is_wrong() -> None:
    run = headway.simulate(shared(40, 600), routing="prefix-affinity")
    (finding,) = of_kind(run, "shadow_divergence")
    assert finding.count == run.summary()["shadow"]["unexpected_misses"] > 100
    assert finding.evidence["tokens"] == run.summary()["shadow"]["too_high_tokens"]
    assert finding.severity == finding.evidence["tokens"] / sum(run.requests["predicted_tokens"])
    assert all(
        run.requests["cached_tokens"][row] == 0 < run.requests["predicted_tokens"][row] for row in finding.requests
    )


def test_a_shared_first_block_does_not_hide_that_the_rest_is_gone(tmp_path: Path) -> None:
    """Every prompt starts with the same 128 tokens, which stay cached. The next 1,024 tokens belong to one of 30
    groups. They are evicted before they are used again, but the index remembers them."""
    rng = Random(3)
    lines: list[Json] = [{"headway_trace": 1, "origin": "drawn", "block_tokens": 16}]
    for number in range(300):
        blocks = [(1, 8), (100 + rng.randrange(30), 64), (1000 + number, 8)]
        lines.append({"prompt_tokens": 1280, "output_tokens": 4, "at_ps": number * SECOND // 2, "blocks": blocks})
    (tmp_path / "trace.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = headway.simulate(
        {
            "workload": {"trace": {"path": str(tmp_path / "trace.jsonl"), "sessions": "none"}},
            "cluster": {"instances": 1, "kv": {"gpu_blocks": 700}},
        },
        routing={"name": "prefix-affinity", "lru_blocks": 100_000},
    )
    columns = [run.requests[name] for name in ("predicted_tokens", "cached_tokens", "prompt_tokens")]
    drifts = [believed - cached for believed, cached, _ in zip(*columns, strict=True)]
    assert not any((believed > 0) != (cached > 0) for believed, cached, _ in list(zip(*columns, strict=True))[1:])
    wrong = [drift for drift, prompt in zip(drifts, columns[2], strict=True) if drift > max(15, prompt / 10)]
    shadow = run.summary()["shadow"]
    assert shadow["tolerance_tokens"] == 15
    assert shadow["unexpected_misses"] == len(wrong) > 150 and shadow["unexpected_hits"] == 0
    assert shadow["too_high_tokens"] == sum(wrong)
    assert shadow["too_high_share"] == sum(wrong) / sum(columns[2])
    (finding,) = of_kind(run, "shadow_divergence")
    assert finding.count == len(wrong) and finding.severity == sum(wrong) / sum(columns[0]) > 0.4
    assert finding.at_ps / SECOND == finding.evidence["since_s"]
    assert f"since {finding.evidence['since_s']:,.1f} s" in finding.title


def test_an_index_is_right_where_nothing_is_evicted() -> None:
    run = headway.simulate(shared(40, None), routing="prefix-affinity")
    assert run.summary()["cache"]["token_hit_ratio"] > 0.5
    assert "shadow_divergence" not in kinds(run)


def test_who_believes_nothing_is_never_wrong() -> None:
    run = headway.simulate(shared(40, None), routing="round-robin")
    assert run.summary()["cache"]["request_hit_ratio"] > 0.5
    assert "shadow_divergence" not in kinds(run)


def believing(pairs: list[tuple[int, int]], prompt: int = 100, **more: Any) -> list[Json]:
    """One request a second, each with these believed and cached tokens."""
    return [
        request(k, start=k, first=k, end=k, prompt_tokens=prompt, predicted_tokens=each, cached_tokens=other, **more)
        for k, (each, other) in enumerate(pairs)
    ]


def test_the_two_directions_are_two_findings() -> None:
    rows = believing([(64, 64)] * 6 + [(64, 0)] * 2 + [(0, 32)] * 3 + [(0, 0)] * 9)
    rows[6]["instance"] = 1
    misses, hits = shadow_divergence.find(seen(rows, instances=2, summary={"shadow": {}}))
    assert (misses.count, misses.severity, misses.requests) == (2, 128 / 512, [6, 7])
    assert misses.evidence == {
        "unexpected_misses": 2, "started": 20, "share_of_started": 0.1, "tokens": 128, "of_tokens": 512,
        "share_of_prompts": 128 / 2000, "mean_tokens": 64.0, "since_s": 6.0, "slice_s": 1.0,
        "share_by_slice": [0.0] * 6 + [1.0] * 2 + [None] * 12,
        "by_instance": {
            "i0": {"requests": 1, "tokens": 64, "of_tokens": 448}, "i1": {"requests": 1, "tokens": 64, "of_tokens": 64}
        },
    }  # fmt: skip
    assert misses.title == (
        "The router expected 128 of 512 tokens (25.0 %) to be cached since 6.0 s, but they were not: 2 requests of 20 "
        "had fewer cached tokens than expected, by 64 on average, most at i0 and i1."
    )
    assert [(blame.kind, blame.name, blame.share) for blame in misses.blames] == [
        ("instance", "i0", 0.5), ("instance", "i1", 0.5)
    ]  # fmt: skip
    assert (hits.count, hits.severity, hits.requests) == (3, 0.5 * 96 / 480, [8, 9, 10])
    assert hits.title == (
        "The router did not know of 96 of 480 tokens (20.0 %) that were cached since 8.0 s: 3 requests of 20 had more "
        "cached tokens than it believed, by 32 on average, most at i0."
    )
    few = believing([(64, 64)] * 26 + [(64, 0)])
    assert shadow_divergence.find(seen(few, summary={"shadow": {}})) == []  # 64 of 1,728 tokens is below a twentieth


def test_a_difference_that_rounding_to_blocks_explains_is_no_divergence() -> None:
    """An engine with blocks of 16 tokens computes the last one of 128 tokens even if it has all of them cached."""
    low, high = believing([(64, 112)] * 5, prompt=128), believing([(128, 112)] * 5, prompt=128)
    assert shadow_divergence.find(seen(low, summary={"shadow": {"tolerance_tokens": 63}})) == []
    assert len(shadow_divergence.find(seen(low, summary={"shadow": {"tolerance_tokens": 15}}))) == 1
    assert shadow_divergence.find(seen(high, summary={"shadow": {"tolerance_tokens": 15}})) == []
    assert len(shadow_divergence.find(seen(high, summary={"shadow": {"tolerance_tokens": 14}}))) == 1
    small = believing([(960, 900)] * 10, prompt=1000)
    assert shadow_divergence.find(seen(small, summary={"shadow": {}})) == []  # 60 tokens are below a tenth of a prompt


def test_a_drift_has_a_beginning_if_it_stays_and_an_end_otherwise() -> None:
    right, wrong = (512, 512), (512, 100)
    (stays,) = shadow_divergence.find(seen(believing([right] * 12 + [wrong] * 8, 600), summary={"shadow": {}}))
    assert (stays.at_ps, stays.evidence["since_s"]) == (12 * SECOND, 12.0) and "since 12.0 s" in stays.title
    pairs = [right] * 5 + [wrong] * 8 + [right] * 7
    (ended,) = shadow_divergence.find(seen(believing(pairs, 600), summary={"shadow": {}}))
    assert (ended.at_ps, ended.until_ps, ended.evidence["since_s"]) == (5 * SECOND, 12 * SECOND, None)
    assert "from 5.0 s to 12.0 s" in ended.title


# --- preemption storms -----------------------------------------------------------------------------------------------


def crowded(blocks: int) -> Json:
    workload = {"requests": 200, "rate": "20/s", "prompt_tokens": 200, "output_tokens": 400}
    return {"workload": workload, "cluster": {"instances": 1, "kv": {"gpu_blocks": blocks}}}


def test_too_few_blocks_make_a_storm() -> None:
    run = headway.simulate(crowded(500))
    finding = of_kind(run, "preemption_storm")[0]
    assert finding.count <= run.summary()["preemptions"] == len(run.preemptions)
    assert finding.count >= 100
    assert finding.evidence["most_of_one_request"] <= max(run.requests["preemptions"])
    assert all(run.requests["preemptions"][row] > 0 for row in finding.requests)


def test_enough_blocks_make_none() -> None:
    run = headway.simulate(crowded(20000))
    assert run.preemptions == []
    assert "preemption_storm" not in kinds(run)


def test_the_figures_of_a_storm_are_exact() -> None:
    rows = [request(k, start=k, first=k + 1, end=60) for k in range(6)] + [request(50, start=50, first=51, end=60)]
    times = [0, *range(10, 20), 20.5, 40]  # eleven of which any ten are within ten seconds
    events = [Preemption(round(time * SECOND), 0, place % 3) for place, time in enumerate(times)]
    (finding,) = preemption_storm.find(seen(rows, preemptions=events))
    assert (finding.at_ps, finding.until_ps, finding.count) == (10 * SECOND, round(20.5 * SECOND), 11)
    assert finding.evidence["requests"] == 3 and finding.evidence["requests_there"] == 6
    assert finding.severity == 3 / 6
    assert finding.requests == [1, 2, 0]  # four times, four times, three times
    assert finding.title == (
        "i0 preempted requests 11 times from 10.0 s to 20.5 s: 3 of its 6 requests, one of them 4 times."
    )


def test_two_storms_far_apart_are_two_findings() -> None:
    rows = [request(0, start=0, first=1, end=200)]
    events = [Preemption((base + k) * SECOND, 0, 0) for base in (0, 100) for k in range(10)]
    assert [finding.count for finding in preemption_storm.find(seen(rows, preemptions=events))] == [10, 10]


@pytest.mark.parametrize("instances", [2, 3])
def test_a_storm_is_one_instances(instances: int) -> None:
    rows = [request(0, start=0, first=1, end=20)]
    events = [Preemption(k * SECOND // 2, k % instances, 0) for k in range(2 * preemption_storm.MANY - 1)]
    findings = preemption_storm.find(seen(rows, preemptions=events, instances=instances))
    assert [finding.instances for finding in findings] == ([[0]] if instances == 2 else [])
