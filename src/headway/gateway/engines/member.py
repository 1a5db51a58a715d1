"""An engine as somebody names it: a line of the gateway's file, an agent's registration, a call of the admin API."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from headway.config.section import read
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.http.address import Address
from headway.types import Json

Many = Annotated[int, Meta(ge=1, le=10**9)]
Port = Annotated[int, Meta(ge=1, le=65535)]
NAME_LONGEST: Final = 200


class _Keys(Struct):
    url: str
    models: list[str] = []
    role: Literal["both", "prefill", "decode"] = "both"
    pool: str = "default"
    key_env: str | None = None
    engine: Literal["auto", "vllm", "sglang", "llamacpp"] = "auto"
    metrics: str | None = "/metrics"
    events: str | None = None
    events_replay: str | None = None
    events_topic: str | None = None
    bootstrap_port: Port = 8998
    kvd: str | None = None
    max_batch_size: Many = 256
    max_batch_tokens: Many = 2048
    max_queue: Many = 256
    kv_blocks: Many = 50_000
    capacity: Annotated[float, Meta(ge=0, le=1)] = 1.0


class BackendSpec(Struct, frozen=True):
    name: str
    url: str
    models: tuple[str, ...] = ()
    role: str = "both"
    pool: str = "default"
    key_env: str | None = None  # an environment variable with the bearer that the engine wants
    engine: str = "auto"
    metrics: str | None = "/metrics"  # path of its Prometheus page
    events: str | None = None  # ZMQ endpoint of its KV events
    events_replay: str | None = None
    events_topic: str | None = None
    bootstrap_port: int = 8998  # of SGLang's hand-over
    kvd: str | None = None  # address of the KV daemon beside it
    max_batch_size: int = 256
    max_batch_tokens: int = 2048
    max_queue: int = 256
    kv_blocks: int = 50_000
    capacity: float = 1.0

    @classmethod
    def read(cls, name: str, given: Any, where: str) -> BackendSpec:
        """From a URL or a mapping."""
        if not name or len(name) > NAME_LONGEST or not name.isprintable() or not name.isascii():
            raise HeadwayError(f"{where}: a name is 1 to {NAME_LONGEST} letters, digits and signs, got {shown(name)}.")
        keys = read(_Keys, {"url": given} if isinstance(given, str) else given, where)
        Address(keys.url, f"{where}.url")
        if keys.key_env is not None and not os.environ.get(keys.key_env):
            raise HeadwayError(f"{where}.key_env: the environment variable {keys.key_env} is not set.")
        if keys.events is not None and not keys.models:
            raise HeadwayError(
                f"{where}.models: is missing; an engine whose KV events are heard names its model first."
            )
        values = {field: getattr(keys, field) for field in _Keys.__struct_fields__}
        return cls(name, **{**values, "models": tuple(dict.fromkeys(keys.models))})

    @property
    def key(self) -> bytes | None:
        """Of the engine, where it wants another than the client's."""
        return None if self.key_env is None else os.environ.get(self.key_env, "").encode()

    @property
    def seen(self) -> Json:
        """What policies see of it."""
        return {
            "id": self.name,
            "serves": list(self.models),
            "model": self.models[0] if self.models else "",
            "pool": self.pool,
            "role": self.role,
            "kv_blocks": self.kv_blocks,
            "max_batch_size": self.max_batch_size,
            "max_batch_tokens": self.max_batch_tokens,
            "max_queue": self.max_queue,
            "capacity": self.capacity,
        }


def read_members(given: Any, where: str) -> dict[str, BackendSpec]:
    if not isinstance(given, Mapping):
        raise HeadwayError(f"{where}: expected names and URLs, as in {{a: http://10.0.0.7:8000}}, got {shown(given)}.")
    return {str(name): BackendSpec.read(str(name), value, f"{where}.{name}") for name, value in given.items()}


def check_models(members: Mapping[str, BackendSpec], where: str) -> None:
    """Either every engine names its models, or none does."""
    if any(one.models for one in members.values()):
        for name, one in members.items():
            if not one.models:
                raise HeadwayError(f"{where}.{name}.models: is missing; where one engine names its models, all do.")
