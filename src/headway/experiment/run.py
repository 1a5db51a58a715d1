"""Simulates one scenario."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from headway import __version__
from headway.config.arguments import checked
from headway.config.dated_defaults import SETS
from headway.config.wording import one_line, shown, suggest
from headway.control.journal import UNFORCED, Forced
from headway.display.progress import RunProgress, watch
from headway.errors import HeadwayError
from headway.experiment.engines import engines
from headway.experiment.life import autoscaler, life_setup
from headway.experiment.policy_guard import policy_guard
from headway.latency.base import Estimator
from headway.policies import registry
from headway.policies.context import Context
from headway.policies.flow import NoFlow
from headway.policies.prefix_index import largest_block
from headway.policies.user_policies import METHODS, check_methods
from headway.results import store
from headway.results.decision_log import DecisionLog
from headway.results.recorder import PoolFacts, RunFacts
from headway.results.result import Result
from headway.results.store import TRACES
from headway.scenario.scenario import DEFAULT, STAGES, Scenario, Source
from headway.sim.setup import ClusterSetup, EngineSetup
from headway.sim.simulation import Simulation
from headway.streams import derive, stream
from headway.types import Delay, Json, Priority, Reject, Request, Route
from headway.views.cluster import ClusterView
from headway.workload.traffic import Traffic

# Levels of a trace:
#   minimal     only the requests
#   decisions   also every decision with its inputs, and GPU utilisation over time
#   full        also the changes of each batch, and the transfers between tiers of KV blocks

Explain = Callable[[Request, Route], None]  # called with each routed request and its route


class Explainer:
    """Observes a router, and passes each routing decision to a function. It ignores all other events."""

    def __init__(self, explain: Explain) -> None:
        self.explain = explain

    def bind(self, context: Context, cluster: ClusterView, reported: Collection[str]) -> None:
        pass

    def on_refused(self, now_ps: int, request: Request, verdict: Reject | Delay) -> None:
        pass

    def on_prioritised(self, now_ps: int, request: Request, priority: Priority) -> None:
        pass

    def on_routed(self, now_ps: int, request: Request, route: Route, priority: Priority) -> None:
        self.explain(request, route)

    def on_stopped(self, instance: int) -> None:
        pass


def check_trace(trace: str) -> None:
    if trace not in TRACES:
        raise HeadwayError(f"trace: there is no level {shown(trace)}.{suggest(str(trace), TRACES)}")


def read_run(folder: Path, key: str, trace: str) -> Result | None:
    """Return the run in a folder, if this version of Headway wrote it with this run key and with at least the detail
    of `trace`. Otherwise return None."""
    try:
        return Result.load(folder) if store.has(folder, key, trace) else None
    except HeadwayError:  # the files of the run are damaged
        return None


ROUTER_STAGES = ("admission", "priority", "routing", "flow", "estimator", "decider")
Progress = Callable[[int, int], None]  # arguments: id of the last arrived request, simulated picoseconds


@checked
def simulate(
    scenario: Source = DEFAULT,
    *,
    overrides: str | Iterable[str] = (),
    admission: Any = None,
    priority: Any = None,
    flow: Any = None,
    estimator: Any = None,
    routing: Any = None,
    decider: Any = None,
    scheduler: Any = None,
    scaling: Any = None,
    trace: str = "minimal",
    progress: Progress | bool = True,
    explain: Explain | None = None,
) -> Result:
    """Run a scenario (a path, a preset's name, a trace, a mapping or a `Scenario`) and return its result.

    `overrides` are `key.path=value` changes. Give a stage's policy by name, as a mapping with `name` and parameters,
    or, except for flow control, as your own class or object. If you give no policy for a stage, the scenario's policy
    runs. `trace` is the level of detail to record: `minimal`, `decisions` or `full`. If `explain` is set, Headway calls
    it with each routed request and its `Route`, which has a scorecard if the policy writes one. Neither `trace` nor
    `explain` changes the requests or the summary. A terminal or a notebook shows a progress bar unless `progress` is
    false. If `progress` is a function, it receives the number of arrived requests and the simulated time in
    picoseconds.
    """
    check_trace(trace)
    prepared = prepare(
        Scenario.load(scenario, overrides),
        admission=admission,
        priority=priority,
        flow=flow,
        estimator=estimator,
        routing=routing,
        decider=decider,
        scheduler=scheduler,
        scaling=scaling,
    )
    with watch(progress, lambda: RunProgress(prepared.scenario.workload.requests)) as report:
        return run_prepared(prepared, trace, explain=explain, progress=report)


def run_prepared(
    prepared: Prepared,
    trace: str = "minimal",
    *,
    explain: Explain | None = None,
    forced: Forced = UNFORCED,
    progress: Progress | None = None,
    traffic: Traffic | None = None,
    figures: Collection[str] | None = None,
) -> Result:
    """Simulate a prepared scenario. `forced` decisions replace the policy's decisions. `traffic` is the scenario's
    traffic, if it was planned before. If only some `figures` of the summary are needed, leave out the costly
    sections that have none of them."""
    log = None if trace == "minimal" else DecisionLog(not isinstance(prepared.policies["flow"], NoFlow))
    prepared.setup.trace = trace
    with policy_guard(prepared.policies.values()):
        simulation = prepared.simulation(log, explain, forced)
        traffic = prepared.traffic() if traffic is None else traffic
        if log is not None:
            log.record_used(simulation.signals.used_blocks)
        recorder = simulation.run(traffic, progress)
    facts = run_facts(prepared.scenario, simulation)
    result = Result.of(prepared.resolved, recorder, simulation.cluster.stats, facts, figures)
    if not prepared.own:
        result._key = prepared.scenario.key
    result.trace = trace
    result.decisions = None if log is None else log.decisions(result.requests)
    result.priorities = [] if log is None else log.priorities
    result.series = simulation.cluster.series()
    return result


class Prepared(Struct, frozen=True):
    """A scenario with its policies built and its cluster set up. It can run once."""

    scenario: Scenario
    resolved: Json
    policies: dict[str, Any]  # stage -> policy
    setup: ClusterSetup
    further: list[list[Any]] = []  # the policies of each router after the first, in the order of `ROUTER_STAGES`
    own: bool = False  # whether a policy is a Python object of the caller; then the run has no key

    def traffic(self) -> Traffic:
        return self.scenario.workload.plan(self.scenario.seed.workload, self.scenario.cluster.default_model())

    def simulation(
        self, log: DecisionLog | None = None, explain: Explain | None = None, forced: Forced = UNFORCED
    ) -> Simulation:
        # This seed differs from the workload's seed, so that policies cannot predict the workload.
        seed = derive(self.scenario.seed.simulation, "policies")
        estimator = Estimator(engine.latency for engine in self.setup.engines)
        streams = partial(stream, seed)
        return Simulation(
            self.setup,
            **{stage: policy for stage, policy in self.policies.items() if stage not in ("scaling", "estimator")},
            lengths=self.policies["estimator"],
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


def prepare(scenario: Scenario, *, built: list[EngineSetup] | None = None, **specs: Any) -> Prepared:
    """Build the policies and set up the cluster of a run. Give policies by stage, as to `simulate`. `built` are the
    idle engines of the scenario's cluster, if they exist already."""
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
            resolved["policies"][stage] = describe_policy(policies[stage], SETS[scenario.defaults].auto)
        else:
            policies[stage] = scenario.policies.build(stage)
    further = [router_policies(scenario, own) for _ in range(scenario.routers.count - 1)]
    setup = cluster_setup(scenario, built)
    setup.life = life_setup(scenario, setup, partial(pool_policy, scenario, own.get("scaling")))
    return Prepared(scenario, resolved, policies, setup, further, bool(own))


def router_policies(scenario: Scenario, own: Mapping[str, Any]) -> list[Any]:
    """Build the policies of each router after the first, in the order of `ROUTER_STAGES`. Copy policies that are
    objects of the caller, so that routers do not share them."""
    objects = {stage: spec for stage, spec in own.items() if stage in ROUTER_STAGES and not isinstance(spec, type)}
    try:
        policies = deepcopy(objects)  # copied together, so that copies share the parts that the objects share
    except Exception as error:
        text = f"cannot copy the object for each router: {one_line(error)}. Give a class, or use one router."
        raise HeadwayError(f"{', '.join(objects)}: {text}") from error
    for stage in ROUTER_STAGES:
        if stage not in objects:
            is_own = stage in own
            policies[stage] = own_policy(stage, own[stage], stage) if is_own else scenario.policies.build(stage)
    return [policies[stage] for stage in ROUTER_STAGES]


def pool_policy(scenario: Scenario, own: Any, spec: Any, where: str) -> Any:
    """Build the scaling policy of one pool: the pool's own policy, or a copy of the common policy."""
    if spec is not None:
        return registry.build("scaling", spec, where)
    return scenario.policies.build("scaling") if own is None else deepcopy(own_policy("scaling", own, "scaling"))


def own_policy(stage: str, spec: Any, where: str) -> Any:
    """Return a policy that the caller's program defines. If `spec` is an object, return it; if it is a class, create an
    object with the default parameters."""
    method = METHODS.get(stage)
    if method is None:
        known = ", ".join(registry.names(stage))
        raise HeadwayError(f"{where}: give a {stage} policy by name or as a mapping with 'name'. Known: {known}.")
    if not callable(getattr(spec, method, None)):
        kinds = f"a policy's name, a mapping with 'name', or a class or object with the method {method!r}"
        raise HeadwayError(f"{where}: expected {kinds}, got {shown(spec)}.")
    entry = registry.own_entry(spec)
    if entry is not None and entry.stage != stage:
        raise HeadwayError(f"{where}: {entry.name!r} is of stage {entry.stage}; expected a policy of stage {stage}.")
    policy = spec
    if isinstance(spec, type):
        try:
            policy = spec()
        except Exception as error:
            wrong = f"{spec.__name__}() failed: {one_line(error)}. Give an object of the class"
            raise HeadwayError(f"{where}: {wrong}.") from error
    check_methods(stage, policy, where)
    return policy


def describe_policy(policy: Any, auto: bool) -> Json:
    """Return the name of a policy object, and its parameters if its class is in the catalogue. `auto` is as in
    `registry.written_value`."""
    entry = registry.own_entry(policy)
    if entry is None or not any(entry.make is known.make for known in registry.entries(entry.stage)):
        return {"name": type(policy).__name__}
    parameters = {each.name: registry.written_value(getattr(policy, each.name), auto) for each in entry.parameters}
    return {"name": entry.name, **parameters}


def about(scenario: Scenario) -> Json:
    """Return the facts that identify a run, for a document that is stored without its scenario."""
    resolved = scenario.resolved()
    return {
        "name": scenario.name,
        "version": __version__,
        "key": scenario.key(),
        "seed": resolved["seed"],
        "policies": {stage: spec["name"] for stage, spec in resolved["policies"].items()},
    }


def cluster_setup(scenario: Scenario, built: list[EngineSetup] | None = None) -> ClusterSetup:
    """Return the idle instances of a scenario and their common settings."""
    cluster = scenario.cluster
    return ClusterSetup(
        engines=engines(cluster) if built is None else built,
        block_tokens=cluster.kv.block_tokens,
        prefix_caching=cluster.kv.prefix_caching,
        leap=scenario.leap,
        horizon_ps=scenario.horizon_ps,
        warmup=scenario.warmup,
        jitter_seed=scenario.seed.jitter,
        signals=scenario.signals,
        routers=scenario.routers,
        router_seed=derive(scenario.seed.simulation, "routers"),
        auto=SETS[scenario.defaults].auto,
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
        belief_block_tokens=largest_block(simulation.control.indexes),
        routers=[] if simulation.routers is None else simulation.routers.counts(),
        pools=[PoolFacts(pool.id, pool.first, pool.minimum, pool.maximum, pool.ranks) for pool in pools],
        retries=scenario.retries,
    )
