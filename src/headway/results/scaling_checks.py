"""What must hold where instances come and go: states follow each other as they can, nothing is used that is not paid
for, and bounds hold at every instant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headway.errors import InvariantError
from headway.results.recorder import FAILED, InstanceStats, PoolFacts, Recorder, RunFacts, StateChange
from headway.results.scaling import levels

# What a state may turn into; an instance that was there before the run begins with ready.
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
    """Raise unless instances came and went as they can, and requests were sent again only as often as allowed."""
    failed = recorder.outcome.count(FAILED)
    again = max(recorder.retries, default=0)
    if min(recorder.retries, default=0) < 0 or again > facts.retries or not 0 <= recorder.lost <= failed:
        raise InvariantError(
            f"A request was sent again {again} times of {facts.retries} allowed, and {recorder.lost} were lost with "
            f"their instances of {failed} that failed."
        )
    moved = max(recorder.redirects, default=0)
    drained = any(change.state == "draining" for change in recorder.states)
    if min(recorder.redirects, default=0) < 0 or (moved and not drained):
        raise InvariantError(f"A request went on elsewhere {moved} times, and no instance was drained.")
    if not facts.pools:
        if recorder.states or recorder.scaled or any(stats.held_ps is not None for stats in instances):
            raise InvariantError("Instances came and went that belong to no pool.")
        return
    if [index for pool in facts.pools for index in _places(pool)] != list(range(len(instances))):
        raise InvariantError(f"The pools do not have the {len(instances)} instances between them, each once.")
    _held(recorder.states, instances, facts)
    for pool in facts.pools:
        _bounded(pool, recorder)


def _places(pool: PoolFacts) -> range:
    return range(pool.first, pool.first + pool.maximum)


def _held(changes: Sequence[StateChange], instances: Sequence[InstanceStats], facts: RunFacts) -> None:
    """States follow each other as they can, and what each instance was held for is what they come to."""
    states = [""] * len(instances)
    held = [0] * len(instances)
    now = facts.started_ps
    for change in changes:
        index, state = change.instance, change.state
        if not now <= change.at_ps <= facts.ended_ps or state not in FOLLOWS[states[index]]:
            raise InvariantError(
                f"Instance {instances[index].id} cannot be {state} at {change.at_ps} ps after "
                f"{states[index] or 'nothing'}; the run had come to {now} of {facts.ended_ps} ps."
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
            raise InvariantError(f"{stats.id} was paid for {stats.held_ps} ps, and was there for {held[index]} ps.")


def _bounded(pool: PoolFacts, recorder: Recorder) -> None:
    """A pool has never more replicas than it may, and fewer than it must only by crashes; what the autoscaler is said
    to have done was done."""
    own = _places(pool)
    crashes = {one.at_ps for one in recorder.struck if one.kind == "crash" and one.instance in own}
    replicas = 0
    at: dict[int, int] = {}
    for level in levels([change for change in recorder.states if change.instance in own]):
        fewer = level.replicas < pool.minimum and level.replicas < replicas and level.at_ps not in crashes
        if fewer or level.held > pool.maximum or (not at and level.replicas < pool.minimum):
            raise InvariantError(
                f"Pool {pool.id} had {level.replicas} replicas and {level.held - level.replicas} that drained at "
                f"{level.at_ps} ps; its bounds are {pool.minimum} and {pool.maximum}."
            )
        replicas = at[level.at_ps] = level.replicas
    for record in recorder.scaled:
        if record.pool == pool.id and (record.after == record.before or at.get(record.at_ps) != record.after):
            raise InvariantError(
                f"Pool {pool.id} was to go from {record.before} to {record.after} replicas at {record.at_ps} ps, and "
                f"had {at.get(record.at_ps, 'as many as before')}."
            )
