"""The APIs by path, with what differs between them: fields of the body, counting of tokens, and errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Struct

from headway.gateway.apis.bodies import CountBody, MessagesBody, ResponsesBody
from headway.gateway.request_body import Body, read_body, reader
from headway.http.answer_tally import AnswerTally, MessagesTally, ResponsesTally
from headway.http.replies import ErrorDetail, chunk, error_body, error_event

LAST_CHUNK: Final = b"0\r\n\r\n"
ANTHROPIC_KINDS: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class AnthropicDetail(Struct):
    type: str
    message: str


class AnthropicError(Struct):
    """The body of an error in Anthropic's API."""

    error: AnthropicDetail
    type: str = "error"


class _ResponsesError(Struct):
    """The data of an error event in OpenAI's Responses API. Clients raise an exception because of `error`."""

    message: str
    error: ErrorDetail
    code: str = "upstream_lost"
    type: str = "error"
    param: str | None = None
    sequence_number: int = 0


class Api(Struct, frozen=True, eq=False):
    kind: str  # kind of its requests, for policies and records
    read: Callable[[bytes], Body] = read_body
    tally: type[AnswerTally] = AnswerTally
    error_body: Callable[[int, str], bytes] = error_body
    error_event: Callable[[str], bytes] = error_event  # ends a stream that breaks
    generates: bool = True  # whether its answers are generated token by token
    plain: bool = True  # whether cascades and handovers know its bodies and answers


def anthropic_error(status: int, message: str) -> bytes:
    kind = ANTHROPIC_KINDS.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return msgspec.json.encode(AnthropicError(AnthropicDetail(kind, message)))


def anthropic_event(message: str) -> bytes:
    return chunk(b"event: error\ndata: " + anthropic_error(502, message) + b"\n\n") + LAST_CHUNK


def responses_event(message: str) -> bytes:
    data = _ResponsesError(message, ErrorDetail(message, "server_error", None, "upstream_lost"))
    return chunk(b"event: error\ndata: " + msgspec.json.encode(data) + b"\n\n") + LAST_CHUNK


CHAT: Final = Api("chat")
RESPONSES: Final = Api("responses", reader(ResponsesBody), ResponsesTally, error_event=responses_event, plain=False)
MESSAGES: Final = Api("messages", reader(MessagesBody), MessagesTally, anthropic_error, anthropic_event, plain=False)
COUNT: Final = Api(
    "count_tokens", reader(CountBody), MessagesTally, anthropic_error, anthropic_event, generates=False, plain=False
)
APIS: Final = {
    b"/v1/chat/completions": CHAT,
    b"/v1/completions": Api("completion"),
    b"/v1/embeddings": Api("embedding", generates=False, plain=False),
    b"/v1/responses": RESPONSES,
    b"/v1/messages": MESSAGES,
    b"/v1/messages/count_tokens": COUNT,
}


def api_of(target: bytes) -> Api:
    """Return the API of a URL, for the form of its errors. Other URLs have errors in the form of OpenAI's API."""
    return APIS.get(target.partition(b"?")[0], CHAT)
