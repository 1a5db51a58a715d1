"""Notes on figures: why a run has no figures, or what limits their meaning."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from headway.config.wording import cut
from headway.policies import registry
from headway.policies.registry import DEFAULT_POLICIES
from headway.results.result import Result
from headway.scenario.cluster_spec import Cluster
from headway.scenario.scenario import Scenario
from headway.workload.replay import open_replayed
from headway.workload.trace_spec import parse
from headway.workload.traces.own_table import BAD_ROWS

COPIES = "keep_prefill_copy"


def note_no_figures(summary: Mapping[str, Any], warmup: int) -> str | None:
    """Return a note that says why a run has no figures. If the run has figures, return None."""
    requests = summary["requests"]
    arrived = requests["arrived"]
    if not arrived:
        return "No request arrived, so there are no figures."
    if warmup >= arrived:
        return f"No request is left to count: warmup is {warmup:,} and {arrived:,} arrived."
    if summary["latency"]["e2e"]["mean"] is None:
        ends = ("rejected", "timed_out", "failed", "in_flight")
        what = ", ".join(f"{requests[end]:,} {end.replace('_', ' ')}" for end in ends if requests[end])
        counted = " after the warm-up" if requests["completed"] else ""
        return f"No request{counted} was completed: of {arrived:,}, {what}."
    return None


def note_idle_autoscaler(scenario: Scenario, compared: bool = False) -> str | None:
    """Return a note that says why the autoscaler cannot act or, if `compared` is set, why none of the compared
    autoscalers can act. If an autoscaler can act, or if there is no autoscaler, return None."""
    pools = scenario.cluster.scaling_pools().values()
    specs = [scenario.policies.scaling if pool.scaling is None else pool.scaling for pool in pools]
    if not compared and all(_is_static(spec) for spec in specs):
        return None
    free = [pool for pool in pools if len(set(pool.bounds())) > 1]
    if not free:
        return (
            "No pool may change its size, so an autoscaler has nothing to do. "
            "Set 'max_replicas' above 'instances' to let a pool grow, or 'min_replicas' below it to let it shrink."
        )
    if compared and all(pool.scaling is not None for pool in free):
        return (
            "Every pool that may change its size has its own 'scaling', which overrides 'policies.scaling', "
            "so this comparison has no effect. Remove 'scaling' from the pools."
        )
    if scenario.scaling is not None and scenario.scaling.interval_ps is None and scenario.scaling.triggers is None:
        return "'scaling.interval' is null and there are no 'scaling.triggers', so the autoscaler never runs. Set one."
    return None


def note_unmeasured(scenario: Scenario) -> str | None:
    """Return a note that names the step times for which the latency model has no measurements, and what Headway does
    not model of the cluster's models. If all step times were measured or come from the user, return None."""
    notes: dict[str, None] = {}
    for pool in scenario.cluster.scaling_pools().values():
        shape = pool.shape()
        if shape.note:
            notes[shape.note] = None
        doubts = getattr(pool.latency_model(), "doubts", None)
        sentence = None if doubts is None else doubts(pool.max_batch_tokens, pool.max_batch_size)
        if sentence is not None:
            notes[sentence] = None
    return " ".join(notes) or None


def note_bad_rows(scenario: Scenario) -> str | None:
    """Return a note that counts the rows of the trace that `skip_bad` skipped, with the first of them. If no row was
    skipped, return None."""
    if scenario.workload.trace is None:
        return None
    trace = parse(scenario.workload.trace)
    if not trace.skip_bad:
        return None
    info = open_replayed(replace(trace, transforms=None), seed=0).info
    note = next((note for note in info.extra.get("notes", ()) if note.startswith(BAD_ROWS)), None)
    return None if note is None else f"{Path(trace.path).name}: {note}."


def note_one_model(scenario: Scenario, result: Result) -> str | None:
    """Return a note if a trace names several models, but the cluster has no deployments, so that every instance answers
    the requests for all of these models. Otherwise return None."""
    if scenario.cluster.deployments or scenario.workload.trace is None:
        return None
    names = list(dict.fromkeys(result.requests["model"]))
    if len(names) < 2:
        return None
    served = scenario.cluster.default_model()
    return (
        f"The requests name {len(names)} models ({cut(', '.join(names))}), but every instance serves {served} and "
        "answers all of them. Describe each model in 'cluster.deployments' to simulate them separately."
    )


def _is_static(spec: Any) -> bool:
    name = spec.get("name") if isinstance(spec, Mapping) else spec
    return isinstance(name, str) and registry.canonical(name) == DEFAULT_POLICIES["scaling"]


def note_missed_faults(scenario: Scenario, summaries: Iterable[Mapping[str, Any]]) -> str | None:
    """Return a note that says how many faults had no effect in any run. If all faults had an effect, return None."""
    faults = len(scenario.faults)
    if not faults:
        return None
    struck = max(sum(summary["scaling"]["faults"].values()) for summary in summaries)
    if struck == faults:
        return None
    which = "The fault" if faults == 1 else f"{faults - struck} of {faults} faults"
    return f"{which} had no effect: the instance did not exist at that time, or the run had ended."


def moves_prefixes(cluster: Cluster) -> bool:
    """Return whether the cluster has a disaggregated deployment whose prefill instances keep no copy of a prefix after
    they have transferred it."""
    pools = cluster.by_name().values()
    return any(pool.architecture == "disaggregated" and not pool.transfer.keep_prefill_copy for pool in pools)


def pairs_by_prefix(spec: Any) -> bool:
    """Return whether a routing policy chooses prefill-decode pairs, and chooses one of the two instances by its cached
    prefixes."""
    policy = _build_routing(spec)
    return bool(getattr(policy, "pairs", False) and getattr(policy, "seeks_prefixes", False))


def _build_routing(spec: Any) -> Any:
    return registry.build("routing", spec, "policies.routing") if isinstance(spec, str | dict) else spec


def note_former_decider(scenario: Scenario) -> str | None:
    """Return a note if the routing policy names the decider, which is now a stage of its own. Otherwise return None."""
    spec = scenario.policies.routing
    if not isinstance(spec, Mapping) or spec.get("decider") is None:
        return None
    return "policies.routing.decider: this key works in this version only. Write policies.decider."


def note_lost_prefixes(cluster: Cluster, routing: Mapping[str, Any]) -> str | None:
    """Return a note that names the policies that route by cached prefixes although prefill instances do not keep
    prefixes. If there are no such policies, return None."""
    moved = moves_prefixes(cluster)
    names = [name for name, spec in routing.items() if moved and _seeks_prefixes(spec)]
    if not names:
        return None
    routes = f"{', '.join(names)} {'route' if len(names) > 1 else 'routes'} by prefixes cached on prefill instances"
    lost = "'transfer.keep_prefill_copy' is off, so these instances drop a prefix once it is transferred"
    return f"{routes}, but {lost}. Set it to true to keep a copy."


def _seeks_prefixes(spec: Any) -> bool:
    """Return whether a policy routes by cached prefixes. A pair policy declares this in `seeks_prefixes`. Any other
    policy routes by cached prefixes if it reads a prefix index."""
    policy = _build_routing(spec)
    entry = registry.own_entry(policy)
    reads = entry is not None and "prefix_index" in entry.exact
    return bool(getattr(policy, "seeks_prefixes", reads))
