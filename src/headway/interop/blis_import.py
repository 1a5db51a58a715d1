"""Read a workload specification of BLIS (version 2) as the workload of a scenario.

A client of BLIS becomes a tenant. If Headway lacks a feature of the specification, the import raises an error if the
feature changes the requests, and otherwise adds a note. The same seed gives different random draws in the two projects.
"""

from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from headway.config.documents import read_yaml
from headway.config.section import read
from headway.config.units import duration_ps, duration_text
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.interop import Translation, plain
from headway.interop.blis_lengths import Dist, ours
from headway.interop.blis_stages import CLIENT_TIMEOUT_US, PREFIX_TOKENS, import_stages
from headway.types import PS_PER_US, Json
from headway.workload.spec import WorkloadSpec
from headway.workload.tenants import DEFAULT

CLASSES: Final = ("critical", "standard", "sheddable", "batch", "background")
OLD_CLASSES: Final = {"realtime": "critical", "interactive": "standard"}  # SLO class of version 1 -> class of version 2
ARRIVALS: Final = ("poisson", "gamma", "weibull", "constant")
UNSUPPORTED: Final = {
    "cohorts": "Write the members as clients.",
    "servegen_data": "Use `trace: {format: servegen, path: ...}` in a workload.",
}
UNSUPPORTED_IN_CLIENTS: Final = {
    "lifecycle": "Headway has no clients that come and go. Use `profile` to vary the rate of a tenant",
    "multimodal": "Headway supports only text tokens",
}


# --- keys of a specification ----------------------------------------------------------------------------------------


class Spec(Struct):
    version: str | int = "2"
    seed: int = 0
    category: str = ""
    clients: list[dict[str, Any]] = []
    cohorts: Any = None
    aggregate_rate: float = 0.0
    horizon: int = 0
    num_requests: int = 0
    servegen_data: Any = None
    inference_perf: Any = None
    goodput_slo_targets: Any = None


class Client(Struct):
    arrival: Any = None
    input_distribution: Any = None
    output_distribution: Any = None
    id: str = ""
    tenant_id: str = ""
    slo_class: str = ""
    model: str = ""
    adapter: str = ""
    rate_fraction: float = 0.0
    concurrency: int = 0
    think_time_us: int = 0
    prefix_group: str = ""
    prefix_length: int = 0
    streaming: bool = False
    network: Any = None
    lifecycle: Any = None
    multimodal: Any = None
    reasoning: Any = None
    timeout: int | None = None
    slo_target_us: int | None = None
    closed_loop: bool | None = None


class Arrival(Struct):
    process: str
    cv: float | None = None
    shape: float | None = None
    scale: float | None = None


class Reasoning(Struct):
    reason_ratio_distribution: Any = None
    multi_turn: Any = None


class MultiTurn(Struct):
    max_rounds: int
    think_time_us: int = 0
    context_growth: str = ""
    single_session: bool = False


# --- translation ----------------------------------------------------------------------------------------------------


def is_trace(path: Path) -> bool:
    """Return whether a file is a trace. Every file counts as a trace except a YAML file without `trace_version`."""
    if not path.exists():
        raise HeadwayError(f"{path}: there is no file of this name.")
    if path.suffix not in (".yaml", ".yml") or not path.is_file():
        return True
    data = read_yaml(path)
    return isinstance(data, dict) and "trace_version" in data


def import_workload(document: Any, where: str) -> Translation:
    """Translate a specification to the keys `seed` and `workload` of a scenario."""
    spec = read(Spec, document, where)
    if str(spec.version) not in ("", "1", "2"):
        raise HeadwayError(f"{where}.version: expected version 1 or 2, got {shown(spec.version)}.")
    for name, remedy in UNSUPPORTED.items():
        if getattr(spec, name) is not None:
            raise HeadwayError(f"{where}.{name}: is not supported. {remedy}")
    notes: list[str] = []
    if spec.goodput_slo_targets is not None:
        notes.append("goodput_slo_targets is ignored; `slo` of a tenant sets its targets.")
    if spec.category not in ("", "language", "reasoning"):
        raise HeadwayError(f"{where}.category: expected language or reasoning, got {shown(spec.category)}.")
    if spec.inference_perf is not None:
        if spec.clients:
            raise HeadwayError(f"{where}.inference_perf: cannot be combined with clients. Remove one of them.")
        workload = _limits(spec, import_stages(spec.inference_perf, f"{where}.inference_perf", notes))
    else:
        workload = _clients(spec, where, notes)
    limited = "requests" in workload or "duration" in workload
    WorkloadSpec(**workload if limited else {"requests": 1, **workload})  # raises an error if the workload is invalid
    seed: Json = {"seed": {"workload": spec.seed}} if spec.seed else {}
    return Translation(seed | {"workload": workload}, list(dict.fromkeys(notes)))


def _limits(spec: Spec, workload: Json) -> Json:
    """Return a workload with the maximum number of requests and the maximum duration of the specification. If the
    workload already has a lower maximum, keep the lower one."""
    result = dict(workload)
    if spec.num_requests > 0:
        result["requests"] = min(spec.num_requests, workload.get("requests", spec.num_requests))
    if spec.horizon > 0:
        end_ps = spec.horizon * PS_PER_US
        if "duration" in workload:
            end_ps = min(end_ps, duration_ps(workload["duration"], "duration"))
        result["duration"] = duration_text(end_ps)
    return result


def _clients(spec: Spec, where: str, notes: list[str]) -> Json:
    if not spec.clients:
        raise HeadwayError(f"{where}.clients: the list is empty. Add at least one client.")
    clients = _merge_groups([read(Client, keys, f"{where}.clients[{at}]") for at, keys in enumerate(spec.clients)])
    names = _names(clients, where, notes)
    tenants = {
        name: _tenant(client, f"{where}.clients[{at}]", notes)
        for at, (name, client) in enumerate(zip(names, clients, strict=True))
    }
    workload = _limits(spec, {})
    if not workload:
        notes.append("num_requests and horizon are missing: set workload.requests or workload.duration.")
    if any("closed_loop" not in tenant for tenant in tenants.values()):
        if spec.aggregate_rate <= 0:
            raise HeadwayError(f"{where}.aggregate_rate: must be above 0 for clients with a rate_fraction.")
        workload["rate"] = f"{plain(spec.aggregate_rate)}/s"
    if list(tenants) == [DEFAULT]:
        only = dict(tenants[DEFAULT])
        only.pop("weight", None)
        return workload | only
    return workload | {"tenants": tenants}


class _Source(Client):
    """A client of BLIS, or several clients of a tenant that differ only in the prefix group, merged into one. `groups`
    maps each prefix group to the `rate_fraction` of its client."""

    groups: dict[str, float] = msgspec.field(default_factory=dict)


def _merge_groups(clients: list[Client]) -> list[_Source]:
    """Merge clients that differ only in the prefix group, because their Poisson arrivals together are one Poisson
    process."""
    sources: dict[Any, _Source] = {}
    for at, client in enumerate(clients):
        process = client.arrival.get("process") if isinstance(client.arrival, dict) else None
        alike = client.tenant_id and client.prefix_group and process == "poisson" and not client.concurrency
        bare = replace(client, id="", rate_fraction=0.0, prefix_group="")
        key = msgspec.json.encode(bare) if alike else at
        if key in sources and client.prefix_group in sources[key].groups:
            key = at
        source = sources.setdefault(key, _Source(**asdict(client)))
        source.groups = {**source.groups, client.prefix_group: client.rate_fraction}
    for source in sources.values():
        if len(source.groups) > 1:
            shares = [Fraction(str(share)) for share in source.groups.values()]
            source.id, source.rate_fraction = source.tenant_id, float(sum(shares, Fraction(0)))
    return list(sources.values())


def _names(clients: list[_Source], where: str, notes: list[str]) -> list[str]:
    """Return the name of the tenant for each client: the client's tenant_id. If another client has the same tenant_id,
    use the client's id instead."""
    tenants = [client.tenant_id for client in clients]
    names: list[str] = []
    for at, client in enumerate(clients):
        alone = client.tenant_id and tenants.count(client.tenant_id) == 1
        name = client.tenant_id if alone else client.id or client.tenant_id or f"client-{at}"
        if client.id and alone and client.id != client.tenant_id:
            notes.append(f"clients[{at}]: the tenant is called {name}; the client's id {client.id} is ignored.")
        if client.tenant_id and not alone:
            notes.append(f"clients[{at}]: {client.tenant_id} has several clients; each becomes a separate tenant.")
        if name in names:
            raise HeadwayError(f"{where}.clients[{at}].id: {shown(name)} is used twice. Choose another id.")
        names.append(name)
    return names


def _tenant(client: _Source, where: str, notes: list[str]) -> Json:
    for name, why in UNSUPPORTED_IN_CLIENTS.items():
        if getattr(client, name) is not None:
            raise HeadwayError(f"{where}.{name}: {why}.")
    prefix = 0
    if client.prefix_group:
        prefix = client.prefix_length or PREFIX_TOKENS
    elif client.prefix_length:
        raise HeadwayError(f"{where}.prefix_group: is missing. prefix_length needs it.")
    inputs = read(Dist, client.input_distribution, f"{where}.input_distribution")
    tenant = _load(client, where)
    tenant["prompt_tokens"] = ours(inputs, f"{where}.input_distribution")
    outputs = read(Dist, client.output_distribution, f"{where}.output_distribution")
    tenant["output_tokens"] = ours(outputs, f"{where}.output_distribution")
    if prefix:
        shares = [{"name": name, "popularity": plain(share)} for name, share in client.groups.items()]
        groups = shares if len(shares) > 1 else [{"name": client.prefix_group}]
        tenant["prefix"] = {"groups": groups, "tokens": prefix, "added": True}
    turns = _turns(client, inputs, where, notes)
    if turns is not None:
        tenant["kind"] = turns
    tenant |= _client_words(client, where, notes)
    waits = client.concurrency or (turns is not None)
    timeout = (CLIENT_TIMEOUT_US if waits else 0) if client.timeout is None else client.timeout
    if timeout > 0:
        tenant["timeout"] = duration_text(timeout * PS_PER_US)
    return tenant


def _load(client: Client, where: str) -> Json:
    if client.concurrency:
        if client.rate_fraction:
            raise HeadwayError(f"{where}: concurrency and rate_fraction exclude each other. Remove one of them.")
        think = duration_text(client.think_time_us * PS_PER_US)
        return {"closed_loop": {"concurrency": client.concurrency, "think_time": think}}
    if client.rate_fraction <= 0:
        raise HeadwayError(f"{where}.rate_fraction: must be above 0, got {client.rate_fraction:g}.")
    arrival = read(Arrival, client.arrival, f"{where}.arrival")
    if arrival.process not in ARRIVALS:
        known = ", ".join(ARRIVALS)
        raise HeadwayError(f"{where}.arrival.process: {shown(arrival.process)} is unknown. Known: {known}.")
    if arrival.shape is not None or arrival.scale is not None:
        raise HeadwayError(f"{where}.arrival: shape and scale are not supported. Set cv instead.")
    load: Json = {"weight": plain(client.rate_fraction)}
    if arrival.process in ("gamma", "weibull"):
        return load | {"arrival": {"process": arrival.process, "cv": plain(1.0 if arrival.cv is None else arrival.cv)}}
    return load | {"arrival": arrival.process}


def _turns(client: Client, inputs: Dist, where: str, notes: list[str]) -> Json | None:
    """If the requests of a client are turns of conversations, return the key `kind` of its tenant; otherwise None."""
    if client.reasoning is None:
        return None
    place = f"{where}.reasoning"
    reasoning = read(Reasoning, client.reasoning, place)
    ratio = reasoning.reason_ratio_distribution
    if ratio is not None and any(read(Dist, ratio, f"{place}.reason_ratio_distribution").params.values()):
        notes.append("reason_ratio_distribution is ignored: it does not change the length of an output.")
    if reasoning.multi_turn is None:
        return None
    turns = read(MultiTurn, reasoning.multi_turn, f"{place}.multi_turn")
    if turns.context_growth != "accumulate":
        raise HeadwayError(f"{place}.multi_turn.context_growth: only accumulate is supported.")
    if turns.single_session:
        raise HeadwayError(f"{place}.multi_turn.single_session: is not supported. Remove it.")
    if client.closed_loop is False:
        raise HeadwayError(f"{where}.closed_loop: false is not supported: a turn waits for the previous answer.")
    if client.concurrency:
        raise HeadwayError(f"{where}: concurrency and multi_turn exclude each other. Remove one of them.")
    return {
        "kind": "chat",
        "turns": turns.max_rounds,
        "turn_tokens": ours(inputs, f"{where}.input_distribution"),
        "think_time": duration_text(turns.think_time_us * PS_PER_US),
    }


def _client_words(client: Client, where: str, notes: list[str]) -> Json:
    keys: Json = {}
    slo_class = OLD_CLASSES.get(client.slo_class, client.slo_class)
    if slo_class:
        if slo_class not in CLASSES:
            known = ", ".join(CLASSES)
            raise HeadwayError(f"{where}.slo_class: {shown(slo_class)} is unknown. Known: {known}.")
        keys["priority"] = slo_class
    if client.model:
        keys["models"] = {client.model: 1}
    if client.adapter:
        keys["adapters"] = [client.adapter]
    if client.slo_target_us:
        keys["slo"] = {"ttft": duration_text(client.slo_target_us * PS_PER_US)}
    if client.network is not None:
        notes.append("network is ignored: Headway models no network between clients and router.")
    if not client.streaming:
        notes.append("streaming: false is ignored: every answer streams, which changes no measured time.")
    return keys
