"""Requests of OpenAI's Responses API and of Anthropic's Messages API, in the form of a chat request."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from headway.errors import HeadwayError
from headway.gateway.apis.chat_form import messages_chat, responses_chat
from headway.types import Json

AGENTS: Final = ("responses", "messages", "count_tokens")  # kinds of requests that this module knows
SAME: Final = ("model", "stream", "headway", "priority")


def chat_document(kind: str, data: bytes) -> Json:
    """Return the fields of the chat request that means the same. Raise HeadwayError if the body is malformed."""
    document = msgspec.json.decode(data)
    if not isinstance(document, dict):
        raise HeadwayError("the request is not a JSON object.")
    try:
        chat = _of_responses(document) if kind == "responses" else _of_messages(document, kind == "messages")
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise HeadwayError(f"the request is malformed ({type(error).__name__}: {error}).") from None
    return {
        **chat,
        "stream_options": {"include_usage": True},
        **{name: document[name] for name in SAME if name in document},
    }


def _of_responses(document: Json) -> Json:
    messages, tools = responses_chat(document.get("instructions"), document["input"], document.get("tools"))
    choice: Any = document.get("tool_choice")
    if isinstance(choice, dict):
        choice = {"type": "function", "function": {"name": choice["name"]}}
    return {
        "messages": messages,
        "tools": tools or None,
        "tool_choice": choice,
        "max_tokens": document.get("max_output_tokens"),
    }


def _of_messages(document: Json, generates: bool) -> Json:
    messages, tools = messages_chat(document.get("system"), document["messages"], document.get("tools"))
    choice: Any = document.get("tool_choice")
    if isinstance(choice, dict):
        named = {"type": "function", "function": {"name": choice.get("name")}}
        choice = {"any": "required", "tool": named}.get(choice["type"])
    return {
        "messages": messages,
        "tools": tools or None,
        "tool_choice": choice,
        "max_tokens": document["max_tokens"] if generates else None,
        "stop": document.get("stop_sequences"),
    }
