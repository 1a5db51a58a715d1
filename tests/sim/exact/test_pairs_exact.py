"""Pairs of features of engines: leaping, walking and cutting runs at random places give the same bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

import ahead_draws
from draw_sources import Scattered, pick
from drawn_scenarios import BASES, scattered
from drawn_traits import traits
from exact_runs import check
from group_draws import aligned, fits, grouped, kept, pressed
from headway.scenario.cluster_spec import Cluster
from pd_draws import split_traits
from rank_draws import EXPERTS, draw_model, draw_ranks, rank_traits, ranked
from speculation_draws import draw_speculation, speculating, speculation_traits

Json = dict[str, Any]
Draw = Callable[[int, Path], Json | None]
QUICK, FULL, PARTS, WATCHED = 12, 404, 4, 3
FAMILIES = (*BASES, "reporting")
UNITED = tuple(name for name in FAMILIES if name != "split")  # families whose engines may have ranks


def ranks_ahead(number: int, folder: Path) -> Json:
    """Draw ranks of an engine that schedules asynchronously."""
    return ahead_draws.ahead(Scattered(number), scattered("ranked", number, folder))


def drafts_ahead(number: int, folder: Path) -> Json:
    """Draw an engine that speculates and schedules asynchronously."""
    draws, drawn = Scattered(number), scattered(FAMILIES[number % len(FAMILIES)], number, folder)
    return ahead_draws.ahead(draws, speculating(draws, drawn))


def drafts_of_ranks(number: int, folder: Path) -> Json:
    """Draw ranks that speculate. Half of the engines schedule asynchronously."""
    draws, drawn = Scattered(number), scattered(UNITED[number % len(UNITED)], number, folder)
    drawn = ranked(draws, speculating(draws, drawn))
    return ahead_draws.ahead(draws, drawn) if pick(draws, True, False) else drawn


def windows_of_ranks(number: int, folder: Path) -> Json | None:
    """Draw ranks of a model with groups of layers. Half of the engines schedule asynchronously."""
    draws = Scattered(number)
    drawn = pressed(draws) if number % 2 else scattered(UNITED[number // 2 % len(UNITED)], number, folder)
    if not fits(drawn):
        return None
    drawn = drawn if number % 2 else grouped(drawn, draws)
    cluster = drawn["cluster"]
    cluster["model"] |= {name: EXPERTS[name] for name in EXPERTS if "expert" in name}
    cluster |= {**draw_ranks(draws, "scaling" in drawn), "tp": 1}
    return ahead_draws.ahead(draws, drawn) if pick(draws, True, False) else drawn


def drafts_of_windows(number: int, folder: Path) -> Json | None:
    """Draw an engine that speculates with a model that has windows or states. Half of them schedule asynchronously."""
    draws = Scattered(number)
    family = number % 4
    if family == 3:
        drawn = scattered(FAMILIES[number // 4 % len(FAMILIES)], number, folder)
        if not fits(drawn):
            return None
        drawn = grouped(drawn, draws)
    else:
        drawn = (pressed, kept, aligned)[family](draws)
    cluster = drawn["cluster"]
    budget = cluster["max_batch_tokens"] = max(4, cluster["max_batch_tokens"])
    own = draw_speculation(draws, drawn, pick(draws, 1, 2, 3))
    if isinstance(own["draft"], dict) and "model" in own["draft"]:
        own["draft"] = {"layers": 1}
    cluster["speculation"] = own
    layout = Cluster.read({**cluster, "kv": {**cluster["kv"], "gpu_blocks": 10**6}}).kv_layout()
    if layout is not None:  # so many pages that about as much fits as without drafts
        cluster["kv"]["gpu_blocks"] += layout.sequence_pages(own["tokens"]) + layout.groups * (2 + budget // 16)
    return ahead_draws.ahead(draws, drawn) if pick(draws, True, False) else drawn


def ranks_split(number: int, folder: Path) -> Json:
    """Draw prefill and decode pools, some of whose engines have ranks. Half of the engines schedule asynchronously."""
    draws, drawn = Scattered(number), scattered("split", number, folder)
    cluster = drawn["cluster"]
    cluster |= draw_model(draws, cluster.get("model", "llama-3.1-8b"))
    for deployment in (cluster, *cluster.get("deployments", {}).values()):
        halves = [deployment[role] for role in ("prefill", "decode") if role in deployment]
        for half in halves if "model" not in deployment or deployment is cluster else ():
            ranks = draw_ranks(draws, "scaling" in drawn) | {"tp": 1}
            half |= ranks if cluster["model"].get("experts") else {**ranks, "ep": False}
            half["dp"] = pick(draws, half["dp"], half["dp"], 1)
    return ahead_draws.ahead(draws, drawn) if pick(draws, True, False) else drawn


# On an empty rank, blocks arrive that a waiting request hits as well.
SHARED_ARRIVALS: Json = {
    "defaults": "2026-11",
    "seed": 491,
    "workload": {
        "requests": 24,
        "rate": "200/s",
        "arrival": "constant",
        "prompt_tokens": {"dist": "uniform", "min": 48, "max": 70},
        "output_tokens": {"dist": "uniform", "min": 1, "max": 20},
        "prefix": {"groups": 3, "tokens": 48},
    },
    "cluster": {
        "instances": 2,
        "max_batch_tokens": 256,
        "kv": {
            "block_tokens": 4,
            "gpu_blocks": 25,
            "tiers": {
                "cpu": {"blocks": 25, "bandwidth": "1TB/s", "latency": "0s"},
                "storage": {"blocks": 1, "bandwidth": "500MB/s", "latency": "20us"},
            },
            "offload": "threshold",
            "offload_level": 0.2,
        },
        "latency": {"model": "fixed", "prefill_tokens_per_s": 500, "decode_tokens_per_s": 500},
        "model": {**EXPERTS, "name": "toy"},
        "dp": 2,
        "api_servers": 5,
        "async_scheduling": True,
    },
    "policies": {
        "routing": {"name": "kv-aware", "kv": 0.55, "power": 0.1, "epsilon": 0.2, "max_concurrent": 3},
        "scheduler": {"name": "sjf", "aging": 10, "chunk_tokens": 1, "unknown_tokens": 20},
    },
    "warmup": 3,
    "signals": {"kv_event_delay": "23ms"},
}

RANKS = ("ranks in lockstep", "dummy steps", "several ranks used", "queueing")
DRAFTS = ("drafts", "accepted", "by class", "preemption")
BALANCED = ("whole experts", "balance vllm", "balance direct", "preemption", "polled signals")
PAIRS: dict[Draw, tuple[tuple[str, ...], tuple[str, ...]]] = {  # what few scenarios show, and what many show besides
    ranks_ahead: (RANKS, (*BALANCED, "ranks apart")),
    drafts_ahead: (DRAFTS, ("all accepted", "by position", "draft model", "tiers", "split", "timed out")),
    drafts_of_ranks: ((*RANKS, "drafts"), (*BALANCED, *DRAFTS, "draft model", "ranks apart", "tiers", "timed out")),
    drafts_of_windows: (
        ("drafts", "accepted", "preemption", "eviction", "prefix hit"),
        ("all accepted", "by position"),
    ),
    ranks_split: (
        ("several ranks used", "transfer", "queueing"),
        ("waits for room", "both ways", "preemption"),
    ),
    windows_of_ranks: ((*RANKS, "preemption", "eviction", "prefix hit"), BALANCED),
}
BLIND = (windows_of_ranks, drafts_of_windows)  # what watches the events does not know groups of layers


def check_pair(draw: Draw, chosen: Iterable[int], folder: Path, watched: int = 1) -> Counter[str]:
    """Check the scenarios of these numbers, watch one of so many, and count how many showed each trait."""
    seen: Counter[str] = Counter()
    for number in chosen:
        scenario = draw(number, folder)
        if scenario is None:
            continue
        try:
            result = check(scenario, watching=draw not in BLIND and number % watched == 0)
        except Exception as error:
            error.add_note(f"{draw.__name__} {number}: {scenario!r}")
            raise
        ranks = [name for name, holds in rank_traits(scenario, result).items() if holds]
        if draw is ranks_split:
            columns = result.requests
            ranks += [name for name, holds in split_traits(scenario, columns).items() if holds]
            ids = [one["id"] for one in result.summary()["instances"]]
            used = {at for name in ("instance", "prefill_instance") for at in columns[name] if at >= 0}
            ranks += ["several ranks used"] * (sum("-rank-" in ids[at] for at in used) > 1)
        seen.update({"scenarios", *traits(scenario, result), *ranks, *speculation_traits(scenario, result)})
    return seen


@pytest.mark.parametrize("draw", PAIRS, ids=lambda draw: draw.__name__)
def test_pairs_of_features_give_the_same_bytes(draw: Draw, tmp_path: Path) -> None:
    seen = check_pair(draw, range(QUICK), tmp_path, WATCHED)
    assert not [name for name in PAIRS[draw][0] if not seen[name]]


def test_arriving_blocks_that_other_requests_hit_give_the_same_bytes() -> None:
    check(SHARED_ARRIVALS)


@pytest.mark.full
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("draw", PAIRS, ids=lambda draw: draw.__name__)
def test_pairs_of_features_give_the_same_bytes_on_many_scenarios(draw: Draw, part: int, tmp_path: Path) -> None:
    each = FULL // PARTS
    seen = check_pair(draw, range(QUICK + part * each, QUICK + (part + 1) * each), tmp_path)
    assert not [name for name in (*PAIRS[draw][0], *PAIRS[draw][1]) if not seen[name]]
