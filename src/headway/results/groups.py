"""Figures by tenant, class, kind and model, fairness between tenants, and figures of sessions.

Each column is read only once, regardless of the number of groups.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import compress
from typing import Any, Final

from msgspec import Struct

from headway.config.section import read
from headway.results.pathology import Pathology
from headway.results.recorder import COMPLETED, Recorder, RunFacts, Targets
from headway.results.sample import Sample, attainment, completed_flags, latency, ratio, throughput
from headway.results.statistics import spread_of
from headway.types import OUTCOMES, Json

KINDS: Final = ("ttft", "tpot", "e2e")


class Promises(Struct, frozen=True):
    default: Targets  # targets of tenants that have no targets of their own
    own: dict[str, Targets]  # targets of the tenants that have their own, by tenant

    @property
    def any(self) -> bool:
        return self.default != Targets() or bool(self.own)

    def to(self, tenant: str) -> Targets:
        return self.own.get(tenant, self.default)


def promises(scenario: Mapping[str, Any]) -> Promises:
    workload = scenario.get("workload") or {}
    tenants = {name: _targets(keys.get("slo")) for name, keys in (workload.get("tenants") or {}).items()}
    return Promises(
        # `workload.slo` has the targets of a workload without a section of tenants.
        default=_targets(workload.get("slo") or scenario.get("slo")),
        own={name: targets for name, targets in tenants.items() if targets != Targets()},
    )


def _targets(slo: Mapping[str, Any] | None) -> Targets:
    return read(Targets, slo or {}, "slo")


GROUPS = {"tenant": "tenants", "slo_class": "classes", "kind": "kinds"}  # column -> section of the summary
WHOLE = 1 << 60  # stands for the fraction 1, because shares are integers


def groups(recorder: Recorder, sample: Sample, facts: RunFacts, window_ps: int | None, ills: Pathology) -> Json:
    """Return the sections `tenants`, `classes` and `kinds` (each only if it has several groups), `fairness` if there
    are several tenants, `models` if there are deployments, and `sessions` if there are sessions."""
    sections: Json = {}
    for column, name in GROUPS.items():
        if len(recorder.names[column]) > 1:
            several = _each(recorder, column, sample, window_ps, ills)
            if len(several) > 1:
                sections[name] = several
    if facts.deployed:
        sections["models"] = _each(recorder, "model", sample, window_ps, ills)
    if "tenants" in sections:
        sections["fairness"] = fairness(recorder, sample, facts.warmup)
    if recorder.names["session"]:
        sections["sessions"] = sessions(recorder, facts.warmup)
    return sections


def _each(recorder: Recorder, column: str, sample: Sample, window_ps: int | None, ills: Pathology) -> list[Json]:
    """Return one object per group that has requests, ordered by name."""
    codes, names, warmup = getattr(recorder, column), recorder.names[column], ills.warmup
    ends = Counter(zip(codes, recorder.outcome, strict=True))
    counted = Counter(codes[warmup:])
    cached, prompt = [0] * len(names), [0] * len(names)
    rows = recorder.select(column, "started_ps", "cached_tokens", "prompt_tokens", start=warmup)
    for code, started, hit, tokens in rows:
        if started >= 0:
            cached[code] += hit
            prompt[code] += tokens
    positions: list[list[int]] = [[] for _ in names]
    for position, code in enumerate(compress(codes[warmup:], completed_flags(recorder, warmup))):
        positions[code].append(position)
    sums = ills.groups(codes, len(names))
    entries = []
    for name, code in sorted(names.items()):
        part = sample.part(positions[code])
        outcomes = {outcome: ends[code, number] for number, outcome in enumerate(OUTCOMES)}
        if not any(outcomes.values()):
            continue
        times = latency(part)
        entries.append(
            {
                "id": name,
                "requests": {"arrived": sum(outcomes.values()), **outcomes},
                "latency": times,
                "throughput": throughput(part, window_ps),
                "cache": {"token_hit_ratio": ratio(cached[code], prompt[code])},
                "slo": attainment(part, counted[code], window_ps),
                **sums[code].sections(times),
            }
        )
    return entries


def fairness(recorder: Recorder, sample: Sample, warmup: int) -> Json:
    """Return two fairness indexes by Jain's formula: of the tenants' tokens, and of the fraction of each tenant's
    requests that met every target."""
    codes = recorder.tenant[warmup:]
    planned = Counter(codes)
    tokens, good = Counter(dict.fromkeys(planned, 0)), Counter(dict.fromkeys(planned, 0))
    for position, code in enumerate(compress(codes, completed_flags(recorder, warmup))):
        tokens[code] += sample.prompt_tokens[position] + sample.output_tokens[position]
        good[code] += sample.good is None or sample.good[position]
    return {
        "jain_tokens": jain(list(tokens.values())),
        "jain_goodput": jain([good[code] * WHOLE // count for code, count in planned.items()]),
    }


def jain(shares: Sequence[int]) -> float | None:
    """Return Jain's index of fairness, (Σx)² / (n·Σx²). It is 1 if all shares are equal and 1/n if all shares but one
    are 0. If all shares are 0, return None."""
    total = sum(shares)
    return ratio(total * total, len(shares) * sum(share * share for share in shares))


def sessions(recorder: Recorder, warmup: int) -> Json:
    """Return the section of sessions that begin after the warm-up. If a turn was retried, only the outcome of its last
    attempt counts."""
    begun = max(recorder.session[:warmup], default=-1) + 1  # number of sessions that begin during the warm-up
    count = len(recorder.names["session"]) - begun
    first, last = [-1] * count, [-1] * count
    outcomes: dict[tuple[int, int], int] = {}
    rows = recorder.select("session", "turn", "arrival_ps", "finished_ps", "outcome", start=warmup)
    for code, turn, arrival, finished, outcome in rows:
        session = code - begun
        if session >= 0:
            outcomes[session, turn] = outcome
            if first[session] < 0:
                first[session] = arrival
            last[session] = max(last[session], finished)
    broken = {session for (session, _), outcome in outcomes.items() if outcome != COMPLETED}
    whole = [session for session in range(count) if session not in broken]
    return {
        "count": count,
        "turns": ratio(len(outcomes), count),
        "completed": len(whole),
        "duration": spread_of([last[session] - first[session] for session in whole]),
    }
