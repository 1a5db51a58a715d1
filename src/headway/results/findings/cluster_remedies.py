"""Changes of the cluster and of its engines that several kinds of findings suggest.

Each function yields suggestions, best first. It yields none if the change does not apply to the run: if the run has no
such setting, or if the run is live traffic, whose engines have no settings here.
"""

from collections.abc import Iterator
from math import ceil
from typing import Final

from headway import latency
from headway.config.units import bandwidth, duration_ps, duration_text
from headway.latency.engines import engine_load
from headway.policies import registry
from headway.results.findings.observed import Observed
from headway.results.findings.run_settings import (
    Pool,
    aim,
    link_binds,
    name_of,
    overload,
    policy,
    pool_of,
    pools,
    setting,
)
from headway.results.records import CLUSTER, ENGINE, ROUTING, SCALING, Finding, Suggestion
from headway.types import Json

MORE: Final = 1.5  # smallest factor by which to raise the number of replicas
HEADROOM: Final = 1.25  # replicas to add beyond what the overload needs


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
    transfer = setting(run.scenario, path) or {}
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
    limit = setting(run.scenario, path)
    if isinstance(limit, int):
        text = f"Cluster: let a decode instance accept {2 * limit} requests at a time instead of {limit} ({path})."
        yield Suggestion(CLUSTER, {path: 2 * limit}, aim(run), text)


def faster_tiers(run: Observed, finding: Finding) -> Iterator[Suggestion]:
    """Suggest links to the tiers below the GPU that are twice as fast."""
    pool = pool_of(run, finding)
    tiers = {} if pool is None else setting(pool.settings, "kv.tiers") or {}
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


def scaled(
    run: Observed, finding: Finding, key: str, factor: float, reason: str, *, role: str = "", figure: str = ""
) -> Iterator[Suggestion]:
    """Suggest a setting of the instances, multiplied by a factor. `reason` ends the sentence."""
    pool = pool_of(run, finding, role)
    now = None if pool is None else setting(pool.settings, key)
    if pool is None or not isinstance(now, int) or isinstance(now, bool):
        return
    yield from set_to(run, finding, key, max(1, round(now * factor)), reason, role=role, figure=figure)


def set_to(
    run: Observed, finding: Finding, key: str, value: int, reason: str, *, role: str = "", figure: str = ""
) -> Iterator[Suggestion]:
    """Suggest a value of a setting of the instances. `reason` ends the sentence."""
    pool = pool_of(run, finding, role)
    now = None if pool is None else setting(pool.settings, key)
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
    now = setting(pool.settings, "kv.gpu_blocks")
    most = _blocks_in_memory(run, pool)
    if isinstance(now, int) and (most is None or now < most):
        value = 2 * now if most is None else min(2 * now, most)
        text = f"Engine: give the KV cache {value} blocks instead of {now} ({pool.path}.kv.gpu_blocks)."
        yield Suggestion(ENGINE, {f"{pool.path}.kv.gpu_blocks": value}, figure or aim(run), text)


def _blocks_in_memory(run: Observed, pool: Pool) -> int | None:
    """Return the number of KV blocks that fit into the memory of an instance's GPUs; None if it is unknown."""
    whole = setting(run.scenario, pool.deployment)
    tokens = setting(run.scenario, "cluster.kv.block_tokens")
    share = setting(pool.settings, "kv.utilization")
    try:
        model = latency.read_model(pool.get("model") or whole["model"], "model")
        gpu, engine = latency.read_gpu(pool.get("gpu"), "gpu"), setting(pool.settings, "latency.engine")
        load = engine_load(engine, pool.get("max_batch_tokens"), pool.get("max_batch_size"))
        return latency.kv_blocks(model, gpu, pool.get("tp"), tokens, share, "kv", engine=load)
    except Exception:  # figures of a user's own model or GPU may be incomplete
        return None


def more_retries(run: Observed) -> Iterator[Suggestion]:
    """Suggest that requests are retried if their instance loses them."""
    retries = run.scenario.get("retries", 0)
    if isinstance(retries, int) and run.summary["requests"]["failed"] and not run.scenario.get("live"):
        text = f"Cluster: retry a request that its instance lost up to {retries + 2} times (retries)."
        yield Suggestion(CLUSTER, {"retries": retries + 2}, "requests.failed", text)
