"""A node in etcd, under `nodes/ID`: the settings of a backend, and the state that its agent reports."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct, UnsetType

from headway.config.wording import one_line, shown, suggest
from headway.errors import HeadwayError

ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
LARGEST: Final = 256 * 1024  # maximum size of a document, in bytes


class Node(Struct, omit_defaults=True):
    """A node's document, without secrets. Unknown keys are ignored: agents and gateways may differ in version."""

    url: str
    models: list[str] = []
    role: str | UnsetType = UNSET
    pool: str | UnsetType = UNSET
    engine: str | UnsetType = UNSET
    max_batch_size: int | UnsetType = UNSET
    max_batch_tokens: int | UnsetType = UNSET
    max_queue: int | UnsetType = UNSET
    kv_blocks: int | UnsetType = UNSET
    cpu_blocks: int | UnsetType = UNSET
    storage_blocks: int | UnsetType = UNSET
    kv_block_bytes: int | UnsetType = UNSET
    gpu: str | UnsetType = UNSET
    tp: int | UnsetType = UNSET
    weights: str | UnsetType = UNSET
    dtype_bytes: float | UnsetType = UNSET
    capacity: float | UnsetType = UNSET
    metrics: str | UnsetType = UNSET
    events: str | UnsetType = UNSET
    events_replay: str | UnsetType = UNSET
    events_topic: str | UnsetType = UNSET
    bootstrap_port: int | UnsetType = UNSET
    kvd: str | UnsetType = UNSET
    ready: bool = True  # True by default, because a node written by hand has no agent
    why: str = ""  # reason why the node is not ready; empty if it is ready or the reason is unknown
    signals: dict[str, float] = {}
    at: float = 0.0  # time at which the agent wrote this document, by the agent's clock
    agent: str = ""  # id of the agent
    version: str = ""

    @classmethod
    def read(cls, value: bytes, where: str) -> Node:
        check_size(value, where)
        try:
            return msgspec.json.decode(value, type=cls)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise HeadwayError(f"{where}: is not a valid node ({one_line(error, kind=False)}).") from None

    def document(self) -> bytes:
        return msgspec.json.encode(self)

    def backend(self) -> dict[str, Any]:
        """Return the node's settings in the form of an entry under `backends:` in a gateway's file."""
        keys = {name: getattr(self, name) for name in ("url", "models", *OPTIONAL)}
        return {name: value for name, value in keys.items() if value is not UNSET}


# The keys that `headway agent --set` accepts.
OPTIONAL: Final = tuple(field.name for field in msgspec.structs.fields(Node) if field.default is UNSET)


def check_size(document: bytes, where: str) -> None:
    if len(document) > LARGEST:
        raise HeadwayError(f"{where}: has {len(document):,} bytes; the limit is {LARGEST:,}.")


def check_id(name: str, where: str) -> str:
    if not ID.fullmatch(name):
        raise HeadwayError(
            f"{where}: a node's name has up to 128 characters: letters, digits and any of ._:- ; got {shown(name)}."
        )
    return name


def optional(pairs: dict[str, Any], where: str) -> dict[str, Any]:
    """Return `pairs` if all its keys are optional keys of a node and all values have the right types. Otherwise raise
    HeadwayError."""
    types = {field.name: field.type for field in msgspec.structs.fields(Node)}
    for name, value in pairs.items():
        if name not in OPTIONAL:
            raise HeadwayError(f"{where} {name}: a node has no such key.{suggest(name, OPTIONAL)}")
        try:
            msgspec.convert(value, types[name])
        except msgspec.ValidationError as error:
            raise HeadwayError(f"{where} {name}: {one_line(error, kind=False)}.") from None
    return pairs
