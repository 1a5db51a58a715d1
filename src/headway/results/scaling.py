"""The summary's section `scaling`: replicas over time, changes of their number, start-up times, and moved requests."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from msgspec.structs import replace

from headway.results.recorder import InstanceStats, PoolFacts, Recorder, RunFacts, ScaleRecord, StateChange
from headway.results.sample import ratio
from headway.results.statistics import spread_of
from headway.types import PS_PER_SECOND, REPLICAS, SERVING, Json

OSCILLATION_PS: Final = 300 * PS_PER_SECOND  # a change that reverses the last change within this time is an oscillation
FAULTS: Final = ("crash", "slow", "unreachable")


class Level(NamedTuple):
    """How many instances a pool has from `at_ps` until the next level. The numbers include all changes at `at_ps`."""

    at_ps: int
    held: int  # number of instances that are paid for: all except stopped ones
    replicas: int  # number of instances that are neither stopped nor draining
    serving: int


def present(recorder: Recorder, instances: Sequence[InstanceStats]) -> list[int]:
    """Return the indexes of the instances that ever ran."""
    if not recorder.states:
        return list(range(len(instances)))
    return sorted({change.instance for change in recorder.states if change.state != "stopped"})


def held_ps(stats: InstanceStats, length_ps: int) -> int:
    """Return how long an instance was paid for."""
    return length_ps if stats.held_ps is None else stats.held_ps


def scaling(recorder: Recorder, instances: Sequence[InstanceStats], facts: RunFacts, good: int, planned: int) -> Json:
    """Return the section `scaling`; `good` of the `planned` requests met their SLO."""
    length_ps = facts.ended_ps - facts.started_ps
    pools = [_Pool(pool, recorder, instances, facts) for pool in facts.pools]
    held = sum(pool.held_ps for pool in pools)
    struck = Counter(fault.kind for fault in recorder.struck)
    return {
        "replica_seconds": held / PS_PER_SECOND,
        "mean_replicas": ratio(held, length_ps),
        "mean_serving": ratio(sum(pool.serving_ps for pool in pools), length_ps),
        "slo_per_replica": ratio(good * length_ps, planned * held),
        "scale_ups": sum(pool.ups for pool in pools),
        "scale_downs": sum(pool.downs for pool in pools),
        "oscillations": sum(pool.oscillations for pool in pools),
        "failed": recorder.lost,
        "retried": len(recorder) - recorder.retries.count(0),
        "redirected": len(recorder) - recorder.redirects.count(0),
        "faults": {kind: struck[kind] for kind in FAULTS},
        "pools": [
            {
                "id": pool.id,
                "replica_seconds": pool.held_ps / PS_PER_SECOND,
                "mean_replicas": ratio(pool.held_ps, length_ps),
                "min_replicas": min(level.held for level in pool.levels),
                "max_replicas": max(level.held for level in pool.levels),
                "mean_serving": ratio(pool.serving_ps, length_ps),
                "slo_per_replica": ratio(good * length_ps, planned * pool.held_ps),
                "scale_ups": pool.ups,
                "scale_downs": pool.downs,
                "oscillations": pool.oscillations,
                "time_to_serve": spread_of(pool.serve_ps),
                "time_to_ready": spread_of(pool.ready_ps),
            }
            for pool in pools
        ],
    }


class _Pool:
    def __init__(
        self, pool: PoolFacts, recorder: Recorder, instances: Sequence[InstanceStats], facts: RunFacts
    ) -> None:
        self.id = pool.id
        own = range(pool.first, pool.first + pool.maximum * pool.ranks, pool.ranks)  # the first rank of each engine
        changes = [change for change in recorder.states if change.instance in own]
        self.levels = levels(changes) or [Level(facts.started_ps, 0, 0, 0)]
        until = [*(level.at_ps for level in self.levels[1:]), facts.ended_ps]
        self.serving_ps = sum(
            level.serving * (end - level.at_ps) for level, end in zip(self.levels, until, strict=True)
        )
        self.held_ps = sum(held_ps(instances[index], facts.ended_ps - facts.started_ps) for index in own)
        scaled = [record for record in recorder.scaled if record.pool == pool.id]
        self.ups = sum(record.after > record.before for record in scaled)
        self.downs = len(scaled) - self.ups
        self.oscillations = sum(turns_back(earlier, later) for earlier, later in pairwise(scaled))
        self.serve_ps, self.ready_ps = startups(changes)


def levels(changes: Sequence[StateChange]) -> list[Level]:
    """Return how many instances a pool has over time, as a list of levels, from the state changes of its instances."""
    states: dict[int, str] = {}
    counts: Counter[str] = Counter()
    steps: list[Level] = []
    for change in changes:
        counts[states.get(change.instance, "")] -= 1
        counts[change.state] += 1
        states[change.instance] = change.state
        if steps and steps[-1].at_ps == change.at_ps:
            steps.pop()
        replicas = sum(counts[state] for state in REPLICAS)
        serving = sum(counts[state] for state in SERVING)
        steps.append(Level(change.at_ps, replicas + counts["draining"], replicas, serving))
    return steps


def turns_back(earlier: ScaleRecord, later: ScaleRecord) -> bool:
    """Return whether the later of two changes of a pool reverses the earlier one within `OSCILLATION_PS`."""
    opposite = (earlier.after > earlier.before) != (later.after > later.before)
    return opposite and later.at_ps - earlier.at_ps <= OSCILLATION_PS


def with_delays(scaled: Sequence[ScaleRecord], changes: Sequence[StateChange]) -> list[ScaleRecord]:
    """Complete the records of a run: add how long each change took to have its effect on each instance."""
    of: dict[int, list[StateChange]] = {}
    for change in changes if scaled else ():
        of.setdefault(change.instance, []).append(change)
    completed = []
    for record in scaled:
        grows = record.after > record.before
        later = [[change for change in of.get(index, ()) if change.at_ps >= record.at_ps] for index in record.instances]
        serves = [_reached(states, SERVING if grows else ("stopped",)) for states in later]
        delays = [at_ps - record.at_ps if at_ps >= 0 else -1 for at_ps in serves]
        warm = [_reached(states, ("ready",)) for states in later] if grows else []
        completed.append(replace(record, delays_ps=delays, warm_ps=warm))
    return completed


def _reached(states: Sequence[StateChange], wanted: tuple[str, ...]) -> int:
    """Return when an instance reaches one of the wanted states. `states` begins with the change that started or drained
    the instance. If the instance stops or starts again before it reaches a wanted state, return -1."""
    for change in states:
        if change.state in wanted:
            return change.at_ps
        if change.state == "stopped" or (change.state == "provisioning" and change is not states[0]):
            break
    return -1


def startups(changes: Sequence[StateChange]) -> tuple[list[int], list[int]]:
    """Return how long each started instance took from provisioning until it served, and until it was ready. Instances
    that existed at the beginning, or that stopped before they served or were ready, have no entry."""
    since: dict[int, int] = {}
    serves: set[int] = set()
    serve_ps, ready_ps = [], []
    for change in changes:
        index, state = change.instance, change.state
        if state == "provisioning":
            since[index] = change.at_ps
            serves.discard(index)
        elif state in SERVING and index in since:
            if index not in serves:
                serves.add(index)
                serve_ps.append(change.at_ps - since[index])
            if state == "ready":
                ready_ps.append(change.at_ps - since.pop(index))
        elif state in ("draining", "stopped"):
            since.pop(index, None)
    return serve_ps, ready_ps
