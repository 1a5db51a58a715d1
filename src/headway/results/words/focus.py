"""Suggestions: one for each issue. Some of them depend on the policies of the run."""

from collections.abc import Callable, Collection
from typing import Final

import headway.policies  # noqa: F401  (registers the policies)
from headway.policies import registry
from headway.results.findings import DETECTORS, link_saturation
from headway.results.survey import SHORT_QUEUE
from headway.results.words.issues import Issue
from headway.results.words.material import Material
from headway.results.words.outcome import main_limit, slo_met, where_it_went
from headway.results.words.phrases import Line, Parts, Section, ms, name, number, percent, phrase
from headway.types import Json

# Kinds of issues whose own advice, such as more replicas, does not help if a link from prefill to decode instances
# limits the whole run.
LINK_BOUND: Final = ("saturation", "slo_violation", "pd_backpressure", "bottleneck")
PREFIX_SCORER: Final = "prefix"  # names of scorers that read the cache begin with this word
# For each part of the time to first token: the advice if this part is the longest.
LONGEST: Final = {
    "router": "passed before routing: look at admission and at the router's queue",
    "queue": "passed between routing and the first step: send fewer to busy instances, admit fewer, or add replicas",
    "prefill": "was prefill: route to instances that have the prefix cached, or run fewer decodes beside prefills",
}


# If the time in the queue is the longest part: the advice for each limit that may have caused most of the wait.
LIMITED: Final = {
    "prompt": "was a wait for longer prompts: use the shortest-prefill scheduler, or send long prompts elsewhere",
    "tokens": "was a wait for the prompts of others: raise max_batch_tokens, or route by pending prefill tokens",
    "slots": "was a wait for a full batch: raise max_batch_size, send fewer to busy instances, or admit fewer",
    "kv": "was a wait for free KV blocks: route by kv-utilization, admit fewer, or enlarge the cache (kv.gpu_blocks)",
    "adapter": "was a wait for an adapter slot: keep each adapter on few instances, or raise adapters.slots",
    "handover": "was a wait for decode instances: raise transfer.max_incoming, or add decode instances",
}


def write_focus(run: Material, problems: list[Issue], focus: Collection[str]) -> Section:
    """Write the suggestions in the order of their issues. A suggestion that several issues share is written once."""
    lines: list[Line] = []
    for issue in problems:
        advice = suggest(run, issue.kind) if not focus or issue.area in focus else ()
        if advice and all(advice != line.parts for line in lines):
            lines.append(Line(advice, 6 + 3 * len(lines)))
    if not lines:
        lines.append(Line(_nothing(run), 14))
    return Section(("## Suggested Focus",), lines)


def suggest(run: Material, kind: str) -> Parts:
    """Return the advice for an issue of this kind; an empty tuple if there is no advice."""
    if kind in LINK_BOUND and any(link_saturation.binds(each, run.summary["duration_s"]) for each in run.findings):
        kind = link_saturation.KIND
    advice = ADVICE.get(kind, ())
    return advice(run) if callable(advice) else advice


def _nothing(run: Material) -> Parts:
    if run.has_slo and not slo_met(run):
        return suggest(run, "slo_violation")
    if run.summary["requests"]["completed"]:
        shares = [instance["utilization"] for instance in run.summary["instances"]]
        busy = [share for share in shares if share is not None]
        if busy and max(busy) < 0.5:
            most = percent("instances.most_utilization", max(busy))
            return phrase(
                "No instance was busy more than {} of the time: check with `headway plan` whether fewer suffice.", most
            )
    return ("No problem found; try a higher load, or compare policies with `headway compare`.",)


def _prefix(run: Material) -> Parts:
    routing = run.scenario["policies"]["routing"]
    scorers = routing.get("scorers") if isinstance(routing, dict) else None
    known = [
        (place, scorer)
        for place, scorer in enumerate(scorers if isinstance(scorers, list) else ())
        if isinstance(scorer, dict) and isinstance(scorer.get("weight"), int | float)
    ]
    cached = [pair for pair in known if str(pair[1]["name"]).startswith(PREFIX_SCORER)]
    others = [pair for pair in known if pair not in cached]
    queue = number("constant.SHORT_QUEUE", SHORT_QUEUE)
    if cached and others:
        heaviest = max(others, key=lambda pair: pair[1]["weight"])
        return phrase(
            "Routing: raise {} against {}, at least while the instance with the prefix has fewer than {} requests"
            " queued.",
            _weight(cached[0]),
            _weight(heaviest),
            queue,
        )
    if _reads_prefixes(run):
        return phrase(
            "Routing: give the cached prefix more weight while its instance has fewer than {} requests queued.", queue
        )
    return ("Routing: take the cached prefix into account, as weighted, prefix-overlap and lmetric do.",)


def _weight(pair: tuple[int, Json]) -> Parts:
    place, scorer = pair
    return phrase("{name:name} (now {weight:amount})", of=scorer, source=f"scenario.policies.routing.scorers.{place}")


def _reads_prefixes(run: Material) -> bool:
    routing = run.scenario["policies"]["routing"]
    policy = routing.get("name") if isinstance(routing, dict) else routing
    return any("prefix_index" in entry.exact for entry in registry.entries("routing", str(policy)))


def _admission(run: Material) -> Parts:
    admission = run.scenario["policies"].get("admission")
    policy = admission.get("name") if isinstance(admission, dict) else admission
    if policy == "always":
        return ("Admission: every request is admitted; try tenant-fair, or a token-bucket for the bursting tenant.",)
    return phrase(
        "Admission: {} admits the bursts; limit how many requests the bursting tenant may send at once.",
        name("scenario.policies.admission.name", str(policy)),
    )


def _late(run: Material) -> Parts:
    """Advise on missed targets. The advice depends on whether TTFT or TPOT was missed more often, and on the longest
    part of TTFT."""
    missed = {target: run.sample.met.get(target, []).count(False) for target in ("ttft", "tpot")}
    if missed["tpot"] > missed["ttft"]:
        text = (
            "Latency: {tpot:count} missed TPOT, {ttft:count} TTFT: use smaller batches (max_batch_size), smaller"
            " prefill chunks (max_batch_tokens), or spread the load."
        )
        return phrase(text, of=missed, source="misses")
    group, requests, spans = where_it_went(run)
    if not requests or not any(spans.values()):
        return ("Latency: the load is too high to serve every request in time.",)
    longest = max(spans, key=spans.__getitem__)
    limit = main_limit(run) if longest == "queue" else None
    return phrase(
        f"Latency: most of the TTFT of requests that missed, {{}}, {LIMITED[limit[1]] if limit else LONGEST[longest]}.",
        ms(f"spans.{group}.{longest}", spans[longest]),
    )


# For each resource that limits late requests: the advice.
SCARCE: Final = {
    "kv": "KV blocks limit the cluster: route by kv-utilization, admit fewer, or enlarge the cache (kv.gpu_blocks)",
    "slots": "full batches limit the cluster: raise max_batch_size, send fewer to busy instances, or admit fewer",
    "prefill": "prefill limits the cluster: route to cached prefixes, raise max_batch_tokens, or add replicas",
    "decode": "decode limits the cluster: use smaller batches (max_batch_size), or add replicas",
    "link": "KV transfers limit the cluster: raise `bandwidth` of cluster.transfer, or set `pipelined`",
    "store": "loads from tiers below the GPU limit the cluster: route to instances whose GPU has the prefix",
    "adapters": "adapter slots limit the cluster: keep each adapter on few instances, or raise adapters.slots",
    "replicas": "requests wait for instances that start: keep more replicas (min_replicas), or scale earlier",
    "router": "requests wait at the router: raise the limits of flow control and admission, or add replicas",
    "handover": "decode instances limit the cluster: shift instances from prefill to decode",
}


def _scarce(run: Material) -> Parts:
    resource = next(finding.resource for finding in run.findings if finding.kind == "bottleneck")
    return (f"Capacity: {SCARCE[resource]}.",)


# For each kind of issue: the advice as a sentence, or the function that writes it.
ADVICE: Final[dict[str, Parts | Callable[[Material], Parts]]] = {
    **{detector.KIND: (detector.ADVICE,) for detector in DETECTORS},
    "slo_violation": _late,
    "prefix_ignored": _prefix,
    "tenant_burst": _admission,
    "bottleneck": _scarce,
    "turned_away": (
        "Admission: reject only requests that would miss their SLO anyway (deadline); a rejected request misses it.",
    ),
    "timed_out": ("Latency: clients timed out; reject requests early that cannot meet their deadline (deadline).",),
    "failed": ("Capacity: requests failed when their instance did; allow retries, or keep a spare replica.",),
}
