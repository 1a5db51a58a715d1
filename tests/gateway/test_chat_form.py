"""Prompts of the Responses API and of the Messages API have the same block keys as the same prompts of a chat."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("tokenizers", reason="the extras `gateway` and `tokens` are not installed")

from test_prompt_tokens import exact, folder  # noqa: F401  (fixtures)

from headway.config.section import read as read_section
from headway.gateway.apis.api import APIS
from headway.gateway.chat_template import ChatTemplate
from headway.gateway.prompt_tokens import Tokens, TokenSettings

CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bern"}'}}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
CHAT = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "be kind " * 20},
        {"role": "user", "content": "how is the weather " * 20},
        {"role": "assistant", "content": "I look", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
        {"role": "user", "content": "and tomorrow?"},
    ],
    "tools": [{"type": "function", "function": {"name": "weather", "description": "w", "parameters": SCHEMA}}],
}
MESSAGES = {
    "model": "m",
    "max_tokens": 5,
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: 1"},
        {"type": "text", "text": "be kind " * 20, "cache_control": {"type": "ephemeral"}},
    ],
    "messages": [
        {"role": "user", "content": "how is the weather " * 20},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "I look"},
                {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Bern"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "rain"}]},
                {"type": "text", "text": "and tomorrow?"},
            ],
        },
    ],
    "tools": [{"name": "weather", "description": "w", "input_schema": SCHEMA}],
}
RESPONSES = {
    "model": "m",
    "instructions": "be kind " * 20,
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "how is the weather " * 20}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look"}]},
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Bern"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "rain"},
        {"role": "user", "content": "and tomorrow?"},
    ],
    "tools": [{"type": "function", "name": "weather", "description": "w", "parameters": SCHEMA}],
}


def read(path, document):
    return APIS[path].read(json.dumps(document).encode())


def test_the_same_prompt_has_the_same_keys_in_every_api(exact):  # noqa: F811
    chat = exact.path(read(b"/v1/chat/completions", CHAT))
    assert len(chat[0].keys) > 10
    assert exact.path(read(b"/v1/messages", MESSAGES)) == chat
    assert exact.path(read(b"/v1/responses", RESPONSES)) == chat
    assert exact.unread == 0


def test_a_text_alone_is_a_message_of_the_user(exact):  # noqa: F811
    document = {"model": "m", "messages": [{"role": "user", "content": "hello " * 50}]}
    response = {"model": "m", "input": "hello " * 50}
    assert exact.path(read(b"/v1/responses", response)) == exact.path(read(b"/v1/chat/completions", document))


@pytest.mark.parametrize(
    ("path", "fields", "expected"),
    [
        (b"/v1/chat/completions", {"reasoning_effort": "low"}, {"reasoning_effort": "low", "enable_thinking": True}),
        (b"/v1/chat/completions", {"reasoning_effort": "auto"}, None),
        (b"/v1/responses", {"reasoning": {"effort": "none"}}, {"reasoning_effort": "none", "enable_thinking": False}),
        (b"/v1/responses", {"reasoning": None}, None),
        (
            b"/v1/responses",
            {"reasoning": {"effort": "none"}, "chat_template_kwargs": {"enable_thinking": True}},
            {"reasoning_effort": "none", "enable_thinking": True},
        ),
        (
            b"/v1/messages",
            {"output_config": {"effort": "high"}},
            {"reasoning_effort": "high", "enable_thinking": True},
        ),
        (
            b"/v1/messages",
            {"output_config": {"effort": "high"}, "thinking": {"type": "disabled"}},
            {"reasoning_effort": "none", "enable_thinking": False},
        ),
        (b"/v1/messages", {"thinking": {"type": "enabled", "budget_tokens": 1024}}, None),
    ],
)
def test_templates_get_the_effort_of_reasoning(path, fields, expected):
    body = read(path, {"model": "m", "messages": [], "input": "x", **fields})
    assert body.chat()[2] == expected


@pytest.mark.parametrize("marked", ["TEXT", [{"type": "text", "text": "TEXT"}]])
def test_the_line_of_claude_code_that_always_differs_does_not_count(exact, marked):  # noqa: F811
    """Engines drop it from system messages of every API, and from a system prompt in one text."""
    text = json.dumps(marked).replace("TEXT", "x-anthropic-billing-header: 1;\\nbe kind " + "and short " * 30)
    user = {"role": "user", "content": "x-anthropic-billing-header: kept"}
    clean = {"model": "m", "messages": [{"role": "system", "content": "be kind " + "and short " * 30}, user]}
    chat = {"model": "m", "messages": [{"role": "system", "content": json.loads(text)}, user]}
    expected = exact.path(read(b"/v1/chat/completions", clean))
    assert exact.path(read(b"/v1/chat/completions", chat)) == expected
    if marked == "TEXT":
        asked = {"model": "m", "system": json.loads(text), "messages": [user]}
        assert exact.path(read(b"/v1/messages", asked)) == expected


@pytest.mark.parametrize("wrong", [1, [1], [{}], {"a": 1}, [{"role": "user", "content": [{"type": "tool_use"}]}]])
def test_a_malformed_prompt_is_hashed_by_its_bytes(exact, wrong):  # noqa: F811
    unread = exact.unread
    exact.path(read(b"/v1/messages", {"model": "m", "system": "x", "messages": wrong}))
    exact.path(read(b"/v1/responses", {"model": "m", "instructions": 1, "input": [wrong]}))
    assert exact.unread == unread + 2


@pytest.mark.parametrize("path", [b"/v1/messages", b"/v1/responses"])
def test_a_longer_conversation_begins_with_the_shorter_one_by_bytes_too(path):
    document, field = (MESSAGES, "messages") if path == b"/v1/messages" else (RESPONSES, "input")
    shorter = read(path, {**document, field: document[field][:-1]}).text
    assert bytes(read(path, document).text).startswith(bytes(shorter))


# --- templates that accept no other system message than the first one -------------------------------------------------

STRICT = """\
{% for message in messages %}{% if message.role == 'system' and not loop.first %}{{ raise_exception('no') }}{% endif %}
<|{{ message.role }}|>{{ message.content }}{% endfor %}"""


def system(text, role="system"):
    return {"role": role, "content": text}


USER, LATE = system("how is the weather " * 20, "user"), [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]


@pytest.mark.parametrize(
    ("path", "fields", "expected"),
    [
        (b"/v1/messages", {"system": "a" * 300, "messages": [USER, system(LATE), USER]}, "a" * 300 + "xy"),
        (b"/v1/messages", {"messages": [USER, system("b" * 300), system(LATE)]}, "b" * 300 + "xy"),
        (b"/v1/chat/completions", {"messages": [USER, system(LATE, "developer")]}, "x\ny"),
        (
            b"/v1/chat/completions",
            {"messages": [system("a" * 300), system("", "developer"), USER, system("c", "developer")]},
            "a" * 300 + "\n\nc",
        ),
        (
            b"/v1/responses",
            {"instructions": "a" * 300, "input": [system("b", "developer"), USER]},
            "a" * 300 + "\n\nb",
        ),
    ],
)
def test_system_messages_are_merged_as_vllm_merges_them(folder, path, fields, expected):  # noqa: F811
    (folder / "strict.jinja").write_text(STRICT)
    settings = read_section(TokenSettings, {"path": str(folder), "chat_template": "strict.jinja"}, "tokens")
    strict = Tokens(settings).of("m")
    users = [message for message in fields.get("messages") or fields["input"] if message["role"] == "user"]
    merged = {"model": "m", "messages": [system(expected), *users]}
    assert strict.path(read(path, {"model": "m", **fields})) == strict.path(read(b"/v1/chat/completions", merged))
    assert strict.unread == 0


def test_a_template_that_accepts_them_gets_later_system_messages_and_its_own_roles():
    source = "{% for message in messages %}[{{ message.role }}]{{ message.content }}{% endfor %}"
    late, own = [USER, system("x")], [system("a"), system("d", "developer")]
    assert not ChatTemplate(source, {}, "t").system_first
    assert ChatTemplate(source, {}, "t").render(late) == f"[user]{USER['content']}[system]x"
    assert ChatTemplate(source + "{# 'developer' #}", {}, "t").render(own) == "[system]a[developer]d"
    assert ChatTemplate(source, {}, "t").render(own) == "[system]a\n\nd"


def test_a_chat_with_a_system_message_that_the_template_refuses_is_hashed_by_its_bytes(folder):  # noqa: F811
    """vLLM refuses such a chat."""
    (folder / "strict.jinja").write_text(STRICT)
    settings = read_section(TokenSettings, {"path": str(folder), "chat_template": "strict.jinja"}, "tokens")
    strict = Tokens(settings).of("m")
    strict.path(read(b"/v1/chat/completions", {"model": "m", "messages": [USER, system("x")]}))
    assert strict.unread == 1
