"""What a language model is told of its task before it writes a policy: the cluster, the workloads in words, and the
baseline with its source and its figures. It is the same for every prompt of a search."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from headway.errors import HeadwayError
from headway.evolve.cache import Cache
from headway.evolve.evaluate import evaluate
from headway.evolve.evaluation import Case
from headway.evolve.feedback import COLUMNS, MOST_ROWS, cell, harmless
from headway.evolve.suite import Suite
from headway.evolve.texts import readable, texts_of
from headway.experiment.runner import Runner
from headway.policies.bundle import Bundle
from headway.report.terminal import describe_scenario

MOST_TENANTS: Final = 6  # maximum number of tenants of a workload that are described
LONGEST: Final = 3000  # maximum number of characters of the baseline's source


def briefing(
    suite: Suite,
    stages: Sequence[str],
    cache: Cache | str | Path | None = None,
    runner: Runner | None = None,
) -> str:
    """Return a description of the cluster, the workloads and the baseline of a suite's train part. The baseline's
    runs come from the cache, where the search needs them as well."""
    cases = suite.cases("train")
    baseline = Bundle("baseline", suite.baseline)
    evaluation = evaluate(baseline, suite.for_search(), cases=cases, told=False, cache=cache, runner=runner)
    clusters = {_cluster(case): None for case in cases}
    first = {case.name: case for case in reversed(cases)}
    lines = ["The cluster:", *(f"- {cluster}" for cluster in clusters), "", "The workloads:"]
    lines += [f"- {name}: {_requests(first[name].scenario['workload'])}" for name in evaluation.workloads()]
    for stage in stages:
        lines += ["", f"The {stage} policy of the baseline:", "```", _source(baseline, stage).strip(), "```"]
    lines += ["", f"| figures of the baseline | {' | '.join(COLUMNS)} |", "|---" * (1 + len(COLUMNS)) + "|"]
    for name, results in list(evaluation.workloads().items())[:MOST_ROWS]:
        lines.append(f"| {name} | {' | '.join(cell(results, path, form) for path, form in COLUMNS.values())} |")
    return harmless("\n".join(lines))


def _source(baseline: Bundle, stage: str) -> str:
    """Return the source of the baseline's policy, or its settings if it has none in the policy language."""
    try:
        source = texts_of(baseline, [stage])[stage]
    except HeadwayError:
        source = readable(baseline, stage)
    return source if len(source) <= LONGEST else source[:LONGEST] + "\n..."


def _cluster(case: Case) -> str:
    size, how = describe_scenario({**case.scenario, "policies": {}})
    pools = case.scenario["cluster"]
    limits = [f"{name.replace('_', ' ')} {pools[name]:,}" for name in LIMITS if isinstance(pools.get(name), int)]
    blocks = pools.get("kv", {}).get("gpu_blocks")
    limits += [f"{blocks:,} KV blocks each"] if isinstance(blocks, int) else []
    slo = {name: limit for name, limit in case.scenario.get("slo", {}).items() if isinstance(limit, str)}
    targets = [f"{name.upper()} within {limit}" for name, limit in slo.items()]
    return "; ".join((size, *limits, *how.split("; ")[1:], *targets))


LIMITS: Final = ("max_batch_tokens", "max_batch_size", "max_queue")


def _requests(workload: Mapping[str, Any]) -> str:
    """Describe a workload: its size, its arrivals and the lengths of its prompts and answers."""
    parts = []
    if "trace" in workload:
        trace = workload["trace"]
        keys = ("format", "requests", "speed", "rate", "skip", "lead_in", "starts")
        known = [f"{key} {trace[key]}" for key in keys if trace.get(key) is not None]
        parts.append(f"a trace of real requests ({', '.join(known)})")
    size = [f"{workload['requests']:,} requests"] if isinstance(workload.get("requests"), int) else []
    size += [f"at {workload['rate']}"] if workload.get("rate") else []
    parts += [" ".join(size)] if size else []
    tenants = workload.get("tenants")
    if not tenants:
        return "; ".join((*parts, *_kind(workload)))
    for name, tenant in list(tenants.items())[:MOST_TENANTS]:
        weight = f" (weight {tenant['weight']:g})" if isinstance(tenant.get("weight"), int | float) else ""
        parts.append(f"tenant {name}{weight}: {', '.join(_kind(tenant))}")
    if len(tenants) > MOST_TENANTS:
        parts.append(f"{len(tenants) - MOST_TENANTS} more tenants")
    return "; ".join(parts)


def _kind(requests: Mapping[str, Any]) -> list[str]:
    """Describe the requests of a tenant, or of a workload without tenants."""
    parts = []
    arrival, behaviour = requests.get("arrival"), requests.get("behaviour")
    if isinstance(arrival, dict):
        arrival = f"{arrival.get('process')} (coefficient of variation {arrival.get('cv')})"
    if arrival:
        parts.append(f"{arrival} arrivals")
    if isinstance(behaviour, dict) and behaviour.get("type") not in (None, "normal"):
        parts.append(f"{behaviour['type']} users")
    for key, words in (("prompt_tokens", "prompts"), ("output_tokens", "answers")):
        if key in requests:
            parts.append(f"{words} of {_lengths(requests[key])}")
    prefix = requests.get("prefix")
    if isinstance(prefix, dict) and "groups" in prefix:
        parts.append(f"prompts begin with one of {prefix['groups']} prefixes of {_lengths(prefix.get('tokens'))}")
    kind = requests.get("kind")
    if isinstance(kind, dict) and "turns" in kind:
        parts.append(f"conversations of {_lengths(kind['turns'], 'turns')}")
    return parts


def _lengths(spec: object, unit: str = "tokens") -> str:
    if not isinstance(spec, dict):
        return f"{spec:,} {unit}" if isinstance(spec, int) else f"{spec} {unit}"
    ends = f"{spec['min']:,} to {spec['max']:,}" if {"min", "max"} <= spec.keys() else ""
    if "mean" in spec:
        return f"{spec['mean']:,} {unit} on average{f' ({ends})' if ends else ''}"
    return f"{ends} {unit}" if ends else f"{spec.get('dist', 'drawn')} {unit}"
