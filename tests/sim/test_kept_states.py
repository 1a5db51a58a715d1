"""`kv.states: all`: the states of Mamba and linear attention at the ends of blocks, as cached content."""

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


def test_a_hit_needs_the_state_at_its_end_alone() -> None:
    """A request of 200 tokens takes a page for each of 13 blocks in each of 4 groups, which is all there are. The
    states of the prefix's first blocks are then gone, because they were left first, and its later blocks still hit."""
    result = run("all", pages=4 * 13, prompt_tokens={"dist": "uniform", "min": 100, "max": 200})
    cached = result.requests["cached_tokens"][1:]
    assert set(cached) <= {0, 16, 32, 48, 64, 80} and max(cached) == 80
    assert result.summary()["instances"][0]["evicted_blocks"] > 0


def test_a_block_has_a_page_in_each_state_group() -> None:
    shape = read_model("qwen-3-next-80b-a3b", "model")
    one, each = (kv_layout(shape, 1, 544, keeps_states=keeps) for keeps in (False, True))
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
