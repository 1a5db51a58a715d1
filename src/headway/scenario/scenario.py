"""One YAML file <-> a validated `Scenario`: everything a run depends on, the policies and seeds included."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

import headway.policies  # noqa: F401  (declares the policies)
from headway.config import documents
from headway.config.keys import QUIET, Doc, Duration, PositiveDuration, Unit, write
from headway.config.section import read
from headway.config.wording import cut, shown, suggest
from headway.errors import HeadwayError
from headway.policies import registry
from headway.policies.disaggregation import Pair
from headway.policies.profile import scorer_list
from headway.policies.registry import DEFAULT_POLICIES
from headway.results.recorder import Targets
from headway.scenario import overrides, references
from headway.scenario.cluster_spec import Cluster
from headway.scenario.life_spec import Fault, Scaling, read_faults, write_faults
from headway.scenario.pd_spec import ROLES
from headway.types import Json
from headway.workload.spec import WorkloadSpec

DEFAULT: Final = "conversations-2026-11-17"
MOST_ROUTERS: Final = 1024
STAGES: Final = tuple(DEFAULT_POLICIES)
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Count = Annotated[int, Meta(ge=0, le=10**12)]
Policy = Annotated[Any, Doc(type="name or mapping")]


class Seeds(Struct, frozen=True):
    """Separate seeds, so that one may vary while the others stand."""

    workload: Annotated[Seed, "of arrivals, lengths and contents"] = 0
    simulation: Annotated[Seed, "of policies, routers and scaling"] = 0
    jitter: Annotated[Seed, "of step times"] = 0

    @classmethod
    def expand(cls, value: Any, where: str) -> Any:
        """A number stands for all of them."""
        if isinstance(value, dict):
            return value
        if not isinstance(value, int) or isinstance(value, bool):
            right = "an integer or {workload: 1, simulation: 2, jitter: 3}"
            raise HeadwayError(f"{where}: expected {right}, got {shown(value)}.")
        if not -(2**63) <= value < 2**63:
            raise HeadwayError(f"{where}: must fit into 64 bits, got {shown(value)}.")
        return dict.fromkeys(overrides.SEEDS, value)


class Policies(Struct, frozen=True):
    """A policy is a name, or a mapping with `name` and parameters."""

    admission: Annotated[Policy, "which requests are admitted, delayed or rejected"] = DEFAULT_POLICIES["admission"]
    priority: Annotated[Policy, "how much each request matters"] = DEFAULT_POLICIES["priority"]
    flow: Annotated[Policy, "the queue at the router, if any: see below"] = DEFAULT_POLICIES["flow"]
    routing: Annotated[Policy, "where a request goes"] = DEFAULT_POLICIES["routing"]
    scheduler: Annotated[
        Policy, "the order within an instance: `fcfs`, `priority`, `sjf`, `shortest-prefill`, `slo-slack`, `fair`"
    ] = DEFAULT_POLICIES["scheduler"]
    scaling: Annotated[Policy, "replicas of each pool, see [scaling.md](scaling.md)"] = DEFAULT_POLICIES["scaling"]

    def build(self, stage: str) -> Any:
        """A fresh policy object of a stage: policies keep state, so every run makes its own."""
        return registry.build(stage, getattr(self, stage), f"policies.{stage}")

    def explicit(self, stage: str) -> Json:
        """The policy's name and every parameter, defaults included."""
        return _explicit(stage, getattr(self, stage), f"policies.{stage}")

    def resolved(self) -> Json:
        """Every stage, but no flow control and no autoscaler where there is none."""
        written = {stage: self.explicit(stage) for stage in STAGES}
        for stage in ("flow", "scaling"):
            if written[stage]["name"] == DEFAULT_POLICIES[stage]:
                del written[stage]
        return written


class SignalSpec(Struct, frozen=True):
    """How stale the router's reported signals are. Without an interval they are always fresh; without a delay of KV
    events its prefix indexes hear of no eviction."""

    poll_interval_ps: Annotated[
        Duration,
        Doc("the instances are polled at its multiples from 0 on; 0s is none as well", default="none: always fresh"),
    ] = 0
    poll_delay_ps: Annotated[Duration, "how much later the router has what was polled"] = 0
    kv_event_delay_ps: Annotated[
        Duration | None,
        Doc("how much later the router's prefix index hears what an instance has evicted", default="none: no events"),
    ] = None

    @classmethod
    def expand(cls, section: Any, where: str) -> Any:
        """A key that is left empty is as good as left out."""
        return {k: v for k, v in section.items() if v is not None} if isinstance(section, dict) else section

    def validate(self, where: str) -> SignalSpec:
        if self.poll_delay_ps and not self.poll_interval_ps:
            raise HeadwayError(f"{where}.poll_delay: delays what is polled; give 'poll_interval' as well, as in 50ms.")
        return self

    def last_seen(self, now_ps: int) -> int:
        """The last tick that the router knows of; before the first report it knows them idle, as they were at 0."""
        return max(0, (now_ps - self.poll_delay_ps) // self.poll_interval_ps * self.poll_interval_ps)


class RouterSpec(Struct, frozen=True):
    """Equal routers before one cluster. Without an interval they know nothing of each other."""

    count: Annotated[int, Meta(ge=1, le=MOST_ROUTERS), "how many; with 1 the rest says nothing"] = 1
    sync_interval_ps: Annotated[
        PositiveDuration | None,
        Doc(
            "at its multiples each takes over what the others have counted and where they have sent prompts",
            default="none: they know nothing of each other",
        ),
    ] = None
    spread: Annotated[
        Literal["requests", "sessions"],
        "what selects the router, by a hash with the simulation's seed: the request, or its session",
    ] = "requests"

    @classmethod
    def expand(cls, value: Any, where: str) -> Any:
        """A number stands for `count`."""
        if value is None or isinstance(value, dict):
            return value or {}
        if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST_ROUTERS:
            return {"count": value}
        right = f"a number of routers from 1 to {MOST_ROUTERS}, or a mapping as in {{count: 4, sync_interval: 1s}}"
        raise HeadwayError(f"{where}: expected {right}, got {shown(value)}.")

    def validate(self, where: str) -> RouterSpec:
        """With one router the other keys mean nothing."""
        return RouterSpec() if self.count == 1 else self


class Scenario(Struct, frozen=True, kw_only=True):
    """A validated scenario. Make one with `Scenario.load`."""

    name: Annotated[str, Doc("what the run is called", default="the file's name")] = "scenario"
    seed: Annotated[
        Seeds,
        Doc(
            "of all random draws; or `workload`, `simulation` and `jitter` apart (each 0 if left out)",
            default="0",
            type="whole number or mapping",
        ),
    ] = Seeds()
    workload: Annotated[WorkloadSpec, "what arrives"]
    cluster: Annotated[
        Cluster, Unit("mapping", Cluster.read, Cluster.resolved), Doc("what serves it", default="all defaults")
    ] = msgspec.field(default_factory=lambda: Cluster.read({}, "cluster"))
    policies: Annotated[Policies, Doc("who decides", default="all defaults")] = Policies()
    slo: Annotated[Targets, Doc("what users were promised", default="no targets")] = Targets()
    leap: Annotated[
        bool | Literal["random-cuts"],
        "how steps are computed, never what comes out: false walks every step, random-cuts cuts runs at random places",
    ] = True
    warmup: Annotated[
        Count, "so many requests from the first on are left out of the statistics (never out of the counts)"
    ] = 0
    horizon_ps: Annotated[
        PositiveDuration | None,
        Doc("stops the clock; what is then unfinished is `in_flight`", default="none: until all is done"),
    ] = None
    signals: Annotated[SignalSpec, Doc("how old what the instances report may be", default="always fresh"), QUIET] = (
        SignalSpec()
    )
    routers: Annotated[
        RouterSpec,
        Doc(
            "how many routers share the requests, and what they tell each other",
            default="1",
            type="whole number or mapping",
        ),
        QUIET,
    ] = RouterSpec()
    retries: Annotated[
        int,
        Meta(ge=0, le=100),
        "how often a request that its instance has lost is sent again, from the beginning; then it has failed",
        QUIET,
    ] = 0
    scaling: Annotated[Scaling | None, "how the autoscaler is asked, and how long what it decides takes", QUIET] = None
    faults: Annotated[
        tuple[Fault, ...],
        Unit("list", read_faults, write_faults),
        Doc("instances that crash, are slow or cannot be reached", default="none"),
        QUIET,
    ] = ()

    @classmethod
    def expand(cls, data: Any, where: str) -> Any:
        """A name that is left empty is as good as left out."""
        return {key: value for key, value in data.items() if key != "name" or value is not None}

    def validate(self, where: str) -> Scenario:
        _check_models(self)
        _check_faults(self)
        for stage in STAGES:
            self.policies.build(stage)
        name = (self.name or "scenario").encode(errors="replace").decode()  # a result is in UTF-8
        return msgspec.structs.replace(self, name=name)

    @classmethod
    def load(cls, source: Source = DEFAULT, overrides: str | Iterable[str] = ()) -> Scenario:
        """From a file, a preset's name, a mapping, or another scenario, with `key.path=value` changes on top."""
        if isinstance(source, Scenario) and not overrides:
            return source
        return validate(load_data(source, overrides))

    def resolved(self) -> Json:
        """The scenario with nothing left implicit, in the form that `load` reads; files go by their whole paths."""
        return _absolute(write(self))

    def key(self) -> str:
        """Sixteen hexadecimal digits that stand for this scenario. How it is computed (`leap`) and named is no part,
        and of the files it refers to only their bytes are, not where they lie."""
        facts = {key: value for key, value in self.resolved().items() if key not in ("leap", "name")}
        facts = references.replace_by_digests(facts)
        return blake2b(msgspec.json.encode(facts, order="sorted"), digest_size=8).hexdigest()


Source = str | Path | Mapping[str, Any] | Scenario


def presets() -> list[str]:
    """The names of the scenarios that come with the package."""
    return list(documents.presets("scenarios"))


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
        data = documents.read_yaml(path)
        if isinstance(data, dict):
            data.setdefault("name", documents.stem(str(path)))
            data = _absolute(data, path.parent)
        return data
    text = documents.presets("scenarios").get(str(source))
    if text is not None:
        return {"name": str(source), **documents.parse_yaml(text, str(source))}
    if path.is_dir():
        raise HeadwayError(f"{source}: is a folder; a scenario file is wanted.")
    hint = suggest(cut(str(source)), presets())
    raise HeadwayError(f"{cut(str(source))}: there is no such scenario file, nor a preset of that name.{hint}")


def _absolute(data: Json, folder: Path | None = None) -> Json:
    """The mapping with its files under their whole paths; a scenario's name is no file, whatever it looks like."""
    return {key: value if key == "name" else references.absolute(value, folder) for key, value in data.items()}


def validate(data: Mapping[str, Any]) -> Scenario:
    """Read every section strictly; the first error names its place."""
    return read(Scenario, _absolute(dict(data)), "")


def _check_models(scenario: Scenario) -> None:
    """If instances serve certain models, every synthetic request must name one of them."""
    served = scenario.cluster.served_models()
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


def _explicit(stage: str, spec: Any, where: str) -> Json:
    """A policy's name and every parameter, those of its parts included."""
    policy = registry.build(stage, spec, where)
    written = registry.explicit(stage, spec, where, policy)
    if "scorers" in written:
        scorers = scorer_list(written["scorers"], f"{where}.scorers")
        written["scorers"] = [_explicit_part("scorer", scorer, f"{where}.scorers") for scorer in scorers]
    if "filters" in written:
        written["filters"] = [_explicit_part("filter", part, f"{where}.filters") for part in written["filters"]]
    if "picker" in written:
        written["picker"] = _explicit_part("picker", written["picker"], f"{where}.picker")
    if isinstance(policy, Pair):
        for role in ROLES:
            written[role] = _explicit("routing", written[role], f"{where}.{role}")
        written["decider"] = _explicit("decider", written["decider"], f"{where}.decider")
    return written


def _explicit_part(stage: str, spec: Any, where: str) -> Json:
    """A scorer, filter or picker with its own defaults written out; a scorer's weight stays as it was given."""
    name, values = registry.split(spec, where)
    entry = registry.find(stage, name, where)
    written: Json = {"name": name if registry.is_file(name) else entry.name}
    if "weight" in values:
        written["weight"] = values.pop("weight")
    defaults = {parameter.name: parameter.default for parameter in entry.parameters}
    own = {key.replace("-", "_"): value for key, value in values.items()}
    return {**written, **msgspec.to_builtins(defaults | own)}
