"""What the gateway relies on is so of vLLM itself: its API, its metrics and its events."""

from __future__ import annotations

import json
from statistics import median

import event_relay
import pytest
import tiny_model
from tokenizers import Tokenizer
from vllm_engine import BLOCK, BLOCKS, Vllm

pytestmark = pytest.mark.live

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
CALL = {"type": "function", "function": {"name": "weather"}}
SCRAPED = (
    "vllm:num_requests_waiting",
    "vllm:num_requests_running",
    "vllm:kv_cache_usage_perc",
    "vllm:prefix_cache_hits_total",
    "vllm:prefix_cache_queries_total",
    "vllm:cache_config_info",
)
STORED = {"block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name"}


def said(words: int, start: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": tiny_model.text(words, start)}]


def test_both_replicas_answer_the_openai_client(vllm: list[Vllm]) -> None:
    for engine in vllm:
        client = engine.client()
        assert [model.id for model in client.models.list()] == [tiny_model.NAME]
        answer = client.chat.completions.create(model=tiny_model.NAME, messages=said(50, 1), max_tokens=4)
        assert answer.usage is not None and answer.usage.prompt_tokens > 50
        assert answer.choices[0].finish_reason in ("length", "stop")
        completion = client.completions.create(model=tiny_model.NAME, prompt=tiny_model.text(50, 1), max_tokens=4)
        assert completion.usage is not None and completion.usage.prompt_tokens == 50


def test_a_stream_comes_token_by_token_with_its_usage_at_the_end(vllm: list[Vllm]) -> None:
    chunks = list(
        vllm[0]
        .client()
        .chat.completions.create(
            model=tiny_model.NAME,
            messages=said(50, 2),
            max_tokens=8,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"allowed_token_ids": tiny_model.only_words(vllm[0].model)},
        )
    )
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 8
    pieces = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]
    assert len("".join(pieces).split()) == 8 and len(pieces) > 3  # two that come at once may be told as one


def test_log_probabilities_come_with_each_token(vllm: list[Vllm]) -> None:
    answer = (
        vllm[0]
        .client()
        .chat.completions.create(
            model=tiny_model.NAME,
            messages=said(50, 3),
            max_tokens=3,
            logprobs=True,
            top_logprobs=2,
            extra_body={"ignore_eos": True},
        )
    )
    found = answer.choices[0].logprobs
    assert found is not None and found.content is not None
    assert [len(token.top_logprobs) for token in found.content] == [2, 2, 2]
    assert all(token.logprob <= 0 for token in found.content)


def test_a_tool_is_called_as_it_is_described(vllm: list[Vllm]) -> None:
    answer = (
        vllm[0]
        .client()
        .chat.completions.create(
            model=tiny_model.NAME,
            messages=said(50, 4),
            max_tokens=200,
            temperature=0,
            tools=[WEATHER],
            tool_choice=CALL,
            logit_bias=tiny_model.no_blanks(vllm[0].model),
        )
    )
    calls = answer.choices[0].message.tool_calls
    assert calls is not None and calls[0].function.name == "weather"
    assert json.loads(calls[0].function.arguments)["city"] in ("Paris", "Rome")


def test_the_page_of_metrics_has_the_names_that_are_scraped(vllm: list[Vllm]) -> None:
    for name in SCRAPED:
        vllm[0].counter(name)
    page = vllm[0].metrics()
    config = next(line for line in page.splitlines() if line.startswith("vllm:cache_config_info{"))
    assert f'block_size="{BLOCK}"' in config and f'num_gpu_blocks="{BLOCKS}"' in config


def test_a_prompt_seen_before_is_hit_and_answered_sooner(vllm: list[Vllm]) -> None:
    engine = vllm[0]
    engine.forget()
    hits = engine.counter("vllm:prefix_cache_hits_total")
    cold, warm = [], []
    for start in range(10, 15):
        cold.append(engine.prefill(tiny_model.text(2500, start)))
        warm.append(engine.prefill(tiny_model.text(2500, start)))
    assert engine.counter("vllm:prefix_cache_hits_total") == hits + 5 * (2500 // BLOCK * BLOCK)
    assert median(cold) > median(warm)


def test_blocks_that_are_stored_are_told_with_their_tokens_and_their_parent(vllm: list[Vllm]) -> None:
    relay, prompt = vllm[0].relay, tiny_model.text(200, 20)
    before = len(relay.events)
    vllm[0].prefill(prompt)
    relay.until(lambda: len(relay.events) > before)
    event = relay.events[before]
    assert event["type"] == "BlockStored" and event.keys() >= STORED
    assert event["block_size"] == BLOCK and event["parent_block_hash"] is None
    assert (
        event["token_ids"]
        == Tokenizer.from_file(str(vllm[0].model / "tokenizer.json")).encode(prompt).ids[: 200 // BLOCK * BLOCK]
    )
    assert len(event["block_hashes"]) == 200 // BLOCK and all(isinstance(key, int) for key in event["block_hashes"])

    before = len(relay.events)
    vllm[0].prefill(prompt + " " + tiny_model.text(100, 21))
    relay.until(lambda: len(relay.events) > before)
    assert relay.events[before]["parent_block_hash"] == event["block_hashes"][-1]
    assert len(relay.events[before]["block_hashes"]) == 300 // BLOCK - 200 // BLOCK


def test_batches_are_numbered_without_gaps_and_can_be_asked_for_again(vllm: list[Vllm]) -> None:
    engine = vllm[0]
    engine.prefill(tiny_model.text(64, 22))
    engine.relay.until(lambda: len(engine.relay.batches) > 2)
    seen = list(engine.relay.batches)
    assert [number for _, number, _ in seen] == list(range(len(seen)))
    assert {topic for topic, _, _ in seen} == {engine.topic.encode()}
    assert event_relay.replayed(engine.replay, 1)[: len(seen) - 1] == seen[1:]


def test_blocks_that_make_room_and_a_cleared_cache_are_told(vllm: list[Vllm]) -> None:
    engine, relay = vllm[1], vllm[1].relay
    for start in range(BLOCKS * BLOCK // 8000 + 1):
        engine.prefill(tiny_model.text(8000, 30 + start))
    relay.until(lambda: any(event["type"] == "BlockRemoved" for event in relay.events))
    held: dict[int, None] = {}
    ever: dict[int, None] = {}
    for event in relay.events:
        if event["type"] == "BlockStored":
            held.update(dict.fromkeys(event["block_hashes"]))
            ever.update(held)
        elif event["type"] == "BlockRemoved":
            for key in event["block_hashes"]:
                assert key in ever
                held.pop(key, None)  # two requests may compute a block at the same time, and each of the two goes
        else:
            held.clear()
    assert BLOCKS // 2 < len(held) <= BLOCKS

    before = len(relay.events)
    engine.forget()
    engine.prefill(tiny_model.text(64, 40))
    relay.until(lambda: any(event["type"] == "AllBlocksCleared" for event in relay.events[before:]))
