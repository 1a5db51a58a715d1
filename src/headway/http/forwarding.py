"""Heads of forwarded requests and answers: which header fields pass through the gateway."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from headway.http.known_heads import LENGTH, Fields, KnownHead

if TYPE_CHECKING:
    from headway.http.address import Address
    from headway.http.request_reader import Incoming

FRAMING: Final = frozenset((b"content-length", b"transfer-encoding"))
# Header fields that apply to one connection and are not forwarded.
HOP: Final = frozenset(b"connection keep-alive proxy-connection te trailer upgrade proxy-authorization expect".split())
HOP_AND_LENGTH: Final = HOP | {LENGTH}
OURS: Final = frozenset((b"host", *FRAMING, *HOP))
PERSISTENCE: Final = (b"keep-alive", b"close")  # usual values of `Connection`, which name no other header field
OWNED: Final = b"x-headway-"  # fields with this prefix belong to the gateway, and are forwarded in neither direction
RANK: Final = b"x-data-parallel-rank"  # vLLM's and SGLang's header for the data-parallel rank of a request
KEY: Final = frozenset((b"authorization", b"x-api-key", b"api-key"))
HIDDEN: Final = (OURS, OURS | KEY, OURS | {RANK}, OURS | KEY | {RANK})
RANKED: Final = 2  # added to the index of `HIDDEN` if the gateway names the rank
OK: Final = 200


def forwarded_head(
    incoming: Incoming,
    address: Address,
    length: int,
    bearer: bytes | None,
    hides_key: bool,
    rank: int | None = None,
) -> bytes:
    """Return the head of a request for an engine. If `hides_key`, omit the client's key. If `bearer` is given, add it
    as the engine's key. If `rank` is given, address this data-parallel rank, not the one that the client names."""
    fields, known = incoming.fields, incoming.known
    hidden = hides_key if rank is None else hides_key + RANKED
    if known is None or known.fields is not fields:
        rest = forwarded_lines(fields, incoming.named, hidden)
    elif hidden in known.forwarded:
        rest = known.forwarded[hidden]
    else:
        rest = known.forwarded[hidden] = forwarded_lines(fields, incoming.named, hidden)
    if bearer is not None:
        rest += b"authorization: Bearer %b\r\n" % bearer
    if rank is not None:
        rest += b"%b: %d\r\n" % (RANK, rank)
    start = (incoming.method, address.base, incoming.target, address.host_line, length, rest)
    return b"%b %b%b HTTP/1.1\r\n%b\r\ncontent-length: %d\r\n%b\r\n" % start


def forwarded_lines(fields: Fields, named: Mapping[bytes, bytes], hidden: int) -> bytes:
    """Return the lines of the client's header fields that an engine receives. `hidden` chooses what to omit, of
    `HIDDEN`."""
    dropped = HIDDEN[hidden]
    if b"connection" in named:
        dropped |= connection_fields(fields, named)
    return b"".join(
        [b"%b: %b\r\n" % field for field in fields if field[0] not in dropped and not field[0].startswith(OWNED)]
    )


def answer_lines(fields: Fields, named: Mapping[bytes, bytes], dropped: frozenset[bytes]) -> list[bytes]:
    """Return the lines of an engine's header fields that the client receives."""
    if b"connection" in named:
        dropped |= connection_fields(fields, named) - FRAMING
    return [name + b": " + value for name, value in fields if name not in dropped and not name.startswith(OWNED)]


def answer_start(known: KnownHead) -> bytes:
    """Return the status line and the lines of an answer with a known head, without Content-Length."""
    lines = known.forwarded.get(False)
    if lines is None:
        lines = b"\r\n".join(
            [b"HTTP/1.1 %d %b" % (OK, known.start), *answer_lines(known.fields, known.named, HOP_AND_LENGTH)]
        )
        known.forwarded[False] = lines
    return lines


def connection_fields(fields: Fields, named: Mapping[bytes, bytes]) -> frozenset[bytes]:
    """Return the names in the header field `Connection`. These fields apply to one connection and are not forwarded.
    `named` has the last value of each field, so `Connection` may occur more often only if a name is repeated."""
    if named[b"connection"] in PERSISTENCE and len(named) == len(fields):
        return frozenset()
    values = b",".join(value for name, value in fields if name == b"connection")
    return frozenset(name.strip().lower() for name in values.split(b","))
