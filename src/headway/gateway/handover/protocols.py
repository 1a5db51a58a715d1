"""Request bodies for prefill and decode engines, for each protocol of KV transfer."""

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

# Only the gateway may write these fields, because a client could use them to make an engine connect to any host.
REMOTE_DECODE: Final[dict[str, Any]] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
ROOM_BITS: Final = 63
MOST_KEYS: Final = 1024  # maximum number of keys of one prompt
LONGEST_KEY: Final = 64  # maximum length of a key, in bytes


class _Transferred(Struct):
    kv_transfer_params: dict[str, Raw] | None = None


class _Put(Struct):
    keys: list[str] | None = None


class _Stored(Struct):
    headway_kv: _Put | None = None


def prompt_only(fields: Fields, more: dict[str, Any]) -> bytes:
    """Return the request for the prefill engine: one output token, not streamed."""
    changes = {"stream": False, "max_tokens": 1, **more}
    if "max_completion_tokens" in fields:
        changes["max_completion_tokens"] = 1
    return amend_fields(fields, changes, ("stream_options", "min_tokens"))


def vllm_prefill(fields: Fields) -> bytes:
    return prompt_only(fields, {"kv_transfer_params": REMOTE_DECODE})


def vllm_decode(fields: Fields, answer: bytes) -> bytes | None:
    """Return the request for the decode engine, with the location of the KV blocks from the prefill engine's answer. If
    the answer has no location, return None."""
    try:
        params = msgspec.json.decode(answer, type=_Transferred).kv_transfer_params
    except msgspec.MsgspecError:
        return None
    return amend_fields(fields, {"kv_transfer_params": params}) if params else None


def sglang(fields: Fields, prefill: Backend) -> bytes:
    """Return the request for both engines. For each of its prompts, it contains a random number, the room, by which the
    two engines find each other."""
    host: Any = prefill.address.host
    port: Any = prefill.spec.bootstrap_port
    room: Any = secrets.randbits(ROOM_BITS)
    count = prompts(fields)
    if count is not None:
        host, port, room = [host] * count, [port] * count, [secrets.randbits(ROOM_BITS) for _ in range(count)]
    return amend_fields(fields, {"bootstrap_host": host, "bootstrap_port": port, "bootstrap_room": room})


def prompts(fields: Fields) -> int | None:
    """Return the number of prompts that a completion lists. For a single string or token list, return None."""
    if "prompt" not in fields:
        return None
    prompt = msgspec.json.decode(fields["prompt"])
    return len(prompt) if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else None


def kv_keys(request: Request, pool: str, body: bytes) -> list[bytes]:
    """Return a key for each block of a prompt's KV. A key is a hash of everything that determines the KV: the request,
    its tenant and the pool of engines. Therefore different KV never has the same key."""
    digest = hashlib.blake2b(digest_size=24)
    for part in (pool.encode(), request.tenant.encode(), body):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    count = min(max(1, len(request.path.keys)), MOST_KEYS)
    return [digest.digest() + number.to_bytes(4, "big") for number in range(count)]


def kvd_prefill(fields: Fields, address: str, keys: list[bytes]) -> bytes:
    return prompt_only(fields, {"headway_kv": {"put": address, "keys": [key.hex() for key in keys]}})


def kvd_put(answer: bytes, keys: list[bytes]) -> list[bytes]:
    """Return the keys that the engine reports as stored. If the engine reports nothing, return `keys`. If its report is
    invalid, return []."""
    try:
        report = msgspec.json.decode(answer, type=_Stored).headway_kv
        if report is None or report.keys is None:
            return keys
        reported = [bytes.fromhex(key) for key in report.keys]
    except (msgspec.MsgspecError, ValueError):
        return []
    return reported if len(reported) <= MOST_KEYS and all(0 < len(key) <= LONGEST_KEY for key in reported) else []


def kvd_decode(fields: Fields, addresses: list[str], keys: list[bytes]) -> bytes:
    return amend_fields(fields, {"headway_kv": {"get": addresses, "keys": [key.hex() for key in keys]}})
