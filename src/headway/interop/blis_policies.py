"""Read a policy bundle of BLIS (`--policy-config`) as the policies of a scenario.

If Headway lacks a feature of the bundle, the import raises an error if decisions depend on the feature, and otherwise
adds a note.
"""

from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from headway.config.documents import read_yaml
from headway.config.section import read
from headway.config.wording import shown, suggest
from headway.errors import HeadwayError, argument
from headway.interop import Translation, plain
from headway.interop.blis_import import import_workload
from headway.interop.blis_scaling import AUTOSCALING, import_scaling
from headway.policies.bundle import FORMAT
from headway.policies.registry import AUTO
from headway.scenario.scenario import Policies
from headway.types import Json

PRIORITIES: Final = {"critical": 4, "standard": 3, "batch": -1, "sheddable": -2, "background": -3}
LRU_BLOCKS: Final = 10_000  # size of BLIS's router-side prefix index, in blocks per instance
# BLIS's defaults of a token bucket: capacity in tokens, and refill rate in tokens per second.
CAPACITY: Final = 10_000
REFILL: Final = 1_000
DEFAULT_SCORERS: Final = {"precise-prefix-cache": 2.0, "queue-depth": 1.0, "kv-utilization": 1.0}
ROUTING: Final = ("round-robin", "least-loaded", "weighted", "always-busiest", "prefix-affinity")
SCHEDULERS: Final = ("fcfs", "priority-fcfs", "sjf", "reverse-priority")
USES: Final[dict[str, tuple[str, ...]]] = {  # admission policy of BLIS -> keys that it uses
    "always-admit": (),
    "token-bucket": ("token_bucket_capacity", "token_bucket_refill_rate"),
    "reject-all": (),
    "tier-shed": ("tier_shed_threshold", "tier_shed_min_priority"),
    "gaie-legacy": ("gaie_qd_threshold", "gaie_kv_threshold"),
}
TWICE: Final = "BLIS counts a dispatched request twice in an instance's load, Headway once"
SCORERS: Final = {  # scorer of BLIS -> Headway's scorer, and their difference ("" if they are equal)
    "prefix-affinity": ("prefix-affinity", ""),
    "precise-prefix-cache": (
        "prefix-affinity",
        "precise-prefix-cache becomes prefix-affinity: it scores the share of the prompt that the router believes "
        "cached, not the instances' own caches. Set signals.belief to stored and signals.kv_event_delay to 0s, so that "
        "the router knows these caches.",
    ),
    "no-hit-lru": ("no-hit-lru", ""),
    "queue-depth": ("queue-depth", "queue-depth also counts running requests; BLIS counts only waiting ones."),
    "kv-utilization": ("kv-utilization", ""),
    "load-balance": ("load-balance", f"load-balance: {TWICE}."),
    "active-requests": ("active-requests", ""),
    "lora-affinity": ("adapter-affinity", ""),
}
PARAMETERS: Final[dict[str, Json]] = {  # scorer of BLIS -> parameters of Headway's scorer
    "prefix-affinity": {"lru_blocks": LRU_BLOCKS},
    "precise-prefix-cache": {"lru_blocks": AUTO},
    "lora-affinity": {"free": 0},
}


# --- keys of a bundle -----------------------------------------------------------------------------------------------


class _Bundle(Struct):
    admission: Any = None
    routing: Any = None
    priority: Any = None
    scheduler: str = ""
    preemption: Any = None
    tenant_budgets: dict[str, float] | None = None
    node_pools: Any = None
    autoscaler: Any = None
    instance_lifecycle: Any = None


class _Admission(Struct):
    policy: str = ""
    token_bucket_capacity: float | None = None
    token_bucket_refill_rate: float | None = None
    tier_shed_threshold: int | None = None
    tier_shed_min_priority: int | None = None
    gaie_qd_threshold: float | None = None
    gaie_kv_threshold: float | None = None
    slo_priorities: dict[str, int] | None = None
    slo_targets: dict[str, int] | None = None


class _Routing(Struct):
    policy: str = ""
    scorers: list[dict[str, Any]] | None = None


class _Scorer(Struct):
    name: str
    weight: float


class _Named(Struct):
    policy: str = ""


# --- translation ----------------------------------------------------------------------------------------------------


def import_file(file: Path, policy_config: Path | None = None) -> Translation:
    """Translate a file of BLIS. A workload specification becomes a scenario, with the policies of `policy_config` if it
    is set. A policy bundle of BLIS becomes a bundle of Headway."""
    document = read_yaml(file)
    if not is_policy_bundle(document):
        workload = import_workload(document, file.name)
        if policy_config is None:
            return workload
        policies = import_policies(read_yaml(policy_config), policy_config.name)
        return Translation({**workload.document, **policies.document}, [*workload.notes, *policies.notes])
    if policy_config is not None:
        raise HeadwayError(
            f"{argument('policy_config')}: {file.name} is itself a policy bundle. Pass a workload specification."
        )
    policies = import_policies(document, file.name)
    if policies.document.keys() != {"policies"}:
        raise HeadwayError(
            f"{file.name}: describes a cluster, which a bundle cannot contain. Import it with its workload: "
            f"headway import blis WORKLOAD --policy-config {file.name}."
        )
    return Translation({"format": FORMAT, "name": file.stem, **policies.document}, policies.notes)


def is_policy_bundle(document: Any) -> bool:
    """Return whether a document is a policy bundle of BLIS, not a workload specification."""
    return isinstance(document, dict) and any(name in document for name in _Bundle.__struct_fields__)


def import_policies(document: Any, where: str) -> Translation:
    """Translate a bundle of BLIS to the key `policies` of a scenario. If the bundle has node pools or an autoscaler,
    the result also has the keys `cluster` and `scaling`."""
    bundle = read(_Bundle, document, where)
    if bundle.tenant_budgets:
        raise HeadwayError(
            f"{where}.tenant_budgets: is not supported. The admission policy tenant-fair shares the cluster by weights."
        )
    notes: list[str] = []
    admission = read(_Admission, bundle.admission or {}, f"{where}.admission")
    priorities = PRIORITIES | (admission.slo_priorities or {})
    policies: Json = {"admission": _admit(admission, priorities, f"{where}.admission", notes)}
    policies["routing"] = _route(read(_Routing, bundle.routing or {}, f"{where}.routing"), f"{where}.routing", notes)
    policies |= _schedule(bundle, priorities, where, notes)
    priority = read(_Named, bundle.priority or {}, f"{where}.priority").policy
    if priority not in ("", "constant"):
        notes.append(f"priority.policy: {priority} is ignored, as in BLIS, where classes have fixed priorities.")
    rest = import_scaling({name: getattr(bundle, name) for name in AUTOSCALING}, where, notes)
    if "policies" in rest:
        policies |= rest.pop("policies")
    for stage in policies:
        Policies(**{stage: policies[stage]}).explicit(stage)  # raises an error if the translated policy is invalid
    return Translation({"policies": policies, **rest}, list(dict.fromkeys(notes)))


def _admit(admission: _Admission, priorities: dict[str, int], where: str, notes: list[str]) -> Any:
    name = admission.policy or "always-admit"
    if name not in USES:
        raise HeadwayError(f"{where}.policy: {shown(name)} is unknown.{suggest(name, USES)}")
    for keys in USES.values():
        for key in keys:
            if getattr(admission, key) is not None and key not in USES[name]:
                notes.append(f"admission.{key} is ignored: {name} does not use it.")
    if admission.slo_targets:
        notes.append("admission.slo_targets is ignored: it orders BLIS's gateway queue; use policies.flow.")
    if name == "token-bucket":
        capacity, rate = admission.token_bucket_capacity, admission.token_bucket_refill_rate
        burst = int(CAPACITY if capacity is None else capacity)
        return {"name": name, "by": "tokens", "rate": plain(REFILL if rate is None else rate), "burst": burst}
    if name == "tier-shed":
        return _shed(admission, priorities, where, notes)
    if name == "gaie-legacy":
        queue, kv = admission.gaie_qd_threshold, admission.gaie_kv_threshold
        # BLIS rejects requests if the mean saturation is 1 or more.
        # Here, the probability of rejection rises from 0 at `low` to 1 at `low` + 1/`k`.
        return {
            "name": "probabilistic",
            "low": 0.999999,
            "k": 1e6,
            "power": 1,
            "queue_threshold": 5 if queue is None else plain(queue),
            "kv_threshold": 0.8 if kv is None else kv,
            "sheddable": [name for name, value in _ranked(priorities) if value < 0],
        }
    return "never" if name == "reject-all" else "always"


def _ranked(priorities: dict[str, int]) -> list[tuple[str, int]]:
    """Return the SLO classes with their priorities, the most important class first."""
    return sorted(priorities.items(), key=lambda item: -item[1])


def _shed(admission: _Admission, priorities: dict[str, int], where: str, notes: list[str]) -> Json:
    least = 3 if admission.tier_shed_min_priority is None else admission.tier_shed_min_priority
    ranked = _ranked(priorities)
    admitted = [name for name, value in ranked if value >= least]
    if not admitted:
        raise HeadwayError(f"{where}.tier_shed_min_priority: {least} is above the priority of every class. Lower it.")
    notes.append(f"tier-shed: {TWICE}, so the threshold is reached later.")
    classes = [name for name, _ in ranked]
    return {
        "name": "tier-shed",
        "classes": classes,
        "keep": admitted[-1],
        "max_load": admission.tier_shed_threshold or 0,
    }


def _route(routing: _Routing, where: str, notes: list[str]) -> Any:
    name = routing.policy or "round-robin"
    if name not in ROUTING:
        raise HeadwayError(f"{where}.policy: {shown(name)} is unknown.{suggest(name, ROUTING)}")
    if name != "weighted":
        if routing.scorers:
            notes.append(f"routing.scorers is ignored: {name} does not use it.")
        return name
    weights: dict[str, float] = {}
    for at, keys in enumerate(routing.scorers or []):
        scorer = read(_Scorer, keys, f"{where}.scorers[{at}]")
        if scorer.name in weights:
            raise HeadwayError(f"{where}.scorers[{at}].name: {shown(scorer.name)} is listed twice. Remove one of them.")
        if scorer.name not in SCORERS:
            known = ", ".join(SCORERS)
            raise HeadwayError(
                f"{where}.scorers[{at}].name: Headway has no equivalent of {shown(scorer.name)}. Supported: {known}."
            )
        weights[scorer.name] = scorer.weight
    if not weights:
        weights = dict(DEFAULT_SCORERS)
        notes.append("the bundle names no scorers; the result has BLIS's default scorers.")
    if {"prefix-affinity", "precise-prefix-cache"} <= weights.keys():
        raise HeadwayError(
            f"{where}.scorers: prefix-affinity and precise-prefix-cache are one scorer in Headway. Remove one of them."
        )
    scorers: Json = {}
    for theirs, weight in weights.items():
        ours, differs = SCORERS[theirs]
        if differs:
            notes.append(differs)
        parameters = PARAMETERS.get(theirs)
        scorers[ours] = {"weight": plain(weight), **parameters} if parameters else plain(weight)
    notes.append("BLIS chooses at random among equal scores; Headway chooses the instance with the lowest index.")
    return {"name": name, "scorers": scorers}


def _schedule(bundle: _Bundle, priorities: dict[str, int], where: str, notes: list[str]) -> Json:
    """Return the policy of the stage `scheduler`. If BLIS's scheduler orders requests by priority, also return the
    policy of the stage `priority`."""
    name = bundle.scheduler or "fcfs"
    if name not in SCHEDULERS:
        raise HeadwayError(f"{where}.scheduler: {shown(name)} is unknown.{suggest(name, SCHEDULERS)}")
    victims = read(_Named, bundle.preemption or {}, f"{where}.preemption").policy or "fcfs"
    if victims not in ("fcfs", "priority"):
        raise HeadwayError(f"{where}.preemption.policy: expected fcfs or priority, got {shown(victims)}.")
    if (name, victims) not in (("fcfs", "fcfs"), ("priority-fcfs", "priority")):
        order = f"with the scheduler {name}, Headway preempts the request that is last in the scheduler's order"
        notes.append(f"preemption.policy: {victims} is ignored: {order}.")
    if name == "fcfs":
        return {"scheduler": name}
    if name == "sjf":
        return {"scheduler": {"name": "shortest-prefill", "aging": 0}}
    sign = -1 if name == "reverse-priority" else 1
    scores = {label: sign * value for label, value in _ranked(priorities)}
    return {
        "priority": {"name": "by-class", "scores": scores, "other": sign * priorities["standard"]},
        "scheduler": {"name": "priority", "aging": 0},
    }
