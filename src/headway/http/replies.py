"""Replies that the server creates itself, in the form that OpenAI's clients expect."""

from http import HTTPStatus
from typing import Final

import msgspec
from msgspec import Struct

REASONS: Final = {status.value: status.phrase for status in HTTPStatus}
TRY_LATER: Final = (429, 503)  # statuses whose answers always have a Retry-After
RETRY_AFTER_S: Final = 1  # default value of Retry-After, in seconds
KINDS: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


class ErrorDetail(Struct):
    message: str
    type: str | None = None
    param: str | None = None
    code: str | int | None = None


class ErrorReply(Struct):
    """The body of an error in OpenAI's API."""

    error: ErrorDetail


def head_of(
    status: int,
    length: int,
    fields: tuple[tuple[str, str], ...] = (),
    *,
    close: bool = False,
    kind: str = "application/json",
) -> bytes:
    """Return the head of an answer. If the status asks the client to try later and `fields` do not say when, add a
    Retry-After."""
    lines = [
        f"HTTP/1.1 {status} {REASONS.get(status, 'Unknown')}",
        f"content-type: {kind}",
        f"content-length: {length}",
    ]
    lines += [f"{name}: {value}" for name, value in fields]
    if status in TRY_LATER and all(name != "retry-after" for name, _ in fields):
        lines.append(f"retry-after: {RETRY_AFTER_S}")
    if close:
        lines.append("connection: close")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")


def error_body(status: int, message: str, code: str | None = None) -> bytes:
    kind = KINDS.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return msgspec.json.encode(ErrorReply(ErrorDetail(message, kind, None, code)))


def error_event(message: str) -> bytes:
    """Return the error event that ends a broken stream, followed by the last chunk."""
    return chunk(b"data: " + error_body(502, message, "upstream_lost") + b"\n\n") + b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """Return the data framed as one chunk. For empty data return b"", because an empty chunk would end the body."""
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""
