"""The settings of a run, and what suggestions need to know about the run beside them: the load, the binding link, the
figure to improve."""

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from headway.policies import registry
from headway.policies.registry import DEFAULT_POLICIES
from headway.results.findings.observed import Observed
from headway.results.recorder import COMPLETED
from headway.results.records import ROUTING, Finding, Suggestion
from headway.types import Json

GOODPUT: Final = "slo.goodput_ratio"
TTFT: Final = "latency.ttft.p99"
TPOT: Final = "latency.tpot.p99"
MOST: Final = 4.0  # largest overload that a suggestion assumes
# A link limits the whole run if it is busy for at least the fraction `BUSY` of an episode. In addition, the severity
# of the finding must be at least `BINDS`, or the episode must last at least the fraction `LASTS` of the run. A link
# also limits the run if transfers explain at least `LINK_LOSS` of the loss.
BUSY: Final = 0.9
BINDS: Final = 0.1
LASTS: Final = 0.2
LINK_LOSS: Final = 0.4


def no_suggestions(run: Observed, finding: Finding) -> tuple[Suggestion, ...]:
    """Suggest nothing."""
    return ()


def changes_something(scenario: Json, change: Mapping[str, Any]) -> bool:
    """Return whether a setting of the resolved scenario differs from the change."""
    return any(not _same(setting(scenario, path), value) for path, value in change.items())


def setting(scenario: Json, path: str) -> Any:
    value: Any = scenario
    for key in path.split("."):
        if isinstance(value, list):  # scorers, which a path names
            named = (each for each in value if isinstance(each, dict) and each.get("name") == key)
            value = next((each.get("weight") for each in named), None)
        else:
            value = value.get(key) if isinstance(value, dict) else None
    return value


def _same(setting: Any, value: Any) -> bool:
    if isinstance(setting, dict) and "name" in setting:  # a policy, which a change may give by its name alone
        wanted = {"name": value} if isinstance(value, str) else value
        return isinstance(wanted, dict) and all(setting.get(key) == each for key, each in wanted.items())
    return bool(setting == value)


class Pool(Struct, frozen=True):
    """A pool of equal instances."""

    path: str  # of its settings, such as cluster.prefill
    settings: Json
    deployment: str  # path of its deployment; equal to `path` unless the deployment is disaggregated

    def get(self, key: str) -> Any:
        return self.settings.get(key)


def pools(run: Observed) -> dict[str, Pool]:
    """Return the pools by the name with which the ids of their instances begin. Live traffic has no pools. A pool whose
    name has a dot is left out, because no path can name its settings."""
    if run.scenario.get("live") or "cluster" not in run.scenario:
        return {}
    cluster = run.scenario["cluster"]
    deployments = cluster.get("deployments")
    found: dict[str, Pool] = {}
    for name, keys in ({"": cluster} if deployments is None else deployments).items():
        path = "cluster" if deployments is None else f"cluster.deployments.{name}"
        roles = [role for role in ("prefill", "decode") if isinstance(keys.get(role), dict)]
        for role in roles:
            found[f"{name}-{role}" if name else role] = Pool(f"{path}.{role}", keys[role], path)
        if not roles:
            found[name or "instance"] = Pool(path, keys, path)
    return {name: pool for name, pool in found.items() if "." not in name}


def pool_of(run: Observed, finding: Finding, role: str = "") -> Pool | None:
    """Return the pool of the finding's most affected instance, or of the role in the same deployment. If the finding
    names no instance, return the pool with the most late requests."""
    known = pools(run)
    indexes = finding.instances or [run.home(row) for row in run.loss.late[:1]] or list(run.instances)
    for index in indexes:
        engine = run.instances.get(index, "")
        if "-rank-" in engine and engine.rpartition("-")[0] not in known:  # a rank of an engine
            engine = engine.rpartition("-rank-")[0]
        pool = known.get(engine.rpartition("-")[0])
        if pool is not None:
            halves = [each for each in known.values() if each.deployment == pool.deployment and role]
            return next((each for each in halves if each.path.endswith(f".{role}")), pool)
    return None


def policy(run: Observed, stage: str) -> Json:
    """Return the policy of a stage: its name and parameters."""
    spec = run.scenario.get("policies", {}).get(stage) or DEFAULT_POLICIES[stage]
    if not isinstance(spec, dict):
        return {"name": spec}
    scorers = spec.get("scorers")
    if not isinstance(scorers, dict):
        return spec
    return spec | {  # live traffic has the scorers as its file writes them: names and weights
        "scorers": [{"name": name, "weight": each} for name, each in scorers.items() if not isinstance(each, dict)]
    }


def name_of(run: Observed, stage: str) -> str:
    return str(policy(run, stage).get("name", ""))


def default(stage: str, name: str, parameter: str) -> Any:
    """Return the default value of a policy's parameter."""
    parameters = registry.find(stage, name, f"policies.{stage}").parameters
    return next(each.default for each in parameters if each.name == parameter)


def disaggregated(run: Observed) -> bool:
    return any(pool.path != pool.deployment for pool in pools(run).values())


def aim(run: Observed, otherwise: str = TTFT) -> str:
    """Return the figure to improve: the goodput if the run has targets, otherwise the given figure."""
    facts = run.facts
    targets = (facts.slo, *facts.tenant_slos.values())
    return GOODPUT if any(slo.ttft_ps or slo.tpot_ps or slo.e2e_ps for slo in targets) else otherwise


def overload(run: Observed) -> float:
    """Return how many times as many requests arrive as the cluster completes while they arrive: from 1 to
    `MOST`."""
    requests = run.requests
    if not len(requests):
        return 1.0
    last = requests.arrival_ps[len(requests) - 1]
    ends = requests.select("finished_ps", "outcome")
    done = sum(outcome == COMPLETED and finished <= last for finished, outcome in ends)
    return min(MOST, len(requests) / done) if done else MOST


def link_binds(run: Observed) -> bool:
    """Return whether a link from prefill to decode instances limits the whole run, so that other changes cannot
    help."""
    for finding in run.findings:
        evidence = finding.evidence
        if finding.kind == "link_saturation" and evidence["busy"] >= BUSY:
            if finding.severity >= BINDS or evidence["episode_s"] >= LASTS * run.summary["duration_s"]:
                return True
        elif finding.kind == "bottleneck" and finding.resource == "link" and finding.explains >= LINK_LOSS:
            return True
    return False


def classes_of(run: Observed) -> list[str]:
    """Return the SLO classes of the requests."""
    return sorted(run.classes[code] for code in set(run.requests.slo_class) if code in run.classes)


def tenants_of(run: Observed) -> list[str]:
    """Return the tenants of the requests."""
    return sorted(run.tenants[code] for code in set(run.requests.tenant) if code in run.tenants)


def reads_prefixes(run: Observed) -> bool:
    """Return whether the routing policy considers the cached prefix."""
    if written(run, "cached_tokens"):
        return True
    return any("prefix_index" in entry.exact for entry in registry.entries(ROUTING, name_of(run, ROUTING)))


def caches_prefixes(run: Observed) -> bool:
    """Return whether the instances reuse cached blocks of equal prefixes."""
    return setting(run.scenario, "cluster.kv.prefix_caching") is not False


def written(run: Observed, name: str) -> bool:
    """Return whether the routing policy is written in the policy language, and reads this signal."""
    routing = policy(run, ROUTING)
    return routing["name"] in ("code", "tree") and name in str(routing)


def hit_ratio(run: Observed) -> float:
    return run.summary.get("cache", {}).get("token_hit_ratio") or 0.0
