"""KV events of engines on the wire: batches in msgpack, in several dialects.

vLLM writes an event as a map with its name under `type`; older versions and SGLang write an array that begins with it,
and a batch may be either as well. Unknown fields and kinds of events are ignored.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, MsgspecError, Raw, Struct
from msgspec.structs import replace

LONGEST: Final = 16 * 1024 * 1024  # bytes of a batch
Hash = int | Annotated[bytes, Meta(max_length=64)]  # an engine's own name of a block
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
    """Blocks of `size` tokens that follow one another, the first of them `parent`."""

    hashes: list[Hash]
    parent: Hash | None
    tokens: list[Token]
    size: Annotated[int, Meta(ge=1, le=65536)]
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[Any] | None = None  # a block: what its content depends on besides tokens
    group: int | None = None  # of models with several kinds of attention
    kind: str | None = None
    window: int | None = None

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.hashes) * self.size and self.tokens:
            raise ValueError("the tokens are not those of the blocks")


class Removed(
    Struct, gc=False, tag_field="type", tag="BlockRemoved", rename={"hashes": "block_hashes", "group": "group_idx"}
):
    hashes: list[Hash]
    medium: str | None = None
    group: int | None = None


class Cleared(Struct, gc=False, tag_field="type", tag="AllBlocksCleared"):
    pass


Event = Stored | Removed | Cleared


class _StoredRow(Stored, array_like=True):
    pass


class _RemovedRow(Removed, array_like=True):
    pass


class _ClearedRow(Cleared, array_like=True):
    pass


class _Named(Struct):
    type: str


class _NamedRow(_Named, array_like=True):
    pass


class Batch(Struct, rename={"rank": "data_parallel_rank"}):
    """Events that are yet to be decoded, so that a large batch can be read in parts."""

    ts: Any
    events: list[Raw]
    rank: int | None = None


class _BatchRow(Batch, array_like=True):
    pass


class Counts(Struct):
    """Counts of an engine's events, and of those that could not be used."""

    batches: int = 0
    events: int = 0
    unknown: int = 0  # events of unknown kinds
    malformed: int = 0  # batches and events that cannot be read
    late: int = 0  # beginnings that were missed
    gaps: int = 0  # in the sequence
    replayed: int = 0  # batches that came again when asked for
    restarts: int = 0
    orphans: int = 0  # blocks that follow an unknown one
    strangers: int = 0  # removed, and never stored
    elsewhere: int = 0  # events about another memory than the GPU's
    adapters: int = 0  # blocks of an adapter without a name
    salted: int = 0  # blocks whose content depends on more than their tokens
    groups: int = 0  # events about other groups of layers than the one that is followed
    conflicts: int = 0  # blocks with the name of another
    overflow: int = 0  # blocks beyond the limit for an engine


def _decoders(*kinds: type[Any]) -> dict[str, Any]:
    names = ("BlockStored", "BlockRemoved", "AllBlocksCleared")
    return {name: msgspec.msgpack.Decoder(kind).decode for name, kind in zip(names, kinds, strict=True)}


_MAPS, _ROWS = _decoders(Stored, Removed, Cleared), _decoders(_StoredRow, _RemovedRow, _ClearedRow)
_name, _row_name = msgspec.msgpack.Decoder(_Named).decode, msgspec.msgpack.Decoder(_NamedRow).decode
_batch, _row_batch = msgspec.msgpack.Decoder(Batch).decode, msgspec.msgpack.Decoder(_BatchRow).decode


def _is_row(data: bytes | memoryview) -> bool:
    first = data[0] if len(data) else 0
    return 0x90 <= first <= 0x9F or first in (0xDC, 0xDD)


def read_batch(payload: bytes) -> Batch | None:
    """Return None if it cannot be read."""
    if len(payload) > LONGEST:
        return None
    try:
        return _row_batch(payload) if _is_row(payload) else _batch(payload)
    except Unreadable:
        return None


def read_event(raw: Raw, counts: Counts) -> Event | None:
    """Return None if the event is unknown or cannot be read; `counts` says which."""
    data = memoryview(raw)
    row = _is_row(data)
    try:
        name = (_row_name if row else _name)(data).type
        decoder = (_ROWS if row else _MAPS).get(name)
        if decoder is None:
            counts.unknown += 1
            return None
        event: Event = decoder(data)
    except Unreadable:
        counts.malformed += 1
        return None
    counts.events += 1
    return event


def in_parts(event: Event, most: int) -> Iterator[Event]:
    """Split an event into parts of at most so many blocks."""
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
