"""Invariants of every run. A violation is a bug of Headway, not a mistake of the user."""

from collections.abc import Sequence
from operator import ge
from typing import Final

from headway.errors import InvariantError
from headway.results.kv_sections import check_transfers
from headway.results.recorder import (
    COLUMNS,
    COMPLETED,
    FAILED,
    IN_FLIGHT,
    InstanceStats,
    PoolFacts,
    Recorder,
    RunFacts,
    StateChange,
    TierStats,
)
from headway.results.scaling import held_ps, levels
from headway.types import OUTCOMES, PS_PER_SECOND

# The columns with the times of a request's stages, in the order in which the stages happen.
TIMES: Final = (
    "arrival_ps", "admitted_ps", "routed_ps", "enqueued_ps", "started_ps", "first_token_ps", "finished_ps",
)  # fmt: skip
# For each state, the states that may follow it. Instances that exist at the start of a run are `ready` first.
FOLLOWS: Final = {
    "": ("ready", "stopped"),
    "stopped": ("provisioning",),
    "provisioning": ("loading", "stopped"),
    "loading": ("warming", "ready", "stopped"),
    "warming": ("ready", "draining", "unreachable", "stopped"),
    "ready": ("draining", "unreachable", "stopped"),
    "unreachable": ("warming", "ready", "draining", "stopped"),
    "draining": ("unreachable", "stopped"),
}


def check_scaling(recorder: Recorder, instances: Sequence[InstanceStats], facts: RunFacts) -> None:
    """Raise unless all state changes of instances are allowed, and no request has more retries than allowed."""
    failed = recorder.outcome.count(FAILED)
    again = max(recorder.retries, default=0)
    if min(recorder.retries, default=0) < 0 or again > facts.retries or not 0 <= recorder.lost <= failed:
        raise InvariantError(
            f"Retries or losses are wrong: a request was retried {again} times, with {facts.retries} allowed; "
            f"{recorder.lost} requests were lost with their instances, and {failed} requests failed in total."
        )
    moved = max(recorder.redirects, default=0)
    drained = any(change.state == "draining" for change in recorder.states)
    if min(recorder.redirects, default=0) < 0 or (moved and not drained):
        raise InvariantError(f"A request was redirected {moved} times, but no instance was drained.")
    if not facts.pools:
        if recorder.states or recorder.scaled or any(stats.held_ps is not None for stats in instances):
            raise InvariantError("Instances without a pool changed their state.")
        return
    if [index for pool in facts.pools for index in _places(pool)] != list(range(len(instances))):
        raise InvariantError(f"Each of the {len(instances)} instances must be in exactly one pool.")
    _check_states(recorder.states, instances, facts)
    for pool in facts.pools:
        _check_bounds(pool, recorder)


def _places(pool: PoolFacts) -> range:
    return range(pool.first, pool.first + pool.maximum * pool.ranks)


def _check_states(changes: Sequence[StateChange], instances: Sequence[InstanceStats], facts: RunFacts) -> None:
    """Raise unless all state changes are allowed, and agree with the time that each instance was paid for."""
    states = [""] * len(instances)
    held = [0] * len(instances)
    now = facts.started_ps
    for change in changes:
        index, state = change.instance, change.state
        if not now <= change.at_ps <= facts.ended_ps or state not in FOLLOWS[states[index]]:
            raise InvariantError(
                f"Instance {instances[index].id} cannot become {state} at {_seconds(change.at_ps)}: its state before "
                f"was {states[index] or 'none'}. The last change of any instance was at {_seconds(now)}, and the run "
                f"ended at {_seconds(facts.ended_ps)}."
            )
        now = change.at_ps
        if states[index] in ("", "stopped") and state != "stopped":
            held[index] -= now
        elif states[index] not in ("", "stopped") and state == "stopped":
            held[index] += now
        states[index] = state
    for index, stats in enumerate(instances):
        if states[index] not in ("", "stopped"):
            held[index] += facts.ended_ps
        if held[index] != stats.held_ps:
            paid = "the whole run" if stats.held_ps is None else _seconds(stats.held_ps)
            raise InvariantError(
                f"Instance {stats.id} was held for {paid}, but its state changes give {_seconds(held[index])}."
            )


def _check_bounds(pool: PoolFacts, recorder: Recorder) -> None:
    """Raise unless a pool's size is within bounds (except after crashes) and matches the scaling records."""
    own = _places(pool)[:: pool.ranks]  # the first rank of each engine
    crashes = {fault.at_ps for fault in recorder.struck if fault.kind == "crash" and fault.instance in own}
    replicas = 0
    at: dict[int, int] = {}
    for level in levels([change for change in recorder.states if change.instance in own]):
        fewer = level.replicas < pool.minimum and level.replicas < replicas and level.at_ps not in crashes
        if fewer or level.held > pool.maximum or (not at and level.replicas < pool.minimum):
            raise InvariantError(
                f"Pool {pool.id} had {level.replicas} replicas and {level.held - level.replicas} draining instances at "
                f"{_seconds(level.at_ps)}, but must have at least {pool.minimum} replicas and at most {pool.maximum} "
                "instances."
            )
        replicas = at[level.at_ps] = level.replicas
    for record in recorder.scaled:
        if record.pool == pool.id and (record.after == record.before or at.get(record.at_ps) != record.after):
            raise InvariantError(
                f"Pool {pool.id} should have scaled from {record.before} to {record.after} replicas at "
                f"{_seconds(record.at_ps)}, but had {at.get(record.at_ps, 'as many as before')}."
            )


def verify(recorder: Recorder, instances: list[InstanceStats], facts: RunFacts) -> None:
    """Raise unless every request has one outcome, its times are in order, and instances stayed within limits."""
    _check_counts(recorder)
    _check_order(recorder, len(instances), facts)
    length_ps = facts.ended_ps - facts.started_ps
    if any(stats.role is not None for stats in instances):
        check_transfers(recorder, instances, length_ps)
    check_scaling(recorder, instances, facts)
    for stats in instances:
        held = held_ps(stats, length_ps)
        if not 0 <= stats.busy_ps <= held <= length_ps:
            was = f"was busy for {_seconds(stats.busy_ps)} and held for {_seconds(held)}"
            raise InvariantError(f"Instance {stats.id} {was}, but the run lasted {_seconds(length_ps)}.")
        if not 0 <= stats.peak_kv_blocks <= stats.kv_blocks:
            raise InvariantError(f"Instance {stats.id} used {stats.peak_kv_blocks} of {stats.kv_blocks} KV blocks.")
        for tier in stats.tiers:
            _check_tier(tier, length_ps)


def _check_tier(tier: TierStats, length_ps: int) -> None:
    place = f"The {tier.name} tier of {tier.owner}"
    if not 0 <= tier.peak_blocks <= tier.blocks or not 0 <= tier.block_ps <= tier.blocks * length_ps:
        used = f"used {tier.peak_blocks} blocks at its peak, and {tier.block_ps} block-picoseconds"
        raise InvariantError(f"{place} has {tier.blocks} blocks, but {used} in {_seconds(length_ps)}.")
    if not 0 <= tier.link_busy_ps <= length_ps or not 0 <= tier.thrashed_blocks <= tier.loaded_blocks:
        busy = f"its link was busy for {_seconds(tier.link_busy_ps)} of {_seconds(length_ps)}"
        blocks = f"{tier.thrashed_blocks} of {tier.loaded_blocks} loaded blocks were thrashed"
        raise InvariantError(f"{place} has inconsistent transfers: {busy}, and {blocks}.")


def _check_counts(recorder: Recorder) -> None:
    arrived = len(recorder)
    for name in COLUMNS:
        column = getattr(recorder, name)
        if len(column) != arrived:
            raise InvariantError(f"Column {name} has {len(column)} rows, but {arrived} requests arrived.")
    ended = sum(recorder.outcome.count(code) for code in range(len(OUTCOMES)))
    if ended != arrived:
        raise InvariantError(f"{arrived} requests arrived, but {ended} have an outcome.")
    if not (0 <= recorder.abandoned <= recorder.not_issued and 0 <= recorder.retried <= arrived):
        counts = f"{recorder.not_issued} turns never issued, {recorder.abandoned} of them abandoned"
        raise InvariantError(
            f"Counts disagree: {arrived} requests arrived, {recorder.retried} of them retries, and {counts}."
        )
    arrivals = recorder.arrival_ps
    if not all(map(ge, arrivals[1:], arrivals)):
        raise InvariantError("Requests are not in order of arrival.")


def _check_order(recorder: Recorder, instances: int, facts: RunFacts) -> None:
    begun_ps, ended_ps = facts.started_ps, facts.ended_ps
    for row, (*times, outcome, tokens, instance) in enumerate(
        recorder.select(*TIMES, "outcome", "output_tokens", "instance")
    ):
        arrival, admitted, routed, enqueued, started, first, finished = times
        if outcome == COMPLETED:
            causal = begun_ps <= arrival <= admitted <= routed <= enqueued <= started <= first <= finished <= ended_ps
            possible = tokens >= 1 and 0 <= instance < instances
        else:
            causal = _causal_so_far((begun_ps, *times, ended_ps))
            possible = -1 <= instance < instances and (started == -1 or instance != -1)
            possible = possible and (outcome != IN_FLIGHT or finished == -1)
        if not (causal and possible):
            raise InvariantError(
                f"Request {row} is inconsistent. Its times in ps, where -1 means never: arrival {arrival}, admitted "
                f"{admitted}, routed {routed}, enqueued {enqueued}, start {started}, first token {first}, end "
                f"{finished}. Its outcome is {OUTCOMES[outcome]}, with {tokens} output tokens. It has the instance "
                f"index {instance} of {instances} instances. The run lasted from {begun_ps} to {ended_ps} ps."
            )


def _seconds(ps: int) -> str:
    return f"{ps / PS_PER_SECOND:.15g} s"


def _causal_so_far(times: tuple[int, ...]) -> bool:
    """Return whether the times of an incomplete request are possible: they are in order, and a request with a first
    token has also started."""
    started, first = times[5:7]
    known = [at for at in times if at != -1]
    return known == sorted(known) and (first == -1 or started != -1)
