"""The class `Scenario` and its YAML form. A scenario contains everything that a simulation run depends on, including
policies and seeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec
from msgspec import Meta, Struct

import headway.policies  # noqa: F401  (declares the policies)
from headway.config import documents
from headway.config.arguments import checked
from headway.config.dated_defaults import CURRENT, FIRST, SETS, Dated, Defaults
from headway.config.keys import QUIET, Doc, Duration, PositiveDuration, Unit, write
from headway.config.section import read
from headway.config.units import duration_text
from headway.config.wording import cut, shown, suggest
from headway.errors import HeadwayError
from headway.policies import registry
from headway.policies.disaggregation import Pair
from headway.policies.policy_schema import policy_form
from headway.policies.profile import scorer_list
from headway.policies.registry import DEFAULT_POLICIES
from headway.results.recorder import Targets
from headway.scenario import overrides, references
from headway.scenario.cluster_spec import Cluster
from headway.scenario.default_engine import with_default_engine
from headway.scenario.life_spec import Fault, Scaling, read_faults, write_faults
from headway.scenario.pd_spec import ROLES
from headway.types import Belief, Json, LoadRule
from headway.workload.spec import WorkloadSpec

DEFAULT: Final = "conversations-2026-11-17"
ENDINGS: Final = (".yaml", ".yml", ".json")  # extensions of scenario files; any other file is a trace
MOST_ROUTERS: Final = 1024
STAGES: Final = tuple(DEFAULT_POLICIES)
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Routers = Annotated[int, Meta(ge=1, le=MOST_ROUTERS)]
Count = Annotated[int, Meta(ge=0, le=10**12)]
NAME_OR_MAPPING: Final = Doc(type="name or mapping")


class Seeds(Struct, frozen=True):
    """The seeds of a scenario. They are separate, so that one can vary while the others stay fixed."""

    workload: Annotated[Seed, "seed of arrivals, lengths and contents"] = 0
    simulation: Annotated[Seed, "seed of policies, routers and scaling"] = 0
    jitter: Annotated[Seed, "seed of step times"] = 0
    short_form: ClassVar[Any] = Seed  # a single number is used for all three seeds

    @classmethod
    def expand(cls, value: Any, where: str) -> Any:
        """If the value is a single number, return a mapping with this number for all seeds."""
        if isinstance(value, dict):
            return value
        if not isinstance(value, int) or isinstance(value, bool):
            right = "an integer or {workload: 1, simulation: 2, jitter: 3}"
            raise HeadwayError(f"{where}: expected {right}, got {shown(value)}.")
        if not -(2**63) <= value < 2**63:
            raise HeadwayError(f"{where}: must fit into 64 bits, got {shown(value)}.")
        return dict.fromkeys(overrides.SEEDS, value)


class Policies(Struct, frozen=True):
    """The policy of each stage: a name, or a mapping with `name` and parameters."""

    admission: Annotated[Any, policy_form("admission"), NAME_OR_MAPPING, "admits, delays or rejects each request"] = (
        DEFAULT_POLICIES["admission"]
    )
    priority: Annotated[Any, policy_form("priority"), NAME_OR_MAPPING, "assigns a priority to each request"] = (
        DEFAULT_POLICIES["priority"]
    )
    flow: Annotated[Any, policy_form("flow"), NAME_OR_MAPPING, "the queue at the router, see below"] = DEFAULT_POLICIES[
        "flow"
    ]
    estimator: Annotated[
        Any, policy_form("estimator"), NAME_OR_MAPPING, "expects how many tokens each request will generate"
    ] = DEFAULT_POLICIES["estimator"]
    routing: Annotated[Any, policy_form("routing"), NAME_OR_MAPPING, "chooses the instance for each request"] = (
        DEFAULT_POLICIES["routing"]
    )
    decider: Annotated[
        Any,
        policy_form("decider"),
        NAME_OR_MAPPING,
        "on a disaggregated cluster: decides which requests are split into prefill and decode",
    ] = DEFAULT_POLICIES["decider"]
    scheduler: Annotated[
        Any,
        policy_form("scheduler"),
        NAME_OR_MAPPING,
        "the order within an instance: `fcfs`, `priority`, `sjf`, `shortest-expected`, `shortest-prefill`, "
        "`slo-slack`, `fair`",
    ] = DEFAULT_POLICIES["scheduler"]
    scaling: Annotated[
        Any, policy_form("scaling"), NAME_OR_MAPPING, "replicas of each pool, see [scaling.md](scaling.md)"
    ] = DEFAULT_POLICIES["scaling"]

    def build(self, stage: str) -> Any:
        """Create a new policy object for a stage. Every simulation needs new objects, because policies have state."""
        return registry.build(stage, getattr(self, stage), f"policies.{stage}")

    def explicit(self, stage: str, auto: bool = False) -> Json:
        """Return the name and all parameters of a stage's policy, including defaults. If `auto` is set, an omitted
        number such as `lru_blocks` is returned as the string "auto" instead of its default."""
        return _explicit(stage, getattr(self, stage), f"policies.{stage}", auto)

    def resolved(self, auto: bool = False) -> Json:
        """Return the policies of all stages by stage. Omit `flow`, `estimator`, `decider` and `scaling` if they have
        their default policy, because that policy does nothing of its own. `auto` is as in `explicit`."""
        written = {stage: self.explicit(stage, auto) for stage in STAGES}
        for stage in ("flow", "estimator", "decider", "scaling"):
            if written[stage] == _explicit(stage, DEFAULT_POLICIES[stage], f"policies.{stage}", auto):
                del written[stage]
        return written


class SignalSpec(Struct, frozen=True):
    """The settings that make the router's information stale: how often it polls the instances, and after what delay it
    gets the values."""

    poll_interval_ps: Annotated[
        Duration,
        Doc(
            "the router polls the instances at multiples of this interval; 0s: always fresh",
            default=duration_text(SETS[CURRENT].poll_interval_ps),
        ),
    ] = 0
    poll_delay_ps: Annotated[Duration, "delay until the router has the polled values"] = 0
    kv_event_delay_ps: Annotated[
        Duration | None,
        Doc("delay until the router's prefix indexes learn of an eviction", default="none: they learn of no eviction"),
    ] = None
    effective_load: Annotated[
        LoadRule,
        Doc(
            "how policies see the load of an instance. snapshot: the requests in its last report, plus the requests "
            "sent since; outstanding: also minus the requests that have ended since, but at least the requests in "
            "flight",
            default=SETS[CURRENT].effective_load,
        ),
        QUIET,
    ] = "snapshot"
    belief: Annotated[
        Belief,
        Doc(
            "the blocks in the router's prefix indexes: `routed`, of prompts that the router sent; `stored`, those "
            "that the instances report; `both`",
            default=f"routed; {SETS[CURRENT].belief} with `kv_event_delay`",
        ),
        QUIET,
    ] = "routed"

    @classmethod
    def expand(cls, section: Any, where: str) -> Any:
        """Drop keys whose value is null, so that they get their defaults."""
        return {k: v for k, v in section.items() if v is not None} if isinstance(section, dict) else section

    @classmethod
    def dated(cls, defaults: Defaults, section: Json | None = None) -> Json:
        """Return the `signals` section. If the section does not set a key that the set of defaults supplies, add that
        key."""
        dated = {"poll_interval": duration_text(defaults.poll_interval_ps), "effective_load": defaults.effective_load}
        section = cls.expand(section or {}, "signals")
        return dated | ({"belief": defaults.belief} if "kv_event_delay" in section else {}) | section

    def validate(self, where: str) -> SignalSpec:
        if self.poll_delay_ps and not self.poll_interval_ps:
            raise HeadwayError(f"{where}.poll_delay: needs a poll interval; set 'poll_interval' too, as in 50ms.")
        if self.belief != "routed" and self.kv_event_delay_ps is None:
            raise HeadwayError(f"{where}.belief: {self.belief} needs KV events; set 'kv_event_delay' too, as in 50ms.")
        return self


class RouterSpec(Struct, frozen=True):
    """The routers of a cluster, which all have the same policies."""

    count: Annotated[Routers, "number of routers; with 1, the other keys have no effect"] = 1
    sync_interval_ps: Annotated[
        PositiveDuration | None,
        Doc(
            "at multiples of this interval, the routers exchange their counts and the prompts they have sent",
            default="none: they exchange nothing",
        ),
    ] = None
    spread: Annotated[
        Literal["requests", "sessions"],
        "what determines the router of a request, by a hash with the simulation seed: the request or its session",
    ] = "requests"
    short_form: ClassVar[Any] = Routers  # a single number is the `count`

    @classmethod
    def expand(cls, value: Any, where: str) -> Any:
        """If the value is a single number, return a mapping with this number as `count`."""
        if value is None or isinstance(value, dict):
            return value or {}
        if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST_ROUTERS:
            return {"count": value}
        right = f"a number of routers from 1 to {MOST_ROUTERS}, or a mapping as in {{count: 4, sync_interval: 1s}}"
        raise HeadwayError(f"{where}: expected {right}, got {shown(value)}.")

    def validate(self, where: str) -> RouterSpec:
        return RouterSpec() if self.count == 1 else self


class Scenario(Struct, frozen=True, kw_only=True):
    """A validated scenario. Use `Scenario.load` to create one."""

    name: Annotated[str, Doc("name of the run", default="the file's name")] = "scenario"
    seed: Annotated[
        Seeds,
        Doc(
            "seed of all random draws, or a mapping with `workload`, `simulation` and `jitter` (default 0 each)",
            default="0",
            type="whole number or mapping",
        ),
    ] = Seeds()
    workload: Annotated[WorkloadSpec, "the requests"]
    cluster: Annotated[
        Cluster, Unit("mapping", Cluster.read, Cluster.resolved), Doc("the instances", default="all defaults")
    ] = msgspec.field(default_factory=lambda: Cluster.read({}, "cluster"))
    policies: Annotated[Policies, Doc("the policy of each stage", default="all defaults")] = Policies()
    slo: Annotated[Targets, Doc("latency targets", default="no targets")] = Targets()
    leap: Annotated[
        bool | Literal["random-cuts"],
        "how the simulator computes steps; results are the same. true: many steps at once; false: each step; "
        "random-cuts: many at once, split at random places, for tests",
    ] = True
    warmup: Annotated[
        Count, "number of first requests to leave out of the statistics; they still count as requests"
    ] = 0
    horizon_ps: Annotated[
        PositiveDuration | None,
        Doc(
            "simulated time at which the run stops; unfinished requests are then `in_flight`",
            default="none: until all requests have ended",
        ),
    ] = None
    defaults: Annotated[
        Dated,
        "set of defaults, see [defaults.md](defaults.md)",
        QUIET,
    ] = CURRENT
    signals: Annotated[SignalSpec, Doc("staleness of reported signals", default="polled every 500 ms"), QUIET] = (
        SignalSpec()
    )
    routers: Annotated[
        RouterSpec, Doc("number of routers, and what they exchange", default="1", type="whole number or mapping"), QUIET
    ] = RouterSpec()
    retries: Annotated[
        int,
        Meta(ge=0, le=100),
        "how often a request is retried, from the beginning, after its instance lost it; then it fails",
        QUIET,
    ] = 0
    scaling: Annotated[Scaling | None, "when the autoscaler decides, and how instances start and stop", QUIET] = None
    faults: Annotated[
        tuple[Fault, ...],
        Unit("list", read_faults, write_faults),
        Doc("instances that crash, are slow or cannot be reached", default="none"),
        QUIET,
    ] = ()

    @classmethod
    def expand(cls, data: Any, where: str) -> Any:
        """Drop the keys `name` and `defaults` if they are null. Add what the set of defaults supplies."""
        data = {key: value for key, value in data.items() if value is not None or key not in ("name", "defaults")}
        signals, date = data.get("signals"), data.get("defaults", CURRENT)
        if isinstance(date, str) and date in SETS:
            if isinstance(signals, dict | None):
                data["signals"] = SignalSpec.dated(SETS[date], signals)
            data["cluster"] = with_default_engine(data.get("cluster"), SETS[date].engine)
        return data

    def validate(self, where: str) -> Scenario:
        _check_models(self)
        _check_faults(self)
        for stage in STAGES:
            self.policies.build(stage)
        _check_preempts(self)
        name = (self.name or "scenario").encode(errors="replace").decode()  # result files are UTF-8
        return msgspec.structs.replace(self, name=name)

    @classmethod
    @checked
    def load(cls, source: Source = DEFAULT, overrides: str | Iterable[str] = ()) -> Scenario:
        """Load a scenario from a file, a preset's name, a trace, a mapping or another scenario, and apply
        `key.path=value` overrides."""
        if isinstance(source, Scenario) and not overrides:
            return source
        return validate(load_data(source, overrides))

    def resolved(self) -> Json:
        """Return the scenario with all defaults and absolute paths, in the form that `load` reads."""
        written = write(self)
        if self.defaults != FIRST:
            written["policies"] = self.policies.resolved(SETS[self.defaults].auto)
            written["signals"] = write(self.signals, whole=True)
        return _absolute(written)

    def key(self) -> str:
        """Return a digest of the scenario, as 16 hexadecimal digits. The digest ignores `leap`, `name` and the paths of
        files, but depends on the content of the files."""
        facts = {key: value for key, value in self.resolved().items() if key not in ("leap", "name", "defaults")}
        if self.defaults != FIRST:
            facts["defaults"] = self.defaults
        facts = references.replace_by_digests(facts)
        return blake2b(msgspec.json.encode(facts, order="sorted"), digest_size=8).hexdigest()


Source = str | Path | Mapping[str, Any] | Scenario


def presets() -> list[str]:
    """Return the names of the scenarios that the package contains."""
    return list(documents.presets("scenarios"))


def load_data(source: Source, assignments: str | Iterable[str] = ()) -> Json:
    """Return a scenario as a mapping, not yet validated. Relative paths in a file resolve against its folder. A trace
    replaces the workload of the default scenario."""
    if isinstance(source, Scenario):
        data: Any = source.resolved()
    elif isinstance(source, Mapping):
        data = dict(source)
    else:
        data = _read(source)
    if not isinstance(data, dict):
        raise HeadwayError(f"{source}: expected a mapping with 'workload' and 'cluster', got {type(data).__name__}.")
    return overrides.apply(data, [assignments] if isinstance(assignments, str) else assignments, "overrides: ")


def _read(source: str | Path) -> Any:
    try:
        path = Path(source).expanduser()
        there, is_file = path.exists(), path.is_file()
        ending = path.suffix.lower()
    except (OSError, RuntimeError) as error:  # an unknown user in `~user`, a path that is too long, or no permission
        raise HeadwayError(
            f"{cut(str(source))}: cannot be read ({getattr(error, 'strerror', None) or str(error).rstrip('.')})."
        ) from None
    if is_file and ending in ENDINGS:
        data = documents.read_yaml(path)
        if isinstance(data, dict):
            data.setdefault("name", documents.stem(str(path)))
            data = _absolute(data, path.parent)
        return data
    if not is_file and str(source) in presets():
        return _preset(str(source))
    if is_file and ending == ".toml":
        raise HeadwayError(f"{source}: is not a scenario. Convert a file of RouteSim with headway import routesim.")
    if there:  # some traces are folders
        path = path.absolute()
        own = {"name": path.name, "defaults": CURRENT, "workload": {"trace": {"path": str(path)}}}
        return _preset(DEFAULT) | own
    if ending and ending not in ENDINGS:
        expected = "expected a trace, a scenario's YAML file or a preset's name"
        raise HeadwayError(f"{cut(str(source))}: there is no file of this name; {expected}.")
    hint = suggest(cut(str(source)), presets())
    raise HeadwayError(f"{cut(str(source))}: there is no scenario file or preset of this name.{hint}")


def _preset(name: str) -> Json:
    return {"name": name, "defaults": FIRST, **documents.parse_yaml(documents.presets("scenarios")[name], name)}


def _absolute(data: Json, folder: Path | None = None) -> Json:
    """Return the mapping with absolute file paths. The scenario's name stays unchanged, even if it looks like a
    file."""
    return {key: value if key == "name" else references.absolute(value, folder) for key, value in data.items()}


def validate(data: Mapping[str, Any]) -> Scenario:
    """Read every section of a scenario strictly. The first mistake raises an error that names its key."""
    return read(Scenario, _absolute(dict(data)), "")


def _check_models(scenario: Scenario) -> None:
    """Check that every synthetic request names a model that the cluster serves."""
    served = scenario.cluster.served_models()
    if served is None:
        return
    default = scenario.cluster.default_model()
    for tenant in scenario.workload.senders():
        place = tenant.places["models"]
        for model in tenant.models:
            if not (model.name or default):
                wrong = "is missing, but the cluster serves several models. Give each model a weight, as in"
                raise HeadwayError(f"{place}: {wrong} {{{served[0]}: 1}}. Known: {', '.join(served)}.")
            if model.name and model.name not in served:
                raise HeadwayError(f"{place}: no deployment serves {shown(model.name)}.{suggest(model.name, served)}")


def _check_preempts(scenario: Scenario) -> None:
    """Check that no instance has to load blocks if its running requests may yield to waiting ones."""
    if getattr(scenario.policies.build("scheduler"), "preempts", None) is None:
        return
    for name, pool in scenario.cluster.by_name().items():
        place = "cluster" if scenario.cluster.deployments is None else f"cluster.deployments.{name}"
        if pool.architecture == "disaggregated" or pool.kv.tiers is not None:
            key = "architecture" if pool.architecture == "disaggregated" else "kv.tiers"
            raise HeadwayError(
                f"{place}.{key}: running requests cannot yield where requests wait for blocks to arrive. "
                "Set 'policies.scheduler.preempts' to null, or use monolithic instances without tiers."
            )


def _check_faults(scenario: Scenario) -> None:
    """Check that the instance of every fault exists at the start, or that the autoscaler may add this instance."""
    known = [*scenario.cluster.engine_ids()] if scenario.faults else []
    for number, fault in enumerate(scenario.faults):
        if fault.instance not in known:
            wrong = f"no instance is called {shown(fault.instance)}"
            raise HeadwayError(f"faults[{number}].instance: {wrong}.{suggest(fault.instance, known)}")


def _explicit(stage: str, spec: Any, where: str, auto: bool = False) -> Json:
    """Return the name and all parameters of a policy, including the parameters of its scorers, filters and picker."""
    policy = registry.build(stage, spec, where)
    written = registry.explicit(stage, spec, where, policy, auto)
    if "scorers" in written:
        scorers = scorer_list(written["scorers"], f"{where}.scorers")
        written["scorers"] = [_explicit_part("scorer", scorer, f"{where}.scorers", auto) for scorer in scorers]
    if "filters" in written:
        written["filters"] = [_explicit_part("filter", part, f"{where}.filters", auto) for part in written["filters"]]
    if "picker" in written:
        written["picker"] = _explicit_part("picker", written["picker"], f"{where}.picker", auto)
    if isinstance(policy, Pair):
        for role in ROLES:
            written[role] = _explicit("routing", written[role], f"{where}.{role}", auto)
        own = written.pop("decider")
        if own is not None:
            written["decider"] = _explicit("decider", own, f"{where}.decider", auto)
    return written


def _explicit_part(stage: str, spec: Any, where: str, auto: bool) -> Json:
    """Return the name of a scorer, filter or picker with all its parameters. The weight of a scorer stays unchanged."""
    name, values = registry.split(spec, where)
    entry = registry.find(stage, name, where)
    written: Json = {"name": name if registry.is_file(name) else entry.name}
    if "weight" in values:
        written["weight"] = values.pop("weight")
    defaults = {parameter.name: parameter.default for parameter in entry.parameters}
    own = {key.replace("-", "_"): value for key, value in values.items()}
    return {**written, **{key: registry.written_value(value, auto) for key, value in (defaults | own).items()}}
