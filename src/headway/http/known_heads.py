"""Heads that repeat: the requests of a client mostly have the same head, except for the value of Content-Length, and so
have the answers of an engine. A message whose head is known byte for byte needs no parser. The parser has read the same
bytes before, so the result is the same."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

Fields = list[tuple[bytes, bytes]]
LENGTH: Final = b"content-length"
LENGTH_LINE: Final = b"\r\n" + LENGTH + b": "
LONGEST_NUMBER: Final = 12  # maximum number of digits in Content-Length
MOST_MISSES: Final = 8  # after this many heads that did not repeat, a connection learns no more heads


class KnownHead(Struct, eq=False):
    """A head without the value of its Content-Length."""

    before: bytes
    after: bytes  # ends with the empty line
    fields: Fields
    named: dict[bytes, bytes]
    start: bytes = b""  # method of a request, or reason phrase of an answer
    target: bytes = b""
    forwarded: dict[int, bytes] = {}  # header lines to forward, as the forwarding module computes them

    def split(self, data: bytes) -> tuple[bytes, bytes] | None:
        """Return Content-Length and body if `data` is one complete message with this head; otherwise None."""
        before, after = self.before, self.after
        if not data.startswith(before):
            return None
        start = len(before)
        end = data.find(after, start, start + LONGEST_NUMBER + len(after))
        if end < 0:
            return None
        length, body = data[start:end], data[end + len(after) :]
        return (length, body) if length.isdigit() and int(length) == len(body) else None

    def fields_with(self, length: bytes) -> Fields:
        """Return the header fields with this Content-Length."""
        return [(LENGTH, length) if field[0] == LENGTH else field for field in self.fields]


def learn_head(data: bytes, fields: Fields, named: dict[bytes, bytes], size: int) -> KnownHead | None:
    """Return the head of `data`, if `data` is one message with a body of `size` bytes and the head can be known."""
    end = data.find(b"\r\n\r\n") + 4
    head = data[:end].lower()
    start = head.find(LENGTH_LINE) + len(LENGTH_LINE)
    if start < len(LENGTH_LINE) or head.count(LENGTH) > 1 or len(data) - end != size:
        return None
    stop = data.find(b"\r\n", start)
    value = data[start:stop]
    if value != named.get(LENGTH) or not value.isdigit() or len(value) > LONGEST_NUMBER or int(value) != size:
        return None
    return KnownHead(data[:start], data[stop:end], fields, named)
