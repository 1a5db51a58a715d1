"""Tight limit: admission or flow control rejects or holds requests while the instances have room for them.

The run is cut into at most `SLICES` slices of at least one second. In a slice, the instances of a model and role have
room if all of these hold:

* the requests in their batches use at most `FULL` of the slots and of the KV blocks;
* they compute prompts for at most `BUSY` of the time;
* a waiting request is kept out of a batch for at most `WAITING` of the time.

A late request that was rejected before it reached an instance, or lost time at the router, explains this finding for
the fraction of its time at the router in which all instances that serve have room. If more than `SLOW` of the completed
requests come close to their TPOT target (`NEAR`), the limit protects them and there is no finding. There is one finding
if it explains at least `LEAST` of the loss. Severity: the loss that it explains, as a fraction of the counted requests.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from headway.policies.registry import DEFAULT_POLICIES
from headway.results.findings.hot_spot import serving, sum_by_slice
from headway.results.findings.observed import CAUSE, Observed, examples, many, percent
from headway.results.findings.policy_remedies import LIMITS, use, wider_limits
from headway.results.occupancy import Weights
from headway.results.records import Finding, Suggestion
from headway.results.time_grid import Grid
from headway.types import PS_PER_SECOND, Json

KIND: Final = "tight_limit"
ROLE: Final = CAUSE
AREA: Final = "admission"
ORDER: Final = 18
SLICES: Final = 100
FULL: Final = 0.8
BUSY: Final = 0.6
WAITING: Final = 0.25
SLOW: Final = 0.1
NEAR: Final = 0.8
LEAST: Final = 0.1
FEWEST: Final = 5
AT_ROUTER: Final = ("router", "rejected")


def find(run: Observed) -> list[Finding]:
    held = [row for row in run.loss.late if run.loss.of(row, AT_ROUTER) > 0]
    if len(held) < FEWEST or not _limits(run.scenario) or _near_target(run):
        return []
    width = max(PS_PER_SECOND, -(-run.length_ps // SLICES))
    grid = Grid(run.started_ps, width, max(1, -(-run.length_ps // width)))
    room = _room(run, grid)
    claims = {row: run.loss.of(row, AT_ROUTER) * _fraction(run, row, grid, room) for row in held}
    explains = run.loss.claim(claims)
    blamed = {row: claim for row, claim in claims.items() if claim > 0}
    if explains < LEAST or len(blamed) < FEWEST:
        return []
    return [_finding(run, blamed, explains)]


def suggest(run: Observed, finding: Finding) -> Iterator[Suggestion]:
    stage = finding.evidence["stage"]
    if stage in LIMITS:
        yield from wider_limits(run, [stage])
        yield from use(run, stage, DEFAULT_POLICIES[stage], ", which has no limit")


def _limits(scenario: Json) -> dict[str, str]:
    """Return the policies that may reject or hold requests, by stage."""
    policies = scenario.get("policies") or {}
    specs = {stage: policies.get(stage) or "" for stage in ("admission", "flow")}
    named = {stage: spec.get("name", "") if isinstance(spec, dict) else spec for stage, spec in specs.items()}
    return {stage: name for stage, name in named.items() if name not in ("", "always", "none")}


def _near_target(run: Observed) -> bool:
    """Return whether many completed requests come close to their TPOT target."""
    near = counted = 0
    columns = ("finished_ps", "first_token_ps", "output_tokens")
    for row, (finished, first, tokens) in enumerate(run.requests.select(*columns)):
        target = run.tpot_target(row)
        if target is not None and finished >= 0 and first >= 0 and tokens > 1:
            counted += 1
            near += finished - first >= NEAR * target * (tokens - 1)
    return counted > 0 and near > SLOW * counted


def _room(run: Observed, grid: Grid) -> list[bool]:
    """Return for each slice whether all groups of instances have room."""
    groups: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    instances = run.result.instances()
    for index, instance in instances.items():
        groups[instance.get("model", ""), instance.get("role", "")].append(index)
    room = [True] * grid.bins
    for indexes in groups.values():
        open_ps = [sum(at) for at in zip(*serving(run, indexes, grid), strict=True)]
        used = _used(run, indexes, grid)
        for place in range(grid.bins):
            room[place] &= used[place] <= open_ps[place] and open_ps[place] > 0
            room[place] &= _waiting(run, indexes, grid, place) <= WAITING * open_ps[place]
    return room


def _used(run: Observed, indexes: Sequence[int], grid: Grid) -> list[float]:
    """Return for each slice the use of slots, KV blocks and prefill: the largest, relative to its limit."""
    requests, instances = run.requests, run.result.instances()
    totals = [[0.0] * grid.bins for _ in range(3)]
    for index in indexes:
        settings = run.engine(index)
        slots = settings.get("max_batch_size") or 1
        capacity = (instances[index].get("kv_blocks") or 0) * run.block_tokens
        running, held_ps, prefill = [], [0.0] * grid.bins, []
        for row in run.stays[index].rows:
            began = max(requests.started_ps[row], requests.transfer_ps[row] if index != run.home(row) else -1)
            end = requests.finished_ps[row] if requests.finished_ps[row] >= 0 else run.ended_ps
            if began < 0 or end <= began:
                continue
            running.append((began, end))
            if capacity:
                held = (requests.prompt_tokens[row] + requests.output_tokens[row]) / capacity
                first, last = ((at - grid.start_ps) // grid.step_ps for at in (began, end))
                for place in range(max(0, first), min(grid.bins - 1, last) + 1):
                    begin = grid.start_ps + place * grid.step_ps
                    held_ps[place] += held * (min(end, begin + grid.step_ps) - max(began, begin))
            if index == run.home(row):
                handed = requests.handed_ps[row]
                computed = handed if handed >= 0 else requests.first_token_ps[row]
                prefill.append((began, computed if computed >= 0 else end, 1.0, 0))
        busy = Weights(prefill, ())
        for place, time in enumerate(sum_by_slice(grid, running)):
            begin = grid.start_ps + place * grid.step_ps
            totals[0][place] += time / slots
            totals[1][place] += held_ps[place]
            totals[2][place] += busy.busy(begin, begin + grid.step_ps) * grid.step_ps
    return [max(slots / FULL, tokens / FULL, prefill / BUSY) for slots, tokens, prefill in zip(*totals, strict=True)]


def _waiting(run: Observed, indexes: Sequence[int], grid: Grid, place: int) -> int:
    """Return how long a limit keeps waiting requests out of the batches in a slice."""
    begin = grid.start_ps + place * grid.step_ps
    times = [run.split.limits[index] for index in indexes if index in run.split.limits]
    return sum(sum(each.between(begin, begin + grid.step_ps).values()) for each in times)


def _fraction(run: Observed, row: int, grid: Grid, room: Sequence[bool]) -> float:
    """Return the fraction of a request's time at the router in which the instances have room."""
    requests = run.requests
    begin, routed, end = requests.arrival_ps[row], requests.routed_ps[row], requests.finished_ps[row]
    until = routed if routed >= 0 else end if end >= 0 else run.ended_ps
    first, last = (min(grid.bins - 1, max(0, (at - grid.start_ps) // grid.step_ps)) for at in (begin, until))
    return sum(room[first : last + 1]) / (last + 1 - first)


def _finding(run: Observed, claims: dict[int, float], explains: float) -> Finding:
    requests = run.requests
    stages = Counter(_stage(run, row) for row in claims)
    stage = stages.most_common(1)[0][0]
    policy = _limits(run.scenario).get(stage, "")
    count = run.loss.count(len(claims))
    rejected = run.loss.count(sum(1 for row in claims if run.loss.of(row, ("rejected",)) > 0))
    at, until = run.loss.main_period(claims)
    return Finding(
        kind=KIND,
        at_ps=at,
        until_ps=until,
        severity=explains * run.loss.late_share,
        count=count,
        title=(
            f"The {stage} policy {policy} rejected {many(rejected, 'request')} and held {count - rejected:,} until "
            f"they were late, while the instances had room for more; this explains {percent(explains)} of the loss."
        ),
        requests=examples((claim, row) for row, claim in claims.items()),
        evidence={
            "stage": stage,
            "policy": policy,
            "settings": (run.scenario.get("policies") or {}).get(stage, {}),
            "rejected": rejected,
            "held": count - rejected,
            "requests": len(requests) - run.warmup,
        },
        explains=explains,
        resource="router",
    )


def _stage(run: Observed, row: int) -> str:
    """Return the stage at which a request was rejected or waited longest."""
    limits = _limits(run.scenario)
    if len(limits) == 1:
        return next(iter(limits))
    admitted, arrival = run.requests.admitted_ps[row], run.requests.arrival_ps[row]
    end = max(run.requests.routed_ps[row], run.requests.finished_ps[row])
    return "admission" if admitted < 0 or 2 * (admitted - arrival) > end - arrival else "flow"
