"""The `cluster:` section: equal instances of one model, or deployments that each have their own model, GPU and
limits."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from headway import latency
from headway.config.section import read
from headway.config.wording import cut, shown
from headway.errors import HeadwayError
from headway.policies import registry
from headway.scenario.engines_spec import (
    APART,
    COMMON,
    MOST_INSTANCES,
    E,
    Engines,
    check_common,
    inherit,
    need_whole_layers,
    read_pool_keys,
)
from headway.scenario.kv_spec import Kv
from headway.scenario.pd_spec import check_shared
from headway.types import Json

LONGEST_NAME: Final = 100


class Deployment(Engines, frozen=True):
    """A pool of instances of one model. It receives only the requests that ask for one of the model's names."""

    serves: Annotated[tuple[str, ...], "more names that clients may use for the model, in addition to its own"] = ()

    def names(self) -> tuple[str, ...]:
        """Return the names that clients may use for the model: its name in the table of models, the name that the
        scenario uses, and the names in `serves`."""
        written = (self.model,) if isinstance(self.model, str) else ()
        return tuple(dict.fromkeys((self.shape().name, *written, *self.serves)))

    def explicit(self) -> Json:
        written = super().explicit()
        for name in COMMON:
            del written["kv"][name]
        if not written["kv"]:
            del written["kv"]
        return written | {"serves": list(self.serves)}


class Cluster(Engines, frozen=True):
    """The `cluster:` section itself. If it has deployments, its other keys are the defaults of the deployments."""

    deployments: Annotated[
        dict[str, Deployment] | None, "deployments by name, see below; the keys above are then their defaults"
    ] = None

    @classmethod
    def read(cls, section: Any, where: str = "cluster") -> Cluster:
        keys = read_pool_keys(section, where, Kv())
        deployments = keys.pop("deployments", None) if isinstance(keys, dict) else None
        cluster = read(cls, keys, where)
        if deployments is None:
            return _check(cluster, keys, where)
        cluster.latency_model()
        return msgspec.structs.replace(cluster, deployments=_deployments(deployments, cluster))

    def disaggregated(self) -> bool:
        """Return whether any deployment is disaggregated."""
        return any(deployment.architecture == "disaggregated" for deployment in self.by_name().values())

    def engine_ids(self) -> dict[str, int]:
        """Return the ids of all engines, including engines that an autoscaler may add, with the number of their
        data-parallel ranks."""
        ids: dict[str, int] = {}
        for name, half in self.scaling_pools().items():
            stem = "instance" if name == "default" and self.deployments is None else name
            ids |= {f"{stem}-{number}": half.dp for number in range(half.bounds()[1])}
        return ids

    def instance_ids(self) -> list[str]:
        """Return the ids of all instances. An engine with data-parallel ranks has one instance for each rank."""
        return [
            f"{engine}-rank-{rank}" if dp > 1 else engine
            for engine, dp in self.engine_ids().items()
            for rank in range(dp)
        ]

    def scaling_pools(self) -> dict[str, Engines]:
        """Return the pools of equal instances by name. The autoscaler scales each pool separately."""
        pools: dict[str, Engines] = {}
        for name, deployment in self.by_name().items():
            before = "" if self.deployments is None else f"{name}-"
            halves = {f"{before}{role}": half for role, half in deployment.halves().items()}
            pools |= halves or {name: deployment}
        return pools

    def by_name(self) -> dict[str, Engines]:
        """Return the deployments by name. A cluster without deployments is itself the deployment `default`."""
        return {"default": self} if self.deployments is None else {**self.deployments}

    def default_model(self) -> str:
        """Return the model that serves requests without a model name. If the cluster serves several models, return an
        empty string."""
        models: set[str] = {deployment.shape().name for deployment in self.by_name().values()}
        return models.pop() if len(models) == 1 else ""

    def served_models(self) -> list[str] | None:
        """Return the model names that requests may use. If any name is valid, return None."""
        names = dict.fromkeys(name for deployment in self.by_name().values() for name in deployment.names())
        return list(names) or None

    def resolved(self) -> Json:
        if self.deployments is None:
            return self.explicit()
        common = {name: getattr(self.kv, name) for name in COMMON}
        return {
            "kv": common,
            "deployments": {name: deployment.explicit() for name, deployment in self.deployments.items()},
        }


def _check(pool: E, keys: Json, where: str) -> E:
    """Check the keys of a deployment against each other, and return the deployment with its total number of instances.
    `keys` contains only the keys that the file sets in this section, without inherited keys."""
    halves = pool.halves(where)
    parts = {f"{where}.{role}": half for role, half in halves.items()} or {where: pool}
    for place, part in parts.items():
        _check_bounds(part, place)
    for key in APART if not halves else ():
        if keys.get(key) is not None:
            wrong = "is valid only with 'architecture: disaggregated'"
            raise HeadwayError(f"{where}.{key}: {wrong}; set that too, or remove this key.")
    for place, part in parts.items():
        _check_ranks(part, place)
        part.latency_model(place)
        part.kv_blocks(place)
        _check_speculation(part, place)
    if not halves:
        return pool
    for place, part in parts.items():
        layout = part.kv_layout(place)
        if layout is not None:
            raise HeadwayError(f"{where}.architecture: a transfer {need_whole_layers(part.shape())}")
    check_shared({role: half.kv for role, half in halves.items()}, where)
    prefill, decode = (half.instances for half in halves.values())
    if "instances" in keys and pool.instances != prefill + decode:
        wrong = f"is {pool.instances}, but prefill and decode have {prefill} + {decode} = {prefill + decode}"
        raise HeadwayError(f"{where}.instances: {wrong}; make them equal, or remove this key.")
    most = sum(half.bounds()[1] for half in halves.values())
    if most > MOST_INSTANCES:
        raise HeadwayError(f"{where}: may have at most {MOST_INSTANCES:,} instances, got {most:,}.")
    return msgspec.structs.replace(pool, instances=prefill + decode)


def _check_bounds(pool: Engines, where: str) -> None:
    low, high = pool.bounds()
    if low > pool.instances:
        raise HeadwayError(
            f"{where}.min_replicas: must be at most {pool.instances}, the number of instances at the start, got {low}."
        )
    if high < pool.instances:
        raise HeadwayError(
            f"{where}.max_replicas: must be at least {pool.instances}, "
            f"the number of instances at the start, got {high}."
        )
    if pool.scaling is not None:
        registry.build("scaling", pool.scaling, f"{where}.scaling")


def _check_ranks(pool: Engines, where: str) -> None:
    """Check the keys of data and expert parallelism."""
    shape = pool.shape(where)
    if pool.ep and not shape.experts:
        raise HeadwayError(f"{where}.ep: {shape.name} has no experts; remove this key, or choose a mixture of experts.")
    if pool.ep and pool.tp * pool.dp > shape.experts:
        wrong = f"{pool.tp} × {pool.dp} GPUs cannot share the {shape.experts} experts of {shape.name}"
        raise HeadwayError(f"{where}.ep: {wrong}; lower tp or dp.")
    if pool.bounds()[1] * pool.dp > MOST_INSTANCES:
        raise HeadwayError(f"{where}: may have at most {MOST_INSTANCES:,} ranks, got {pool.bounds()[1] * pool.dp:,}.")


def _check_speculation(pool: Engines, where: str) -> None:
    speculation = pool.speculates()
    if speculation is not None:
        pool.verification(where)
        if speculation.tokens >= pool.max_batch_tokens:
            wrong = f"must be below max_batch_tokens ({pool.max_batch_tokens}), got {speculation.tokens}"
            raise HeadwayError(f"{where}.speculation.tokens: {wrong}. A decode computes all its drafts in one step.")


def _deployments(sections: Any, cluster: Cluster) -> dict[str, Deployment]:
    place = "cluster.deployments"
    if not isinstance(sections, dict) or not sections:
        raise HeadwayError(f"{place}: expected a mapping of names to deployments, got {shown(sections)}.")
    deployments: dict[str, Deployment] = {}
    shapes: dict[str, tuple[str, latency.ModelShape]] = {}  # model name -> (first deployment, model shape)
    for name, section in sections.items():
        if not isinstance(name, str) or not name or len(name) > LONGEST_NAME:
            raise HeadwayError(f"{place}: {shown(name)} is not a deployment's name; use a short text, such as chat.")
        where = f"{place}.{cut(name)}"
        keys = read_pool_keys(section, where, cluster.kv)
        deployment = inherit(Deployment, keys, where, cluster)
        check_common(deployment.kv, cluster.kv, where, "cluster.kv")
        deployment = _check(deployment, keys, where)
        other, shape = shapes.setdefault(deployment.shape().name, (name, deployment.shape()))
        if shape != deployment.shape():
            wrong = f"{shown(shape.name)} is also the model of the deployment {shown(other)}, with a different shape"
            right = "give this model another 'name', and list the names that clients use under 'serves'"
            raise HeadwayError(f"{where}.model: {wrong}; {right}.")
        if not all(deployment.serves):
            raise HeadwayError(f"{where}.serves: a name must not be empty, got {shown(list(deployment.serves))}.")
        deployments[name] = deployment
    for name, deployment in deployments.items():
        for role in deployment.halves():
            if f"{name}-{role}" in deployments:
                wrong = f"the {role} instances of the deployment {shown(name)} have the same name"
                raise HeadwayError(f"{place}.{cut(name)}-{role}: {wrong}; choose another name.")
    pools = [pool for deployment in deployments.values() for pool in deployment.halves().values() or [deployment]]
    if sum(pool.bounds()[1] * pool.dp for pool in pools) > MOST_INSTANCES:
        raise HeadwayError(f"{place}: the deployments may have at most {MOST_INSTANCES:,} instances together.")
    return deployments
