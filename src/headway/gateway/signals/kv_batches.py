"""The wire format of KV events: batches in msgpack, in several dialects.

vLLM writes an event as a map with its name under `type`. Older versions of vLLM, and SGLang, write an array that begins
with the name. A batch, too, is a map or an array. Unknown fields and unknown types of events are ignored.
"""

from collections.abc import Callable, Iterator
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, MsgspecError, Raw, Struct
from msgspec.structs import replace

LONGEST: Final = 16 * 1024 * 1024  # maximum size of a batch, in bytes
Hash = int | Annotated[bytes, Meta(max_length=64)]  # hash by which the engine names a block
Token = Annotated[int, Meta(ge=0, lt=2**32)]
Unreadable: Final = (MsgspecError, ValueError, RecursionError, OverflowError)


class Stored(
    Struct,
    gc=False,
    tag_field="type",
    tag="BlockStored",
    rename={
        "hashes": "block_hashes",
        "parent": "parent_block_hash",
        "tokens": "token_ids",
        "size": "block_size",
        "group": "group_idx",
        "kind": "kv_cache_spec_kind",
        "window": "kv_cache_spec_sliding_window",
    },
):
    """An event: the engine has stored consecutive blocks of `size` tokens. `parent` is the hash of the block before the
    first of them. An event about a slower tier may list the hashes alone, with a size of 0 and no tokens."""

    hashes: list[Hash]
    parent: Hash | None
    tokens: list[Token]
    size: Annotated[int, Meta(ge=0, le=65536)]
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[Any] | None = None  # for each block: what its content depends on in addition to its tokens
    group: int | None = None  # group of layers, in models with several types of attention
    kind: str | None = None
    window: int | None = None

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.hashes) * self.size and self.tokens:
            raise ValueError("the number of tokens does not match the number of blocks")


class Removed(
    Struct, gc=False, tag_field="type", tag="BlockRemoved", rename={"hashes": "block_hashes", "group": "group_idx"}
):
    hashes: list[Hash]
    medium: str | None = None
    group: int | None = None


class Cleared(Struct, gc=False, tag_field="type", tag="AllBlocksCleared"):
    pass


Event = Stored | Removed | Cleared


class _Named(Struct):
    type: str


class Batch(Struct, rename={"rank": "data_parallel_rank"}):
    """Events that are not yet decoded, so that a large batch can be decoded in parts."""

    ts: Any
    events: list[Raw]
    rank: int | None = None


class Counts(Struct):
    """Counts of an engine's events, and of the problems with them."""

    batches: int = 0
    events: int = 0
    unknown: int = 0  # number of events of unknown types
    malformed: int = 0  # number of invalid batches and events
    late: int = 0  # number of publishers whose first batches the gateway missed
    gaps: int = 0  # number of gaps in the sequence of batch numbers
    replayed: int = 0  # number of batches received in replays
    restarts: int = 0
    orphans: int = 0  # number of blocks whose parent is unknown
    strangers: int = 0  # number of removed blocks that the ledger did not have
    elsewhere: int = 0  # number of events about media that are no known tier
    adapters: int = 0  # number of blocks of adapters without a name
    salted: int = 0  # number of blocks whose content depends on more than their tokens
    groups: int = 0  # number of events that are ignored, because the ledger does not follow their group of layers
    conflicts: int = 0  # number of blocks that have the same name as another block
    overflow: int = 0  # number of blocks above the limit per engine, which are ignored


def _decoders(kind: type[Struct]) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Return two decoders: one for maps, and one for arrays with the same fields."""
    row = msgspec.defstruct(f"{kind.__name__}Row", (), bases=(kind,), array_like=True)
    return msgspec.msgpack.Decoder(kind).decode, msgspec.msgpack.Decoder(row).decode


_NAME, _BATCH = _decoders(_Named), _decoders(Batch)
_EVENTS: Final = {
    "BlockStored": _decoders(Stored),
    "BlockRemoved": _decoders(Removed),
    "AllBlocksCleared": _decoders(Cleared),
}


def _is_row(data: bytes | memoryview) -> bool:
    first = data[0] if len(data) else 0
    return 0x90 <= first <= 0x9F or first in (0xDC, 0xDD)


def read_batch(payload: bytes) -> Batch | None:
    """Decode a batch. If the batch is too large or invalid, return None."""
    if len(payload) > LONGEST:
        return None
    try:
        batch: Batch = _BATCH[_is_row(payload)](payload)
    except Unreadable:
        return None
    return batch


def read_event(raw: Raw, counts: Counts) -> Event | None:
    """Decode an event, and count it. If the event is unknown or invalid, return None."""
    data = memoryview(raw)
    row = _is_row(data)
    try:
        decoders = _EVENTS.get(_NAME[row](data).type)
        if decoders is None:
            counts.unknown += 1
            return None
        event: Event = decoders[row](data)
    except Unreadable:
        counts.malformed += 1
        return None
    counts.events += 1
    return event


def in_parts(event: Event, most: int) -> Iterator[Event]:
    """Split an event into parts of at most `most` blocks."""
    if isinstance(event, Cleared) or len(event.hashes) <= most:
        yield event
        return
    for at in range(0, len(event.hashes), most):
        hashes = event.hashes[at : at + most]
        if isinstance(event, Removed):
            yield replace(event, hashes=hashes)
        else:
            yield replace(
                event,
                hashes=hashes,
                parent=event.hashes[at - 1] if at else event.parent,
                tokens=event.tokens[at * event.size : (at + most) * event.size],
                extra_keys=None if event.extra_keys is None else event.extra_keys[at : at + most],
            )
