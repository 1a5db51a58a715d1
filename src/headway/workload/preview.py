"""Compute statistics of the first requests of a workload, without a simulation.

A preview assumes that answers take no time. So requests that wait for an answer (the next turn of a session, the next
request of a closed loop) arrive earlier than in a simulation. Lengths, contents and think times are the same as in a
simulation.
"""

from fractions import Fraction
from itertools import islice
from typing import Final

from msgspec import Struct, field

from headway.config.units import duration_ps
from headway.types import PS_PER_SECOND, Json, Path
from headway.workload import trace_statistics
from headway.workload.spec import WorkloadSpec
from headway.workload.trace_statistics import NONE, Columns
from headway.workload.traffic import Traffic

REQUESTS: Final = 10_000


class Prefixes(Struct):
    """An unlimited cache of earlier prompts and outputs. It counts the tokens that later prompts find in the cache."""

    known: dict[int, int] = field(default_factory=dict)  # key of a run of tokens -> number of its cached tokens
    prompt_tokens: int = 0
    tokens_hit: int = 0
    requests_hit: int = 0

    def offer(self, path: Path, output_key: int, output_tokens: int) -> None:
        known = self.known
        start = hit = 0
        leading = True
        for key, end in zip(path.keys, path.ends, strict=True):
            there, size = known.get(key, 0), end - start
            if leading:
                hit += min(there, size)
                leading = there >= size
            if size > there:
                known[key] = size
            start = end
        self.prompt_tokens += start
        self.tokens_hit += hit
        self.requests_hit += hit > 0
        known[output_key] = output_tokens


def preview(spec: WorkloadSpec, seed: int = 0, model: str = "", requests: int = REQUESTS) -> Json:
    """Return statistics of the first `requests` requests of a workload. If it has fewer requests, use all of them."""
    figures = look(spec.plan(seed, model), requests)
    figures["expected_requests"] = _expect(spec, figures)
    return figures


def _expect(spec: WorkloadSpec, figures: Json) -> int | None:
    """Return the number of requests of the workload. If not all requests were planned, estimate the number from the
    keys `requests` and `duration`."""
    if figures["complete"]:
        return int(figures["requests"])
    within = _within(spec, figures)
    if within is None or spec.requests is None:
        return spec.requests if within is None else within
    return min(spec.requests, within)


def _within(spec: WorkloadSpec, figures: Json) -> int | None:
    """Extrapolate the number of requests to the whole duration. For a tenant with a rate, follow its load profile;
    otherwise extrapolate linearly."""
    so_far_ps = round((figures["first_s"] + figures["span_s"]) * PS_PER_SECOND)
    if spec.duration is None or not so_far_ps:
        return None
    lasts_ps = duration_ps(spec.duration, "workload.duration")
    if spec.trace is not None:
        return round(int(figures["requests"]) * Fraction(lasts_ps, so_far_ps))
    came = {group["name"]: int(group["requests"]) for group in figures["tenants"]}
    total = Fraction(0)
    for tenant in spec.senders():
        requests = came.get(tenant.name, 0)
        if tenant.rate is None:
            total += Fraction(requests * lasts_ps, so_far_ps)
        else:
            whole, part = (tenant.profile.arrivals_before(tenant.rate, until_ps) for until_ps in (lasts_ps, so_far_ps))
            total += requests * whole / part if requests and part else whole
    return round(total)


def look(traffic: Traffic, requests: int) -> Json:
    """Return statistics of the first `requests` requests of a `Traffic`."""
    columns, prefixes = Columns(), Prefixes()
    tenants, kinds, models, sessions = (dict[str, int]() for _ in range(4))  # name -> index
    last_ps: dict[int, int] = {}  # session -> time of its latest arrival
    source = iter(traffic)
    for planned in islice(source, requests):
        request = planned.request
        columns.at_ps.append(request.arrival_ps)
        columns.prompt_tokens.append(request.prompt_tokens)
        columns.output_tokens.append(planned.output_tokens)
        columns.tenant.append(tenants.setdefault(request.tenant, len(tenants)))
        columns.kind.append(kinds.setdefault(request.kind, len(kinds)))
        columns.model.append(models.setdefault(request.model, len(models)))
        session, gap_ps = NONE, NONE
        if request.session is not None:
            session = sessions.setdefault(request.session, len(sessions))
            gap_ps = request.arrival_ps - last_ps[session] if session in last_ps else NONE
            last_ps[session] = request.arrival_ps
        columns.session.append(session)
        columns.gap_ps.append(gap_ps)
        prefixes.offer(request.path, planned.output_key, planned.output_tokens)
    figures: Json = {"requests": len(columns), "complete": next(source, None) is None, "waits": traffic.listens}
    if not len(columns):
        return figures
    return figures | {
        "first_s": columns.at_ps[0] / PS_PER_SECOND,
        **trace_statistics.overview(columns),
        "tenants": trace_statistics.groups(columns, columns.tenant, list(tenants)),
        "kinds": trace_statistics.groups(columns, columns.kind, list(kinds)),
        "models": trace_statistics.groups(columns, columns.model, list(models)),
        "sessions": trace_statistics.sessions(columns),
        "ideal_reuse": {
            "token_hit_ratio": prefixes.tokens_hit / prefixes.prompt_tokens,
            "request_hit_ratio": prefixes.requests_hit / len(columns),
        },
    }
