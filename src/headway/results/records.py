"""The records of a run other than requests and decisions: one struct per line of a file."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, TypeVar

from msgspec import Struct, json
from msgspec.structs import asdict

from headway.display.displayed import Displayed, Types, cells, columns_of
from headway.types import PS_PER_SECOND, Json

Record = TypeVar("Record")
Key = TypeVar("Key", bound=Hashable)


class Preemption(Struct, frozen=True, gc=False):
    """An instance preempted a request to free its blocks."""

    at_ps: int
    instance: int
    request: int


# What keeps a waiting request out of the batch of its instance; see `QueueLimit`.
LIMITS: Final = ("", "prompt", "tokens", "slots", "kv", "adapter", "handover")
# Positions in LIMITS, each declared alone, so that they are constants in compiled code.
NO_LIMIT: Final = 0
PROMPT: Final = 1
TOKENS: Final = 2
SLOTS: Final = 3
KV: Final = 4
ADAPTER: Final = 5
HANDOVER: Final = 6


class QueueLimit(Struct, frozen=True, gc=False):
    """From `at_ps` on, `limit` keeps the first waiting request of an instance out of the batch.

    `prompt`: the instance computes another prompt in chunks. `tokens`: the step has no tokens left. `slots`: the batch
    is full. `kv`: there are too few free blocks. `adapter`: no adapter slot is free. `handover`: the decode instance
    accepts no more requests. If `limit` is empty, no request waits, or the first one waits only until the current step
    ends."""

    at_ps: int
    instance: int
    limit: str


class Thrash(Struct, frozen=True, gc=False):
    """A request loaded blocks from a tier below the GPU less than a second after they were stored there."""

    at_ps: int
    instance: int
    request: int
    tier: str
    blocks: int


class UsedBlocks(Struct):
    """The KV blocks in use at an instance when a decision is recorded: on the GPU, and in each store below it."""

    kv_used: int = 0
    tier_used: Mapping[str, int] = {}


class Batch(Struct, frozen=True, tag_field="event", tag="batch"):
    """The batch of an instance changed; `running` and `queued` count the requests after the change."""

    at_ps: int
    instance: int
    entered: list[int]  # row numbers of the requests that entered the batch
    running: int
    queued: int
    prefill_tokens: int  # number of prompt tokens that the next step computes


class KvMove(Struct, gc=False, tag_field="event", tag="kv_move"):
    """Blocks began to move from one tier of an instance to another, or to the GPU of another instance."""

    at_ps: int
    instance: int  # the instance that has the blocks when the move begins
    kind: str  # offload or reload; swap_out or swap_in for a preempted request; pd_handoff to a decode instance
    tier: str  # the tier below the GPU, which is the source or the destination of the move; gpu for a pd_handoff
    blocks: int
    request: int = -1  # row number of the request that owns the blocks; -1 if no request owns them
    source: str = "gpu"  # tiers from which and to which the blocks move
    target: str = "gpu"
    to_instance: int = -1  # the instance that receives the blocks; -1 if it is `instance`
    end_ps: int = -1  # when the last block arrives; -1 if it does not, because the run ends or the client gives up


class Series(Struct, frozen=True):
    """A value of one instance over time: `values[k]` is its value k·`interval_ps` after `start_ps`."""

    name: str  # name of the value, such as kv_used
    instance: int
    start_ps: int
    interval_ps: int
    values: list[int]


class Counterfactual(Struct, frozen=True):
    """The result of a simulation that repeats a run, but sends one request to another target. A time is -1 if the event
    never happened. An objective without a value is None."""

    request: int
    at_ps: int
    chosen: int  # index of the instance that generates the tokens
    alternative: int
    ttft_ps: int
    alternative_ttft_ps: int
    e2e_ps: int
    alternative_e2e_ps: int
    objective: str  # path of a figure in the summary, such as slo.goodput_ratio
    value: float | None  # value of the objective in the actual run
    alternative_value: float | None
    chosen_prefill: int = -1  # index of the instance that computes the prompt; -1 if it is `chosen`
    alternative_prefill: int = -1
    # Numbers of prompt tokens that were cached at the chosen and at the alternative instance. The second number is -1
    # if, in the alternative run, the request was retried or moved to yet another instance.
    cached_tokens: int = 0
    alternative_cached_tokens: int = 0

    @property
    def changed(self) -> int:
        """The instance that the alternative uses instead of the chosen one. If the decode instances differ, this is the
        decode instance of the alternative; otherwise, it is the prefill instance of the alternative."""
        return self.alternative if self.alternative != self.chosen else self.alternative_prefill

    @property
    def regret_ps(self) -> int | None:
        """How much earlier the alternative gives the first token than the actual choice; negative if the alternative is
        later. None if the request has no first token, in the actual run or with the alternative."""
        if self.ttft_ps < 0 or self.alternative_ttft_ps < 0:
            return None
        return self.ttft_ps - self.alternative_ttft_ps


def best_alternatives(tried: Sequence[Counterfactual]) -> dict[int, int]:
    """Return, for each request, the index of the alternative with the earliest first token. An alternative counts only
    if the request got a first token both in the actual run and with the alternative."""
    best: dict[int, int] = {}
    for place, other in enumerate(tried):
        if other.regret_ps is not None:
            known = best.setdefault(other.request, place)
            if other.alternative_ttft_ps < tried[known].alternative_ttft_ps:
                best[other.request] = place
    return best


class Prompt(Struct, frozen=True):
    """The prompt of a live request as the keys of its blocks. The text itself is never stored."""

    request: int
    tokens: int  # number of tokens as the router counted them; `ends` refer to this count
    keys: Sequence[int]  # key of each block; a key depends on all keys before it
    ends: Sequence[int]  # end of each block: number of tokens up to the block's end
    max_tokens: int | None = None  # limit on output tokens that the client requested


class Blame(Struct, frozen=True):
    """Part of the cause of a finding: a tenant, session, prefix, instance, fault, class, model or adapter."""

    kind: str
    name: str
    share: float  # fraction of the finding's lost time that this cause explains


LEVELS: Final = ("note", "warning", "severe")
NOTE, WARNING, SEVERE = LEVELS
# What a finding says was too scarce. `choice`: nothing was; another decision of a policy would have been better.
RESOURCES: Final = (
    "kv", "slots", "prefill", "decode", "link", "store", "adapters", "replicas", "router", "handover", "choice",
)  # fmt: skip


# The parts of a scenario that a suggestion may change: the stages of its policies; `engine`, the settings of the
# instances such as batch and KV cache; and `cluster`, the replicas, links, tiers and signals.
SCOPE: Final = (
    *("admission", "priority", "flow", "estimator", "routing", "decider", "scheduler", "scaling"),
    *("engine", "cluster"),
)
ADMISSION, PRIORITY, FLOW, ESTIMATOR, ROUTING, DECIDER, SCHEDULER, SCALING, ENGINE, CLUSTER = SCOPE


class Suggestion(Struct, frozen=True):
    """A change of the scenario that should improve a figure."""

    stage: str  # of SCOPE
    change: Json  # path of a setting, as `--set` accepts it -> new value
    figure: str  # path of the figure that should improve, such as slo.goodput_ratio
    text: str  # one sentence that names the setting or the policy

    def overrides(self) -> list[str]:
        """Return the change as `key.path=value` strings, which `--set` and `headway.simulate` accept."""
        return [f"{path}={json.encode(value).decode()}" for path, value in self.change.items()]


class Finding(Struct, frozen=True, omit_defaults=True):
    """A problem of a run: its kind, its time, the requests and instances affected, and the figures."""

    kind: str  # priority_inversion, slo_violation, ...
    at_ps: int  # time at which the problem begins
    until_ps: int  # time at which the problem ends
    severity: float  # from 0 (negligible) to 1
    count: int  # number of requests or events that the finding counts
    title: str  # one sentence with the most important figures
    requests: list[int] = []  # row numbers of the first or worst requests, at most EXAMPLES
    instances: list[int] = []
    evidence: Json = {}  # figures by name
    explains: float = 0.0  # fraction of the run's loss that the finding explains, from 0 to 1; see `results.loss`
    level: str = NOTE  # of LEVELS: how many of the run's requests are late because of the finding
    resource: str = ""  # of RESOURCES: what limited the requests
    blames: list[Blame] = []  # who caused it, worst first
    suggestions: list[Suggestion] = []  # changes that should help, best first, of all stages


EXAMPLES = 20


class Findings(Displayed, list[Finding]):
    """The problems of a run, first the one that explains most of the loss."""

    _view: ClassVar[str] = "headway.report.notebook:findings_view"
    _types: ClassVar[Types] = {
        "kind": str,
        "at_s": float,
        "until_s": float,
        "severity": float,
        "count": int,
        "title": str,
        "explains": float,
        "level": str,
        "resource": str,
    }

    __repr__ = Displayed.__repr__

    def columns(self) -> dict[str, list[Any]]:
        """Return a row for each finding, with its time in seconds."""
        rows = []
        for finding in self:
            row = cells({name: value for name, value in asdict(finding).items() if name != "evidence"})
            begin, end = row.pop("at_ps") / PS_PER_SECOND, row.pop("until_ps") / PS_PER_SECOND
            rows.append({"kind": row.pop("kind"), "at_s": begin, "until_s": end, **row})
        return columns_of(rows, self._types)


def group_by(records: Iterable[Record], key: Callable[[Record], Key]) -> dict[Key, list[Record]]:
    """Group the records by a key, and keep their order within each group."""
    groups: dict[Key, list[Record]] = {}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    return groups
