"""Changes of a scenario that several kinds of findings suggest.

Each function yields suggestions, best first. It yields none if the change does not apply to the run: if the policy is
already in use, if the run has no such setting, or if the run is live traffic, whose engines have no settings here.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from math import ceil
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from headway import latency
from headway.config.units import bandwidth, duration_ps, duration_text
from headway.latency.engines import engine_load
from headway.policies import registry
from headway.policies.registry import DEFAULT_POLICIES
from headway.results.findings.observed import Observed, seconds
from headway.results.recorder import COMPLETED
from headway.results.records import ADMISSION, CLUSTER, ENGINE, FLOW, ROUTING, SCALING, SCHEDULER, Finding, Suggestion
from headway.results.sample import MET
from headway.types import PS_PER_SECOND, Json

GOODPUT: Final = "slo.goodput_ratio"
TTFT: Final = "latency.ttft.p99"
TPOT: Final = "latency.tpot.p99"
MORE: Final = 1.5  # smallest factor by which to raise the number of replicas
MOST: Final = 4.0  # largest overload that a suggestion assumes
LEAST_REJECTED: Final = 0.1  # smallest fraction of the requests that a limit of the rate should reject
HEADROOM: Final = 1.25  # replicas to add beyond what the overload needs
CACHED: Final = 0.05  # smallest fraction of cached prompt tokens for which routing should consider the cache
MOSTLY_CACHED: Final = 0.3
PEAK_S: Final = 5
# Policies that balance the load by counts that are never stale.
EXACT: Final = ("least-loaded", "power-of-two", "load-only", "lmetric", "lmetric-plus-one", "least-prefill-work")
# Parameters that limit how many requests leave the router.
LIMITS: Final = {
    FLOW: ("max_inflight", "max_inflight_tokens", "queue_threshold"),
    ADMISSION: ("max_queue", "total", "max_load", "queue_threshold", "rate", "burst", "soft_load", "hard_load"),
}
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
    return any(not _same(_setting(scenario, path), value) for path, value in change.items())


def _setting(scenario: Json, path: str) -> Any:
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


# --- the run ----------------------------------------------------------------------------------------------------


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
    if _written(run, "cached_tokens"):
        return True
    return any("prefix_index" in entry.exact for entry in registry.entries(ROUTING, name_of(run, ROUTING)))


def caches_prefixes(run: Observed) -> bool:
    """Return whether the instances reuse cached blocks of equal prefixes."""
    return _setting(run.scenario, "cluster.kv.prefix_caching") is not False


def _written(run: Observed, name: str) -> bool:
    """Return whether the routing policy is written in the policy language, and reads this signal."""
    routing = policy(run, ROUTING)
    return routing["name"] in ("code", "tree") and name in str(routing)


def hit_ratio(run: Observed) -> float:
    return run.summary.get("cache", {}).get("token_hit_ratio") or 0.0


# --- cluster ----------------------------------------------------------------------------------------------------


def more_replicas(run: Observed, finding: Finding, role: str = "", figure: str = "") -> Iterator[Suggestion]:
    """Suggest more replicas, as many as the overload needs; if a link limits the run, a faster link instead."""
    yield from (faster_link(run, finding) if link_binds(run) else more_instances(run, finding, role, figure))


def more_instances(run: Observed, finding: Finding, role: str = "", figure: str = "") -> Iterator[Suggestion]:
    """Suggest as many instances of a pool as the overload needs."""
    pool = pool_of(run, finding, role)
    if pool is None:
        return
    now = pool.get("instances")
    reached = [event.after for event in run.result.scaling_events if pool.get("max_replicas") is not None]
    replicas = max(ceil(now * max(MORE, HEADROOM * overload(run))), *reached, 1)
    change: Json = {f"{pool.path}.instances": replicas}
    if pool.path != pool.deployment:
        halves = [each for each in pools(run).values() if each.deployment == pool.deployment]
        change[f"{pool.deployment}.instances"] = sum(each.get("instances") for each in halves) - now + replicas
    if pool.get("max_replicas") is not None:
        change[f"{pool.path}.max_replicas"] = max(replicas, pool.get("max_replicas"))
    if pool.get("min_replicas") is not None:
        change[f"{pool.path}.min_replicas"] = replicas
    text = f"Cluster: use {replicas} instances instead of {now} ({pool.path}.instances)."
    yield Suggestion(CLUSTER, change, figure or aim(run), text)


def faster_link(run: Observed, finding: Finding) -> Iterator[Suggestion]:
    """Suggest changes that shorten the transfers of KV caches."""
    pool = pool_of(run, finding, "prefill")
    if pool is None or pool.path == pool.deployment:
        return
    path = f"{pool.deployment}.transfer"
    transfer = _setting(run.scenario, path) or {}
    figure = aim(run, "transfer.time.p99")
    if "bandwidth" in transfer:
        factor = 2 * max(1, round(overload(run)))
        speed = factor * bandwidth(transfer["bandwidth"], path)
        text = f"Cluster: use links that are {factor} times as fast ({path}.bandwidth: {_speed(speed)})."
        yield Suggestion(CLUSTER, {f"{path}.bandwidth": _speed(speed)}, figure, text)
    yield from more_instances(run, finding, "prefill")  # each prefill instance has its own link
    if transfer.get("pipelined") is False:
        text = f"Cluster: transfer each chunk of a prompt when it is computed ({path}.pipelined)."
        yield Suggestion(CLUSTER, {f"{path}.pipelined": True}, figure, text)


def _speed(bytes_per_s: int) -> str:
    return f"{bytes_per_s / 1e9:g}GB/s"


def more_incoming(run: Observed, finding: Finding) -> Iterator[Suggestion]:
    """Suggest that decode instances accept twice as many requests, if they limit them."""
    pool = pool_of(run, finding)
    path = "" if pool is None else f"{pool.deployment}.transfer.max_incoming"
    limit = _setting(run.scenario, path)
    if isinstance(limit, int):
        text = f"Cluster: let a decode instance accept {2 * limit} requests at a time instead of {limit} ({path})."
        yield Suggestion(CLUSTER, {path: 2 * limit}, aim(run), text)


def faster_tiers(run: Observed, finding: Finding) -> Iterator[Suggestion]:
    """Suggest links to the tiers below the GPU that are twice as fast."""
    pool = pool_of(run, finding)
    tiers = {} if pool is None else _setting(pool.settings, "kv.tiers") or {}
    for name, tier in tiers.items():
        if pool is not None and isinstance(tier, dict) and "bandwidth" in tier:
            path = f"{pool.path}.kv.tiers.{name}.bandwidth"
            speed = _speed(2 * bandwidth(tier["bandwidth"], path))
            text = f"Cluster: use a link to the {name} tier that is twice as fast ({path}: {speed})."
            yield Suggestion(CLUSTER, {path: speed}, aim(run), text)


def kv_events(run: Observed) -> Iterator[Suggestion]:
    """Suggest that instances report which blocks they store and evict."""
    signals = run.scenario.get("signals", {})
    if run.scenario.get("live") or signals.get("kv_event_delay") is not None:
        return
    change = {"signals.kv_event_delay": "50ms", "signals.belief": "stored"}
    text = (
        "Cluster: let the instances report the KV blocks that they store and evict (signals.kv_event_delay, "
        "signals.belief: stored)."
    )
    yield Suggestion(CLUSTER, change, aim(run), text)


def fresher_signals(run: Observed) -> Iterator[Suggestion]:
    """Suggest that the router polls the instances more often, if its policy reads what they report."""
    interval = run.scenario.get("signals", {}).get("poll_interval")
    if not any(entry.reported for entry in registry.entries(ROUTING, name_of(run, ROUTING))):
        return
    if not isinstance(interval, str) or interval in ("0s", "50ms"):
        return
    text = f"Cluster: poll the instances every 50 ms instead of {interval} (signals.poll_interval)."
    yield Suggestion(CLUSTER, {"signals.poll_interval": "50ms"}, aim(run), text)


def autoscaler(run: Observed, pool: str = "") -> tuple[str, Json]:
    """Return the autoscaler of a pool: the path of its settings, and the settings."""
    own = pools(run).get("instance" if pool == "default" else pool)
    if own is not None and isinstance(own.get("scaling"), dict):
        return f"{own.path}.scaling", own.get("scaling")
    return "policies.scaling", policy(run, SCALING)


def earlier_scaling(run: Observed) -> Iterator[Suggestion]:
    """Suggest that the autoscaler decides twice as often."""
    interval = run.scenario.get("scaling", {}).get("interval")
    if interval is None:
        return
    half = duration_text(duration_ps(interval, "scaling.interval") // 2)
    text = f"Scaling: let the autoscaler decide every {half} instead of every {interval} (scaling.interval)."
    yield Suggestion(SCALING, {"scaling.interval": half}, aim(run), text)


# --- engine -----------------------------------------------------------------------------------------------------


def scaled(
    run: Observed, finding: Finding, key: str, factor: float, reason: str, *, role: str = "", figure: str = ""
) -> Iterator[Suggestion]:
    """Suggest a setting of the instances, multiplied by a factor. `reason` ends the sentence."""
    pool = pool_of(run, finding, role)
    now = None if pool is None else _setting(pool.settings, key)
    if pool is None or not isinstance(now, int) or isinstance(now, bool):
        return
    yield from set_to(run, finding, key, max(1, round(now * factor)), reason, role=role, figure=figure)


def set_to(
    run: Observed, finding: Finding, key: str, value: int, reason: str, *, role: str = "", figure: str = ""
) -> Iterator[Suggestion]:
    """Suggest a value of a setting of the instances. `reason` ends the sentence."""
    pool = pool_of(run, finding, role)
    now = None if pool is None else _setting(pool.settings, key)
    if pool is None or not isinstance(now, int) or value == now:
        return
    verb = "raise" if value > now else "lower"
    text = f"Engine: {verb} {key} from {now} to {value} ({pool.path}.{key}){reason}."
    yield Suggestion(ENGINE, {f"{pool.path}.{key}": value}, figure or aim(run), text)


def larger_cache(run: Observed, finding: Finding, role: str = "", figure: str = "") -> Iterator[Suggestion]:
    """Suggest twice as many KV blocks, or as many as the memory of the GPU has."""
    pool = pool_of(run, finding, role)
    if pool is None:
        return
    now = _setting(pool.settings, "kv.gpu_blocks")
    most = _blocks_in_memory(run, pool)
    if isinstance(now, int) and (most is None or now < most):
        value = 2 * now if most is None else min(2 * now, most)
        text = f"Engine: give the KV cache {value} blocks instead of {now} ({pool.path}.kv.gpu_blocks)."
        yield Suggestion(ENGINE, {f"{pool.path}.kv.gpu_blocks": value}, figure or aim(run), text)


def _blocks_in_memory(run: Observed, pool: Pool) -> int | None:
    """Return the number of KV blocks that fit into the memory of an instance's GPUs; None if it is unknown."""
    whole = _setting(run.scenario, pool.deployment)
    tokens = _setting(run.scenario, "cluster.kv.block_tokens")
    share = _setting(pool.settings, "kv.utilization")
    try:
        model = latency.read_model(pool.get("model") or whole["model"], "model")
        gpu, engine = latency.read_gpu(pool.get("gpu"), "gpu"), _setting(pool.settings, "latency.engine")
        load = engine_load(engine, pool.get("max_batch_tokens"), pool.get("max_batch_size"))
        return latency.kv_blocks(model, gpu, pool.get("tp"), tokens, share, "kv", engine=load)
    except Exception:  # figures of a user's own model or GPU may be incomplete
        return None


# --- policies ---------------------------------------------------------------------------------------------------


def use(run: Observed, stage: str, name: str, reason: str, figure: str = "", **parameters: Any) -> Iterator[Suggestion]:
    """Suggest another policy of a stage, unless it is in use with these parameters. `reason` ends the sentence."""
    if policy(run, stage).get("name") == name and not parameters:
        return
    spec: Any = {"name": name, **parameters} if parameters else name
    settings = ", ".join(f"{key} {_words(value)}" for key, value in parameters.items())
    text = f"{stage.capitalize()}: use {name}{f' ({settings})' if settings else ''}{reason}."
    if stage == ADMISSION and (now := policy(run, ADMISSION)).get("name") not in ("always", name) and name != "always":
        spec = {"name": "all-of", "policies": [now, spec]}
        text = text.replace(": use ", f": in addition to {now['name']}, use ", 1)
    yield Suggestion(stage, {f"policies.{stage}": spec}, figure or aim(run), text)


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return " and ".join(f"{key} {_words(each)}" for key, each in value.items())
    return " and ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def balance(run: Observed, figure: str = "") -> Iterator[Suggestion]:
    """Suggest routing by the load, which the router counts itself."""
    now = name_of(run, ROUTING)
    if disaggregated(run):
        if now != "least-loaded-pair":
            yield from use(run, ROUTING, "least-loaded-pair", ", which balances the requests in flight", figure)
        return
    if hit_ratio(run) >= CACHED and not (_written(run, "cached_tokens") and _written(run, "inflight")):
        yield from lmetric(run, figure)
    if now not in EXACT and not _written(run, "inflight"):
        yield from use(run, ROUTING, "least-loaded", ", which balances the requests in flight", figure)


def lmetric(run: Observed, figure: str = "") -> Iterator[Suggestion]:
    """Suggest the routing policy that weighs the load against the cached prefix, if instances cache prefixes."""
    tokens = _setting(run.scenario, "cluster.kv.block_tokens")
    if not isinstance(tokens, int) or name_of(run, ROUTING) == "lmetric" or not caches_prefixes(run):
        return
    spec = {"name": "lmetric", "block_tokens": tokens, "lru_blocks": "auto"}
    text = "Routing: use lmetric, which weighs the cached prefix against the load."
    yield Suggestion(ROUTING, {"policies.routing": spec}, figure or aim(run), text)


def cached_prefixes(run: Observed, figure: str = "") -> Iterator[Suggestion]:
    """Suggest routing that considers the cached prefix, or more of it. Without a cache of prefixes, suggest the
    cache."""
    if not caches_prefixes(run):
        text = "Engine: reuse cached blocks of equal prefixes (cluster.kv.prefix_caching)."
        yield Suggestion(ENGINE, {"cluster.kv.prefix_caching": True}, figure or aim(run), text)
        return
    routing = policy(run, ROUTING)
    if not reads_prefixes(run):
        yield from lmetric(run, figure)
        return
    yield from index_size(run, only_larger=True)
    if routing["name"] == "weighted":
        for scorer in routing.get("scorers") or ():
            name, weight = scorer["name"], scorer.get("weight")
            if name.startswith("prefix") and isinstance(weight, int | float) and weight > 0:
                text = f"Routing: raise the weight of {name} from {weight:g} to {2 * weight:g}."
                change = {f"policies.routing.scorers.{name}": 2 * weight}
                yield Suggestion(ROUTING, change, figure or aim(run), text)


def reject_late(run: Observed) -> Iterator[Suggestion]:
    """Suggest admission that rejects the requests that cannot meet their TTFT target. This policy assumes that no token
    is cached, so it does not suit a run with many cached tokens."""
    target = run.facts.slo.ttft_ps
    if target is None or name_of(run, ADMISSION) == "deadline" or hit_ratio(run) >= MOSTLY_CACHED:
        return
    within = duration_text(target)
    reason = f", which rejects requests that would not get their first token within {within}"
    targets = dict.fromkeys(classes_of(run), within)
    for each in use(run, ADMISSION, "deadline", reason, targets=targets):
        yield replace(each, text=each.text.replace(f" (targets {_words(targets)})", ""))


def fair_queue(run: Observed, figure: str = "") -> Iterator[Suggestion]:
    """Suggest that the tenants take turns at the instances."""
    if len(tenants_of(run)) >= 2 and name_of(run, SCHEDULER) != "fair":
        yield from use(run, SCHEDULER, "fair", ", so that the tenants take turns in each instance", figure)


def index_size(run: Observed, only_larger: bool = False) -> Iterator[Suggestion]:
    """Suggest that the router's prefix index has the size of the instances' caches. If `only_larger`, suggest it only
    if the index is smaller than these."""
    routing = policy(run, ROUTING)
    cached = min((each.get("kv_blocks", 0) for each in run.result.instances().values()), default=0)
    paths = {"lru_blocks": routing.get("lru_blocks")}
    for scorer in routing.get("scorers") or ():
        if isinstance(scorer, dict):
            paths[f"scorers.{scorer.get('name')}.lru_blocks"] = scorer.get("lru_blocks")
    change = {
        f"policies.routing.{path}": "auto"
        for path, size in paths.items()
        if isinstance(size, int) and (size < cached or not only_larger)
    }
    if change:
        text = f"Routing: give the prefix index the size of the instances' caches ({', '.join(change)}: auto)."
        yield Suggestion(ROUTING, change, aim(run), text)


def adapter_affinity(run: Observed) -> Iterator[Suggestion]:
    """Suggest routing to instances that have the adapter loaded."""
    routing = policy(run, ROUTING)
    scorers = [each.get("name") for each in routing.get("scorers") or () if isinstance(each, dict)]
    if routing["name"] == "weighted" and "adapter-affinity" in scorers:
        return
    spec = {"name": "weighted", "scorers": {"adapter-affinity": 3, "load-balance": 1}}
    text = "Routing: use weighted with the scorers adapter-affinity and load-balance, so that fewer adapters move."
    yield Suggestion(ROUTING, {"policies.routing": spec}, aim(run), text)


def wider_limits(run: Observed, stages: Iterable[str] = (FLOW, ADMISSION)) -> Iterator[Suggestion]:
    """Suggest twice the limits of flow control and admission, which hold requests back at the router."""
    for stage in stages:
        now = policy(run, stage)
        limits = {key: now[key] for key in LIMITS[stage] if isinstance(now.get(key), int | float) and now[key]}
        if limits:
            words = " and ".join(f"{key} from {value:g} to {2 * value:g}" for key, value in limits.items())
            change = {f"policies.{stage}.{key}": 2 * value for key, value in limits.items()}
            yield Suggestion(stage, change, aim(run), f"{stage.capitalize()}: raise {words}.")


def limit_rate(run: Observed) -> Iterator[Suggestion]:
    """Suggest that admission rejects the requests that the cluster cannot complete, if these are fewer than the late
    ones, and if no autoscaler adapts the cluster to the load."""
    arrivals = run.requests.arrival_ps
    length = seconds(arrivals[len(arrivals) - 1] - run.started_ps) if len(arrivals) else 0.0
    rejected = 1 - 1 / overload(run)
    if length and LEAST_REJECTED <= rejected < run.loss.late_share and not run.result.scaling_events:
        rate = len(arrivals) / length / overload(run)
        yield from _bucket(run, "all", rate, ", which rejects the requests that the cluster cannot complete")


def limit_tenant(run: Observed, tenant: str) -> Iterator[Suggestion]:
    """Suggest that admission limits the prompt tokens of each tenant to half of what this one sends, or to what any
    other one sends if that is more."""
    sent = Counter[int]()
    for code, tokens in run.requests.select("tenant", "prompt_tokens"):
        sent[code] += tokens
    own = next((code for code, name in run.tenants.items() if name == tenant), -1)
    most = max((tokens for code, tokens in sent.items() if code != own), default=0)
    length = seconds(run.requests.arrival_ps[len(run.requests) - 1] - run.started_ps) if sent else 0.0
    limit = max(most, sent[own] / 2)
    rejected = (1 - limit / sent[own]) * run.requests.tenant[:].count(own) / len(run.requests) if sent[own] else 0.0
    if length and 0 < rejected < run.loss.late_share:
        rate = limit / length
        yield from _bucket(run, "tenant", rate, f", which limits the prompt tokens of {tenant}", by="tokens")
    else:
        reason = ", which limits each tenant to its part of the requests in flight"
        yield from use(run, ADMISSION, "tenant-fair", reason)


def limit_burst(run: Observed, tenant: str, usual: float) -> Iterator[Suggestion]:
    """Suggest that admission limits each tenant to the rate that the cluster can serve beside the usual rate of the
    others, if this rejects fewer requests than are late. `usual` is the usual rate of the bursting tenant."""
    own = next((code for code, name in run.tenants.items() if name == tenant), -1)
    others = sum(code != own for code in run.requests.tenant) / max(1.0, seconds(run.length_ps))
    rate = max(1.0, 2 * usual, _peak_rate(run) - others)
    if 0 < _rejected(run, rate, 2 * rate) < run.loss.late_share:
        yield from _bucket(run, "tenant", rate, f", which limits the bursts of {tenant}")


def _peak_rate(run: Observed) -> float:
    """Return the most requests per second that arrived and met their targets, over `PEAK_S` seconds."""
    arrivals = [at for at, flag in zip(run.requests.arrival_ps, run.missed, strict=True) if flag == MET]
    first, most = 0, 0
    for place, at in enumerate(arrivals):
        while at - arrivals[first] > PEAK_S * PS_PER_SECOND:
            first += 1
        most = max(most, place + 1 - first)
    return most / PEAK_S


def _rejected(run: Observed, rate: float, burst: float) -> float:
    """Return the fraction of the requests that a token bucket per tenant would reject."""
    left: dict[int, float] = {}
    since: dict[int, int] = {}
    rejected = 0
    for tenant, at in run.requests.select("tenant", "arrival_ps"):
        level = min(burst, left.get(tenant, burst) + seconds(at - since.get(tenant, at)) * rate)
        since[tenant] = at
        left[tenant] = level - (level >= 1)
        rejected += level < 1
    return rejected / max(1, len(run.requests))


def _bucket(run: Observed, per: str, rate: float, reason: str, **more: Any) -> Iterator[Suggestion]:
    rate = round(rate, 1) or 0.1
    yield from use(run, ADMISSION, "token-bucket", reason, per=per, rate=rate, burst=max(1, round(2 * rate)), **more)


def more_retries(run: Observed) -> Iterator[Suggestion]:
    """Suggest that requests are retried if their instance loses them."""
    retries = run.scenario.get("retries", 0)
    if isinstance(retries, int) and run.summary["requests"]["failed"] and not run.scenario.get("live"):
        text = f"Cluster: retry a request that its instance lost up to {retries + 2} times (retries)."
        yield Suggestion(CLUSTER, {"retries": retries + 2}, "requests.failed", text)
