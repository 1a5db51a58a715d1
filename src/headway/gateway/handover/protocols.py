"""How two engines are told that one computes a prompt and the other goes on from there: what each protocol writes into
their requests. A body that cannot be handed over so is None, and one engine serves it whole."""

from __future__ import annotations

import hashlib
import secrets
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Raw, Struct

from headway.gateway.request_body import Fields, amend_fields

if TYPE_CHECKING:
    from headway.gateway.engines.engine_fleet import Backend
    from headway.types import Request

# Fields by which engines let themselves be told where KV lies. They are the gateway's to write: a client that could
# would have an engine connect to wherever it likes.
REMOTE_DECODE: Final[dict[str, Any]] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
ROOM_BITS: Final = 63
MOST_KEYS: Final = 1024  # of one prompt
LONGEST_KEY: Final = 64  # bytes


class _Transferred(Struct):
    kv_transfer_params: dict[str, Raw] | None = None


class _Put(Struct):
    keys: list[str] | None = None


class _Kept(Struct):
    headway_kv: _Put | None = None


def computed_only(fields: Fields, more: dict[str, Any]) -> bytes:
    """The same request, as far as the prompt goes: one token, in one piece."""
    changes = {"stream": False, "max_tokens": 1, **more}
    if "max_completion_tokens" in fields:
        changes["max_completion_tokens"] = 1
    return amend_fields(fields, changes, ("stream_options", "min_tokens"))


def vllm_prefill(fields: Fields) -> bytes:
    return computed_only(fields, {"kv_transfer_params": REMOTE_DECODE})


def vllm_decode(fields: Fields, answer: bytes) -> bytes | None:
    """With what the first engine says of where the KV lies, as it says it."""
    try:
        params = msgspec.json.decode(answer, type=_Transferred).kv_transfer_params
    except msgspec.MsgspecError:
        return None
    return amend_fields(fields, {"kv_transfer_params": params}) if params else None


def sglang(fields: Fields, prefill: Backend) -> bytes:
    """Both engines are sent the same, at once. Several prompts in one request each have their room."""
    host: Any = prefill.address.host
    port: Any = prefill.spec.bootstrap_port
    room: Any = secrets.randbits(ROOM_BITS)
    count = prompts(fields)
    if count is not None:
        host, port, room = [host] * count, [port] * count, [secrets.randbits(ROOM_BITS) for _ in range(count)]
    return amend_fields(fields, {"bootstrap_host": host, "bootstrap_port": port, "bootstrap_room": room})


def prompts(fields: Fields) -> int | None:
    """How many a completion has, where it has a list of them; the tokens of one are one prompt."""
    if "prompt" not in fields:
        return None
    found = msgspec.json.decode(fields["prompt"])
    return len(found) if isinstance(found, list) and found and not isinstance(found[0], int) else None


def kv_keys(request: Request, pool: str, body: bytes) -> list[bytes]:
    """Names for the parts of a prompt's KV, as many as the prompt has blocks. They commit to all that shapes it: the
    whole request, whose it is, and which engines can read it. Nobody else's KV can have such a name."""
    digest = hashlib.blake2b(digest_size=24)
    for part in (pool.encode(), request.tenant.encode(), body):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    count = min(max(1, len(request.path.keys)), MOST_KEYS)
    return [digest.digest() + number.to_bytes(4, "big") for number in range(count)]


def kvd_prefill(fields: Fields, address: str, keys: list[bytes]) -> bytes:
    return computed_only(fields, {"headway_kv": {"put": address, "keys": [key.hex() for key in keys]}})


def kvd_put(answer: bytes, keys: list[bytes]) -> list[bytes]:
    """The keys that the engine says it has put, where it has others than it was given; none where that is no list of
    such."""
    try:
        told = msgspec.json.decode(answer, type=_Kept).headway_kv
        if told is None or told.keys is None:
            return keys
        found = [bytes.fromhex(key) for key in told.keys]
    except (msgspec.MsgspecError, ValueError):
        return []
    return found if len(found) <= MOST_KEYS and all(0 < len(key) <= LONGEST_KEY for key in found) else []


def kvd_decode(fields: Fields, addresses: list[str], keys: list[bytes]) -> bytes:
    return amend_fields(fields, {"headway_kv": {"get": addresses, "keys": [key.hex() for key in keys]}})
