"""OpenAI's Responses API and Anthropic's Messages API: their requests as those of a chat, and their answers.

An emulated engine keeps its last responses, so that clients can read and delete them. It ignores
`previous_response_id` and `background`.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from headway.emulator.answers import Answer, encode
from headway.emulator.engine_request import EngineRequest
from headway.types import Json

STOP_REASONS: Final = {"length": "max_tokens", "tool_calls": "tool_use"}


def event(data: Json) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (data["type"].encode(), encode(data))


class MessagesAnswer(Answer):
    def usage(self, tokens: int) -> Json:
        return {"input_tokens": self.request.content.prompt_tokens, "output_tokens": tokens}

    def opening(self) -> bytes:
        call = self.script.call
        block: Json = {"type": "text", "text": ""}
        if call is not None:
            block = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
        message = {**self._message([], None), "usage": self.usage(0)}
        return event({"type": "message_start", "message": message}) + event(
            {"type": "content_block_start", "index": 0, "content_block": block}
        )

    def token(self, number: int, last: bool, usage: Json | None) -> bytes:
        piece = self.script.piece(number)
        delta = {"type": "text_delta", "text": piece}
        if self.script.call is not None:
            delta = {"type": "input_json_delta", "partial_json": piece}
        return event({"type": "content_block_delta", "index": 0, "delta": delta})

    def closing(self, usage: Json | None) -> bytes:
        end = {"stop_reason": self._reason(), "stop_sequence": self.script.stop_reason}
        counts = self.usage(self.script.tokens)
        return (
            event({"type": "content_block_stop", "index": 0})
            + event({"type": "message_delta", "delta": end, "usage": counts})
            + event({"type": "message_stop"})
        )

    def whole(self, usage: Json, more: Json) -> bytes:
        script = self.script
        text = script.text(script.tokens)
        block: Json = {"type": "text", "text": text}
        if script.call is not None:
            block = {"type": "tool_use", "id": script.call.id, "name": script.call.name}
            block["input"] = msgspec.json.decode(text) if script.reason != "length" else {}
        return encode({**self._message([block], self._reason()), "usage": self.usage(script.tokens)})

    def _message(self, content: list[Json], reason: str | None) -> Json:
        head = {"id": self.id, "type": "message", "role": "assistant", "model": self.model, "content": content}
        return {**head, "stop_reason": reason, "stop_sequence": self.script.stop_reason if reason else None}

    def _reason(self) -> str:
        script = self.script
        if script.stop_reason is not None:
            return "stop_sequence"
        if script.call is not None and script.reason != "length":
            return "tool_use"
        return STOP_REASONS.get(script.reason, "end_turn")


class ResponsesAnswer(Answer):
    @property
    def item(self) -> Json:
        """The only item of the output, before its first token."""
        call = self.script.call
        if call is None:
            return {
                "id": f"msg_{self.id}",
                "type": "message",
                "role": "assistant",
                "status": "in_progress",
                "content": [],
            }
        head = {"id": f"fc_{self.id}", "type": "function_call", "call_id": call.id, "name": call.name}
        return {**head, "status": "in_progress", "arguments": ""}

    def opening(self) -> bytes:
        response = self._response("in_progress", [], None)
        events: list[Json] = [
            {"type": "response.created", "response": response},
            {"type": "response.in_progress", "response": response},
            {"type": "response.output_item.added", "output_index": 0, "item": self.item},
        ]
        if self.script.call is None:
            events.append({"type": "response.content_part.added", **self._place(), "part": self._part("")})
        return self._events(events, 0)

    def token(self, number: int, last: bool, usage: Json | None) -> bytes:
        place, kind = self._place(), "response.output_text.delta"
        if self.script.call is not None:
            kind = "response.function_call_arguments.delta"
        return self._events([{"type": kind, **place, "delta": self.script.piece(number)}], 4 + number)

    def closing(self, usage: Json | None) -> bytes:
        script, place = self.script, self._place()
        text = script.text(script.tokens)
        item = self._whole_item(text)
        if script.call is None:
            events = [
                {"type": "response.output_text.done", **place, "text": text, "logprobs": []},
                {"type": "response.content_part.done", **place, "part": self._part(text)},
            ]
        else:
            events = [
                {"type": "response.function_call_arguments.done", **place, "arguments": text, "name": item["name"]}
            ]
        events.append({"type": "response.output_item.done", "output_index": 0, "item": item})
        kind = "response.incomplete" if script.reason == "length" else "response.completed"
        events.append({"type": kind, "response": self._whole_response(usage or {}, item)})
        return self._events(events, 4 + script.tokens)

    def whole(self, usage: Json, more: Json) -> bytes:
        return encode(self._whole_response(usage, self._whole_item(self.script.text(self.script.tokens))))

    def _events(self, events: list[Json], first: int) -> bytes:
        return b"".join([event({**each, "sequence_number": first + at}) for at, each in enumerate(events)])

    def _place(self) -> Json:
        place = {"output_index": 0, "item_id": self.item["id"]}
        return place if self.script.call is not None else {**place, "content_index": 0, "logprobs": []}

    def _part(self, text: str) -> Json:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    def _whole_item(self, text: str) -> Json:
        item = {**self.item, "status": "completed"}
        return {**item, "content": [self._part(text)]} if self.script.call is None else {**item, "arguments": text}

    def _whole_response(self, usage: Json, item: Json) -> Json:
        cut = self.script.reason == "length"
        counts = {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": usage["prompt_tokens_details"],
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["total_tokens"],
        }
        return self._response("incomplete" if cut else "completed", [item], counts)

    def _response(self, status: str, output: list[Json], usage: Json | None) -> Json:
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "model": self.model,
            "output": output,
            "incomplete_details": cut,
            "error": None,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": usage,
        }


AGENT_ANSWERS: Final[dict[str, tuple[str, type[Answer]]]] = {
    "responses": ("resp_", ResponsesAnswer),
    "messages": ("msg_", MessagesAnswer),
}


MOST_STORED: Final = 1024
STORED: Final = re.compile(rb"/v1/responses/([0-9A-Za-z_-]+)(/cancel|/input_items)?")
Said = tuple[int, bytes | str]  # status, and a document or the words of an error


class StoredResponses:
    """The last responses of an engine, unless their requests said `store: false`."""

    def __init__(self) -> None:
        self.by_id: dict[str, tuple[bytes, Json]] = {}  # id -> the response and its request, the oldest first

    def keep(self, id: str, response: bytes, body: bytes) -> None:
        request = msgspec.json.decode(body)
        if request.get("store") is not False:
            self.by_id[id] = (response, request)
            if len(self.by_id) > MOST_STORED:
                del self.by_id[next(iter(self.by_id))]

    def answer(self, method: bytes, path: bytes) -> Said | None:
        """Answer a request about a response; return None if the path is none of these."""
        asked = STORED.fullmatch(path)
        if asked is None:
            return None
        id, part = asked[1].decode("ascii"), asked[2]
        if method not in {None: (b"GET", b"DELETE"), b"/cancel": (b"POST",), b"/input_items": (b"GET",)}[part]:
            return 405, "Method Not Allowed"
        if id not in self.by_id:
            return 404, f"Response with id '{id}' not found."
        if part == b"/cancel":
            return 400, "Cannot cancel a synchronous response."
        if part is not None:
            return 200, encode(_input_items(self.by_id[id][1]))
        if method == b"DELETE":
            del self.by_id[id]
            return 200, encode({"id": id, "object": "response", "deleted": True})
        return 200, self.by_id[id][0]


def _input_items(request: Json) -> Json:
    """Return the list of a request's input items, the last one first."""
    items: Any = request.get("input")
    if isinstance(items, str):
        items = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": items}]}]
    data = [{"id": f"item_{number}", "type": "message", **item} for number, item in enumerate(items)][::-1]
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
    return {"object": "list", "data": data, **ends, "has_more": False}


def count_answer(request: EngineRequest) -> bytes:
    return encode({"input_tokens": request.content.prompt_tokens})
