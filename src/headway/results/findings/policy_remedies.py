"""Changes of the policies that several kinds of findings suggest.

Each function yields suggestions, best first. It yields none if the change does not apply to the run: if the policy is
already in use, or if the run has no such setting.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final

from msgspec.structs import replace

from headway.config.units import duration_text
from headway.results.findings.observed import Observed, seconds
from headway.results.findings.run_settings import (
    aim,
    caches_prefixes,
    classes_of,
    disaggregated,
    hit_ratio,
    name_of,
    overload,
    policy,
    reads_prefixes,
    setting,
    tenants_of,
    written,
)
from headway.results.records import ADMISSION, ENGINE, FLOW, ROUTING, SCHEDULER, Suggestion
from headway.results.sample import MET
from headway.types import PS_PER_SECOND

LEAST_REJECTED: Final = 0.1  # smallest fraction of the requests that a limit of the rate should reject
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
    if hit_ratio(run) >= CACHED and not (written(run, "cached_tokens") and written(run, "inflight")):
        yield from lmetric(run, figure)
    if now not in EXACT and not written(run, "inflight"):
        yield from use(run, ROUTING, "least-loaded", ", which balances the requests in flight", figure)


def lmetric(run: Observed, figure: str = "") -> Iterator[Suggestion]:
    """Suggest the routing policy that weighs the load against the cached prefix, if instances cache prefixes."""
    tokens = setting(run.scenario, "cluster.kv.block_tokens")
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
