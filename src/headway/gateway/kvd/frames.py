"""The wire format of a frame: a prefix of 12 bytes, a head in MessagePack, then the blocks one after another.

    "HK", version, 0, length of the head (4 bytes), length of the blocks (4 bytes); numbers are big-endian

A client sends a request, and the daemon replies. A channel carries one request at a time.
"""

import struct
from typing import Annotated, Final, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Struct

from headway.gateway.kvd.channel import Buffer

MAGIC: Final = b"HK"
VERSION: Final = 1
PREFIX: Final = struct.Struct(">2sBxII")
MOST_KEYS: Final = 16_384  # maximum number of keys in a request
LONGEST_KEY: Final = 64
HEAD_BYTES: Final = 2**21  # maximum size of a head; enough for MOST_KEYS keys
MOST_TTL_MS: Final = 86_400_000

Key = Annotated[bytes, Meta(min_length=1, max_length=LONGEST_KEY)]
Keys = Annotated[list[Key], Meta(max_length=MOST_KEYS)]
Sizes = Annotated[list[Annotated[int, Meta(ge=0, le=2**32 - 1)]], Meta(max_length=MOST_KEYS)]
Ttl = Annotated[int, Meta(ge=0, le=MOST_TTL_MS)]


class Malformed(Exception):
    """The bytes are not a valid frame. If the frame is too long, `follow` is the number of its bytes not yet read."""

    def __init__(self, text: str, follow: int = 0) -> None:
        super().__init__(text)
        self.follow = follow


class Put(Struct, array_like=True, tag=1, frozen=True):
    keys: Keys
    sizes: Sizes
    ttl_ms: Ttl = 0


class Get(Struct, array_like=True, tag=2, frozen=True):
    keys: Keys


class Delete(Struct, array_like=True, tag=3, frozen=True):
    keys: Keys


class Lookup(Struct, array_like=True, tag=4, frozen=True):
    keys: Keys


class Fetch(Struct, array_like=True, tag=5, frozen=True):
    keys: Keys
    source: Annotated[str, Meta(max_length=300)]
    ttl_ms: Ttl = 0


class Stat(Struct, array_like=True, tag=6, frozen=True):
    pass


class Ping(Struct, array_like=True, tag=7, frozen=True):
    pass


class Count(Struct, array_like=True, tag=32, frozen=True):
    """The number of blocks that were stored, deleted or fetched."""

    count: int


class Blocks(Struct, array_like=True, tag=33, frozen=True):
    """The reply to `Get`: the sizes of the first requested blocks, in order, as many as fit in a frame. A missing block
    has size 0."""

    sizes: Sizes


class Overlap(Struct, array_like=True, tag=34, frozen=True):
    """The number of requested blocks that the daemon has, in total and by tier, counted from the first key to the first
    missing block."""

    leading: int
    ram: int
    disk: int


class Figures(Struct, array_like=True, tag=35, frozen=True):
    figures: dict[str, dict[str, int]]


class Failure(Struct, array_like=True, tag=36, frozen=True):
    code: str
    text: str


Request: TypeAlias = Put | Get | Delete | Lookup | Fetch | Stat | Ping
Reply: TypeAlias = Count | Blocks | Overlap | Figures | Failure
Message = TypeVar("Message")

_ENCODER = msgspec.msgpack.Encoder()
_REQUESTS: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_REPLIES: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


def frame(message: Request | Reply, body_bytes: int = 0) -> bytes:
    """Return the prefix and head of a frame. The caller sends the blocks after them."""
    head = _ENCODER.encode(message)
    return PREFIX.pack(MAGIC, VERSION, len(head), body_bytes) + head


def lengths(prefix: Buffer, body_limit: int) -> tuple[int, int]:
    """Return the length of a frame's head and the length of its blocks. If the prefix is invalid, raise Malformed."""
    magic, version, head, body = PREFIX.unpack(prefix)
    if magic != MAGIC or version != VERSION:
        raise Malformed(f"a frame must begin with {MAGIC.decode()} and version {VERSION}")
    if not 0 < head <= HEAD_BYTES:
        raise Malformed(f"the head has {head:,} bytes; it must have 1 to {HEAD_BYTES:,}")
    if body > body_limit:
        raise Malformed(f"the blocks of the frame have {body:,} bytes; the limit is {body_limit:,}", head + body)
    return head, body


def request(head: Buffer, body: int) -> Request:
    message = _decode(_REQUESTS, head)
    sizes = message.sizes if isinstance(message, Put) else []
    if isinstance(message, Put) and (len(message.keys) != len(sizes) or not all(sizes)):
        raise Malformed("a put needs one block of at least one byte for each key")
    _check_body(sizes, body)
    return message


def reply(head: Buffer, body: int) -> Reply:
    message = _decode(_REPLIES, head)
    _check_body(message.sizes if isinstance(message, Blocks) else [], body)
    return message


def _decode(decoder: msgspec.msgpack.Decoder[Message], head: Buffer) -> Message:
    try:
        return decoder.decode(head)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Malformed(f"the head cannot be read ({error})") from None


def _check_body(sizes: list[int], body: int) -> None:
    if sum(sizes) != body:
        raise Malformed(f"the head announces {sum(sizes):,} bytes of blocks, but the frame has {body:,}")
