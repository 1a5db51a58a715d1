"""Sentences to print beside figures: why there are none, or why they say less than they seem to."""

from collections.abc import Iterable, Mapping
from typing import Any

from headway.policies import registry
from headway.policies.registry import DEFAULT_POLICIES
from headway.scenario.cluster_spec import Cluster
from headway.scenario.scenario import Scenario

COPIES = "keep_prefill_copy"


def note_no_figures(summary: Mapping[str, Any], warmup: int) -> str | None:
    """Why a run has no figures; None where it has some."""
    requests = summary["requests"]
    arrived = requests["arrived"]
    if not arrived:
        return "No request arrived, so there is nothing to count."
    if warmup >= arrived:
        return f"No request is left to count: warmup is {warmup:,} and {arrived:,} arrived."
    if summary["latency"]["e2e"]["mean"] is None:
        ends = ("rejected", "timed_out", "failed", "in_flight")
        what = ", ".join(f"{requests[end]:,} {end.replace('_', ' ')}" for end in ends if requests[end])
        counted = " that counts" if requests["completed"] else ""
        return f"No request{counted} was completed: of {arrived:,}, {what}."
    return None


def note_idle_autoscaler(scenario: Scenario, compared: bool = False) -> str | None:
    """Why an autoscaler, or those `compared`, can do nothing; None where they can, or where there is none."""
    pools = scenario.cluster.scaling_pools().values()
    specs = [scenario.policies.scaling if pool.scaling is None else pool.scaling for pool in pools]
    if not compared and all(_is_static(spec) for spec in specs):
        return None
    free = [pool for pool in pools if len(set(pool.bounds())) > 1]
    if not free:
        return (
            "No pool may change its size, so that an autoscaler has nothing to do: "
            "give 'max_replicas', and 'min_replicas' where it may shrink, beside 'instances'."
        )
    if compared and all(pool.scaling is not None for pool in free):
        return (
            "Every pool that may change its size has a 'scaling' of its own, "
            "beside which 'policies.scaling', and so this comparison, has no effect; take it away there."
        )
    if scenario.scaling is not None and scenario.scaling.interval_ps is None and scenario.scaling.triggers is None:
        return "'scaling.interval' is null and there are no 'scaling.triggers', so that no autoscaler ever looks."
    return None


def note_unmeasured(scenario: Scenario) -> str | None:
    """What to say of step times that were never measured; None where all were, or where they are the user's own."""
    notes: dict[str, None] = {}
    for pool in scenario.cluster.scaling_pools().values():
        doubts = getattr(pool.latency_model(), "doubts", None)
        sentence = None if doubts is None else doubts(pool.max_batch_tokens, pool.max_batch_size)
        if sentence is not None:
            notes[sentence] = None
    return " ".join(notes) or None


def _is_static(spec: Any) -> bool:
    name = spec.get("name") if isinstance(spec, Mapping) else spec
    return isinstance(name, str) and registry.canonical(name) == DEFAULT_POLICIES["scaling"]


def note_missed_faults(scenario: Scenario, summaries: Iterable[Mapping[str, Any]]) -> str | None:
    """What to say of faults that struck nothing in any of the runs; None where all did in one."""
    faults = len(scenario.faults)
    if not faults:
        return None
    struck = max(sum(summary["scaling"]["faults"].values()) for summary in summaries)
    if struck == faults:
        return None
    which = "The fault" if faults == 1 else f"{faults - struck} of {faults} faults"
    return f"{which} struck nothing: its instance was not there then, or the run was over before."


def moves_prefixes(cluster: Cluster) -> bool:
    """Whether prompts are computed apart, and nothing of them stays there."""
    pools = cluster.by_name().values()
    return any(pool.architecture == "disaggregated" and not pool.transfer.keep_prefill_copy for pool in pools)


def pairs_by_prefix(spec: Any) -> bool:
    """Whether a routing policy chooses pairs, and one of them by what is cached there."""
    policy = _build_routing(spec)
    return bool(getattr(policy, "pairs", False) and getattr(policy, "seeks_prefixes", False))


def _build_routing(spec: Any) -> Any:
    return registry.build("routing", spec, "policies.routing") if isinstance(spec, str | dict) else spec


def note_lost_prefixes(cluster: Cluster, routing: Mapping[str, Any]) -> str | None:
    """What to say of policies, by name, that send prompts where their prefixes are computed to instances which do not
    keep them; None where there is nothing to say."""
    moved = moves_prefixes(cluster)
    names = [name for name, spec in routing.items() if moved and _seeks_prefixes(spec)]
    if not names:
        return None
    many = len(names) > 1
    lives = f"{', '.join(names)} {'live' if many else 'lives'} on prefixes cached where prompts are computed"
    lost = "'transfer.keep_prefill_copy' is off, so that nothing stays there once it has been moved"
    return f"{lives}; {lost}. Set it to true to keep a copy there."


def _seeks_prefixes(spec: Any) -> bool:
    """Whether prompts go where they are believed cached: a pair says so, any other reads an index of prefixes."""
    policy = _build_routing(spec)
    entry = registry.own_entry(policy)
    reads = entry is not None and "prefix_index" in entry.exact
    return bool(getattr(policy, "seeks_prefixes", reads))
