"""One scenario, simulated."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from headway import __version__
from headway.config.wording import one_line, shown, suggest
from headway.control.journal import UNFORCED, Forced
from headway.errors import HeadwayError
from headway.experiment.engines import engines
from headway.experiment.life import autoscaler, life_setup
from headway.experiment.policy_guard import policy_guard
from headway.latency.base import Estimator
from headway.policies import registry
from headway.policies.context import Context
from headway.results import store
from headway.results.decision_log import DecisionLog
from headway.results.recorder import PoolFacts, RunFacts
from headway.results.result import Result
from headway.results.store import TRACES
from headway.scenario.scenario import DEFAULT, STAGES, Scenario, Source
from headway.sim.setup import ClusterSetup
from headway.sim.simulation import Simulation
from headway.streams import derive, stream
from headway.types import Delay, Json, Priority, Reject, Request, Route
from headway.views.cluster import ClusterView
from headway.workload.traffic import Traffic

# What a run writes down beside its requests, and what else follows its decisions. Levels of a trace:
#   minimal     nothing more
#   decisions   every decision with what it rested on, and how full the GPUs were over time
#   full        also how each batch changes, and what moves between the stores of KV blocks

Explain = Callable[[Request, Route], None]  # called with every routing decision, which has a scorecard then


class Explainer:
    """A journal that passes routing decisions on."""

    def __init__(self, explain: Explain) -> None:
        self.explain = explain

    def bind(self, context: Context, cluster: ClusterView, reported: Collection[str]) -> None:
        pass

    def on_refused(self, now_ps: int, request: Request, verdict: Reject | Delay) -> None:
        pass

    def on_routed(self, now_ps: int, request: Request, route: Route, priority: Priority) -> None:
        self.explain(request, route)

    def on_stopped(self, instance: int) -> None:
        pass


def check_trace(trace: str) -> None:
    if trace not in TRACES:
        raise HeadwayError(f"trace: there is no level {shown(trace)}.{suggest(str(trace), TRACES)}")


def read_run(folder: Path, key: str, trace: str) -> Result | None:
    """A run that this version has written there, whole and with as much of it as is asked for; None without one."""
    try:
        return Result.load(folder) if store.has(folder, key, trace) else None
    except HeadwayError:  # its files were changed
        return None


ROUTER_STAGES = ("admission", "priority", "routing", "flow")
Progress = Callable[[int, int], None]  # requests arrived so far, simulated picoseconds so far


def simulate(
    scenario: Source = DEFAULT,
    *,
    overrides: str | Iterable[str] = (),
    admission: Any = None,
    priority: Any = None,
    flow: Any = None,
    routing: Any = None,
    scheduler: Any = None,
    scaling: Any = None,
    trace: str = "minimal",
    progress: Progress | None = None,
    explain: Explain | None = None,
) -> Result:
    """Run a scenario (a path, a preset's name, a mapping or a `Scenario`) and give its result.

    `overrides` are `key.path=value` changes. A stage's policy may be given by name or as a mapping with `name` and
    parameters, all but flow control also as a class or an object of the caller's own; the scenario's is used otherwise.
    `trace` says what is written down beside the requests: `minimal`, `decisions` or `full`. `explain` is called with
    each request that is routed and its `Route`, which then has a scorecard where the policy writes one. Requests and
    summary are the same however much is told.
    """
    check_trace(trace)
    prepared = prepare(
        Scenario.load(scenario, overrides),
        admission=admission,
        priority=priority,
        flow=flow,
        routing=routing,
        scheduler=scheduler,
        scaling=scaling,
    )
    return run_prepared(prepared, trace, explain=explain, progress=progress)


def run_prepared(
    prepared: Prepared,
    trace: str = "minimal",
    *,
    explain: Explain | None = None,
    forced: Forced = UNFORCED,
    progress: Progress | None = None,
) -> Result:
    """Simulate a prepared scenario. Decisions that are `forced` are not the policy's."""
    log = None if trace == "minimal" else DecisionLog()
    prepared.setup.trace = trace
    with policy_guard(prepared.policies.values()):
        simulation, traffic = prepared.simulation(log, explain, forced), prepared.traffic()
        recorder = simulation.run(traffic, progress)
    result = Result.of(prepared.resolved, recorder, simulation.cluster.stats, run_facts(prepared.scenario, simulation))
    if not prepared.own:
        result._key = prepared.scenario.key
    result.trace = trace
    result.decisions = None if log is None else log.decisions(result.requests)
    result.series = simulation.cluster.series()
    return result


class Prepared(Struct, frozen=True):
    """A scenario with its policies made and its cluster set up; it can be run once."""

    scenario: Scenario
    resolved: Json
    policies: dict[str, Any]  # by stage
    setup: ClusterSetup
    further: list[list[Any]] = []  # the policies of the routers after the first, each by stage
    own: bool = False  # a policy is an object of the caller's program, which no key stands for

    def traffic(self) -> Traffic:
        """The workload, from its beginning."""
        return self.scenario.workload.plan(self.scenario.seed.workload, self.scenario.cluster.default_model())

    def simulation(
        self, log: DecisionLog | None = None, explain: Explain | None = None, forced: Forced = UNFORCED
    ) -> Simulation:
        seed = derive(self.scenario.seed.simulation, "policies")  # no way from there to the workload's draws
        estimator = Estimator(engine.latency for engine in self.setup.engines)
        streams = partial(stream, seed)
        return Simulation(
            self.setup,
            **{stage: policy for stage, policy in self.policies.items() if stage != "scaling"},
            rng=streams,
            estimator=estimator,
            journals=[
                [*([] if log is None else [log.journal(router)]), *([] if explain is None else [Explainer(explain)])]
                for router in range(1 + len(self.further))
            ],
            forced=forced,
            further=self.further,
            autoscaler=None if self.setup.life is None else autoscaler(self.scenario, self.setup, self.setup.life),
        )


def prepare(scenario: Scenario, **specs: Any) -> Prepared:
    """All of a run that comes before its first event. Policies are given by stage, as to `simulate`."""
    named = {
        stage: spec if isinstance(spec, str) else dict(spec)
        for stage, spec in specs.items()
        if isinstance(spec, str | Mapping)
    }
    own = {stage: spec for stage, spec in specs.items() if stage not in named and spec is not None}
    scenario = replace(scenario, policies=replace(scenario.policies, **named))
    resolved = scenario.resolved()
    policies: dict[str, Any] = {}
    for stage in STAGES:
        if stage in own:
            policies[stage] = own_policy(stage, own[stage], stage)
            resolved["policies"][stage] = describe_policy(policies[stage])
        else:
            policies[stage] = scenario.policies.build(stage)
    further = [router_policies(scenario, own) for _ in range(scenario.routers.count - 1)]
    setup = cluster_setup(scenario)
    setup.life = life_setup(scenario, setup, partial(pool_policy, scenario, own.get("scaling")))
    return Prepared(scenario, resolved, policies, setup, further, bool(own))


def router_policies(scenario: Scenario, own: Mapping[str, Any]) -> list[Any]:
    """The policies of one router more, in the order of its stages: an object of the caller's own is copied."""
    objects = {stage: spec for stage, spec in own.items() if stage in ROUTER_STAGES and not isinstance(spec, type)}
    try:
        policies = deepcopy(objects)  # at once, so that what they share stays shared
    except Exception as error:
        listed = ", ".join(objects)
        text = f"a copy for each router could not be made: {one_line(error)}; give classes, or one router."
        raise HeadwayError(f"{listed}: {text}") from error
    for stage in ROUTER_STAGES:
        if stage not in objects:
            is_own = stage in own
            policies[stage] = own_policy(stage, own[stage], stage) if is_own else scenario.policies.build(stage)
    return [policies[stage] for stage in ROUTER_STAGES]


def pool_policy(scenario: Scenario, own: Any, spec: Any, where: str) -> Any:
    """The autoscaler of one pool: its own, or else that of all, each in its own copy."""
    if spec is not None:
        return registry.build("scaling", spec, where)
    return scenario.policies.build("scaling") if own is None else deepcopy(own_policy("scaling", own, "scaling"))


def own_policy(stage: str, spec: Any, where: str) -> Any:
    """A policy that lives in the caller's program: an object as it is, a class made with its defaults."""
    method = registry.METHODS.get(stage)
    if method is None:
        known = ", ".join(registry.names(stage))
        raise HeadwayError(f"{where}: a {stage} is given by its name or as a mapping with 'name'. Known: {known}.")
    if not callable(getattr(spec, method, None)):
        kinds = f"a policy's name, a mapping with 'name', or a class or object with the method {method!r}"
        raise HeadwayError(f"{where}: expected {kinds}, got {shown(spec)}.")
    entry = registry.own_entry(spec)
    if entry is not None and entry.stage != stage:
        raise HeadwayError(f"{where}: {entry.name!r} is of stage {entry.stage}, a policy of stage {stage} is wanted.")
    policy = spec
    if isinstance(spec, type):
        try:
            policy = spec()
        except Exception as error:
            name = f"{spec.__name__} could not be made"
            raise HeadwayError(f"{where}: {name}: {one_line(error)}; give an object of it.") from error
    registry.check_methods(stage, policy, where)
    return policy


def describe_policy(policy: Any) -> Json:
    """The name of an object, and its parameters where it is of the catalogue."""
    entry = registry.own_entry(policy)
    if entry is None or not any(entry.make is known.make for known in registry.entries(entry.stage)):
        return {"name": type(policy).__name__}
    parameters = {parameter.name: getattr(policy, parameter.name) for parameter in entry.parameters}
    return {"name": entry.name, **to_builtins(parameters)}


def about(scenario: Scenario) -> Json:
    """What a run was, for a document that goes astray from its scenario; the same however it was computed."""
    resolved = scenario.resolved()
    return {
        "name": scenario.name,
        "version": __version__,
        "key": scenario.key(),
        "seed": resolved["seed"],
        "policies": {stage: spec["name"] for stage, spec in resolved["policies"].items()},
    }


def cluster_setup(scenario: Scenario) -> ClusterSetup:
    """The instances of a scenario, all idle, and what they have in common."""
    cluster = scenario.cluster
    return ClusterSetup(
        engines=engines(cluster),
        block_tokens=cluster.kv.block_tokens,
        prefix_caching=cluster.kv.prefix_caching,
        leap=scenario.leap,
        horizon_ps=scenario.horizon_ps,
        warmup=scenario.warmup,
        jitter_seed=scenario.seed.jitter,
        signals=scenario.signals,
        routers=scenario.routers,
        router_seed=derive(scenario.seed.simulation, "routers"),
    )


def run_facts(scenario: Scenario, simulation: Simulation) -> RunFacts:
    pools = [] if simulation.setup.life is None else simulation.setup.life.pools
    return RunFacts(
        started_ps=simulation.started_ps,
        ended_ps=simulation.ended_ps,
        block_tokens=scenario.cluster.kv.block_tokens,
        warmup=scenario.warmup,
        policy_metrics=simulation.policy_metrics,
        slo=scenario.slo,
        tenant_slos=scenario.workload.slos(),
        deployed=scenario.cluster.deployments is not None,
        predicts=bool(simulation.control.indexes),
        routers=[] if simulation.routers is None else simulation.routers.counts(),
        pools=[PoolFacts(pool.id, pool.first, pool.minimum, pool.maximum) for pool in pools],
        retries=scenario.retries,
    )
