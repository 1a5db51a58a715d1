"""The clusters that a plan may choose from: a number of replicas for each pool of a scenario, and their cost."""

from collections.abc import Sequence
from copy import deepcopy
from math import fsum
from typing import Any, Final

from msgspec import Struct

from headway.config.wording import join_words, shown, suggest
from headway.errors import HeadwayError
from headway.scenario.engines_spec import MOST_INSTANCES, SCALED
from headway.scenario.pd_spec import ROLES
from headway.scenario.scenario import Scenario
from headway.types import Json

Counts = tuple[int, ...]  # number of replicas of each pool
DECIMALS: Final = 6  # number of decimals of a cost, so that the order of addition does not make equal costs differ


class Pool(Struct, frozen=True):
    """Equal instances whose number a plan may change."""

    name: str
    deployment: str
    role: str  # role of the instances, prefill or decode; empty if each instance does both
    gpus: int  # GPUs per replica
    usd_per_hour: float  # price per replica
    now: int  # number of replicas in the scenario
    low: int  # minimum number of replicas
    high: int
    names: tuple[str, ...]  # names of the pool's model in requests; empty if the pool serves any model


class Space(Struct, frozen=True):
    """The pools of a plan and their scenario."""

    pools: tuple[Pool, ...]
    fixed: tuple[Pool, ...]  # pools that the plan does not resize
    resolved: Json  # the scenario without autoscaling

    def now(self) -> Counts:
        return tuple(pool.now for pool in self.pools)

    def usd_per_hour(self, counts: Counts) -> float:
        return round(fsum(count * pool.usd_per_hour for pool, count in self._all(counts)), DECIMALS)

    def gpus(self, counts: Counts) -> int:
        return sum(count * pool.gpus for pool, count in self._all(counts))

    def _all(self, counts: Counts) -> list[tuple[Pool, int]]:
        return [*zip(self.pools, counts, strict=True), *((pool, pool.now) for pool in self.fixed)]

    def key(self, counts: Counts) -> tuple[float, int, Counts]:
        """Return a sort key: a plan prefers a lower price and, if prices are equal, fewer replicas."""
        return self.usd_per_hour(counts), sum(counts), counts

    def replicas(self, counts: Counts) -> dict[str, int]:
        return {pool.name: count for pool, count in zip(self.pools, counts, strict=True)}

    def serves(self, counts: Counts) -> bool:
        """Return whether a cluster with these counts has at least one instance of every model that the pools serve."""
        there = [pool for pool, count in self._all(counts) if count]
        left = {name for pool in there for name in pool.names}
        return bool(there) and all(name in left for pool in self.pools for name in pool.names)

    def describe(self, counts: Counts) -> str:
        """Return the counts in words, such as 5 replicas, or 2 fast and 1 slow."""
        if len(self.pools) == 1:
            return f"{counts[0]:,} replica{'s' * (counts[0] != 1)}"
        return join_words([f"{count:,} {pool.name}" for pool, count in zip(self.pools, counts, strict=True) if count])

    def scenario(self, counts: Counts) -> Json:
        """Return the scenario with these replicas, without deployments of zero replicas."""
        cluster: Json = deepcopy(self.resolved["cluster"])
        for pool, count in zip(self.pools, counts, strict=True):
            holder: Any = cluster.get("deployments", {pool.deployment: cluster})
            if not count:
                del holder[pool.deployment]
                continue
            keys = holder[pool.deployment]
            if pool.role:
                keys.pop("instances", None)
                keys = keys[pool.role]
            keys["instances"] = count
        return {**self.resolved, "cluster": cluster}


def space_of(scenario: Scenario, vary: str | Sequence[str] | None, most: int) -> Space:
    """Return the clusters that a plan may choose from. The plan may resize the pools that `vary` names, or all pools if
    `vary` is None, up to `most` replicas each."""
    if not 1 <= most <= MOST_INSTANCES:
        raise HeadwayError(f"max: must lie between 1 and {MOST_INSTANCES:,}, got {shown(most)}.")
    pools = _pools(scenario, most)
    chosen = _choose(pools, vary)
    fixed = [pool for pool in pools if pool not in chosen]
    return Space(tuple(chosen), tuple(fixed), _static(scenario))


def _pools(scenario: Scenario, most: int) -> list[Pool]:
    cluster = scenario.cluster
    struck = _struck(scenario)
    several = cluster.deployments is not None and len(cluster.deployments) > 1
    pools: list[Pool] = []
    for name, deployment in cluster.by_name().items():
        for role, half in (deployment.halves() or {"": deployment}).items():
            id = list(cluster.scaling_pools())[len(pools)]
            # A disaggregated deployment needs both of its pools.
            low = max(0 if several and not role else 1, struck.get(id, 0))
            if low > most:
                raise HeadwayError(
                    f"max: must be at least {low}, because a fault strikes replica {low - 1} of {id}; got {most}."
                )
            price = half.tp * half.card().usd_per_hour
            pools.append(Pool(id, name, role, half.tp, price, half.instances, low, most, deployment.names()))
    return pools


def _struck(scenario: Scenario) -> dict[str, int]:
    """Return the minimum number of replicas of each pool that has faults. A fault names an instance, so the pool must
    be large enough to contain that instance."""
    least: dict[str, int] = {}
    for fault in scenario.faults:
        stem, _, number = fault.instance.rpartition("-")
        id = "default" if stem == "instance" and scenario.cluster.deployments is None else stem
        least[id] = max(least.get(id, 0), int(number) + 1)
    return least


def _choose(pools: list[Pool], vary: str | Sequence[str] | None) -> list[Pool]:
    if vary is None:
        return pools
    names = [name.strip() for name in (vary.split(",") if isinstance(vary, str) else vary)]
    for name in names:
        if name not in (known := [pool.name for pool in pools]):
            raise HeadwayError(f"vary: this cluster has no pool {shown(name)}.{suggest(name, known)}")
    return [pool for pool in pools if pool.name in names]


def _static(scenario: Scenario) -> Json:
    """Return the scenario with pools of fixed size and without an autoscaler."""
    resolved = scenario.resolved()
    cluster = resolved["cluster"]
    for engines in (*cluster.get("deployments", {}).values(), cluster):
        for keys in (engines, *(engines[role] for role in ROLES if role in engines)):
            for key in SCALED:
                keys.pop(key, None)
    resolved["policies"].pop("scaling", None)
    if not scenario.faults:
        resolved.pop("scaling", None)
    return resolved
