"""The inputs of a simulation: the engines, and the settings that they share."""

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
    grain_tokens: int  # the number of tokens in a transfer is a multiple of this number

    @property
    def first_token(self) -> bool:
        """Whether the prefill instance returns the first token."""
        return self.spec.first_token == "prefill"


class SpeculationSetup(Struct, frozen=True):
    """Speculative decoding of an instance. The instance's latency model is a `Verification`."""

    rates: dict[str, int]  # SLO class -> units of 1/64 token that a decode gains per step
    rate: int  # the same for all other classes
    width: int  # tokens that a decode computes per step
    ahead: int  # tokens beyond its next one for which a decode needs blocks


class KvGroups(Struct, frozen=True):
    """The groups of layers of a model, and the pages of an instance."""

    pages: int  # all pages of an instance
    full: int  # groups that keep every token
    windows: int = 0  # groups with a sliding window
    window: int = 0  # tokens in the window
    states: int = 0  # pages of the states of one sequence that it has as long as it runs
    caches: bool = True  # whether later requests can hit prefixes
    aligned: bool = False  # whether the windows are states that are kept at the ends of chunks alone

    @property
    def spread(self) -> int:
        """The pages of one block."""
        return self.full + self.windows

    @property
    def blocks(self) -> int:
        return self.pages // self.spread

    def first_kept(self, computed: int, block_tokens: int) -> int:
        """Return the first block that a window group still needs to compute the token after `computed` tokens."""
        behind = computed - self.window + 1
        return behind // block_tokens if self.windows and behind > 0 else 0


class EngineSetup(Struct):
    """One instance: its initial view, its latency model, and its properties."""

    view: InstanceView
    latency: LatencyModel
    idle_watts: float = 0.0
    busy_watts: float = 0.0
    gpus: int = 1
    usd_per_gpu_hour: float = 0.0
    adapter_load_ps: int = 0  # time to load an adapter, if the view has adapter slots
    kv: Kv = Kv()
    block_bytes: int = 0
    groups: KvGroups | None = None  # set if layers of the model keep something else than every token
    transfer: TransferSetup | None = None  # set for prefill instances
    rank: int = 0  # number of the data-parallel rank within its engine
    ranks: int = 1  # data-parallel ranks of the engine
    lockstep: bool = False  # whether the ranks wait for each other in each step
    # If the engine chooses the rank of a request: what the router sees in the place of this rank. It sees the engine in
    # the place of the first rank, and nothing in the places of the others.
    target: InstanceView | None = None
    servers: int = 0  # for the first rank of such an engine: number of its API servers
    schedules_ahead: bool = False  # whether each step is scheduled while the step before it runs
    speculation: SpeculationSetup | None = None


class PoolSetup(Struct):
    """Equal engines that are scaled together. The pool has `maximum` places for engines, from index `first` on. Each
    engine has `ranks` instances."""

    id: str
    view_pool: str  # name of the deployment, which is `pool` in the views of its instances
    first: int
    initial: int
    minimum: int
    maximum: int
    scaling: Any  # the scaling policy of the pool
    ranks: int = 1
    shows_ranks: bool = False  # whether the router sees the ranks of an engine

    @property
    def places(self) -> range:
        """The indices of the first instances of the pool's engines."""
        return range(self.first, self.first + self.maximum * self.ranks, self.ranks)


class FaultSetup(Struct):
    at_ps: int
    instance: int
    kind: str  # crash, slow or unreachable
    duration_ps: int | None = None  # None if the fault is permanent
    factor: Fraction = Fraction(1)  # factor by which a fault of kind `slow` lengthens steps


class LifeSetup(Struct):
    """How instances start, stop and fail."""

    pools: list[PoolSetup]
    provisioning: Callable[[Random], Callable[[], int]]  # returns a function that draws durations in ps
    loading: Callable[[Random], Callable[[], int]]
    seed: int  # seed of the random streams for these durations
    scaling: Scaling = Scaling()
    faults: list[FaultSetup] = []
    retries: int = 0  # maximum number of retries of a request that its instance has lost


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
    router_seed: int = 0  # seed of the choice of each request's router
    auto: bool = False  # whether a prefix index uses each instance's KV capacity if its policy sets no capacity
    life: LifeSetup | None = None  # None if all instances run from beginning to end
    trace: str = "minimal"  # what is recorded in addition to requests: "minimal", "decisions" or "full"

    @property
    def views(self) -> list[InstanceView]:
        """The views that the router has."""
        return [engine.target or engine.view for engine in self.engines]

    @property
    def targets(self) -> list[int]:
        """For each instance, the index of the router's view that shows it."""
        return [engine.view.index - (engine.rank if engine.target is not None else 0) for engine in self.engines]
