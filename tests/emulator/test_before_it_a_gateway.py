"""The gateway in front of emulated engines: it scrapes their pages, and serves OpenAI's client through them."""

from __future__ import annotations

import pytest
from emulated import Emulated
from openai_client import openai_client

MODEL = "llama-3.1-8b"


def test_prompts_go_where_their_beginnings_are_cached(live) -> None:
    engines = Emulated({"instances": 3}, speed=20.0)
    try:
        backends = {replica.name: {"url": engines.url(replica.index)} for replica in engines.host.replicas}
        gateway = live(0, backends=backends, policies={"routing": "prefix-overlap"})
        asking = openai_client(gateway.url)
        texts = [f"{number} and so on " * 200 for number in range(6)]
        cached = []
        for _ in range(2):
            for text in texts:
                said = [{"role": "user", "content": text}]
                chunks = list(
                    asking.chat.completions.create(
                        model=MODEL, messages=said, max_tokens=3, stream=True, stream_options={"include_usage": True}
                    )
                )
                cached.append(chunks[-1].usage.prompt_tokens_details.cached_tokens > 0)
        assert cached == [False] * 6 + [True] * 6
        gateway.until(gateway.idle)
    finally:
        engines.stop()


def test_the_page_of_metrics_is_read_by_the_gateways_scraper() -> None:
    from headway.gateway.signals.scrape import parse

    engines = Emulated({"kv": {"gpu_blocks": 500}}, speed=20.0)
    try:
        for _ in range(2):
            engines.post("/v1/completions", {"prompt": list(range(64)), "max_tokens": 4})
        page = engines.get("/metrics")
        result = parse(page, "vllm")
        assert (result["queued"], result["running"], result["kv_usage"]) == (0, 0, 0.0)
        assert (result["kv_blocks"], result["block_tokens"]) == (500, 16)
        assert (result["queries"], result["hits"]) == (128, 48)
        assert 'vllm:time_to_first_token_seconds_count{engine="0",model_name="llama-3.1-8b"} 2.0' in page
        assert 'vllm:generation_tokens_total{engine="0",model_name="llama-3.1-8b"} 8.0' in page
        assert 'finished_reason="length"} 2.0' in page
    finally:
        engines.stop()


def test_the_page_is_one_that_prometheus_reads() -> None:
    parser = pytest.importorskip("prometheus_client.parser", reason="prometheus-client is not installed")
    engines = Emulated(speed=20.0)
    try:
        engines.post("/v1/completions", {"prompt": "x", "max_tokens": 4})
        families = {family.name: family for family in parser.text_string_to_metric_families(engines.get("/metrics"))}
        assert "unknown" not in {family.type for family in families.values()}
        assert families["vllm:generation_tokens"].type == "counter"
        gaps = families["vllm:inter_token_latency_seconds"]
        assert gaps.type == "histogram" and max(sample.value for sample in gaps.samples) == 3.0
    finally:
        engines.stop()
