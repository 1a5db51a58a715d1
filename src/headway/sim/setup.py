"""A cluster ready to run: its engines, each with what it is made of, and what they have in common."""

from collections.abc import Callable
from fractions import Fraction
from random import Random
from typing import Any

from msgspec import Struct

from headway.latency.base import LatencyModel
from headway.scenario.kv_spec import Kv
from headway.scenario.life_spec import Scaling
from headway.scenario.pd_spec import Transfer
from headway.scenario.scenario import RouterSpec, SignalSpec
from headway.views.instance import InstanceView


class TransferSetup(Struct, frozen=True):
    """How KV blocks move from an instance that computes prompts to those that generate."""

    spec: Transfer
    token_bytes: int
    grain_tokens: int  # what is moved is a multiple of these

    @property
    def first_token(self) -> bool:
        """Whether the instance that computes the prompt delivers the first token."""
        return self.spec.first_token == "prefill"


class EngineSetup(Struct):
    """One instance: how the router sees it at first, and what drives it."""

    view: InstanceView
    latency: LatencyModel
    idle_watts: float = 0.0
    busy_watts: float = 0.0
    gpus: int = 1
    usd_per_gpu_hour: float = 0.0
    adapter_load_ps: int = 0  # where the view has slots for adapters
    kv: Kv = Kv()
    block_bytes: int = 0
    transfer: TransferSetup | None = None  # where it may compute prompts for others


class PoolSetup(Struct):
    """Equal instances that are scaled together. They have the places from `first` on, `maximum` of them."""

    id: str
    view_pool: str  # that the views of its instances name: a deployment
    first: int
    initial: int
    minimum: int
    maximum: int
    scaling: Any  # its policy


class FaultSetup(Struct):
    at_ps: int
    instance: int
    kind: str  # crash, slow, unreachable
    duration_ps: int | None = None  # None: for good
    factor: Fraction = Fraction(1)  # of slow


class LifeSetup(Struct):
    """How instances come and go."""

    pools: list[PoolSetup]
    provisioning: Callable[[Random], Callable[[], int]]  # makers of draws, in ps
    loading: Callable[[Random], Callable[[], int]]
    seed: int  # of those
    scaling: Scaling = Scaling()
    faults: list[FaultSetup] = []
    retries: int = 0  # how often a request that its instance has lost is sent again


class ClusterSetup(Struct):
    engines: list[EngineSetup]
    block_tokens: int
    prefix_caching: bool
    leap: bool | str  # True, False or "random-cuts"
    horizon_ps: int | None
    warmup: int
    jitter_seed: int = 0
    signals: SignalSpec = SignalSpec()
    routers: RouterSpec = RouterSpec()
    router_seed: int = 0  # of which router a request goes to
    life: LifeSetup | None = None  # None: the instances are all there, from beginning to end
    trace: str = "minimal"  # what is written down beside the requests: or "decisions", or "full"

    @property
    def views(self) -> list[InstanceView]:
        return [engine.view for engine in self.engines]
