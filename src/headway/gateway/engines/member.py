"""The specification of an engine: from the gateway's file, an agent's registration, or the admin API."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from headway.config.keys import INTERNAL, Doc, Positive
from headway.config.section import read
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.http.address import Address
from headway.types import Json

NAME_LONGEST: Final = 200
VIEW_FIELDS: Final = ("pool", "role", "kv_blocks", "max_batch_size", "max_batch_tokens", "max_queue", "capacity")


class BackendSpec(Struct, frozen=True):
    """An engine as the gateway's file, etcd or the admin API names it."""

    url: Annotated[str, "requests go to its path and what the client asked for; may stand alone for the mapping"]
    models: Annotated[
        tuple[str, ...], Doc("names that clients call it by; where one engine has them, all do", default="any")
    ] = ()
    role: Annotated[Literal["both", "prefill", "decode"], "prefill or decode, for two engines of one pool"] = "both"
    pool: Annotated[str, "of engines that serve requests together"] = "default"
    key_env: Annotated[
        str | None,
        "an environment variable with the bearer that the engine wants; the client's own goes on otherwise",
    ] = None
    engine: Annotated[Literal["auto", "vllm", "sglang", "llamacpp"], "whose names its Prometheus page has"] = "auto"
    metrics: Annotated[str | None, "path of that page; null where there is none"] = "/metrics"
    events: Annotated[str | None, "ZMQ endpoint of its KV events"] = None
    events_replay: Annotated[str | None, "ZMQ endpoint of its old batches of them"] = None
    events_topic: Annotated[str | None, "their topic"] = None
    bootstrap_port: Annotated[int, Meta(ge=1, le=65535), "of SGLang's hand-over"] = 8998
    kvd: Annotated[str | None, "address of the KV daemon beside it, for hand-overs"] = None
    max_batch_size: Annotated[Positive, "what policies see until the engine says otherwise: sequences in a step"] = 256
    max_batch_tokens: Annotated[Positive, "likewise: tokens in a step"] = 2048
    max_queue: Annotated[Positive, "likewise: a scale for load scores"] = 256
    kv_blocks: Annotated[Positive, "likewise: blocks of its KV cache"] = 50_000
    capacity: Annotated[float, Meta(ge=0, le=1), "likewise: a static score of its memory"] = 1.0
    name: Annotated[str, INTERNAL] = ""

    @classmethod
    def read(cls, name: str, data: Any, where: str) -> BackendSpec:
        """Read a URL or a mapping."""
        if not name or len(name) > NAME_LONGEST or not name.isprintable() or not name.isascii():
            raise HeadwayError(f"{where}: a name is 1 to {NAME_LONGEST} letters, digits and signs, got {shown(name)}.")
        return replace(read(cls, {"url": data} if isinstance(data, str) else data, where), name=name)

    def validate(self, where: str) -> BackendSpec:
        Address(self.url, f"{where}.url")
        if self.key_env is not None and not os.environ.get(self.key_env):
            raise HeadwayError(f"{where}.key_env: the environment variable {self.key_env} is not set.")
        if self.events is not None and not self.models:
            raise HeadwayError(
                f"{where}.models: is missing; an engine whose KV events are heard names its model first."
            )
        return replace(self, models=tuple(dict.fromkeys(self.models)))

    @property
    def key(self) -> bytes | None:
        """The engine's own bearer token, if it has one."""
        return None if self.key_env is None else os.environ.get(self.key_env, "").encode()

    @property
    def view_fields(self) -> Json:
        """Return the fields of the view that policies see, as the plane's input `join` has them."""
        model = self.models[0] if self.models else ""
        fields = {name: getattr(self, name) for name in VIEW_FIELDS}
        return {"id": self.name, "serves": list(self.models), "model": model, **fields}


def read_members(data: Any, where: str) -> dict[str, BackendSpec]:
    if not isinstance(data, Mapping):
        raise HeadwayError(f"{where}: expected names and URLs, as in {{a: http://10.0.0.7:8000}}, got {shown(data)}.")
    return {str(name): BackendSpec.read(str(name), value, f"{where}.{name}") for name, value in data.items()}


def check_models(members: Mapping[str, BackendSpec], where: str) -> None:
    """Check that either every engine names its models, or none does."""
    if any(member.models for member in members.values()):
        for name, member in members.items():
            if not member.models:
                raise HeadwayError(f"{where}.{name}.models: is missing; where one engine names its models, all do.")
