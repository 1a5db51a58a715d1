"""Data-parallel ranks at the gateway: as engines of their own, addressed by header, with signals and KV events of
their own."""

from __future__ import annotations

from typing import Any

import pytest

from headway.errors import HeadwayError
from headway.gateway.engines.member import read_member, read_members
from headway.gateway.signals.scrape import parse
from headway.http.address import Address
from headway.http.forwarding import forwarded_head
from headway.http.request_reader import Incoming

URL = "http://127.0.0.1:8000"
PAGE = """
vllm:num_requests_waiting{engine="0",model_name="m"} 3.0
vllm:num_requests_waiting{engine="1",model_name="m"} 5.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1000"} 1.0
vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="1200"} 1.0
DCGM_FI_DEV_POWER_USAGE{gpu="0"} 300
"""


def members(**keys: Any) -> Any:
    return read_members({"a": {"url": URL, "models": ["m"], **keys}}, "backends")


def test_an_engine_with_ranks_becomes_an_engine_for_each_rank() -> None:
    ranks = members(dp=2, events="tcp://127.0.0.1:5557")
    assert list(ranks) == ["a-rank-0", "a-rank-1"]
    assert [(spec.rank, spec.url, [*spec.publishers]) for spec in ranks.values()] == [(0, URL, [0]), (1, URL, [1])]
    assert {spec.events_topic for spec in ranks.values()} == {"kv@a"}


def test_an_engine_that_chooses_ranks_stays_one_and_all_its_ranks_are_heard() -> None:
    (spec,) = members(dp=3, dp_balance="vllm").values()
    assert spec.rank is None and [*spec.publishers] == [0, 1, 2]


def test_the_figures_of_a_rank_are_those_with_its_label() -> None:
    both, first, second = parse(PAGE), parse(PAGE, rank=0), parse(PAGE, rank=1)
    assert (both["queued"], first["queued"], second["queued"]) == (8, 3, 5)
    assert (both["kv_blocks"], first["kv_blocks"], second["kv_blocks"]) == (2200, 1000, 1200)
    assert (first["kv_usage"], second["kv_usage"]) == (0.25, 0.75)
    assert both["watts"] == second["watts"] == 300


@pytest.mark.parametrize("asked", [None, b"0"])
def test_a_request_names_the_rank_that_the_gateway_chose(asked: bytes | None) -> None:
    fields = [(b"host", b"me"), (b"x-own", b"1")]
    if asked is not None:
        fields.append((b"x-data-parallel-rank", asked))
    incoming = Incoming(b"POST", b"/v1/completions", fields, b"{}", True, "1.1", dict(fields))
    head = forwarded_head(incoming, Address(URL, "url"), 2, b"key", True, 1)
    assert head.count(b"x-data-parallel-rank") == 1 and b"x-data-parallel-rank: 1\r\n" in head
    assert b"x-own: 1\r\n" in head and head.endswith(b"\r\n\r\n")


def test_a_client_may_name_a_rank_if_the_gateway_does_not() -> None:
    fields = [(b"x-data-parallel-rank", b"1")]
    incoming = Incoming(b"POST", b"/v1/completions", fields, b"{}", True, "1.1", dict(fields))
    assert b"x-data-parallel-rank: 1\r\n" in forwarded_head(incoming, Address(URL, "url"), 2, None, False)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(HeadwayError, match=r"backends.a.rank: is one rank, but dp is 2"):
        members(dp=2, rank=1)
    with pytest.raises(HeadwayError, match="a rank of it is called a-rank-1, as another engine"):
        read_members({"a": {"url": URL, "dp": 2}, "a-rank-1": URL}, "backends")
    with pytest.raises(HeadwayError, match="add each rank as an engine with the key 'rank'"):
        read_member("a", {"url": URL, "dp": 2}, "backends.a")
