"""The gateway's file: where it listens, which engines it has, and the `policies:` of a scenario."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

import headway.policies  # noqa: F401  (declares the policies)
from headway import registry
from headway.documents import beside, read_yaml
from headway.gateway.backend import Address
from headway.gateway.wire import Limits
from headway.policies.bundle import Bundle
from headway.policies.defaults import DEFAULT_POLICIES
from headway.references import absolute
from headway.section import read
from headway.types import HeadwayError, Json
from headway.units import duration_ps
from headway.wording import shown

STAGES: Final = ("admission", "priority", "flow", "routing")  # what a gateway decides
Many = Annotated[int, Meta(ge=1, le=10**9)]


class _Keys(Struct):
    backends: Any
    listen: str = "127.0.0.1:8000"
    policies: Any = None
    timeouts: Any = None
    limits: Any = None
    health: Any = None
    retries: Annotated[int, Meta(ge=0, le=10)] = 2


class _BackendKeys(Struct):
    url: str
    models: list[str] = []
    key_env: str | None = None
    max_batch_size: Many = 256
    max_batch_tokens: Many = 2048
    max_queue: Many = 256
    kv_blocks: Many = 50_000
    capacity: Annotated[float, Meta(ge=0, le=1)] = 1.0


class _TimeoutKeys(Struct):
    connect: Any = "3s"
    first_byte: Any = "600s"
    silence: Any = "120s"


class _LimitKeys(Struct):
    body_bytes: Many = 32 * 1024 * 1024
    head_bytes: Annotated[int, Meta(ge=256, le=2**20)] = 32 * 1024
    head: Any = "10s"
    body: Any = "60s"
    idle: Any = "75s"


class _HealthKeys(Struct):
    failures: Annotated[int, Meta(ge=1, le=1000)] = 3
    eject: Any = "5s"


class Timeouts(Struct, frozen=True):
    connect_s: float = 3.0
    first_byte_s: float = 600.0
    silence_s: float = 120.0  # between two pieces of an answer


class BackendSpec(Struct, frozen=True):
    name: str
    address: Address
    models: tuple[str, ...]
    key: bytes | None
    max_batch_size: int
    max_batch_tokens: int
    max_queue: int
    kv_blocks: int
    capacity: float


class Config(Struct, frozen=True):
    host: str
    port: int
    backends: tuple[BackendSpec, ...]
    policies: Json
    timeouts: Timeouts
    limits: Limits
    retries: int
    failures: int  # in a row, that take an engine out
    eject_s: float

    @classmethod
    def load(cls, source: str | Path | Mapping[str, Any]) -> Config:
        """From a YAML file or a mapping."""
        if isinstance(source, Mapping):
            return read_config(dict(source))
        path = Path(source).expanduser()
        data = read_yaml(path)
        if not isinstance(data, dict):
            raise HeadwayError(f"{path}: a gateway's file is a mapping with 'backends'.")
        if isinstance(data.get("policies"), str):
            data["policies"] = beside(data["policies"], path)
        return read_config(absolute(data, path.parent))


def read_config(data: Json) -> Config:
    keys = read(_Keys, data, "")
    host, port = _listen(keys.listen, "listen")
    timeouts, limits = (
        read(_TimeoutKeys, keys.timeouts or {}, "timeouts"),
        read(_LimitKeys, keys.limits or {}, "limits"),
    )
    health = read(_HealthKeys, keys.health or {}, "health")
    return Config(
        host,
        port,
        _backends(keys.backends),
        read_policies({} if keys.policies is None else keys.policies),
        Timeouts(*(_seconds(getattr(timeouts, name), f"timeouts.{name}") for name in _TimeoutKeys.__struct_fields__)),
        Limits(
            head_bytes=limits.head_bytes,
            body_bytes=limits.body_bytes,
            head_s=_seconds(limits.head, "limits.head"),
            body_s=_seconds(limits.body, "limits.body"),
            idle_s=_seconds(limits.idle, "limits.idle"),
        ),
        keys.retries,
        health.failures,
        _seconds(health.eject, "health.eject"),
    )


def read_policies(given: Any) -> Json:
    """The `policies:` block of a scenario, or the file of a bundle. Those of the engines' own scheduler and of the
    autoscaler are let be; one that asks for the truth is refused, since nobody has it here."""
    if isinstance(given, str):
        given = dict(Bundle.read(given).policies)
    if not isinstance(given, dict):
        raise HeadwayError(f"policies: expected a mapping of stages, got {shown(given)}.")
    for stage in given:
        if stage not in DEFAULT_POLICIES:
            raise HeadwayError(f"policies.{stage}: there is no such stage. Known: {', '.join(DEFAULT_POLICIES)}.")
    found = {stage: given.get(stage, DEFAULT_POLICIES[stage]) for stage in STAGES}
    for stage, made in build_policies(found).items():
        parts = [made, *getattr(made, "_parts", ())]
        if any(registry.declared(part, stage).oracle for part in parts):
            raise HeadwayError(f"policies.{stage}: {shown(found[stage])} asks for the truth, which no live router has.")
    return found


def build_policies(specs: Json) -> dict[str, Any]:
    """Fresh policies of each stage: they keep state."""
    return {stage: registry.build(stage, spec, f"policies.{stage}") for stage, spec in specs.items()}


def _backends(given: Any) -> tuple[BackendSpec, ...]:
    if not isinstance(given, dict) or not given:
        raise HeadwayError("backends: name at least one engine, as in {a: {url: http://10.0.0.7:8000}}.")
    found = []
    for name, value in given.items():
        where = f"backends.{name}"
        keys = read(_BackendKeys, {"url": value} if isinstance(value, str) else value, where)
        key = None
        if keys.key_env is not None:
            key = os.environ.get(keys.key_env, "").encode()
            if not key:
                raise HeadwayError(f"{where}.key_env: the environment variable {keys.key_env} is not set.")
        found.append(
            BackendSpec(
                str(name),
                Address(keys.url, f"{where}.url"),
                tuple(keys.models),
                key,
                keys.max_batch_size,
                keys.max_batch_tokens,
                keys.max_queue,
                keys.kv_blocks,
                keys.capacity,
            )
        )
    if any(one.models for one in found) and not all(one.models for one in found):
        lacking = next(one.name for one in found if not one.models)
        raise HeadwayError(f"backends.{lacking}.models: is missing; where one engine names its models, all do.")
    return tuple(found)


def _listen(text: str, where: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise HeadwayError(f"{where}: expected an address such as 127.0.0.1:8000, got {shown(text)}.")
    return host.strip("[]"), int(port)


def _seconds(value: Any, where: str) -> float:
    found = duration_ps(value, where)
    if found <= 0:
        raise HeadwayError(f"{where}: must be longer than nothing, got {shown(value)}.")
    return found / 1e12
