"""One YAML file <-> a validated `Scenario`: everything a run depends on, the policies and seeds included."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

import headway.policies  # noqa: F401  (declares the policies)
from headway.config.section import read
from headway.config.units import duration_ps, duration_text
from headway.config.wording import cut, shown, suggest
from headway.errors import HeadwayError
from headway.policies import registry
from headway.policies.disaggregation import Pair
from headway.policies.profile import scorer_list
from headway.results.recorder import Targets
from headway.scenario import overrides, references
from headway.scenario.cluster_spec import Cluster
from headway.scenario.life_spec import Fault, Scaling, read_faults, read_scaling
from headway.scenario.pd_spec import ROLES
from headway.scenario.router_spec import RouterSpec, read_routers
from headway.types import Json
from headway.workload.spec import WorkloadSpec

DEFAULT: Final = "conversations-2026-11-17"
STAGES: Final = tuple(overrides.DEFAULT_POLICIES)
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Count = Annotated[int, Meta(ge=0, le=10**12)]
Leap = bool | Literal["random-cuts"]


class Seeds(Struct, frozen=True):
    """Separate seeds, so that one may vary while the others stand."""

    workload: Seed = 0
    simulation: Seed = 0
    jitter: Seed = 0


class Policies(Struct, frozen=True):
    """A policy is a name, or a mapping with `name` and parameters."""

    admission: Any = overrides.DEFAULT_POLICIES["admission"]
    priority: Any = overrides.DEFAULT_POLICIES["priority"]
    flow: Any = overrides.DEFAULT_POLICIES["flow"]
    routing: Any = overrides.DEFAULT_POLICIES["routing"]
    scheduler: Any = overrides.DEFAULT_POLICIES["scheduler"]
    scaling: Any = overrides.DEFAULT_POLICIES["scaling"]

    def build(self, stage: str) -> Any:
        """A fresh policy object of a stage: policies keep state, so every run makes its own."""
        return registry.build(stage, getattr(self, stage), f"policies.{stage}")

    def explicit(self, stage: str) -> Json:
        """The policy's name and every parameter, defaults included."""
        return _explicit(stage, getattr(self, stage), f"policies.{stage}")

    def resolved(self) -> Json:
        """Every stage, but no flow control and no autoscaler where there is none."""
        found = {stage: self.explicit(stage) for stage in STAGES}
        for stage in ("flow", "scaling"):
            if found[stage]["name"] == overrides.DEFAULT_POLICIES[stage]:
                del found[stage]
        return found


class _SignalKeys(Struct):
    poll_interval: Any = None
    poll_delay: Any = None
    kv_event_delay: Any = None


class Signals(Struct, frozen=True):
    """How old what the router is told may be. Without an interval it is told all at once, as it is; without a delay of
    KV events its prefix indexes hear of none."""

    poll_interval_ps: int = 0
    poll_delay_ps: int = 0
    kv_event_delay_ps: int | None = None

    def resolved(self) -> Json:
        return {name: duration_text(getattr(self, f"{name}_ps")) for name in _SignalKeys.__struct_fields__}


class _SloKeys(Struct):
    ttft: Any = None
    tpot: Any = None
    e2e: Any = None


class _Keys(Struct):
    """The top level of a scenario file; each section is read by its own owner."""

    workload: Any
    name: str | None = None
    seed: Any = 0
    cluster: Any = msgspec.field(default_factory=dict)
    policies: Any = msgspec.field(default_factory=dict)
    slo: Any = msgspec.field(default_factory=dict)
    signals: Any = msgspec.field(default_factory=dict)
    routers: Any = 1
    retries: Annotated[int, Meta(ge=0, le=100)] = 0
    scaling: Any = None
    faults: Any = None
    leap: Leap = True
    warmup: Count = 0
    horizon: Any = None


class Scenario(Struct, frozen=True):
    """A validated scenario. Make one with `Scenario.load`."""

    name: str
    seed: Seeds
    workload: WorkloadSpec
    cluster: Cluster
    policies: Policies
    slo: Targets
    leap: Leap
    warmup: int
    horizon_ps: int | None
    signals: Signals = Signals()
    routers: RouterSpec = RouterSpec()
    retries: int = 0  # how often a request that its instance has lost is sent again
    scaling: Scaling | None = None
    faults: tuple[Fault, ...] = ()

    @classmethod
    def load(cls, source: Source = DEFAULT, overrides: str | Iterable[str] = ()) -> Scenario:
        """From a file, a preset's name, a mapping, or another scenario, with `key.path=value` changes on top."""
        if isinstance(source, Scenario) and not overrides:
            return source
        return validate(load_data(source, overrides))

    def resolved(self) -> Json:
        """The scenario with nothing left implicit, in the form that `load` reads; files go by their whole paths."""
        found: Json = {
            "name": self.name,
            "seed": msgspec.to_builtins(self.seed),
            "workload": self.workload.resolved(),
            "cluster": self.cluster.resolved(),
            "policies": self.policies.resolved(),
            "slo": {name: duration_text(getattr(self.slo, f"{name}_ps")) for name in _SloKeys.__struct_fields__},
            "leap": self.leap,
            "warmup": self.warmup,
            "horizon": duration_text(self.horizon_ps),
        }
        if self.signals != Signals():
            found["signals"] = self.signals.resolved()
        if self.routers != RouterSpec():
            found["routers"] = self.routers.resolved()
        if self.retries:
            found["retries"] = self.retries
        if self.scaling is not None:
            found["scaling"] = self.scaling.explicit()
        if self.faults:
            found["faults"] = [fault.explicit() for fault in self.faults]
        return _absolute(found)

    def key(self) -> str:
        """Sixteen hexadecimal digits that stand for this scenario. How it is computed (`leap`) and named is no part,
        and of the files it refers to only their bytes are, not where they lie."""
        facts = {key: value for key, value in self.resolved().items() if key not in ("leap", "name")}
        facts = references.digested(facts)
        return blake2b(msgspec.json.encode(facts, order="sorted"), digest_size=8).hexdigest()


Source = str | Path | Mapping[str, Any] | Scenario


def presets() -> list[str]:
    """The names of the scenarios that come with the package."""
    folder = resources.files("headway") / "presets" / "scenarios"
    return sorted(item.name.removesuffix(".yaml") for item in folder.iterdir() if item.name.endswith(".yaml"))


def load_data(source: Source, assignments: str | Iterable[str] = ()) -> Json:
    """The plain mapping of a scenario before it is validated; files it names are found beside it."""
    if isinstance(source, Scenario):
        data: Any = source.resolved()
    elif isinstance(source, Mapping):
        data = dict(source)
    else:
        data = _read(source)
    if not isinstance(data, dict):
        raise HeadwayError(
            f"{source}: a scenario is a mapping with 'workload' and 'cluster', this is {type(data).__name__}."
        )
    return overrides.apply(data, [assignments] if isinstance(assignments, str) else assignments, "overrides: ")


def _read(source: str | Path) -> Any:
    try:
        path = Path(source).expanduser()
        there = path.is_file()
    except (OSError, RuntimeError) as error:  # no such user, a name too long, a folder that may not be looked into
        raise HeadwayError(
            f"{cut(str(source))}: cannot be read ({getattr(error, 'strerror', None) or str(error).rstrip('.')})."
        ) from None
    if there:
        data = overrides.read_yaml(path)
        if isinstance(data, dict):
            data.setdefault("name", _unicode(path.stem))
            data = _absolute(data, path.parent)
        return data
    if str(source) in presets():
        file = resources.files("headway") / "presets" / "scenarios" / f"{source}.yaml"
        data = overrides.parse_yaml(file.read_text(encoding="utf-8"), str(source))
        data.setdefault("name", str(source))
        return data
    if path.is_dir():
        raise HeadwayError(f"{source}: is a folder; a scenario file is wanted.")
    hint = suggest(cut(str(source)), presets())
    raise HeadwayError(f"{cut(str(source))}: there is no such scenario file, nor a preset of that name.{hint}")


def _unicode(text: str) -> str:
    """A file's name need not be UTF-8; what stands in a result must."""
    return text.encode(errors="replace").decode()


def _absolute(data: Json, folder: Path | None = None) -> Json:
    """The mapping with its files under their whole paths; a scenario's name is no file, whatever it looks like."""
    return {key: value if key == "name" else references.absolute(value, folder) for key, value in data.items()}


def validate(data: Mapping[str, Any]) -> Scenario:
    """Every section read strictly by its owner; the first mistake is told with its place."""
    keys = read(_Keys, _absolute(dict(data)), "")
    slo = read(_SloKeys, _given(keys.slo), "slo")
    scenario = Scenario(
        name=_unicode(keys.name or "scenario"),
        seed=_seeds(keys.seed),
        workload=read(WorkloadSpec, keys.workload, "workload"),
        cluster=Cluster.read(keys.cluster),
        policies=read(Policies, _given(keys.policies), "policies"),
        slo=Targets(*(_duration(getattr(slo, name), f"slo.{name}") for name in _SloKeys.__struct_fields__)),
        leap=keys.leap,
        warmup=keys.warmup,
        horizon_ps=_duration(keys.horizon, "horizon"),
        signals=_signals(keys.signals),
        routers=read_routers(keys.routers),
        retries=keys.retries,
        scaling=None if keys.scaling is None else read_scaling(keys.scaling),
        faults=read_faults(keys.faults),
    )
    _check_models(scenario)
    _check_faults(scenario)
    for stage in STAGES:
        scenario.policies.build(stage)
    return scenario


def _check_models(scenario: Scenario) -> None:
    """Where instances serve certain models, every synthetic request must want one of them."""
    served = scenario.cluster.served()
    if served is None:
        return
    default = scenario.cluster.default_model()
    for tenant in scenario.workload.senders():
        place = tenant.places["models"]
        for model in tenant.models:
            if not (model.name or default):
                wrong = "is missing; the cluster serves several models, so say which, as in"
                raise HeadwayError(f"{place}: {wrong} {{{served[0]}: 1}}. Known: {', '.join(served)}.")
            if model.name and model.name not in served:
                raise HeadwayError(f"{place}: no deployment serves {shown(model.name)}.{suggest(model.name, served)}")


def _check_faults(scenario: Scenario) -> None:
    """Each is to strike an instance that there may be."""
    known = scenario.cluster.instance_ids() if scenario.faults else []
    for number, fault in enumerate(scenario.faults):
        if fault.instance not in known:
            wrong = f"no instance is called {shown(fault.instance)}"
            raise HeadwayError(f"faults[{number}].instance: {wrong}.{suggest(fault.instance, known)}")


def _given(section: Any) -> Any:
    """A section that is left empty is as good as left out."""
    return {} if section is None else section


def _seeds(value: Any) -> Seeds:
    if isinstance(value, dict):
        return read(Seeds, value, "seed")
    if isinstance(value, int) and not isinstance(value, bool):
        if not -(2**63) <= value < 2**63:
            raise HeadwayError(f"seed: must fit into 64 bits, got {shown(value)}.")
        return Seeds(value, value, value)
    raise HeadwayError(f"seed: expected an integer or {{workload: 1, simulation: 2, jitter: 3}}, got {shown(value)}.")


def _signals(value: Any) -> Signals:
    keys = read(_SignalKeys, _given(value), "signals")
    given = {name: getattr(keys, name) for name in _SignalKeys.__struct_fields__}
    found = Signals(
        **{f"{name}_ps": duration_ps(text, f"signals.{name}") for name, text in given.items() if text is not None}
    )
    if found.poll_delay_ps and not found.poll_interval_ps:
        raise HeadwayError("signals.poll_delay: delays what is polled; give 'poll_interval' as well, as in 50ms.")
    return found


def _duration(value: Any, where: str) -> int | None:
    if value is None:
        return None
    found = duration_ps(value, where)
    if found <= 0:
        raise HeadwayError(f"{where}: must be longer than nothing, got {shown(value)}.")
    return found


def _explicit(stage: str, spec: Any, where: str) -> Json:
    """A policy's name and every parameter, those of its parts included."""
    name, _ = registry.split(spec, where)
    made = registry.build(stage, spec, where)
    found = {parameter.name: getattr(made, parameter.name) for parameter in made.entry.parameters}
    name = name if registry.is_file(name) else made.entry.name
    if "scorers" in found:
        scorers = scorer_list(found["scorers"], f"{where}.scorers")
        found["scorers"] = [_explicit_part("scorer", scorer, f"{where}.scorers") for scorer in scorers]
    if "filters" in found:
        found["filters"] = [_explicit_part("filter", one, f"{where}.filters") for one in found["filters"]]
    if "picker" in found:
        found["picker"] = _explicit_part("picker", found["picker"], f"{where}.picker")
    if isinstance(made, Pair):
        for role in ROLES:
            found[role] = _explicit("routing", found[role], f"{where}.{role}")
        found["decider"] = _explicit("decider", found["decider"], f"{where}.decider")
    return {"name": name, **msgspec.to_builtins(found)}


def _explicit_part(stage: str, spec: Any, where: str) -> Json:
    """A scorer, filter or picker with its own defaults written out; a scorer's weight stays as it was given."""
    name, given = registry.split(spec, where)
    entry = registry.find(stage, name, where)
    found: Json = {"name": name if registry.is_file(name) else entry.name}
    if "weight" in given:
        found["weight"] = given.pop("weight")
    defaults = {parameter.name: parameter.default for parameter in entry.parameters}
    return {**found, **defaults, **{key.replace("-", "_"): value for key, value in given.items()}}
