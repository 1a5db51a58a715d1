"""The keys of a disaggregated deployment: what its two kinds of instances do not share, and the way of the KV cache."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from headway.config.section import read
from headway.config.units import duration_text
from headway.errors import HeadwayError
from headway.latency import read_link
from headway.scenario.kv_spec import Kv, Positive
from headway.types import Json

MOST_INSTANCES: Final = 100_000
ROLES: Final = ("prefill", "decode")
LINK: Final = ("500us", "50GB/s")  # latency and bandwidth
Instances = Annotated[int, Meta(ge=1, le=MOST_INSTANCES)]
Replicas = Annotated[int, Meta(ge=0, le=MOST_INSTANCES)]
Gpus = Annotated[int, Meta(ge=1, le=1024)]
Architecture = Literal["monolithic", "disaggregated"]


class HalfKeys(Struct):
    """What `prefill` and `decode` may say; the rest is the deployment's. They serve one model, so none is named."""

    instances: Instances
    gpu: Any = None
    tp: Gpus = 1
    max_batch_tokens: Positive = 1
    max_batch_size: Positive = 1
    max_queue: Positive = 1
    kv: Kv = Kv()
    adapters: Any = None
    latency: Any = None
    min_replicas: Replicas | None = None
    max_replicas: Replicas | None = None
    scaling: Any = None


class _TransferKeys(Struct):
    profile: str | None = None
    latency: Any = None
    bandwidth: Any = None
    granularity: Literal["block", "chunk", "stream"] = "block"
    keep_prefill_copy: bool = False
    first_token: Literal["prefill", "decode"] = "prefill"
    pipelined: bool = False
    max_incoming: Positive | None = None


class Transfer(Struct, frozen=True):
    """How the KV cache of a prompt goes from the instance that has computed it to the one that generates."""

    latency_ps: int
    bandwidth: int  # bytes a second, out of each instance that computes prompts
    granularity: str  # what is moved is a multiple of a block, of a step's chunk, or of a token
    keep_prefill_copy: bool  # in the prefix cache
    first_token: str  # the role of the instance that delivers it
    pipelined: bool  # each chunk of a prompt may travel while the next is computed
    max_incoming: int | None  # requests on their way to an instance, beyond which prompts for it wait

    def grain_tokens(self, block_tokens: int, max_batch_tokens: int) -> int:
        return {"block": block_tokens, "chunk": max_batch_tokens, "stream": 1}[self.granularity]

    def explicit(self) -> Json:
        return {
            "latency": duration_text(self.latency_ps),
            "bandwidth": f"{self.bandwidth}B/s",
            "granularity": self.granularity,
            "keep_prefill_copy": self.keep_prefill_copy,
            "first_token": self.first_token,
            "pipelined": self.pipelined,
            "max_incoming": self.max_incoming,
        }


def read_transfer(section: Any, where: str) -> Transfer:
    keys = read(_TransferKeys, {} if section is None else section, where)
    latency_ps, bandwidth = read_link(keys.profile, keys.latency, keys.bandwidth, LINK, where)
    return Transfer(
        latency_ps,
        bandwidth,
        keys.granularity,
        keys.keep_prefill_copy,
        keys.first_token,
        keys.pipelined,
        keys.max_incoming,
    )


def check_shared(kvs: dict[str, Kv], where: str) -> None:
    """A store that the instances of a deployment share is one, so both kinds describe it alike."""
    one, other = (kv.tiers or {} for kv in kvs.values())
    for name in one:
        if name not in other or not (one[name].shared or other[name].shared):
            continue
        if one[name] != other[name]:
            wrong = f"{where}.decode.kv.tiers.{name}: is one store that prefill and decode share"
            raise HeadwayError(f"{wrong}; give it once, as {where}.kv.tiers.{name}.")
        if len({kv.eviction for kv in kvs.values()}) > 1:
            wrong = f"{where}.decode.kv.eviction: prefill and decode share the {name} store, which has one order"
            raise HeadwayError(f"{wrong}; give it once, as {where}.kv.eviction.")
