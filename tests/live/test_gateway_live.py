"""The gateway before two replicas of vLLM: clients get what vLLM says, and prompts go where they are cached."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import openai
import prefix_load
import pytest
import tiny_model
from anthropic import Anthropic
from known_gateway import before, client
from test_vllm_itself import CALL, WEATHER, said
from vllm_engine import BLOCK, Vllm

pytestmark = pytest.mark.live

ROUNDS = 2


def counted(usage: Any) -> Any:
    """Without what was cached, which is more each time."""
    return usage.model_copy(update={"prompt_tokens_details": None})


def test_an_answer_is_that_of_vllm_streamed_and_not(live, vllm: list[Vllm]) -> None:
    ask: dict[str, Any] = {
        "model": tiny_model.NAME,
        "messages": said(60, 100),
        "max_tokens": 12,
        "temperature": 0,
        "extra_body": {"allowed_token_ids": tiny_model.only_words(vllm[0].model)},
    }
    through = client(before(live, vllm)).chat.completions
    direct = vllm[0].client().chat.completions.create(**ask)
    whole = through.create(**ask)
    assert whole.choices[0].message.content == direct.choices[0].message.content
    assert counted(whole.usage) == counted(direct.usage)
    pieces = list(through.create(**ask, stream=True, stream_options={"include_usage": True}))
    said_so = [piece.choices[0].delta.content or "" for piece in pieces if piece.choices]
    assert "".join(said_so) == direct.choices[0].message.content
    assert counted(pieces[-1].usage) == counted(direct.usage)
    assert len([piece for piece in said_so if piece]) > 3


def test_tools_and_log_probabilities_pass_through(live, vllm: list[Vllm]) -> None:
    through = client(before(live, vllm)).chat.completions
    called = through.create(
        model=tiny_model.NAME,
        messages=said(50, 101),
        max_tokens=200,
        temperature=0,
        tools=[WEATHER],
        tool_choice=CALL,
        logit_bias=tiny_model.no_blanks(vllm[0].model),
    )
    calls = called.choices[0].message.tool_calls
    assert calls is not None and json.loads(calls[0].function.arguments)["city"] in ("Paris", "Rome")
    pieces = through.create(
        model=tiny_model.NAME, messages=said(50, 102), max_tokens=5, logprobs=True, top_logprobs=3, stream=True
    )
    told = [one for piece in pieces if piece.choices[0].logprobs for one in piece.choices[0].logprobs.content or []]
    assert told and all(len(one.top_logprobs) == 3 and one.logprob <= 0 for one in told)


def test_what_vllm_refuses_is_refused_in_its_own_words(live, vllm: list[Vllm]) -> None:
    gateway = before(live, vllm)
    ask: dict[str, Any] = {"model": tiny_model.NAME, "prompt": tiny_model.text(tiny_model.CONTEXT + 1, 103)}
    refusals = []
    for one in (client(gateway), vllm[0].client()):
        with pytest.raises(openai.BadRequestError) as refused:
            one.completions.create(**ask)
        refusals.append(refused.value.body)
    assert refusals[0] == refusals[1]
    gateway.until(gateway.idle)


# --- the APIs of agents ----------------------------------------------------------------------------------------------


def anthropic_client(url: str) -> Anthropic:
    return Anthropic(base_url=url.removesuffix("/v1"), auth_token="none", max_retries=0, timeout=120)


def only_words(engine: Vllm) -> dict[str, dict[str, int]]:
    """Fields with which the engine generates whole words, so that pieces of the answer never wait for half a letter."""
    return {"logit_bias": dict.fromkeys(map(str, tiny_model.only_words(engine.model)), 100)}


def test_a_response_is_that_of_vllm_streamed_and_not(live, vllm: list[Vllm]) -> None:
    ask: dict[str, Any] = {
        "model": tiny_model.NAME,
        "instructions": "be brief",
        "input": said(60, 104),
        "max_output_tokens": 12,
        "temperature": 0,
        "extra_body": only_words(vllm[0]),
    }
    through = client(before(live, vllm)).responses
    direct, whole = vllm[0].client().responses.create(**ask), through.create(**ask)
    assert whole.output_text == direct.output_text and len(whole.output_text.split()) == 12
    assert direct.usage is not None and whole.usage is not None
    assert whole.usage.output_tokens == direct.usage.output_tokens == 12
    assert whole.usage.input_tokens == direct.usage.input_tokens
    events = list(through.create(**ask, stream=True))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == direct.output_text and len(deltas) > 3
    assert events[-1].type in ("response.completed", "response.incomplete")


def test_a_message_is_that_of_vllm_streamed_and_not(live, vllm: list[Vllm]) -> None:
    ask: dict[str, Any] = {
        "model": tiny_model.NAME,
        "system": "be brief",
        "messages": said(60, 105),
        "max_tokens": 12,
        "extra_body": {"temperature": 0},
    }
    through = anthropic_client(before(live, vllm).url).messages
    direct, whole = anthropic_client(vllm[0].url).messages.create(**ask), through.create(**ask)
    assert whole.content == direct.content and whole.stop_reason == direct.stop_reason == "max_tokens"
    assert whole.usage.output_tokens == direct.usage.output_tokens == 12
    with through.stream(**ask) as stream:
        events = list(stream)
        final = stream.get_final_message()
    assert final.model_dump()["content"][0]["text"] == direct.model_dump()["content"][0]["text"]
    assert final.usage.output_tokens == 12
    assert len([event for event in events if event.type == "content_block_delta"]) > 3
    asked = {key: ask[key] for key in ("model", "system", "messages")}
    counted = [each.count_tokens(**asked) for each in (through, anthropic_client(vllm[0].url).messages)]
    assert counted[0] == counted[1]
    used = direct.usage
    cached = (used.cache_read_input_tokens or 0) + (used.cache_creation_input_tokens or 0)
    assert counted[0].input_tokens == used.input_tokens + cached


def test_a_response_calls_a_tool(live, vllm: list[Vllm]) -> None:
    function = WEATHER["function"]
    response = client(before(live, vllm)).responses.create(
        model=tiny_model.NAME,
        input=said(50, 106),
        max_output_tokens=200,
        temperature=0,
        tools=[{"type": "function", **function}],
        tool_choice={"type": "function", "name": "weather"},
        extra_body={"logit_bias": tiny_model.no_blanks(vllm[0].model)},
    )
    (call,) = response.output
    assert call.type == "function_call" and json.loads(call.arguments)["city"] in ("Paris", "Rome")


def test_errors_of_these_apis_are_those_of_vllm(live, vllm: list[Vllm]) -> None:
    gateway = before(live, vllm)
    long = tiny_model.text(tiny_model.CONTEXT + 1, 107)
    refusals: list[Any] = []
    for url in (gateway.url, vllm[0].url):
        with pytest.raises(anthropic.BadRequestError) as refused:
            anthropic_client(url).messages.create(
                model=tiny_model.NAME, messages=[{"role": "user", "content": long}], max_tokens=5
            )
        refusals.append(refused.value.body)
    assert refusals[0] == refusals[1] and refusals[0]["type"] == "error"
    refusals.clear()
    for one in (client(gateway), vllm[0].client()):
        with pytest.raises(openai.BadRequestError) as too_long:
            one.responses.create(model=tiny_model.NAME, input=long)
        refusals.append(too_long.value.body)
    assert refusals[0] == refusals[1]
    with pytest.raises(anthropic.NotFoundError):  # of the gateway itself
        anthropic_client(gateway.url).messages.count_tokens(
            model="unknown", messages=[{"role": "user", "content": "x"}]
        )
    gateway.until(gateway.idle)


def test_a_conversation_meets_its_cache_whatever_the_api(live, vllm: list[Vllm]) -> None:
    gateway = before(live, vllm)
    system, text = tiny_model.text(3 * BLOCK, 108), tiny_model.text(20 * BLOCK, 109)
    user = {"role": "user", "content": text}
    chat = client(gateway).chat.completions.with_raw_response.create(
        model=tiny_model.NAME, messages=[{"role": "system", "content": system}, user], max_tokens=1
    )
    usage = chat.parse().usage
    assert usage is not None
    cached = (usage.prompt_tokens - 1) // BLOCK * BLOCK  # the engine computes the last token in any case
    response = client(gateway).responses.with_raw_response.create(
        model=tiny_model.NAME, instructions=system, input=text, max_output_tokens=1
    )
    message = anthropic_client(gateway.url).messages.with_raw_response.create(
        model=tiny_model.NAME, system=system, messages=[user], max_tokens=1
    )
    assert len({answer.headers["x-headway-target"] for answer in (chat, response, message)}) == 1
    responded = response.parse().usage
    assert responded is not None
    assert responded.input_tokens_details.cached_tokens == message.parse().usage.cache_read_input_tokens == cached


# --- where prompts go ------------------------------------------------------------------------------------------------


def test_prompts_that_begin_alike_meet_their_cache_and_are_answered_sooner(live, vllm: list[Vllm]) -> None:
    urls = {name: before(live, vllm, name).url for name in ("round-robin", "kv-aware")}
    ttft: dict[str, float] = dict.fromkeys(urls, 0.0)
    for seed in range(ROUNDS):
        outcomes = prefix_load.run(urls, vllm, seed)
        for name, outcome in outcomes.items():
            print(f"{name}: {outcome}")
            assert len(outcome.targets) == 2
            ttft[name] += outcome.mean_ttft_s
        assert outcomes["kv-aware"].hit_rate > outcomes["round-robin"].hit_rate + 0.1
    assert ttft["kv-aware"] < ttft["round-robin"]
