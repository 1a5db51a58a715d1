"""What is read from engines' metrics pages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.gateway.signals.scrape import TABLES, parse

VLLM = """\
# HELP python_gc_objects_collected_total Objects collected during gc
# TYPE python_gc_objects_collected_total counter
python_gc_objects_collected_total{generation="0"} 9157.0
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="Qwen/Qwen3-0.6B"} 37.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="Qwen/Qwen3-0.6B"} 12.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="Qwen/Qwen3-0.6B",reason="capacity"} 9.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="Qwen/Qwen3-0.6B",reason="deferred"} 3.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="Qwen/Qwen3-0.6B"} 0.4375
# TYPE vllm:prefix_cache_queries counter
vllm:prefix_cache_queries_total{engine="0",model_name="Qwen/Qwen3-0.6B"} 4096.0
vllm:prefix_cache_queries_created{engine="0",model_name="Qwen/Qwen3-0.6B"} 1.7e+09
vllm:prefix_cache_hits_total{engine="0",model_name="Qwen/Qwen3-0.6B"} 1.024e+03
vllm:external_prefix_cache_hits_total{engine="0",model_name="Qwen/Qwen3-0.6B"} 77.0
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.001",model_name="Qwen/Qwen3-0.6B"} 0.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="Qwen/Qwen3-0.6B"} 5.0
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="32",cache_dtype="auto",engine="0",num_cpu_blocks="None",num_gpu_blocks="8192"} 1.0
"""

VLLM_OLD = """\
vllm:num_requests_running{model_name="/models/llama-2-7b"} 3.0
vllm:num_requests_swapped{model_name="/models/llama-2-7b"} 1.0
vllm:num_requests_waiting{model_name="/models/llama-2-7b"} 2.0
vllm:gpu_cache_usage_perc{model_name="/models/llama-2-7b"} 0.25
vllm:cpu_cache_usage_perc{model_name="/models/llama-2-7b"} 0.75
vllm:gpu_prefix_cache_hit_rate{model_name="/models/llama-2-7b"} 0.5
vllm:lora_requests_info{max_lora="0",running_lora_adapters="",waiting_lora_adapters=""} 1.0
vllm:cache_config_info{block_size="16",num_gpu_blocks="1024",num_gpu_blocks_override="None"} 1.0
"""

SGLANG = """\
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{engine_type="unified",model_name="m",pp_rank="0",priority="",tp_rank="0"} 4.0
sglang:num_running_reqs{engine_type="unified",model_name="m",pp_rank="0",priority="",tp_rank="1"} 4.0
sglang:num_running_reqs{engine_type="unified",model_name="m",pp_rank="0",priority="1",tp_rank="0"} 3.0
sglang:num_queue_reqs{engine_type="unified",model_name="m",tp_rank="0"} 2826.0
sglang:num_running_reqs_offline_batch{engine_type="unified",model_name="m",tp_rank="0"} 9.0
sglang:token_usage{engine_type="unified",model_name="m",tp_rank="0"} 0.5
sglang:cache_hit_rate{engine_type="unified",model_name="m",tp_rank="0"} 0.33
sglang:max_total_num_tokens{engine_type="unified",model_name="m",tp_rank="0"} 471258.0
sglang:page_size{engine_type="unified",model_name="m",tp_rank="0"} 1.0
sglang:num_pages{engine_type="unified",model_name="m",tp_rank="0"} 471258.0
"""

LLAMACPP = """\
# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed.
llamacpp:prompt_tokens_total 900
llamacpp:n_busy_slots_per_decode 1.5
llamacpp:kv_cache_usage_ratio 0.63
llamacpp:kv_cache_tokens 1234
llamacpp:requests_processing 2
llamacpp:requests_deferred 1
"""

TRTLLM = """\
trtllm_num_requests_running{model_name="nano"} 3
trtllm_num_requests_waiting{model_name="nano"} 1
trtllm_kv_cache_utilization{model_name="nano"} 0.42
trtllm_kv_cache_host_utilization{model_name="nano"} 0.9
trtllm_kv_cache_max_blocks{model_name="nano"} 1000
trtllm_kv_cache_tokens_per_block{model_name="nano"} 32
trtllm_kv_cache_hit_rate{model_name="nano"} 0.7
"""

TRITON = """\
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="waiting",version="1"} 5
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="scheduled",version="1"} 6
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="max",version="1"} 512
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per",model="tensorrt_llm",version="1"} 64
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="tensorrt_llm",version="1"} 100
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="tensorrt_llm",version="1"} 0.1
"""


def test_a_page_of_vllm_is_read_by_whole_names():
    assert parse(VLLM) == {
        "queued": 12,
        "running": 37,
        "kv_usage": 0.4375,
        "hits": 1024,
        "queries": 4096,
        "kv_blocks": 8192,
        "block_tokens": 32,
    }


def test_older_names_of_vllm_mean_the_same():
    assert parse(VLLM_OLD, "vllm") == {
        "queued": 2,
        "running": 3,
        "kv_usage": 0.25,
        "hit_rate": 0.5,
        "kv_blocks": 1024,
        "block_tokens": 16,
    }


def test_names_with_underscores_and_of_ray_mean_the_same():
    for prefix in ("vllm_", "ray_vllm_", "ray_vllm:"):
        assert parse(VLLM.replace("vllm:", prefix)) == parse(VLLM)


def test_the_engines_behind_one_address_are_added_up_and_their_shares_averaged():
    second = VLLM.replace('engine="0"', 'engine="1"').replace("0.4375", "0.0625")
    both = parse(VLLM + second)
    assert (both["queued"], both["running"], both["kv_blocks"], both["hits"]) == (24, 74, 16384, 2048)
    assert (both["kv_usage"], both["block_tokens"]) == (0.25, 32)


def test_ranks_that_compute_together_are_counted_once_and_priorities_not_twice():
    figures = parse(SGLANG)
    assert (figures["running"], figures["queued"], figures["kv_usage"], figures["hit_rate"]) == (4, 2826, 0.5, 0.33)
    assert (figures["kv_tokens"], figures["kv_blocks"], figures["block_tokens"]) == (471258, 471258, 1)


def test_older_sglang_tells_its_pages_by_labels():
    page = 'sglang:num_running_reqs 1\nsglang:cache_config_info{page_size="64",num_pages="500"} 1\n'
    assert parse(page) == {"running": 1, "kv_blocks": 500, "block_tokens": 64}


def test_the_stores_of_sglang_and_of_lmcache_are_read_and_those_of_tensor_parallel_workers_added_up():
    sglang = """\
sglang:hicache_host_used_tokens{model_name="m",tp_rank="0"} 640.0
sglang:hicache_host_used_tokens{model_name="m",tp_rank="1"} 640.0
sglang:hicache_host_total_tokens{model_name="m",tp_rank="0"} 6400.0
"""
    assert parse(sglang, "sglang") == {"cpu_tokens_used": 640, "cpu_tokens": 6400}
    lmcache = """\
lmcache:local_cache_usage{model_name="m",worker_id="0"} 5000.0
lmcache:local_cache_usage{model_name="m",worker_id="1"} 5000.0
lmcache:local_storage_usage{model_name="m",worker_id="0"} 9e+09
lmcache:remote_cache_usage{model_name="m",worker_id="0"} 70.0
vllm:kv_offload_cpu_cache_usage_perc{model_name="m"} 0.5
"""
    expected = {"cpu_bytes_used": 10_000, "disk_bytes_used": 9_000_000_000, "remote_bytes_used": 70}
    for engine in ("auto", "vllm", "sglang"):
        assert parse(lmcache, engine) == expected


def test_llama_cpp_has_no_labels():
    assert parse(LLAMACPP) == {"running": 2, "queued": 1, "kv_usage": 0.63, "kv_tokens_used": 1234}


def test_both_servers_of_tensorrt_are_read():
    assert parse(TRTLLM) == {
        "running": 3,
        "queued": 1,
        "kv_usage": 0.42,
        "kv_blocks": 1000,
        "block_tokens": 32,
        "hit_rate": 0.7,
    }
    assert parse(TRITON) == {"queued": 5, "running": 6, "block_tokens": 64, "kv_blocks": 100, "kv_usage": 0.1}


def test_the_newest_line_tells_which_adapters_are_loaded():
    page = (
        'vllm:lora_requests_info{max_lora="4",running_lora_adapters="sql,chat",waiting_lora_adapters="x"} 1.7886e+09\n'
        'vllm:lora_requests_info{max_lora="4",running_lora_adapters="old",waiting_lora_adapters=""} 1.7885e+09\n'
    )
    assert parse(page) == {"adapters": ("chat", "sql"), "adapter_slots": 4}


def test_an_engine_without_adapters_has_none():
    page = 'vllm:lora_requests_info{max_lora="0",running_lora_adapters="",waiting_lora_adapters=""} 1.0\n'
    assert parse(page) == {}


def test_power_is_added_up_over_the_cards_and_their_use_averaged():
    page = "".join(
        f'DCGM_FI_DEV_POWER_USAGE{{gpu="{card}",UUID="GPU-{card}",modelName="NVIDIA H100 80GB HBM3"}} {watts}\n'
        f'DCGM_FI_DEV_GPU_UTIL{{gpu="{card}",UUID="GPU-{card}"}} {percent}\n'
        for card, watts, percent in ((0, 67.5, 20), (1, 132.5, 60))
    )
    figures = parse(page)
    assert figures["watts"] == 200.0
    assert figures["busy"] == pytest.approx(0.4)


def test_another_series_may_be_the_power():
    assert parse("node_gpu_watts 321.5\n", watts="node_gpu_watts") == {"watts": 321.5}
    assert parse("node_gpu_watts 321.5\n") == {}


def test_an_engine_that_is_named_is_read_by_its_own_names_alone():
    page = "vllm:num_requests_running 9\nsglang:num_running_reqs 2\n"
    assert parse(page, "sglang") == {"running": 2}


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1", "", "many", "1e300", "0x10"])
def test_a_value_that_makes_no_sense_is_passed_over(value):
    assert parse(f"vllm:num_requests_running {value}\nvllm:num_requests_waiting 4\n") == {"queued": 4}


def test_labels_may_have_any_characters():
    page = 'vllm:num_requests_running{model_name="a\\"} b{,=\\\\ 7",engine="0"} 3.0 1395066363000\r\n'
    assert parse(page) == {"running": 3}


def test_a_label_of_none_is_no_size():
    assert parse('vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1.0\n') == {"block_tokens": 16}


NAMES = sorted(TABLES["auto"])
LINES = st.one_of(
    st.text(max_size=60),
    st.builds(
        lambda name, labels, value: f"{name}{labels} {value}",
        st.sampled_from(NAMES),
        st.one_of(
            st.just(""), st.text(max_size=30).map(lambda text: "{" + text + "}"), st.just('{a="1",priority="2"}')
        ),
        st.one_of(st.floats().map(str), st.integers().map(str), st.text(max_size=10)),
    ),
)


@given(st.lists(LINES, max_size=12).map("\n".join), st.sampled_from(["auto", "vllm", "sglang", "llamacpp", "other"]))
def test_any_text_is_read_without_an_error(page, engine):
    figures = parse(page, engine, "watts")
    for name, value in figures.items():
        if name == "adapters":
            assert all(isinstance(part, str) and part for part in value)
        elif name in ("kv_usage", "hit_rate", "busy"):
            assert 0 <= value <= 1
        else:
            assert value >= 0
            assert name == "watts" or isinstance(value, int)


@given(st.permutations(VLLM.splitlines()))
def test_the_order_of_lines_does_not_matter(lines):
    assert parse("\n".join(lines)) == parse(VLLM)
