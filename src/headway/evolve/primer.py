"""The description of the policy language for prompts. It is generated from the tables of the compiler."""

from collections.abc import Sequence
from typing import Final

from headway.evolve.suite import Suite
from headway.policies.code import language as lang
from headway.views.instance import SIGNALS

ROLES: Final = {
    "admission": "decides whether a request is admitted",
    "priority": "sets the importance of a request",
    "routing": "chooses the instance that serves a request",
    "estimator": "says how many output tokens a request will have",
    "decider": "says whether a prefill instance computes the prompt of a request that `instance` will decode",
    "scheduler": "orders the requests that wait at an instance",
    "scaling": "sets the number of replicas of a pool",
}
MEANINGS: Final = {
    **{f"instance.{name}": signal.description.rstrip(".") for name, signal in SIGNALS.items() if signal.hint},
    **{f"instance.{name}": "a mapping by tier: cpu, storage" for name in ("tier_blocks", "tier_used")},
    "request.deadline": "seconds, when the client gives up, or None",
    "cluster.tenants": "a mapping of names to tenants",
    "cluster.priority": "of this request, from the priority stage",
    "priority.hints": "a mapping of names to numbers",
    "engine.waiting": "tickets",
    "engine.batch": "tickets, in order of entry",
    "engine.recent_wait": "seconds, None without any",
    "engine.recent_output": "tokens, None without any",
    "pool.history": "samples, one for each check",
    "pool.attainment": "a mapping of classes to shares",
    "request.shared_prefix_tokens": "prompt tokens shared with other requests",
    "request.max_tokens": "None if the client set no limit",
    "request.turn": "its place in the conversation",
    "request.session": "None if it has no session",
    "request.arrival": "seconds",
    "cluster.now": "seconds",
    "cluster.instances": "all candidates",
    "cluster.totals": "sums over all instances",
    "ticket.enqueued": "time of arrival in seconds",
    "ticket.number": "in order of arrival",
    "pool.replicas": "current number",
    "pool.since_scaled": "seconds, None if the pool was never scaled",
}
HELP: Final = {
    "ratio": "ratio(a, b): a / b, or 0.0 if b is 0",
    "cached_tokens": "cached_tokens(instance): prompt tokens of this request believed cached there",
    "score_term": "score_term(name, value[, instance]): the value; records of decisions list it under the name",
    "estimated_ttft": "estimated_ttft(instance, tokens): seconds for the prefill pending there plus `tokens` tokens",
    "cached_within": "cached_within(instance, tier): the same, in gpu, cpu or storage or a faster tier",
    "believed_blocks": "believed_blocks(instance): KV blocks believed cached there",
    "eviction_order": "eviction_order(instance, count): the next pieces to go, as (blocks, of this prompt or not)",
    "last_access": "last_access(instance): seconds, when the last of these tokens was last sent there; None if never",
    "tier_utilization": "tier_utilization(instance, tier): share of cpu or storage in use there",
    "rate_over": "rate_over(cluster.totals or a tenant, seconds): requests per second, up to 600 s",
    "throughput_over": "throughput_over(cluster.totals, seconds): output tokens per second, up to 600 s",
    "send": "send(instance, prefill=instance, priority=number, reason=text): a route with more than an instance",
    "reject": "reject(reason): reject the request",
    "filtered_out": "filtered_out(name, instance): notes in the record that a filter removed it",
    "tenant": "tenant(request): statistics of its tenant, with requests, active, rate, slo_class and burst",
    "recall": "recall(key, default): the value remembered under a text or whole number",
    "remember": "remember(key, value): keep a number or short text for later decisions",
    "concurrency": "concurrency(pool, seconds): mean requests in flight",
    "rate": "rate(pool, seconds): requests per second",
    "output_rate": "output_rate(pool, seconds): tokens per second",
    "attainment": "attainment(pool): share of requests within their SLO, or None",
}
RULES: Final = """\
It is a subset of Python. The top level has functions, constants and parameters. Functions have assignments, if, for,
while, break, continue, return, arithmetic, comparisons, lists, tuples, dicts, and comprehensions with one for.
There is no import, class, lambda (except as key= of min, max and sorted), try, with, global, recursion, default
argument, f-string, set, **, print, and no attribute except the fields below.
NAME = parameter(default, low, high) is a number with its range; use it for constants worth tuning.
A routing policy defines either score or route. Every result must be finite and of the required kind.
A decision has at most 100,000 steps. Output lengths are unknown."""


def primer(stages: Sequence[str]) -> str:
    """Return a description of the functions, fields and helpers that policies of these stages may use."""
    parts = ["Policies are written in a small language.", RULES, "", "Functions to define:"]
    records: dict[int, None] = {}
    for stage in stages:
        for name, entrance in {**lang.ENTRANCES[stage], **lang.HOOKS.get(stage, {})}.items():
            arguments = ", ".join(argument for argument, _ in entrance.arguments)
            hook = name in lang.HOOKS.get(stage, {})
            meaning = f"optional, returns {entrance.gives}" if hook else entrance.gives
            parts.append(f"- {stage}: {name}({arguments}): {meaning}")
            for _, kind in entrance.arguments:
                records.update(dict.fromkeys(_reachable(kind)))
    parts += ["", "Fields:", *(f"- {lang.RECORDS[kind]}: {_fields(kind)}" for kind in records)]
    usual = [name for name, function in lang.FUNCTIONS.items() if name not in HELP and not function.stages]
    parts += ["", f"Functions: {', '.join(usual)} as in Python, and"]
    own = [name for name, function in lang.FUNCTIONS.items() if name in HELP and _usable(function, stages)]
    parts += [f"- {HELP[name]}" for name in own]
    return "\n".join(parts)


def task(suite: Suite, stages: Sequence[str]) -> str:
    """Return a description of the task and the objectives for a language model."""
    what = "; ".join(f"the {stage} policy {ROLES[stage]}" for stage in stages)
    aims = ", ".join(f"{objective.name} (weight {objective.weight:g})" for objective in suite.objectives)
    return (
        f"You improve the policies of a cluster that serves language models: {what}.\n"
        f"A simulator evaluates them on {len(suite.cases('train'))} cases by {aims}. Each objective is a gain over a "
        "baseline in the same case: 0.1 means one tenth better. The fitness is the weighted mean. A policy that is "
        "rejected or fails in one case has the fitness -10. The final comparison uses unseen workloads, so find rules "
        "that generalise, and keep them simple."
    )


def _reachable(kind: int) -> list[int]:
    """Return a record type and all record types that its fields refer to."""
    kinds: list[int] = []
    todo = [kind]
    while todo:
        kind = todo.pop(0)
        kind = lang.ROWS.get(kind, lang.TENANT if kind == lang.TENANTS else kind)
        if kind in lang.FIELDS and kind not in kinds:
            kinds.append(kind)
            todo += [field.kind for field in lang.FIELDS[kind].values()]
    return kinds


def _fields(kind: int) -> str:
    record = lang.RECORDS[kind]
    fields = []
    for name in lang.FIELDS[kind]:
        meaning = MEANINGS.get(f"{record}.{name}")
        fields.append(name if meaning is None else f"{name} ({meaning})")
    return ", ".join(fields)


def _usable(function: lang.Function, stages: Sequence[str]) -> bool:
    return not function.stages or any(stage in function.stages for stage in stages)
