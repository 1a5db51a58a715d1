"""The parts that know an engine, on what vLLM itself says: prompts and events lead to the same keys."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
import tiny_model
from vllm_engine import BLOCK, BLOCKS, Vllm

from headway.config.section import read
from headway.gateway.apis.api import APIS
from headway.gateway.prompt_tokens import Hasher, Tokens, TokenSettings
from headway.gateway.signals.kv_ledger import EXACT, Ledger, Run
from headway.gateway.signals.kv_stream import Stream
from headway.gateway.signals.scrape import parse

pytestmark = pytest.mark.live

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
CALLS = [
    {"id": f"c{number}", "type": "function", "function": {"name": "f", "arguments": arguments}}
    for number, arguments in enumerate(('{"city": "Bern"}', "", "not JSON", "[1]"))
]
CALL: dict[str, Any] = {"call_id": "c1", "name": "f", "arguments": "{}"}
USE: dict[str, Any] = {"type": "tool_use", "id": "c1", "name": "f", "input": {}}
PROMPTS: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "TEXT"}]}),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "TEXT"}]}]}),
    (CHAT, {"messages": [{"role": "user", "content": "TEXT"}], "tools": [TOOL]}),
    (
        CHAT,
        {
            "messages": [
                {"role": "assistant", "reasoning": "so", "content": None, "tool_calls": CALLS},
                {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "rain"}]},
                {"role": "assistant", "content": "", "tool_calls": []},
                {"role": "user", "content": "TEXT"},
            ],
            "tools": [{"function": {"strict": False, "parameters": {}, "name": "f", "unknown": 1}, "type": "function"}],
        },
    ),
    (MESSAGES, {"messages": [{"role": "user", "content": "TEXT"}], "output_config": {"effort": "high"}}),
    (MESSAGES, {"messages": [{"role": "user", "content": "TEXT"}], "thinking": {"type": "disabled"}}),
    (COMPLETION, {"prompt": "TEXT"}),
    (COMPLETION, {"prompt": list(range(100, 300))}),
    (CHAT, {"messages": [{"role": "user", "content": "TEXT"}], "reasoning_effort": "none"}),
    (RESPONSES, {"instructions": "be brief", "input": "TEXT", "reasoning": {"effort": "low"}}),
    (
        RESPONSES,
        {
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "TEXT"}]},
                {
                    "type": "message",
                    "role": "assistant",
                    "content": [{"type": "output_text", "text": "so", "annotations": []}],
                },
                {"type": "function_call", **CALL},
                {"type": "function_call_output", "call_id": "c1", "output": "rain " * 50},
                {"role": "user", "content": "and then? " * 30},
            ],
            "tools": [
                {"type": "function", "name": "f", "strict": True, "parameters": {"type": "object", "properties": {}}}
            ],
        },
    ),
    (
        MESSAGES,
        {"system": "x-anthropic-billing-header: 1\nbe brief", "messages": [{"role": "user", "content": "TEXT"}]},
    ),
    (
        MESSAGES,
        {
            "system": [{"type": "text", "text": "x-anthropic-billing-header: 1"}, {"type": "text", "text": "be brief"}],
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "TEXT"}]},
                {"role": "assistant", "content": [{"type": "thinking", "thinking": "rain?", "signature": ""}, USE]},
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "c1", "content": "rain " * 50},
                        {"type": "text", "text": "and then? " * 30},
                    ],
                },
            ],
            "tools": [{"name": "f", "input_schema": {"type": "object", "properties": {}}}],
        },
    ),
]


class Held:
    """What the engine has, as far as it has told."""

    def __init__(self) -> None:
        self.keys: dict[int, None] = {}
        self.trust = ""

    def stored(self, runs: list[Run]) -> None:
        self.keys.update((key, None) for _, key, _, _ in runs)

    def moved(self, keys: list[int], level: int) -> None: ...

    def removed(self, keys: list[int]) -> None:
        for key in keys:
            del self.keys[key]

    def cleared(self, trust: str) -> None:
        self.keys, self.trust = {}, trust


def test_its_page_is_read(vllm: list[Vllm]) -> None:
    found = parse(vllm[0].metrics(), "vllm")
    assert found["kv_blocks"] == BLOCKS and found["block_tokens"] == BLOCK
    assert {name: found[name] for name in ("queued", "running", "kv_usage")} == dict.fromkeys(
        ("queued", "running", "kv_usage"), 0
    )
    assert found == parse(vllm[0].metrics()) and 0 <= found["hits"] <= found["queries"]


class Ear:
    """Takes in what the engine has told so far."""

    def __init__(self, engine: Vllm, hasher: Hasher) -> None:
        self.relay, self.held, self.taken = engine.relay, Held(), 0
        self.stream = Stream(Ledger(self.held, hasher, tiny_model.NAME))

    def holds(self, keys: Sequence[int]) -> bool:
        for _, number, payload in self.relay.batches[self.taken :]:
            self.stream.on_batch(number, msgspec.msgpack.encode(payload))
            self.taken += 1
        while self.stream.step():
            pass
        return all(key in self.held.keys for key in keys)


def test_each_kind_of_prompt_has_the_keys_that_follow_from_its_events(vllm: list[Vllm]) -> None:
    engine = vllm[0]
    hasher = Tokens(read(TokenSettings, {"path": str(engine.model)}, "tokens")).of(tiny_model.NAME)
    ear = Ear(engine, hasher)
    for number, (path, fields) in enumerate(PROMPTS):
        limit = "max_output_tokens" if path == RESPONSES else "max_tokens"
        text = json.dumps({"model": tiny_model.NAME, limit: 1, **fields})
        body = text.replace("TEXT", tiny_model.text(300, 50 + number)).encode()
        prompt, tokens = hasher.path(APIS[path.encode()].read(body))
        keys = prompt.keys[: tokens // BLOCK * BLOCK // hasher.block_tokens]
        assert keys and not ear.holds(keys[-1:])
        request = urllib.request.Request(engine.url + path, body, {"content-type": "application/json"})
        urllib.request.urlopen(request, timeout=120).close()
        engine.relay.until(lambda keys=keys: ear.holds(keys))
    counts = ear.stream.counts
    assert ear.held.trust == EXACT and counts.malformed == counts.unknown == counts.orphans == counts.gaps == 0
