"""A pool of equal engines: the keys of `cluster:` that one type of engine has, and what they imply for its step times
and its KV cache."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from headway import latency
from headway.config.keys import QUIET, Doc, Duration, Form, Positive, write
from headway.config.schema import Later, Part
from headway.config.section import read
from headway.errors import HeadwayError
from headway.latency import GpuSpec, LatencySpec, ModelSpec
from headway.latency.engines import engine_load, engine_schedules_ahead
from headway.latency.overlap import Overlapped, overlap, split_host
from headway.policies import registry
from headway.policies.policy_schema import policy_form
from headway.scenario.kv_spec import Kv
from headway.scenario.pd_spec import ROLES, Transfer
from headway.scenario.speculation_spec import Speculation
from headway.types import Json

MOST_INSTANCES: Final = 100_000
COMMON: Final = ("block_tokens", "prefix_caching")  # keys of `kv` that must be equal in the whole cluster
SCALED: Final = ("min_replicas", "max_replicas", "scaling")  # keys that only a pool with an autoscaler uses
APART: Final = (*ROLES, "transfer")  # keys that only a disaggregated deployment may have
HALF_FORM: Final = Form.of(Later("half", lambda: _half_form()))
Replicas = Annotated[int, Meta(ge=0, le=MOST_INSTANCES)]


class Adapters(Struct, frozen=True):
    """The slots for LoRA adapters in an instance."""

    slots: Annotated[Positive, "adapters that an instance can hold at a time"]
    load_time_ps: Annotated[
        Duration, "time to load an adapter; the step in which a request enters with a missing adapter is longer by it"
    ]


class Engines(Struct, frozen=True):
    """A pool of equal instances of one model on one type of GPU."""

    instances: Annotated[
        int, Meta(ge=1, le=MOST_INSTANCES), "number of engines; with an autoscaler, the number at the start"
    ] = 8
    model: Annotated[ModelSpec, Doc("a name from the table below, or figures", type="name or mapping")] = "llama-3.1-8b"
    gpu: Annotated[GpuSpec, Doc("a name from the table below, or figures", type="name or mapping")] = "h100"
    tp: Annotated[int, Meta(ge=1, le=1024), "GPUs of one instance (tensor parallelism)"] = 1
    dp: Annotated[
        int, Meta(ge=1, le=1024), "data-parallel ranks of one instance, each with `tp` GPUs, a queue and a cache", QUIET
    ] = 1
    ep: Annotated[
        bool, "expert parallelism: each of the `tp` × `dp` GPUs has whole experts, not a part of every expert", QUIET
    ] = False
    dp_balance: Annotated[
        Literal["vllm", "direct"],
        "vllm: the engine chooses the rank of a request by vLLM's rule; direct: the router does, and sees each rank",
        QUIET,
    ] = "vllm"
    api_servers: Annotated[
        Positive | None,
        Doc("processes of an engine that choose ranks, each with counts of its own", default="`dp`"),
        QUIET,
    ] = None
    max_batch_tokens: Annotated[Positive, "token budget of a step"] = 2048
    max_batch_size: Annotated[Positive, "sequences in a step"] = 256
    max_queue: Annotated[Positive, "scales load scores; it is not a limit, and no request is rejected for it"] = 256
    kv: Annotated[Kv, "the KV cache"] = Kv()
    adapters: Annotated[
        Adapters | None, Doc("the adapter slots of an instance, below", default="all adapters are loaded"), QUIET
    ] = None
    latency: Annotated[LatencySpec, Doc("the model of step times", default="hardware", type="mapping")] = None
    async_scheduling: Annotated[
        bool | Literal["auto"],
        "whether each step is scheduled while the step before it runs; auto follows the `engine` of `latency`",
        QUIET,
    ] = "auto"
    speculation: Annotated[
        Speculation | None, Doc("speculative decoding, below", default="one token per step"), QUIET
    ] = None
    architecture: Annotated[
        Literal["monolithic", "disaggregated"],
        "monolithic: each instance prefills and decodes; disaggregated: separate instances prefill, see below",
    ] = "monolithic"
    prefill: Annotated[
        Any, HALF_FORM, Doc("disaggregated only: the instances that compute prompts", type="mapping")
    ] = None
    decode: Annotated[Any, HALF_FORM, Doc("disaggregated only: the instances that generate tokens", type="mapping")] = (
        None
    )
    transfer: Annotated[Transfer, "disaggregated only: how the KV cache is transferred"] = Transfer()
    min_replicas: Annotated[
        Replicas | None, Doc("fewest instances that the autoscaler may keep", default="`instances`"), QUIET
    ] = None
    max_replicas: Annotated[
        Replicas | None, Doc("most instances that the autoscaler may start", default="`instances`"), QUIET
    ] = None
    scaling: Annotated[
        Any,
        policy_form("scaling"),
        Doc("the autoscaler of this pool", default="the one in `policies`", type="name or mapping"),
        QUIET,
    ] = None

    def bounds(self) -> tuple[int, int]:
        """Return the minimum and the maximum number of instances."""
        low = self.instances if self.min_replicas is None else self.min_replicas
        return low, self.instances if self.max_replicas is None else self.max_replicas

    def scales(self) -> bool:
        """Return whether the section sets a key that only a pool with an autoscaler uses, such as `min_replicas`."""
        return any(getattr(self, name) is not None for name in SCALED)

    def names(self) -> tuple[str, ...]:
        """Return the names that clients may use for the model. If any name is valid, return an empty tuple."""
        return ()

    def shape(self, where: str = "cluster") -> latency.ModelShape:
        return latency.read_model(self.model, f"{where}.model")

    def card(self, where: str = "cluster") -> latency.Gpu:
        return latency.read_gpu(self.gpu, f"{where}.gpu")

    def latency_section(self) -> Json:
        return {"model": "hardware"} if self.latency is None else self.latency

    def latency_model(self, where: str = "cluster") -> latency.LatencyModel:
        section, place = self.latency_section(), f"{where}.latency"
        model = latency.build(section, self.shape(where), self.card(where), self.tp, place, self.dp, self.ep)
        return overlap(model) if self.schedules_ahead() else model

    def in_lockstep(self) -> bool:
        """Return whether the engine has data-parallel ranks that wait for each other in each step."""
        return self.dp > 1 and self.shape().experts > 0

    def schedules_ahead(self) -> bool:
        """Return whether the engine schedules asynchronously."""
        if self.async_scheduling != "auto":
            return self.async_scheduling
        speculation = self.speculates()
        if speculation is not None and speculation.draft == "ngram":  # the host finds them in the tokens of a step
            return False
        return engine_schedules_ahead(self.latency_section().get("engine", "auto"))

    def speculates(self) -> Speculation | None:
        """Return the section `speculation` if it has an effect."""
        return self.speculation if self.speculation is not None and self.speculation.tokens else None

    def verification(self, where: str = "cluster") -> latency.LatencyModel | None:
        """Return the step times of an engine that speculates. If it does not, return None."""
        speculation = self.speculates()
        if speculation is None:
            return None
        section, shape, card = self.latency_section(), self.shape(where), self.card(where)
        model = latency.build(section, shape, card, self.tp, f"{where}.latency", self.dp, self.ep)
        gpu, step, sequence = split_host(model) if self.schedules_ahead() else (model, 0, 0)
        steps = speculation.verification(gpu, section, shape, card, self.tp, f"{where}.speculation", self.dp, self.ep)
        return Overlapped(steps, step, sequence) if step or sequence else steps

    def kv_layout(self, where: str = "cluster") -> latency.KvLayout | None:
        """Return how the KV cache is divided between groups of layers. If every layer keeps every token, return
        None."""
        shape, speculation = self.shape(where), self.speculates()
        if not shape.kv_groups:
            return None
        if speculation is not None:
            shape = speculation.loaded(shape, f"{where}.speculation")
        states = self.kv.states
        layout = latency.kv_layout(shape, self.tp, self.kv.block_tokens, self.kv.hybrid, f"{where}.kv", states)
        if not layout.windows and not layout.states:
            return None
        plain = {
            "tiers": self.kv.tiers is None,
            "eviction": self.kv.eviction == "lru",
            "preemption": self.kv.preemption == "recompute",
        }
        other = next((key for key, good in plain.items() if not good), None)
        if other is not None:
            raise HeadwayError(f"{where}.kv.{other}: {need_whole_layers(shape)}")
        drafter = None if speculation is None else speculation.drafter(f"{where}.speculation")
        if drafter is not None and drafter.model is not None:
            wrong = f"the cache of a draft model is not simulated beside the windows or states of {shape.name}"
            raise HeadwayError(f"{where}.speculation.draft: {wrong}; use {{layers: 1}} or a duration, such as 1ms.")
        return layout

    def kv_blocks(self, where: str = "cluster") -> int:
        """Return the number of KV blocks in the GPU memory of an instance, or of each of its data-parallel ranks. If
        the model has groups of layers, these are the pages that the groups share."""
        layout = self.kv_layout(where)
        if self.kv.gpu_blocks != "auto":
            if layout is not None and self.kv.gpu_blocks < layout.groups:
                wrong = f"{self.kv.gpu_blocks} pages are too few for the {layout.groups} groups of layers"
                raise HeadwayError(f"{where}.kv.gpu_blocks: {wrong}; use at least {layout.groups}.")
            return self.kv.gpu_blocks
        size, share = self.kv.block_tokens, self.kv.utilization
        shape, speculation = self.shape(where), self.speculates()
        if speculation is not None:
            shape = speculation.loaded(shape, f"{where}.speculation")
        place, hybrid = f"{where}.kv", self.kv.hybrid
        load = engine_load(self.latency_section().get("engine"), self.max_batch_tokens, self.max_batch_size)
        return latency.kv_blocks(shape, self.card(where), self.tp, size, share, place, self.dp, hybrid, load)

    def halves(self, where: str = "cluster") -> dict[str, Engines]:
        """Return the prefill and decode pools of a disaggregated deployment by role. For a monolithic deployment,
        return an empty mapping."""
        pools: dict[str, Engines] = {}
        for role in ROLES if self.architecture == "disaggregated" else ():
            place = f"{where}.{role}"
            if getattr(self, role) is None:
                raise HeadwayError(f"{place}: is missing; describe these instances, as in {role}: {{instances: 2}}.")
            keys = read_pool_keys(getattr(self, role), place, self.kv)
            pools[role] = half = inherit(Engines, keys, place, self, HALF)
            if "instances" not in keys:
                raise HeadwayError(f"{place}: 'instances' is missing.")
            check_common(half.kv, self.kv, place, f"{where}.kv")
        return pools

    def explicit(self) -> Json:
        if self.architecture == "disaggregated":
            return self.explicit_halves()
        written = write(self, without=("architecture", *APART, "serves", "deployments"))
        written["kv"]["gpu_blocks"] = self.kv_blocks()
        written["latency"] = latency.explicit(self.latency_section())
        if self.scaling is not None:
            written["scaling"] = registry.explicit("scaling", self.scaling, "cluster.scaling")
        if self.speculates() is None:
            written.pop("speculation", None)
        if self.adapters is not None:
            written["adapters"] = written.pop("adapters")  # move the key to the end of the mapping
        return written

    def explicit_halves(self) -> Json:
        written: Json = {
            "architecture": self.architecture,
            "instances": self.instances,
            "model": msgspec.to_builtins(self.model),
            "kv": {name: getattr(self.kv, name) for name in COMMON},
        }
        for role, half in self.halves().items():
            own = written[role] = half.explicit()
            del own["model"]
            for name in COMMON:
                del own["kv"][name]
        return written | {"transfer": write(self.transfer)}


def need_whole_layers(shape: latency.ModelShape) -> str:
    """Return why an engine of a model with windows or states cannot move blocks, and what would be right."""
    if any(kind.kind == "state" for kind in shape.kv_groups):
        return f"Headway does not move or rank the states of {shape.name}; remove this key."
    return (
        f"needs layers that keep every token, but {shape.name} has sliding windows; set 'hybrid: false', as engines do "
        "that move KV blocks, or remove this key."
    )


# The keys that `prefill` and `decode` may set.
HALF: Final = frozenset(Engines.__struct_fields__) - {"model", "architecture", *APART}


def _half_form() -> Part:
    return Part(Engines, only=HALF, required=("instances",))


E = TypeVar("E", bound=Engines)


def read_pool_keys(section: Any, where: str, kv: Kv) -> Any:
    """Return a copy of a section of the file in which the value of the key `kv` is parsed. Settings that this value
    lacks come from the argument `kv`."""
    keys = dict(section) if isinstance(section, dict) else {} if section is None else section
    if isinstance(keys, dict) and "kv" in keys:
        own = {} if keys["kv"] is None else keys["kv"]
        inherited = {name: getattr(kv, name) for name in Kv.__struct_fields__}
        keys["kv"] = read(Kv, {**inherited, **own} if isinstance(own, dict) else own, f"{where}.kv")
    return keys


def inherit(kind: type[E], keys: Json, where: str, base: Engines, only: Collection[str] | None = None) -> E:
    """Return a pool that has these keys and inherits all other keys from `base`. For a prefill or decode pool, `only`
    lists the keys that the pool may set. Such a pool does not inherit the disaggregated architecture; it is
    monolithic."""
    own = read(kind, keys, where, only=only)
    inherited = {name: getattr(base, name) for name in Engines.__struct_fields__}
    if only is not None:
        inherited |= {"architecture": "monolithic", **dict.fromkeys(ROLES)}
    return kind(**inherited | {key: getattr(own, key) for key in keys})


def check_common(kv: Kv, common: Kv, where: str, right: str) -> None:
    for key in COMMON:
        if getattr(kv, key) != getattr(common, key):
            raise HeadwayError(f"{where}.kv.{key}: must be equal in the whole cluster; set it as {right}.{key}.")
