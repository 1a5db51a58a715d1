"""The inputs of a simulation: the engines, and what they have in common."""

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
    """The transfer of KV blocks from a prefill instance to decode instances."""

    spec: Transfer
    token_bytes: int
    grain_tokens: int  # a transfer moves a multiple of this

    @property
    def first_token(self) -> bool:
        """Whether the prefill instance returns the first token."""
        return self.spec.first_token == "prefill"


class EngineSetup(Struct):
    """One instance: its initial view, its latency model, and its figures."""

    view: InstanceView
    latency: LatencyModel
    idle_watts: float = 0.0
    busy_watts: float = 0.0
    gpus: int = 1
    usd_per_gpu_hour: float = 0.0
    adapter_load_ps: int = 0  # used if the view has adapter slots
    kv: Kv = Kv()
    block_bytes: int = 0
    transfer: TransferSetup | None = None  # set for prefill instances


class PoolSetup(Struct):
    """Equal instances that are scaled together. They have `maximum` places, from index `first`."""

    id: str
    view_pool: str  # the deployment that the views of its instances name
    first: int
    initial: int
    minimum: int
    maximum: int
    scaling: Any  # its scaling policy


class FaultSetup(Struct):
    at_ps: int
    instance: int
    kind: str  # crash, slow, unreachable
    duration_ps: int | None = None  # None: permanent
    factor: Fraction = Fraction(1)  # for kind slow


class LifeSetup(Struct):
    """How instances start, stop and fail."""

    pools: list[PoolSetup]
    provisioning: Callable[[Random], Callable[[], int]]  # makes a function that draws durations in ps
    loading: Callable[[Random], Callable[[], int]]
    seed: int  # of these draws
    scaling: Scaling = Scaling()
    faults: list[FaultSetup] = []
    retries: int = 0  # retries of a request that its instance has lost


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
    router_seed: int = 0  # for the choice of a request's router
    life: LifeSetup | None = None  # None: all instances run from beginning to end
    trace: str = "minimal"  # what is recorded besides the requests: "minimal", "decisions" or "full"

    @property
    def views(self) -> list[InstanceView]:
        return [engine.view for engine in self.engines]
