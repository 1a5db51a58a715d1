"""`kv.states`: the states of Mamba and linear attention at the ends of blocks or chunks, as cached content."""

from __future__ import annotations

from typing import Any

import pytest

import headway
from headway.errors import HeadwayError
from headway.latency import kv_layout, read_model
from headway.scenario.cluster_spec import Cluster

Json = dict[str, Any]
MODEL: Json = {
    "hidden": 64, "heads": 4, "kv_heads": 1, "params": 100_000, "name": "toy", "layers": 4,
    "kv_groups": [{"kind": "full", "layers": 1}, {"kind": "state", "layers": 3, "state_bytes": 64}],
}  # fmt: skip


def run(states: str, pages: int = 200, **workload: Any) -> headway.Result:
    """Requests of 100 tokens, 80 of them a common prefix, one after another."""
    shared = {"groups": 1, "tokens": 80, "share": 1.0}
    return headway.simulate(
        {
            "defaults": "2026-11",
            "workload": {
                "requests": 6, "rate": "1/s", "arrival": "constant", "prompt_tokens": 100, "output_tokens": 4,
                "prefix": shared, **workload,
            },
            "cluster": {
                "instances": 1,
                "model": MODEL,
                "latency": {"model": "fixed"},
                "kv": {"block_tokens": 16, "gpu_blocks": pages, "states": states},
            },
            "warmup": 0,
        },
        progress=False,
    )  # fmt: skip


def test_a_prefix_is_hit_only_if_states_are_kept() -> None:
    assert run("none").requests["cached_tokens"] == [0] * 6
    assert run("all").requests["cached_tokens"] == [0, 80, 80, 80, 80, 80]


def test_states_at_the_ends_of_chunks_are_hit_once_a_chunk_has_ended_with_the_common_prefix() -> None:
    """The chunks of the first request end after 96 and 100 tokens. The second one finds 80 tokens cached without a
    state and ends a chunk there."""
    assert run("align").requests["cached_tokens"] == [0, 0, 80, 80, 80, 80]
    assert run("align", prefix=None, prompt_tokens=96).summary()["instances"][0]["steps"] == 6 * 4


def test_chunks_end_with_blocks_if_states_are_kept_at_their_ends() -> None:
    def steps(states: str, tokens: int) -> int:
        result = run(states, 2000, requests=1, prompt_tokens=tokens, output_tokens=1, prefix=None)
        return int(result.summary()["instances"][0]["steps"])

    assert (steps("all", 100), steps("align", 100)) == (1, 2)
    assert (steps("all", 96), steps("align", 96), steps("align", 15)) == (1, 1, 1)
    assert (steps("all", 5000), steps("align", 5000)) == (3, 4)  # 2048, 2048, 896 and 8 tokens


def test_a_chunk_takes_one_page_in_each_state_group_if_states_are_kept_at_its_end() -> None:
    """A request of 100 tokens has 7 blocks in the full group, and at most 2 states in each of 3 groups."""

    def rejected(pages: int) -> int:
        outcomes = run("align", pages=pages, requests=2, prefix=None).requests["outcome"]
        return sum(outcome == "rejected" for outcome in outcomes)

    assert rejected(7 + 3 * 2) == 0
    assert rejected(7 + 3 * 2 - 1) == 2


def test_a_hit_needs_the_state_at_its_end_alone() -> None:
    """A request of 200 tokens takes a page for each of 13 blocks in each of 4 groups, which is all there are. The
    states of the prefix's first blocks are then gone, because they were left first, and its later blocks still hit."""
    result = run("all", pages=4 * 13, prompt_tokens={"dist": "uniform", "min": 100, "max": 200})
    cached = result.requests["cached_tokens"][1:]
    assert set(cached) <= {0, 16, 32, 48, 64, 80} and max(cached) == 80
    assert result.summary()["instances"][0]["evicted_blocks"] > 0


def test_a_block_has_a_page_in_each_state_group() -> None:
    shape = read_model("qwen-3-next-80b-a3b", "model")
    one, each = (kv_layout(shape, 1, 544, kept=kept) for kept in ("none", "all"))
    assert (one.full, one.windows, one.states, each.full, each.windows, each.states) == (1, 0, 3, 1, 3, 0)
    assert one.page_bytes == each.page_bytes and one.groups == each.groups


def test_kept_states_are_not_moved_between_stores() -> None:
    kv = {"states": "all", "tiers": {"cpu": {"blocks": 10}}}
    with pytest.raises(HeadwayError, match=r"kv\.tiers: Headway does not move or rank the states of toy"):
        Cluster.read({"model": MODEL, "kv": kv})


def test_other_models_ignore_the_key() -> None:
    same = [
        Cluster.read({"model": "gpt-oss-20b", "gpu": "h200", "kv": {"states": states}}) for states in ("none", "all")
    ]
    assert same[0].kv_layout() == same[1].kv_layout() and same[0].kv_blocks() == same[1].kv_blocks()
