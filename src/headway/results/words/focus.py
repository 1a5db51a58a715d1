"""What to try next: one suggestion for each issue, in the words of the policies that ran."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from headway import policies
from headway.policies import registry
from headway.results.survey import SHORT_QUEUE
from headway.results.words.issues import Issue
from headway.results.words.material import Material
from headway.results.words.outcome import kept, where_it_went
from headway.results.words.phrases import Line, Parts, Section, amount, count, ms, name, number, percent, said

PREFIX_SCORER: Final = "prefix"  # what the names of scorers begin with that look at the cache
# Where the time to first token went, and what is to be done about it.
LONGEST: Final = {
    "router": "went by before they were routed: look at admission and the queue at the router",
    "queue": "went by before their first step: send fewer to busy instances, admit fewer, or add replicas",
    "prefill": "was prefill: route to where the prefix is cached, or keep prompts from being chopped up by decodes",
}
POLICIES: Final = policies.__name__  # imported so that the registry knows them


def write_focus(run: Material, found: list[Issue], focus: Collection[str]) -> Section:
    """The suggestions in the order of the issues that they answer, each once."""
    lines: list[Line] = []
    said_already: set[str] = set()
    for issue in found:
        if (focus and issue.area not in focus) or issue.kind not in RULES:
            continue
        parts = RULES[issue.kind](run)
        line = Line(parts, 6 + 3 * len(lines))
        if line.text not in said_already:
            said_already.add(line.text)
            lines.append(line)
    if not lines:
        lines.append(Line(_nothing(run), 14))
    return Section(("## Suggested Focus",), lines)


def _nothing(run: Material) -> Parts:
    if run.has_slo and not kept(run):
        return RULES["slo_violation"](run)
    if run.summary["requests"]["completed"]:
        busy = [one["utilization"] for one in run.summary["instances"] if one["utilization"] is not None]
        if busy and max(busy) < 0.5:
            most = percent("instances.most_utilization", max(busy))
            return said("No instance was busy more than {} of the time: `headway plan` tells if fewer do.", most)
    return ("Nothing stands out; try more load, or compare policies with `headway compare`.",)


def _prefix(run: Material) -> Parts:
    routing = run.scenario["policies"]["routing"]
    scorers = routing.get("scorers") if isinstance(routing, dict) else None
    known = [
        (place, one)
        for place, one in enumerate(scorers if isinstance(scorers, list) else ())
        if isinstance(one, dict) and isinstance(one.get("weight"), int | float)
    ]
    cached = [pair for pair in known if str(pair[1]["name"]).startswith(PREFIX_SCORER)]
    others = [pair for pair in known if pair not in cached]
    queue = number("constant.SHORT_QUEUE", SHORT_QUEUE)
    if cached and others:
        heaviest = max(others, key=lambda pair: pair[1]["weight"])
        return said(
            "Routing: raise {} against {}, at least while the instance that holds the prefix has fewer than {} queued.",
            _weight(cached[0]),
            _weight(heaviest),
            queue,
        )
    if _reads_prefixes(run):
        return said("Routing: let the cached prefix count for more where its instance has fewer than {} queued.", queue)
    return ("Routing: take the cached prefix into account, as weighted, prefix-overlap and lmetric do.",)


def _weight(pair: tuple[int, dict[str, object]]) -> Parts:
    place, scorer = pair
    source = f"scenario.policies.routing.scorers.{place}"
    weight = scorer["weight"]
    assert isinstance(weight, int | float)
    return said("{} (now {})", name(f"{source}.name", str(scorer["name"])), amount(f"{source}.weight", weight))


def _reads_prefixes(run: Material) -> bool:
    routing = run.scenario["policies"]["routing"]
    wanted = routing.get("name") if isinstance(routing, dict) else routing
    return any("prefix_index" in entry.exact for entry in registry.entries("routing", str(wanted)))


def _plainly(text: str) -> Callable[[Material], Parts]:
    return lambda run: (text,)


def _admission(run: Material) -> Parts:
    ran = run.scenario["policies"].get("admission")
    given = ran.get("name") if isinstance(ran, dict) else ran
    if given == "always":
        return ("Admission: everything is let in; try tenant-fair, or a token-bucket for the tenant that bursts.",)
    return said(
        "Admission: {} lets the bursts through; charge the tenant that bursts for what it sends at once.",
        name("scenario.policies.admission.name", str(given)),
    )


def _late(run: Material) -> Parts:
    """By what was missed most and where the time went."""
    missed = run.missed_by
    if missed["tpot"] > missed["ttft"]:
        return said(
            "Latency: {} missed TPOT, {} TTFT: keep batches smaller (max_batch_size), prefill in smaller chunks"
            " (max_batch_tokens), or spread the load.",
            count("misses.tpot", missed["tpot"]),
            count("misses.ttft", missed["ttft"]),
        )
    who, number_of, spans = where_it_went(run)
    if not number_of or not any(spans.values()):
        return ("Latency: more was asked for than could be served in time.",)
    longest = max(spans, key=spans.__getitem__)
    return said(
        f"Latency: most of the TTFT of those that missed, {{}}, {LONGEST[longest]}.",
        ms(f"spans.{who}.{longest}", spans[longest]),
    )


def _saturated(run: Material) -> Parts:
    return (
        "Capacity: while more comes than can be served no routing helps; shed early (admission saturation or deadline),"
        " or add replicas (`headway plan`).",
    )


RULES: Final[dict[str, Callable[[Material], Parts]]] = {
    "prefix_ignored": _prefix,
    "bursts": _admission,
    "saturation": _saturated,
    "turned_away": _plainly(
        "Admission: turn away only what would miss its SLO anyway (deadline), since what is turned away does."
    ),
    "timed_out": _plainly("Latency: clients gave up; refuse early what cannot be served in time (admission deadline)."),
    "failed": _plainly("Capacity: requests were lost with their instance; allow retries, or keep a replica to spare."),
    "slo_violation": _late,
    "priority_inversion": _plainly(
        "Scheduling: let the scheduler go by the priority it is told, as priority and slo-slack do."
    ),
    "head_of_line_blocking": _plainly(
        "Scheduling: keep long prompts from holding up short ones, with sjf or smaller chunks (max_batch_tokens)."
    ),
    "starvation": _plainly("Fairness: let waiting raise the priority (aging), or share by tenant (fair, tenant-fair)."),
    "herding": _plainly(
        "Routing: spread decisions taken on the same stale signals, by exact signals (inflight) or power-of-two."
    ),
    "hot_spot": _plainly("Routing: let load count for more against affinity, so that no instance takes most requests."),
    "shadow_divergence": _plainly(
        "Cache: what is believed cached is often wrong; give the index the instances' real size, or fresher signals."
    ),
    "cache_thrashing": _plainly(
        "Memory: blocks go down and come back at once; keep sessions on their instance, or admit fewer at a time."
    ),
    "preemption_storm": _plainly(
        "Memory: requests are let into batches whose KV cache cannot hold them; route by kv-utilization or admit fewer."
    ),
    "scale_oscillation": _plainly(
        "Scaling: the number of replicas swings; hold it for longer before removing any (scale_down_delay_s)."
    ),
    "pd_backpressure": _plainly(
        "Transfers: prompts are ready before their instance can take them; shift instances from prefill to decode."
    ),
}
