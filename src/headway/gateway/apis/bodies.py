"""Bodies of the APIs besides chat: OpenAI's Responses API and Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final

import msgspec
from msgspec import Raw, Struct

from headway.gateway.apis.chat_form import messages_chat, responses_chat
from headway.gateway.request_body import ENDS, Body, Chat, decode_safely, is_set, with_effort

CACHE_MARK: Final = b'"cache_control"'
_any: Callable[[bytes | Raw], Any] = msgspec.json.Decoder().decode


class ResponsesBody(Body):
    """A request of OpenAI's Responses API."""

    instructions: Raw = Raw()
    max_output_tokens: int | float | None = None
    previous_response_id: str | None = None
    conversation: Raw = Raw()
    reasoning: Raw = Raw()

    def __post_init__(self) -> None:
        self.max_tokens, self.messages, self.prompt = self.max_output_tokens, Raw(), Raw()

    @property
    def hint(self) -> str | None:
        conversation = decode(self.conversation)
        if isinstance(conversation, dict):
            conversation = conversation.get("id")
        if not isinstance(conversation, str):
            conversation = None
        return conversation or self.previous_response_id or self.prompt_cache_key

    @property
    def is_chat(self) -> bool:
        return True

    @property
    def text(self) -> memoryview:
        return joined(self.instructions, self.input)

    @property
    def opening(self) -> bytes:
        prompt = bytes(self.input)
        if prompt[:1] == b'"':  # the same as one message of the user
            prompt = b'[{"role":"user","content":%b}]' % prompt
        return bytes(self.instructions) + prompt

    def chat(self) -> Chat:
        messages, tools = responses_chat(decode(self.instructions), decode(self.input), decode(self.tools))
        effort = (decode(self.reasoning) or {}).get("effort")
        return messages, tools, with_effort(decode(self.chat_template_kwargs), effort)


class _Metadata(Struct):
    user_id: str | None = None


_metadata: Callable[[bytes], _Metadata] = msgspec.json.Decoder(_Metadata).decode


class MessagesBody(Body):
    """A request of Anthropic's Messages API."""

    system: Raw = Raw()
    metadata: Raw = Raw()
    thinking: Raw = Raw()
    output_config: Raw = Raw()
    merges_system: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.input = self.prompt = Raw()

    @property
    def hint(self) -> str | None:
        try:
            user = decode_safely(_metadata, bytes(self.metadata)).user_id if is_set(self.metadata) else None
        except msgspec.MsgspecError:  # the engine judges its form
            user = None
        return user or self.prompt_cache_key

    @property
    def text(self) -> memoryview:
        return joined(self.system, self.messages)

    @property
    def opening(self) -> bytes:
        """Where the client marks a part of the system prompt for the cache, the rest of it may differ from turn to turn
        and does not count."""
        system = bytes(self.system)
        mark = system.rfind(CACHE_MARK)
        return (system if mark < 0 else system[:mark]) + bytes(self.messages)

    def chat(self) -> Chat:
        messages, tools = messages_chat(decode(self.system), _any(self.messages), decode(self.tools))
        effort = (decode(self.output_config) or {}).get("effort")
        if (decode(self.thinking) or {}).get("type") == "disabled":
            effort = "none"
        return messages, tools, with_effort(decode(self.chat_template_kwargs), effort)


class CountBody(MessagesBody):
    """A request to count the tokens of a prompt: an engine neither computes nor caches the prompt."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.max_tokens = 1

    @property
    def is_chat(self) -> bool:
        return False

    @property
    def text(self) -> memoryview:
        return memoryview(b"")


def decode(raw: Raw) -> Any:
    """Return the value of a field; None if it is missing. Raise msgspec.MsgspecError if its text is not UTF-8."""
    return decode_safely(_any, bytes(raw)) if raw else None


def joined(first: Raw, second: Raw) -> memoryview:
    """Return the bytes of two fields, without the closing bracket or quote of the second: if a conversation gets more
    messages, the old text is a prefix of the new text."""
    text = memoryview(bytes(first) + bytes(second) if is_set(first) else second)
    return text[:-1] if text and text[-1] in ENDS else text
