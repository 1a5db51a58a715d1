"""Write the workload of a scenario as a workload specification of BLIS (version 2)."""

from fractions import Fraction
from typing import Any, Final

import msgspec
from msgspec import Struct

from headway.config.units import duration_ps
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.interop import Translation, plain
from headway.interop.blis_import import ARRIVALS, CLASSES
from headway.interop.blis_lengths import theirs
from headway.types import PS_PER_US, Json
from headway.workload import adapters, behaviour, durations, kinds, prefixes, profiles, shapes
from headway.workload.correlations import Correlations
from headway.workload.spec import WorkloadSpec
from headway.workload.tenants import Tenant

MOST_GROUPS: Final = 1000


class _Share(Struct, frozen=True):
    """The sessions of a tenant that become one client of BLIS: the name of the client, the fraction of the tenant's
    sessions, and their shared prefix."""

    name: str
    share: Fraction = Fraction(1)
    group: str = ""
    tokens: int = 0
    included: int = 0  # number of tokens of the shared prefix that are already part of the prompt lengths


def export_workload(workload: WorkloadSpec, seed: int = 0) -> Translation:
    if workload.trace is not None:
        raise HeadwayError(
            "workload.trace: a BLIS specification cannot replay a trace. "
            "Write a TraceV2 with `headway export blis TRACE`."
        )
    notes: list[str] = []
    senders = workload.senders()
    rates = [tenant.rate for tenant in senders if tenant.rate is not None]
    total = sum(rates, Fraction(0))
    clients = [client for tenant in senders for client in _clients(tenant, total, notes)]
    if rates and any("concurrency" in client for client in clients):
        notes.append("BLIS divides num_requests differently between clients with a rate and closed-loop clients.")
    if any("concurrency" in client for client in clients) and any("reasoning" in client for client in clients):
        raise HeadwayError("workload: BLIS cannot combine closed loops and conversations. Remove one of them.")
    document: Json = {
        "version": "2",
        "seed": seed,
        "category": "language",
        "aggregate_rate": plain(float(total)),
    }
    if workload.requests is not None:
        document["num_requests"] = workload.requests
    if workload.duration is not None:
        document["horizon"] = _us(duration_ps(workload.duration, "workload.duration"), "workload.duration")
    document["clients"] = clients
    return Translation(document, list(dict.fromkeys(notes)))


def _us(ps: int, where: str) -> int:
    if ps % PS_PER_US:
        raise HeadwayError(f"{where}: must be a whole number of microseconds for BLIS.")
    return ps // PS_PER_US


def _clients(tenant: Tenant, total: Fraction, notes: list[str]) -> list[Json]:
    _refuse(tenant, notes)
    shares = _shares(tenant)
    if len(shares) > 1:
        if tenant.rate is None or tenant.arrival.process != "poisson":
            raise HeadwayError(
                f"{tenant.places['prefix']}: several groups become several BLIS clients, so BLIS needs "
                "Poisson arrivals. Set arrival to poisson."
            )
        notes.append(f"{tenant.name}: its {len(shares)} prefix groups become {len(shares)} clients.")
    return [_client(tenant, share, total, notes) for share in shares]


def _refuse(tenant: Tenant, notes: list[str]) -> None:
    """Raise an error or add a note for each feature that BLIS's clients do not have."""
    place = tenant.places
    unsupported = {
        "profile": not isinstance(tenant.profile, profiles.Constant),
        "behaviour": not isinstance(tenant.behaviour, behaviour.Normal),
        "correlations": tenant.correlations != Correlations(),
        "models": len(tenant.models) > 1 or tenant.models[0].own,
        "kinds": len(tenant.kinds) > 1,
        "adapters": len(tenant.adapters) > 1,
        "arrival": tenant.rate is not None and tenant.arrival.process not in ARRIVALS,
        "priority": tenant.priority not in CLASSES,
    }
    for name, used in unsupported.items():
        if used:
            raise HeadwayError(f"{place[name]}: BLIS does not support this value. Remove the key or simplify it.")
    if tenant.retry.max:
        notes.append(f"{place['retry']}: is ignored; clients of BLIS do not retry.")
    if tenant.max_tokens is not None:
        notes.append(f"{place['max_tokens']}: is ignored; BLIS has no declared limits.")
    for name in ("tpot", "e2e"):
        if getattr(tenant.slo, name) is not None:
            notes.append(f"{place['slo']}.{name}: is ignored; BLIS has targets only for TTFT.")


def _shares(tenant: Tenant) -> list[_Share]:
    prefix, name = tenant.prefix, tenant.name
    if prefix is None:
        return [_Share(name)]
    where = tenant.places["prefix"]
    listed = isinstance(prefix.groups, list)
    count = len(prefix.groups) if listed else prefix.groups
    if count > MOST_GROUPS:
        raise HeadwayError(f"{where}.groups: at most {MOST_GROUPS:,} groups can be exported, got {count:,}.")
    weights = _weights(prefix, count)
    whole, rest = sum(weights, Fraction(0)), Fraction(0)
    shares = []
    for at, weight in enumerate(weights):
        group = prefix.groups[at] if listed else None
        tokens = prefix.tokens if group is None or group.tokens is None else group.tokens
        if not isinstance(tokens, int):
            raise HeadwayError(f"{where}.tokens: BLIS needs a fixed length. Set a number.")
        share = Fraction(str(prefix.share)) * (Fraction(1) if group is None else Fraction(str(group.reuse)))
        group_name = f"{name}-group-{at}" if group is None else group.name
        rest += weight / whole * (1 - share)
        if share:
            part = name if count == 1 and share == 1 else f"{name}-{at}"
            included = 0 if prefix.added else tokens
            shares.append(_Share(part, weight / whole * share, group_name, tokens, included))
    return [*shares, _Share(f"{name}-none", rest)] if rest else shares


def _weights(prefix: prefixes.Prefix, count: int) -> list[Fraction]:
    if isinstance(prefix.groups, list):
        return [Fraction(str(group.popularity)) for group in prefix.groups]
    if isinstance(prefix.popularity, list):
        return [Fraction(str(weight)) for weight in prefix.popularity]
    if isinstance(prefix.popularity, dict):
        return [Fraction(rank ** -prefix.popularity["s"]) for rank in range(1, count + 1)]
    return [Fraction(1)] * count


def _client(tenant: Tenant, share: _Share, total: Fraction, notes: list[str]) -> Json:
    place = tenant.places
    client: Json = {"id": share.name, "tenant_id": tenant.name, "slo_class": tenant.priority}
    if tenant.models[0].name:
        client["model"] = tenant.models[0].name
    if tenant.adapters != adapters.NONE and tenant.adapters[0].adapter is not None:
        client["adapter"] = tenant.adapters[0].adapter
    if tenant.closed_loop is not None:
        think = _constant_us(tenant.closed_loop.think_time, f"{place['closed_loop']}.think_time")
        client |= {"concurrency": tenant.closed_loop.concurrency, "think_time_us": think}
        client["arrival"] = {"process": "constant"}  # BLIS requires this key, but ignores it in a closed loop
    else:
        assert tenant.rate is not None
        client["rate_fraction"] = plain(float(tenant.rate * share.share / total))
        cv = {} if tenant.arrival.cv is None else {"cv": plain(tenant.arrival.cv)}
        client["arrival"] = {"process": tenant.arrival.process, **cv}
    kind = tenant.kinds[0]
    prompt = tenant.prompt_tokens if kind.prompt_tokens is None else kind.prompt_tokens
    output = tenant.output_tokens if kind.output_tokens is None else kind.output_tokens
    client["input_distribution"] = theirs(prompt, place["prompt_tokens"], share.included, notes)
    client["output_distribution"] = theirs(output, place["output_tokens"], 0, notes)
    if share.group:
        client |= {"prefix_group": share.group, "prefix_length": share.tokens}
    client["streaming"] = True
    if not isinstance(kind, kinds.Completion):
        client["reasoning"] = _turns(kind, client["input_distribution"], place["kind"], notes)
    client["timeout"] = 0 if tenant.timeout_ps is None else _us(tenant.timeout_ps, place["timeout"])
    if tenant.slo.ttft is not None:
        client["slo_target_us"] = _us(duration_ps(tenant.slo.ttft, place["slo"]), place["slo"])
    return client


def _turns(kind: kinds.AnyKind, inputs: Json, where: str, notes: list[str]) -> Json:
    if not isinstance(kind, kinds.Chat):
        raise HeadwayError(f"{where}: BLIS does not support {shown(msgspec.to_builtins(kind)['kind'])} requests.")
    if kind.growth != "linear":
        raise HeadwayError(f"{where}.growth: BLIS supports only linear.")
    if shapes.parse(kind.turns, f"{where}.turns")[0] != "constant":
        raise HeadwayError(f"{where}.turns: BLIS needs a fixed number of turns. Set a number.")
    rounds = theirs(kind.turns, f"{where}.turns", 0, notes)
    if theirs(kind.turn_tokens, f"{where}.turn_tokens", 0, notes) != inputs:
        raise HeadwayError(
            f"{where}.turn_tokens: in BLIS every turn is as long as the first prompt without its prefix. "
            "Set turn_tokens to that length."
        )
    turns = {"max_rounds": rounds["params"]["value"], "think_time_us": _constant_us(kind.think_time, where)}
    return {
        "reason_ratio_distribution": {"type": "constant", "params": {"value": 0}},
        "multi_turn": {**turns, "context_growth": "accumulate"},
    }


def _constant_us(spec: Any, where: str) -> int:
    duration = durations.parse(spec, where)
    if duration["dist"] != "constant":
        raise HeadwayError(f"{where}: BLIS needs a fixed think time. Set a duration.")
    return int(duration["value"])
