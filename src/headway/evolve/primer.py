"""The policy language for a language model: what there is and what there is not, made of what the compiler knows."""

from collections.abc import Sequence
from typing import Final

from headway.evolve.suite import Suite
from headway.policies.code import language as lang
from headway.views.instance import SIGNALS

ROLES: Final = {
    "admission": "decides whether a request is let in",
    "priority": "says how much a request matters",
    "routing": "chooses the instance that serves a request",
    "scheduler": "orders the requests that wait at an instance",
    "scaling": "says how many replicas a pool is to have",
}
MEANINGS: Final = {
    **{f"instance.{name}": signal.hint for name, signal in SIGNALS.items() if signal.hint},
    "request.shared_prefix_tokens": "of the prompt, shared with others",
    "request.max_tokens": "None where the client did not say",
    "request.turn": "its place in the conversation",
    "request.session": "None without one",
    "request.arrival": "seconds",
    "cluster.now": "seconds",
    "cluster.instances": "all candidates",
    "cluster.totals": "of all instances",
    "ticket.enqueued": "seconds, when it came",
    "ticket.number": "in order of arrival",
    "pool.replicas": "as they are now",
    "pool.since_scaled": "seconds, None where it never was",
}
HELP: Final = {
    "ratio": "ratio(a, b): a / b, and 0.0 where b is 0",
    "cached_tokens": "cached_tokens(instance): prompt tokens of this request believed cached there",
    "estimated_ttft": "estimated_ttft(instance, tokens): seconds for the prefill pending there and so many tokens more",
    "tenant": "tenant(request): what was seen of its tenant, with requests, active, rate, slo_class and burst",
    "recall": "recall(key, default): what was remembered under a text or whole number",
    "remember": "remember(key, value): keep a number or short text from decision to decision",
    "concurrency": "concurrency(pool, seconds): mean requests under way",
    "rate": "rate(pool, seconds): requests a second",
    "output_rate": "output_rate(pool, seconds): tokens a second",
    "attainment": "attainment(pool): share of requests within their SLO, or None",
}
RULES: Final = """\
It is a part of Python. There are functions, constants and parameters at the top level, and in functions assignments,
if, for, while, break, continue, return, arithmetic, comparisons, lists, tuples, dicts, and comprehensions with one for.
There is no import, class, lambda (but as key= of min, max and sorted), try, with, global, recursion, default argument,
f-string, set, **, print, and no attribute but the fields below.
NAME = parameter(default, low, high) is a number with its range; use it for constants worth tuning.
Of score and route a routing policy has one. Every result must be a finite number of the kind that is wanted.
A decision has 100,000 steps. Output lengths are not known."""


def primer(stages: Sequence[str]) -> str:
    """All that a policy of these stages can be made of."""
    parts = ["Policies are written in a small language.", RULES, "", "Functions to define:"]
    records: dict[int, None] = {}
    for stage in stages:
        for name, entrance in {**lang.ENTRANCES[stage], **lang.HOOKS.get(stage, {})}.items():
            arguments = ", ".join(argument for argument, _ in entrance.arguments)
            meaning = "optional, told where each request went" if name in lang.HOOKS.get(stage, {}) else entrance.gives
            parts.append(f"- {stage}: {name}({arguments}): {meaning}")
            for _, kind in entrance.arguments:
                records.update(dict.fromkeys(_reachable(kind)))
    parts += ["", "Fields:", *(f"- {lang.RECORDS[kind]}: {_fields(kind)}" for kind in records)]
    usual = [name for name, function in lang.FUNCTIONS.items() if name not in HELP and not function.stages]
    parts += ["", f"Functions: {', '.join(usual)}, as in Python, and"]
    own = [name for name, function in lang.FUNCTIONS.items() if name in HELP and _there(function, stages)]
    parts += [f"- {HELP[name]}" for name in own]
    return "\n".join(parts)


def task(suite: Suite, stages: Sequence[str]) -> str:
    """What is wanted."""
    what = "; ".join(f"the {stage} policy {ROLES[stage]}" for stage in stages)
    aims = ", ".join(f"{objective.name} (weight {objective.weight:g})" for objective in suite.objectives)
    return (
        f"You improve the policies of a cluster that serves language models: {what}.\n"
        f"A simulator judges them on {len(suite.cases('train'))} cases by {aims}: each is a gain over a baseline in "
        "the same case, 0.1 is a tenth better, and the fitness is the weighted mean. A policy that is refused or fails "
        "in one case has -10. Winners are judged on workloads that nobody has seen, so find rules that hold anywhere, "
        "and keep them simple."
    )


def _reachable(kind: int) -> list[int]:
    """A record and those that its fields lead to."""
    kind = lang.INSTANCE if kind == lang.INSTANCES else kind
    kinds = [kind]
    for field in lang.FIELDS[kind].values():
        step = lang.INSTANCE if field.kind == lang.INSTANCES else field.kind
        if step in lang.FIELDS and step not in kinds:
            kinds.append(step)
    return kinds


def _fields(kind: int) -> str:
    record = lang.RECORDS[kind]
    fields = []
    for name in lang.FIELDS[kind]:
        meaning = MEANINGS.get(f"{record}.{name}")
        fields.append(name if meaning is None else f"{name} ({meaning})")
    return ", ".join(fields)


def _there(function: lang.Function, stages: Sequence[str]) -> bool:
    return not function.stages or any(stage in function.stages for stage in stages)
