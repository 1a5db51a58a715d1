"""The records of a simulation in columns: one row per request in order of arrival, and the gaps between tokens."""

from array import array
from collections.abc import Iterator, MutableSequence
from typing import Annotated, Any, Final, get_type_hints

from msgspec import Struct

from headway.config.keys import PositiveDuration
from headway.results.records import Batch, KvMove, Preemption, QueueLimit, Thrash
from headway.types import OUTCOMES, Request
from headway.views.pool import PoolMetrics

COMPLETED = OUTCOMES.index("completed")
REJECTED = OUTCOMES.index("rejected")
FAILED = OUTCOMES.index("failed")
TIMED_OUT = OUTCOMES.index("timed_out")
IN_FLIGHT = OUTCOMES.index("in_flight")
Numbers = MutableSequence[int]


class RequestColumns:
    """The numeric columns of a run's requests. Each annotation has the type code of the array and the initial value of
    a row. A time is -1 if the event never happened. The instance is -1 if the request was never routed."""

    __slots__ = ()

    # This column and other columns of strings store codes. `names` maps each string to its code.
    tenant: Annotated[Numbers, "i", 0]
    slo_class: Annotated[Numbers, "i", 0]
    session: Annotated[Numbers, "i", -1]
    turn: Annotated[Numbers, "i", 0]
    kind: Annotated[Numbers, "i", 0]
    model: Annotated[Numbers, "i", 0]
    adapter: Annotated[Numbers, "i", -1]
    arrival_ps: Annotated[Numbers, "q", 0]
    admitted_ps: Annotated[Numbers, "q", -1]
    routed_ps: Annotated[Numbers, "q", -1]
    enqueued_ps: Annotated[Numbers, "q", -1]
    started_ps: Annotated[Numbers, "q", -1]
    first_token_ps: Annotated[Numbers, "q", -1]
    finished_ps: Annotated[Numbers, "q", -1]
    instance: Annotated[Numbers, "i", -1]
    outcome: Annotated[Numbers, "b", IN_FLIGHT]  # index into OUTCOMES
    prompt_tokens: Annotated[Numbers, "q", 0]
    output_tokens: Annotated[Numbers, "q", 0]
    cached_tokens: Annotated[Numbers, "q", 0]
    predicted_tokens: Annotated[Numbers, "q", 0]  # number of cached tokens that the router expected
    preemptions: Annotated[Numbers, "i", 0]
    loaded_tokens: Annotated[Numbers, "q", 0]  # number of cached tokens that were loaded from tiers below the GPU
    # Disaggregated requests: the prefill instance, the end of prefill, and the start and end of the KV transfer.
    prefill_instance: Annotated[Numbers, "i", -1]
    handed_ps: Annotated[Numbers, "q", -1]
    transfer_ps: Annotated[Numbers, "q", -1]
    transferred_ps: Annotated[Numbers, "q", -1]
    retries: Annotated[Numbers, "i", 0]  # number of restarts after an instance lost the request
    redirects: Annotated[Numbers, "i", 0]  # number of moves while running, because the request's instance was drained
    priority: Annotated[MutableSequence[float], "d", 0.0]  # the priority score that the scheduler received
    loaded_from: Annotated[Numbers, "b", -1]  # index in TIERS of the slowest tier from which blocks were loaded

    preempted_ps: Annotated[Numbers, "q", 0]  # time from the last token before each preemption to the next token
    # Time before the first token in which the request waited for blocks from tiers below the GPU.
    loading_ps: Annotated[Numbers, "q", 0]
    # Time before the first token between the end of such a wait and the entry into the batch.
    ready_ps: Annotated[Numbers, "q", 0]
    # Time before the first token in which the request waited again, because its blocks were taken away.
    interrupted_ps: Annotated[Numbers, "q", 0]
    joined_ps: Annotated[Numbers, "q", -1]  # when a disaggregated request entered the batch of its decode instance

    names: dict[str, dict[str, int]]  # column of strings -> the code of each string

    def __len__(self) -> int:
        return len(self.arrival_ps)

    def select(self, *names: str, start: int = 0) -> Iterator[tuple[Any, ...]]:
        """Yield the values of these columns for each request, from row `start` on."""
        columns = [getattr(self, name) for name in names]
        return zip(*([column[start:] for column in columns] if start else columns), strict=True)


COLUMNS: Final[dict[str, tuple[str, float]]] = {
    name: hint.__metadata__
    for name, hint in get_type_hints(RequestColumns, include_extras=True).items()
    if name != "names"
}
NAMED: Final = ("tenant", "slo_class", "session", "kind", "model", "adapter")
USUAL_CLASS: Final = "standard"  # the usual SLO class, which has code 0


class Codes(dict[str, int]):
    """The codes of strings. Reading the code of a new string gives it the next code."""

    def __missing__(self, string: str) -> int:
        code = self[string] = len(self)
        return code


class Recorder(RequestColumns):
    """Per-request columns, the gaps between tokens, and the events of a run."""

    __slots__ = (
        *COLUMNS, "abandoned", "events", "expected", "gaps", "limits", "lost", "lost_tokens", "names", "not_issued",
        "preempted", "reasons", "retried", "rows", "rows_ahead", "scaled", "states", "struck", "thrashed",
    )  # fmt: skip

    def __init__(self, rows_ahead: int = 1) -> None:
        """Create an empty recorder. The recorder reserves `rows_ahead` rows at a time, because it is faster to extend
        the columns rarely. If `rows_ahead` is above 1, call `trim` at the end."""
        self.rows = 0
        self.rows_ahead = rows_ahead
        for name, (kind, _) in COLUMNS.items():
            setattr(self, name, array(kind))
        self.names = {name: Codes() for name in NAMED}
        self.names["slo_class"][USUAL_CLASS] = 0
        self.retried = 0  # number of requests that are a client's retry of an unsuccessful request
        # Number of tokens that were generated in vain: an instance generated them and then lost the request. Only
        # requests that were then retried count.
        self.lost_tokens = 0
        self.not_issued = 0  # number of turns that sessions planned but never sent
        self.abandoned = 0  # number of turns in `not_issued` that followed an unsuccessful turn
        self.expected: dict[int, int] = {}  # row -> expected output tokens; empty without an estimator
        self.reasons: dict[int, str] = {}  # row -> why the request was rejected, failed, or timed out at the router
        self.scaled: list[ScaleRecord] = []
        self.states: list[StateChange] = []  # empty unless the run has autoscaling or faults
        self.struck: list[FaultRecord] = []
        self.preempted: list[Preemption] = []
        self.thrashed: list[Thrash] = []
        self.limits: list[QueueLimit] = []
        self.events: list[Batch | KvMove] | None = None  # None: not recorded, because the run has no full trace
        self.lost = 0  # number of requests that failed because their instance stopped
        # Gaps between successive tokens of a request. An entry describes a sequence of steps by four integers: the
        # first gap, the increment per step, the number of steps, and the number of requests in these steps. If a
        # request is excluded after its gaps were recorded, an entry with a negative number of requests removes them.
        self.gaps = array("q")

    def record_arrival(self, at_ps: int, request: Request) -> None:
        row = self.rows
        if row == len(self.arrival_ps):
            self._reserve()
        self.arrival_ps[row] = at_ps
        self.prompt_tokens[row] = request.prompt_tokens
        names = self.names
        self.tenant[row] = names["tenant"][request.tenant]
        self.kind[row] = names["kind"][request.kind]
        self.model[row] = names["model"][request.model]
        if request.slo_class != USUAL_CLASS:
            self.slo_class[row] = names["slo_class"][request.slo_class]
        if request.adapter is not None:
            self.adapter[row] = names["adapter"][request.adapter]
        if request.session is not None:
            self.session[row] = names["session"][request.session]
            self.turn[row] = request.turn
        self.rows = row + 1

    def _reserve(self) -> None:
        for name, (kind, empty) in COLUMNS.items():
            getattr(self, name).extend(array(kind, (empty,)) * self.rows_ahead)

    def trim(self) -> None:
        """Remove the reserved rows that were not used."""
        for name in COLUMNS:
            del getattr(self, name)[self.rows :]

    def __len__(self) -> int:
        return self.rows


class ScaleRecord(Struct, frozen=True):
    """The autoscaler changed the number of a pool's replicas."""

    at_ps: int
    pool: str
    before: int
    after: int
    reason: str = ""
    trigger: str = ""  # event that caused the autoscaler's check: interval, queue_depth, ...
    metrics: PoolMetrics | None = None  # what the autoscaler saw; None in records of other programs
    # `instances`: the instances that the change started or drained. `delays_ps`: for each of these instances, the time
    # from the change until the instance serves requests (if started) or has stopped (if drained). `warm_ps`: for each
    # instance, the end of its warm-up. If the event never happened, the time is -1.
    instances: list[int] = []
    delays_ps: list[int] = []
    warm_ps: list[int] = []  # empty if the change drained instances


class StateChange(Struct, frozen=True, gc=False):
    at_ps: int
    instance: int
    state: str


class FaultRecord(Struct, frozen=True):
    """A fault that struck a running instance."""

    at_ps: int
    instance: int
    kind: str


class TierStats(Struct):
    """Figures of one store below the GPU over a whole run."""

    owner: str  # name of the instance that has the store, or of the pool whose instances share it
    name: str
    blocks: int
    hit_tokens: int  # number of prompt tokens that were loaded from this store when requests first started
    stored_blocks: int
    loaded_blocks: int
    thrashed_blocks: int
    peak_blocks: int
    block_ps: int  # integral of the number of blocks in use over time, in block-picoseconds
    moved_bytes: int  # number of bytes moved over the store's link, in both directions
    link_busy_ps: int
    interval_ps: int
    samples: list[int]  # number of blocks in use at multiples of `interval_ps`


class InstanceStats(Struct):
    """Figures of one instance over a whole run."""

    id: str
    pool: str | None = None  # name of the instance's deployment; None if the cluster has no deployments
    model: str = ""
    role: str | None = None  # prefill or decode; None if the instance does both
    requests: int = 0  # number of requests routed to this instance
    busy_ps: int = 0
    steps: int = 0
    prefill_tokens: int = 0  # number of computed prompt tokens, without recomputation after preemptions
    output_tokens: int = 0
    cached_tokens: int = 0
    prompt_tokens: int = 0  # number of prompt tokens of the requests that started
    preemptions: int = 0
    evicted_blocks: int = 0
    peak_kv_blocks: int = 0
    kv_blocks: int = 0
    gpus: int = 1
    usd_per_gpu_hour: float = 0.0
    adapter_loads: int | None = None  # number of adapter loads; None if the instance has no adapter slots
    adapter_load_ps: int = 0  # total time that steps spent on loading adapters
    decode_steps: int | None = None  # steps of all decodes together; None if the instance does not speculate
    drafted_tokens: int = 0  # drafts that decodes have verified
    accepted_tokens: int = 0  # drafts that they have accepted, also beyond the last token of a request
    tiers: list[TierStats] = []
    load_waits_ps: list[int] = []  # duration of each load from the tiers below the GPU
    kv_samples: list[int] = []  # number of GPU blocks in use at multiples of `kv_interval_ps`, if there are tiers
    kv_interval_ps: int = 0
    sent_bytes: int = 0  # number of bytes of KV caches sent to decode instances
    link_busy_ps: int = 0  # busy time of the link to decode instances
    held_ps: int | None = None  # total time from provisioning to stop, which is paid; None: the whole run
    idle_watts: float = 0.0
    busy_watts: float = 0.0


class Targets(Struct, frozen=True):
    """The latency targets of a request, in picoseconds. A missing target is None."""

    ttft_ps: Annotated[PositiveDuration | None, "longest time to first token"] = None
    tpot_ps: Annotated[PositiveDuration | None, "longest mean time per output token of a request"] = None
    e2e_ps: Annotated[PositiveDuration | None, "longest time from arrival to the last token"] = None

    def met(self, arrival_ps: int, first_ps: int, now_ps: int, outcome: str, output_tokens: int) -> bool | None:
        """Return whether a request that ended now met these targets. If there is no target, return None."""
        if self.ttft_ps is None and self.tpot_ps is None and self.e2e_ps is None:
            return None
        if outcome != "completed":
            return False
        return (
            (self.ttft_ps is None or 0 <= first_ps - arrival_ps <= self.ttft_ps)
            and (self.tpot_ps is None or now_ps - first_ps <= self.tpot_ps * (output_tokens - 1))
            and (self.e2e_ps is None or now_ps - arrival_ps <= self.e2e_ps)
        )


class PoolFacts(Struct, frozen=True):
    """Equal engines that scale together. There are at most `maximum` of them, each with `ranks` instances, and the
    indexes of their instances begin at `first`."""

    id: str
    first: int
    minimum: int
    maximum: int
    ranks: int = 1


class RunFacts(Struct):
    """The input of `metrics.summarise` in addition to the columns."""

    started_ps: int  # time of the first arrival
    ended_ps: int  # time of the last event, or the horizon
    block_tokens: int
    warmup: int
    policy_metrics: dict[str, float]
    slo: Targets = Targets()
    tenant_slos: dict[str, Targets] = {}  # targets of the tenants that have their own targets instead of `slo`
    deployed: bool = False  # whether the cluster has deployments
    predicts: bool = False  # whether a policy predicts cached tokens
    belief_block_tokens: int = 0  # tokens in a block of the prefix index from which the router predicts; 0 if none
    routers: list[int] = []  # number of requests of each router, if there are several routers
    pools: list[PoolFacts] = []  # empty unless the run has autoscaling or faults
    retries: int = 0  # maximum number of retries of a request whose instance lost it


def seen_stats(
    recorder: Recorder,
    index: int,
    name: str,
    *,
    ended_ps: int,
    pool: str | None = None,
    model: str = "",
    peak_kv: int = 0,
    kv_blocks: int = 0,
) -> InstanceStats:
    """Return an instance's figures, derived from its requests. A request in flight counts until the end of the run."""
    mine = [row for row in range(len(recorder)) if recorder.instance[row] == index]
    prompt = sum(recorder.prompt_tokens[row] for row in mine)
    cached = sum(recorder.cached_tokens[row] for row in mine)
    ends = [recorder.finished_ps[row] for row in mine]
    stays = sorted(
        (recorder.started_ps[row], ended_ps if end < 0 else end) for row, end in zip(mine, ends, strict=True)
    )
    return InstanceStats(
        name,
        pool=pool,
        model=model,
        requests=len(mine),
        busy_ps=covered_time(stays),
        prefill_tokens=prompt - cached,
        output_tokens=sum(recorder.output_tokens[row] for row in mine),
        cached_tokens=cached,
        prompt_tokens=prompt,
        peak_kv_blocks=min(peak_kv, kv_blocks),
        kv_blocks=kv_blocks,
    )


def covered_time(stays: list[tuple[int, int]]) -> int:
    """Return the total time during which at least one stay lasts. Stays are (begin, end) pairs and must be sorted by
    begin."""
    total, until = 0, -1
    for begin, end in stays:
        if end > until:
            total += end - max(begin, until)
            until = end
    return total
