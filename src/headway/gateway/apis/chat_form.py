"""Prompts of OpenAI's Responses API and of Anthropic's Messages API as the messages of a chat. Engines render these
prompts with the model's chat template, so the gateway brings them into the form that engines give to it.

A part that has no text, such as an image, does not appear. A malformed part may raise any exception: the gateway then
hashes the bytes of the prompt.
"""

from __future__ import annotations

import json
from typing import Any

from headway.gateway.chat_template import BILLING
from headway.types import Json

# --- Messages --------------------------------------------------------------------------------------------------------


def messages_chat(system: Any, messages: list[Json], tools: Any) -> tuple[list[Json], list[Json]]:
    """Return the messages and tools of a request of the Messages API."""
    chat: list[Json] = []
    lead = system if isinstance(system, str) else "".join(_system_texts(system))
    if lead:
        chat.append({"role": "system", "content": lead})
    for message in messages:
        role, content = message["role"], message["content"]
        if role == "system":
            text = "".join(_system_texts(content))
            chat += [{"role": role, "content": text}] if text else []
        elif isinstance(content, str):
            chat.append({"role": role, "content": content})
        else:
            _add_blocks(role, content, chat)
    return chat, [_tool(tool, tool["input_schema"]) for tool in tools or []]


def _texts(content: Any) -> list[str]:
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
    return [block["text"] for block in blocks if block.get("type") == "text"]


def _system_texts(content: Any) -> list[str]:
    """Return the texts of a system prompt without the block of Claude Code that differs in each request: engines drop
    it."""
    return [text for text in _texts(content) if not text.startswith(BILLING)]


def _add_blocks(role: str, blocks: list[Json], chat: list[Json]) -> None:
    """Append a message made of blocks. Results of tools come first, each as a message of its own."""
    parts: list[Json] = []
    calls: list[Json] = []
    thoughts: list[str] = []
    for block in blocks:
        kind = block["type"]
        if kind == "text" and block["text"]:
            parts.append({"type": "text", "text": block["text"]})
        elif kind == "thinking":
            thoughts.append(block["thinking"])
        elif kind == "tool_use":
            calls.append(_call(block["id"], block["name"], json.dumps(block["input"] or {})))
        elif kind == "tool_result" and role == "user":
            content = block.get("content") or ""
            text = content if isinstance(content, str) else "\n".join(_texts(content))
            chat.append({"role": "tool", "tool_call_id": block["tool_use_id"], "content": text})
    message: Json = {"role": role}
    if thoughts:
        message["reasoning"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    if parts:
        message["content"] = parts[0]["text"] if len(parts) == 1 else parts
    if role != "user" or parts:
        chat.append(message)


# --- Responses -------------------------------------------------------------------------------------------------------


def responses_chat(instructions: str | None, prompt: Any, tools: Any) -> tuple[list[Json], list[Json]]:
    """Return the messages and tools of a request of the Responses API."""
    chat: list[Json] = []
    if instructions:
        chat.append({"role": "system", "content": instructions})
    for item in [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt:
        _add_item(item, chat)
    functions = [tool for tool in tools or [] if tool.get("type") == "function"]
    return chat, [_tool(tool, tool.get("parameters")) for tool in functions]


def _add_item(item: Json, chat: list[Json]) -> None:
    """Append an item. What the assistant says, thinks and calls in consecutive items is one message."""
    kind = item.get("type", "message")
    last = chat[-1] if chat and chat[-1]["role"] == "assistant" else None
    if kind == "function_call":
        call = _call(item["call_id"], item["name"], item["arguments"])
        if last is None:
            chat.append({"role": "assistant", "tool_calls": [call]})
        else:
            last.setdefault("tool_calls", []).append(call)
    elif kind == "function_call_output":
        chat.append({"role": "tool", "content": item["output"], "tool_call_id": item["call_id"]})
    elif kind == "reasoning":
        parts = item.get("content") or item.get("summary") or [{"text": ""}]
        _add_assistant("reasoning", parts[0]["text"], last, chat)
    elif kind == "message" and item["role"] == "assistant":
        content = item["content"]
        _add_assistant("content", content if isinstance(content, str) else content[0]["text"], last, chat)
    elif kind == "message":
        chat.append({"role": item["role"], "content": item["content"]})


def _add_assistant(field: str, text: str, last: Json | None, chat: list[Json]) -> None:
    if last is not None and field not in last:
        last[field] = text
    else:
        chat.append({"role": "assistant", field: text})


# --- both ------------------------------------------------------------------------------------------------------------


def _call(id: str, name: str, arguments: str) -> Json:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _tool(tool: Json, parameters: Any) -> Json:
    return {"type": "function", "function": {**tool, "parameters": parameters}}
