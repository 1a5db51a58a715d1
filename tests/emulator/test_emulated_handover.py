"""A prompt that one emulated engine computes and another continues, by the protocol of vLLM's connectors."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from emulated import WORKLOAD, Emulated

from headway.sim.instance_end import check_instance

REMOTE = {"do_remote_decode": True, "do_remote_prefill": False}
PROMPT = list(range(2000))


def legs(one: Emulated, first: int, second: int, tokens: int = 5) -> tuple[Any, Any]:
    asked = {"prompt": PROMPT, "max_tokens": 1, "kv_transfer_params": REMOTE}
    prefill = one.post("/v1/completions", asked, first)
    params = prefill["kv_transfer_params"]
    decode = one.post("/v1/completions", {**asked, "max_tokens": tokens, "kv_transfer_params": params}, second)
    return params, decode


def test_the_second_engine_does_not_compute_the_prompt_again() -> None:
    one = Emulated({"instances": 2, "latency": {"model": "linear"}}, speed=5.0)
    try:
        params, decode = legs(one, 0, 1)
        assert params["remote_engine_id"] == "instance-0" and params["do_remote_prefill"]
        assert len(params["remote_block_ids"][0]) == 125
        assert decode["usage"]["completion_tokens"] == 5 and decode["kv_transfer_params"] is None
        first, second = (flight for flight, _ in one.ended)
        assert (second.first_ps - second.enqueued_ps) < (first.first_ps - first.enqueued_ps) / 3
        stats = [instance.stats.prefill_tokens for instance in one.host.room.instances]
        assert stats == [2000, 0]
        again = one.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 1}, 1)
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 1984  # the transferred blocks are cached
        for instance in one.host.room.instances:
            one.do(partial(check_instance, instance))
    finally:
        one.stop()


def test_blocks_come_over_the_link_of_a_disaggregated_scenario() -> None:
    cluster = {
        "architecture": "disaggregated",
        "prefill": {"instances": 1},
        "decode": {"instances": 1},
        "latency": {"model": "linear"},
        "transfer": {"bandwidth": "1GB/s"},
    }
    one = Emulated(
        scenario={"workload": WORKLOAD, "cluster": cluster, "policies": {"routing": "least-loaded-pair"}}, speed=5.0
    )
    try:
        assert [replica.instance.view.role for replica in one.host.replicas] == ["prefill", "decode"]
        legs(one, 0, 1)
        second = one.ended[1][0]
        waited = (second.first_ps - second.enqueued_ps) / 1e12
        assert waited > 2000 * 131_072 / 1e9  # 128 KiB for each token of this model
    finally:
        one.stop()


@pytest.mark.parametrize("elsewhere", ["somebody", ["no", "name"]], ids=str)
def test_blocks_from_an_engine_elsewhere_are_there_at_once(elsewhere: Any) -> None:
    one = Emulated({"latency": {"model": "linear"}}, speed=5.0)
    try:
        params = {"do_remote_prefill": True, "remote_engine_id": elsewhere, "remote_block_ids": [[1]]}
        answer = one.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 3, "kv_transfer_params": params})
        assert answer["usage"]["completion_tokens"] == 3
        assert one.host.room.instances[0].stats.prefill_tokens == 0
    finally:
        one.stop()
