"""The specification of an engine, as the gateway's file, an agent's registration or the admin API gives it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from headway.config.keys import INTERNAL, Doc, Form, Positive, Unit
from headway.config.section import read
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.gateway.settings import check_name
from headway.http.address import Address
from headway.http.tls import EngineTls
from headway.latency import read_gpu, read_model
from headway.latency.shards import capacity_score
from headway.types import Json

NAME_LONGEST: Final = 200
MODEL_LONGEST: Final = 1024
VIEW_FIELDS: Final = ("pool", "role", "kv_blocks", "max_batch_size", "max_batch_tokens", "max_queue")


DISCOVER: Final = ("*",)  # value of `models` for `auto`: the gateway asks the engine


def _read_models(value: Any, where: str) -> tuple[str, ...]:
    if value == "auto":
        return DISCOVER
    if not isinstance(value, list | tuple) or not all(isinstance(name, str) for name in value):
        raise HeadwayError(f"{where}: expected a list of names, or auto, got {shown(value)}.")
    return tuple(dict.fromkeys(value))


def _write_models(models: tuple[str, ...]) -> Any:
    return "auto" if models == DISCOVER else list(models)


class BackendSpec(Struct, frozen=True):
    url: Annotated[str, "base URL, to which the gateway appends the client's path; a URL alone may replace the mapping"]
    models: Annotated[
        tuple[str, ...],
        Unit("list of texts or auto", _read_models, _write_models, form=Form.of(list[str], Literal["auto"])),
        Doc(
            "model names that it serves; list them for every engine or for none. `auto`: the engine's own list, see "
            "[APIs and models](apis.md#discovery)",
            default="any",
        ),
    ] = ()
    role: Annotated[Literal["both", "prefill", "decode"], "the phases that it serves; see `disaggregation`"] = "both"
    pool: Annotated[str, "prefill and decode engines of the same pool serve requests together"] = "default"
    key_env: Annotated[
        str | None,
        "environment variable with the engine's bearer token; without it, the engine receives the client's token",
    ] = None
    tls: Annotated[EngineTls | None, "TLS of an https `url`; see [Security](security.md)"] = None
    engine: Annotated[Literal["auto", "vllm", "sglang", "llamacpp"], "kind of engine, for its metric names"] = "auto"
    metrics: Annotated[str | None, "path of its Prometheus metrics, or null if it has none"] = "/metrics"
    events: Annotated[str | None, "ZMQ endpoint of its KV events"] = None
    events_replay: Annotated[str | None, "ZMQ endpoint that replays earlier KV events"] = None
    events_topic: Annotated[str | None, "ZMQ topic of its KV events"] = None
    bootstrap_port: Annotated[int, Meta(ge=1, le=65535), "port of SGLang's KV transfer"] = 8998
    kvd: Annotated[str | None, "address of its KV daemon, for KV transfer"] = None
    max_batch_size: Annotated[
        Positive, "the engine's limit of sequences in a step, for policies and the default admission"
    ] = 256
    max_batch_tokens: Annotated[Positive, "the engine's limit of tokens in a step, for policies"] = 2048
    max_queue: Annotated[Positive, "queue length that load scores and the default admission treat as full"] = 256
    kv_blocks: Annotated[Positive, "blocks of its KV cache, until the engine reports its own number"] = 50_000
    cpu_blocks: Annotated[
        Positive | None,
        Doc("blocks of its KV store in CPU memory, until the engine reports its own number", default="none"),
    ] = None
    storage_blocks: Annotated[
        Positive | None, Doc("blocks of its KV stores on disk or in the network", default="none")
    ] = None
    kv_block_bytes: Annotated[
        Positive | None,
        Doc(
            "bytes of the KV cache of one block, on all its GPUs together, for stores that report their use in bytes",
            default="unknown: such reports are ignored",
        ),
    ] = None
    gpu: Annotated[str | None, Doc("its GPU: a name in `headway hardware list`, for `capacity`", default="unknown")] = (
        None
    )
    tp: Annotated[Positive, "number of its GPUs (tensor parallelism), for `capacity`"] = 1
    dp: Annotated[Positive, "number of its data-parallel ranks"] = 1
    dp_balance: Annotated[
        Literal["direct", "vllm"],
        "who chooses the rank of a request. direct: the gateway, for which each rank is an engine NAME-rank-N at this "
        "`url`; vllm: the engine, which is one for the gateway",
    ] = "direct"
    rank: Annotated[
        Annotated[int, Meta(ge=0, le=1023)] | None,
        Doc("the rank at this `url` that this engine is; requests name it in X-data-parallel-rank", default="none"),
    ] = None
    weights: Annotated[
        str | None,
        Doc("the model that it holds: a name or a config.json, for `capacity`", default="the first of `models`"),
    ] = None
    dtype_bytes: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Doc("bytes per weight, for `capacity`: 2 for BF16, 1 for FP8", default="of the model"),
    ] = None
    capacity: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        Doc("static score of its free memory, for policies", default="from `gpu`; 1 if it is unknown"),
    ] = None
    name: Annotated[str, INTERNAL] = ""
    short_form: ClassVar[Any] = str  # a string alone sets `url`

    @classmethod
    def read(cls, name: str, data: Any, where: str) -> BackendSpec:
        """Read an engine from a URL or a mapping."""
        check_name(name, where, NAME_LONGEST, ascii_only=True)
        return replace(read(cls, {"url": data} if isinstance(data, str) else data, where), name=name)

    def validate(self, where: str) -> BackendSpec:
        secure = Address(self.url, f"{where}.url").tls
        if self.tls is not None and not secure:
            raise HeadwayError(f"{where}.tls: needs a url that begins with https, got {shown(self.url)}.")
        if self.key_env is not None and not os.environ.get(self.key_env):
            raise HeadwayError(f"{where}.key_env: the environment variable {self.key_env} is not set.")
        if self.events is not None and (not self.models or self.discovers):
            raise HeadwayError(f"{where}.models: is missing. An engine with KV events must name its model first.")
        if self.rank is not None and self.dp > 1:
            raise HeadwayError(f"{where}.rank: is one rank, but dp is {self.dp}. Remove one of the two keys.")
        self.score_capacity(where)
        return self

    @property
    def discovers(self) -> bool:
        """Whether the gateway asks the engine for its models."""
        return self.models == DISCOVER

    def score_capacity(self, where: str = "backends") -> float:
        """Return the score of the engine's memory: `capacity` if it is set, 1 if `gpu` is unknown, otherwise the result
        of the simulator's formula."""
        if self.capacity is not None or self.gpu is None:
            return 1.0 if self.capacity is None else self.capacity
        name = self.weights or (self.models[0] if self.models and not self.discovers else "")
        if not name:
            raise HeadwayError(f"{where}.weights: is missing. With 'gpu', name the model that the engine holds.")
        dtype = {} if self.dtype_bytes is None else {"dtype_bytes": self.dtype_bytes}
        model = read_model({"like": name, **dtype} if dtype else name, f"{where}.weights")
        return capacity_score(model, read_gpu(self.gpu, f"{where}.gpu"), self.tp)

    def ranks(self) -> dict[str, BackendSpec]:
        """Return the engines that this one is for the gateway, by name: itself, or its ranks."""
        if self.dp == 1 or self.dp_balance == "vllm":
            return {self.name: self}
        topic = self.events_topic or f"kv@{self.name}"
        names = [f"{self.name}-rank-{rank}" for rank in range(self.dp)]
        return {name: replace(self, name=name, rank=rank, dp=1, events_topic=topic) for rank, name in enumerate(names)}

    @property
    def publishers(self) -> range:
        """The ranks whose KV events count for this engine."""
        return range(self.dp) if self.rank is None else range(self.rank, self.rank + 1)

    @property
    def key(self) -> bytes | None:
        """The engine's own bearer token, or None if the engine has no token."""
        return None if self.key_env is None else os.environ.get(self.key_env, "").encode()

    def address(self) -> Address:
        """Return the address with the TLS context for its connections."""
        address = Address(self.url, f"backends.{self.name}.url")
        if address.tls:
            tls = self.tls or EngineTls()
            address.context, address.server_name = tls.context(f"backends.{self.name}.tls"), tls.server_name
        return address

    @property
    def view_fields(self) -> Json:
        """The static fields of the engine's view, which policies see, in the form that `Plane.join` expects."""
        model = self.models[0] if self.models and not self.discovers else ""
        fields = {name: getattr(self, name) for name in VIEW_FIELDS} | {"capacity": self.score_capacity()}
        stores = {"cpu": self.cpu_blocks, "storage": self.storage_blocks}
        fields["tier_blocks"] = {name: blocks for name, blocks in stores.items() if blocks is not None}
        if self.gpu is not None:
            fields["usd_per_hour"] = read_gpu(self.gpu, "backends").usd_per_hour * self.tp
        return {"id": self.name, "serves": list(self.models), "model": model, **fields}


def read_members(data: Any, where: str) -> dict[str, BackendSpec]:
    if not isinstance(data, Mapping):
        raise HeadwayError(f"{where}: expected a mapping such as {{a: http://10.0.0.7:8000}}, got {shown(data)}.")
    members: dict[str, BackendSpec] = {}
    for name, value in data.items():
        for each, spec in BackendSpec.read(str(name), value, f"{where}.{name}").ranks().items():
            if each in members or (each != name and each in data):
                raise HeadwayError(f"{where}.{name}: a rank of it is called {each}, as another engine. Rename one.")
            members[each] = spec
    check_models(members, where)
    return members


def read_member(name: str, data: Any, where: str) -> BackendSpec:
    """Read an engine that is one for the gateway."""
    spec = BackendSpec.read(name, data, where)
    if spec.ranks() != {name: spec}:
        raise HeadwayError(f"{where}.dp: add each rank as an engine with the key 'rank', or set 'dp_balance: vllm'.")
    return spec


def check_models(members: Mapping[str, BackendSpec], where: str) -> None:
    """Raise if some engines name their models and others do not."""
    if any(member.models for member in members.values()):
        for name, member in members.items():
            if not member.models:
                raise HeadwayError(f"{where}.{name}.models: is missing. List the models of every engine, or of none.")
