"""The gateway before two replicas of vLLM: clients get what vLLM says, and prompts go where they are cached."""

from __future__ import annotations

import json
from typing import Any

import openai
import prefix_load
import pytest
import tiny_model
from known_gateway import before, client
from test_vllm_itself import CALL, WEATHER, said
from vllm_engine import Vllm

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
