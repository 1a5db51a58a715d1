"""One scenario, simulated."""

from __future__ import annotations

import os
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from headway import __version__
from headway.config.wording import one_line, shown
from headway.control.journal import UNFORCED, Forced
from headway.errors import HeadwayError, InvariantError
from headway.experiment.engines import engines
from headway.experiment.life import autoscaler, life_setup
from headway.experiment.tracing import Explain, check_trace, journals
from headway.latency.base import Estimator
from headway.policies import registry
from headway.policies.queues import Ticket
from headway.results.decision_log import DecisionLog
from headway.results.recorder import PoolFacts, RunFacts
from headway.results.result import Result
from headway.scenario.scenario import DEFAULT, STAGES, Scenario, Source
from headway.sim.setup import ClusterSetup
from headway.sim.simulation import Simulation
from headway.streams import derive, stream
from headway.types import Json, Request
from headway.views.events import Finished, FirstToken, Routed
from headway.workload.traffic import Traffic

# Whose mistake an exception is: a mistake in a policy of the user's own is told in a sentence, ours is left alone.

LIBRARIES = tuple(Path(sysconfig.get_path(kind)).resolve() for kind in ("stdlib", "platstdlib", "purelib", "platlib"))


def told(error: BaseException, policies: Iterable[Any]) -> HeadwayError | None:
    """The sentence for an error that comes from one of these policies, if it is the user's own; None where it is our
    own mistake, or that of whoever called us."""
    parts = [part for policy in policies for part in (policy, *getattr(policy, "_parts", ()))]
    modules = {type(part).__module__ for part in parts if registry.outside(type(part))}
    steps = list(traceback.walk_tb(error.__traceback__))
    theirs = [place for place, (frame, _) in enumerate(steps) if _theirs(frame, modules)]
    if not theirs:
        return None
    frame, line = steps[theirs[-1]]
    asked, _ = steps[theirs[0]]
    in_hand = [_request(ours) for ours, _ in reversed(steps[: theirs[0]])]
    request = next(filter(None, (*in_hand, _request(asked))), None)
    at = "" if request is None else f", at request {request.id}"
    place = f"{_shown(frame.f_code.co_filename)} line {line}, in {_function(frame)}"
    if _owner(frame) != _owner(asked):
        place += f", called from {_function(asked)}"
    return HeadwayError(f"{place}: {one_line(error)}{at}.")


def _owner(frame: FrameType) -> str:
    """The class of the object whose method this is, empty where it is none's."""
    return type(frame.f_locals["self"]).__name__ if "self" in frame.f_locals else ""


def _function(frame: FrameType) -> str:
    return ".".join(filter(None, (_owner(frame), frame.f_code.co_name)))


def _theirs(frame: FrameType, modules: set[str]) -> bool:
    """In a module that has a policy of the user's, or in one that it may have called: neither ours nor a library's. A
    method that an object of theirs has from a class of ours is theirs as well."""
    module = str(frame.f_globals.get("__name__"))
    if module in modules or type(frame.f_locals.get("self")).__module__ in modules:
        return True
    file = frame.f_code.co_filename
    if not modules or module.startswith("headway.") or file.startswith("<frozen"):
        return False
    return not set(LIBRARIES) & set(Path(file).resolve().parents)


def _request(frame: FrameType) -> Request | None:
    """The request that a function has in its hands, itself, in an event or as a ticket."""
    for value in frame.f_locals.values():
        if isinstance(value, Request):
            return value
        if isinstance(value, Routed | FirstToken | Finished | Ticket):
            return value.request
    return None


def _shown(file: str) -> str:
    near = os.path.relpath(file) if Path(file).exists() else file
    return file if near.startswith(os.pardir) else near


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
    return finished(prepared, trace, explain=explain, progress=progress)


def finished(
    prepared: Prepared,
    trace: str = "minimal",
    *,
    explain: Explain | None = None,
    forced: Forced = UNFORCED,
    progress: Progress | None = None,
) -> Result:
    """What came of a run. A decision that is `forced` is taken out of the policy's hands."""
    log = None if trace == "minimal" else DecisionLog()
    prepared.setup.trace = trace
    try:
        simulation, traffic = prepared.simulation(log, explain, forced), prepared.traffic()
        recorder = simulation.run(traffic, progress)
    except (HeadwayError, InvariantError, KeyboardInterrupt):
        raise
    except BaseException as error:
        mistake = told(error, prepared.policies.values())
        if mistake is None:
            raise
        raise mistake from error
    result = Result.of(prepared.resolved, recorder, simulation.stats, run_facts(prepared.scenario, simulation))
    if not prepared.own:
        result._key = prepared.scenario.key
    result.trace = trace
    result.decisions = None if log is None else log.decisions(result.requests)
    result.series = simulation.series()
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
            **{stage: made for stage, made in self.policies.items() if stage != "scaling"},
            rng=streams,
            estimator=estimator,
            journals=journals(log, explain, 1 + len(self.further)),
            forced=forced,
            further=self.further,
            autoscaler=None if self.setup.life is None else autoscaler(self.scenario, self.setup, self.setup.life),
        )


def prepare(
    scenario: Scenario,
    *,
    admission: Any = None,
    priority: Any = None,
    flow: Any = None,
    routing: Any = None,
    scheduler: Any = None,
    scaling: Any = None,
) -> Prepared:
    """All of a run that comes before its first event. Policies are given as to `simulate`."""
    given = {"admission": admission, "priority": priority, "flow": flow, "routing": routing}
    given |= {"scheduler": scheduler, "scaling": scaling}
    named = {stage: _plain(spec) for stage, spec in given.items() if isinstance(spec, str | Mapping)}
    scenario = replace(scenario, policies=replace(scenario.policies, **named))
    resolved = scenario.resolved()
    policies: dict[str, Any] = {}
    for stage in STAGES:
        if given[stage] is None or stage in named:
            policies[stage] = scenario.policies.build(stage)
        else:
            policies[stage] = own_policy(stage, given[stage], stage)
            resolved["policies"][stage] = described(policies[stage])
    own = {stage: spec for stage, spec in given.items() if stage not in named and spec is not None}
    further = [router_policies(scenario, own) for _ in range(scenario.routers.count - 1)]
    setup = cluster_setup(scenario)
    setup.life = life_setup(scenario, setup, partial(pool_policy, scenario, own.get("scaling")))
    return Prepared(scenario, resolved, policies, setup, further, bool(own))


def router_policies(scenario: Scenario, own: Mapping[str, Any]) -> list[Any]:
    """The policies of one router more, in the order of its stages: an object of the caller's own is copied."""
    objects = {stage: given for stage, given in own.items() if stage in ROUTER_STAGES and not isinstance(given, type)}
    try:
        found = deepcopy(objects)  # at once, so that what they share stays shared
    except Exception as error:
        listed = ", ".join(objects)
        text = f"a copy for each router could not be made: {one_line(error)}; give classes, or one router."
        raise HeadwayError(f"{listed}: {text}") from error
    for stage in ROUTER_STAGES:
        if stage not in found:
            made = own_policy(stage, own[stage], stage) if stage in own else scenario.policies.build(stage)
            found[stage] = made
    return [found[stage] for stage in ROUTER_STAGES]


def pool_policy(scenario: Scenario, own: Any, spec: Any, where: str) -> Any:
    """The autoscaler of one pool: its own, or else that of all, each in its own copy."""
    if spec is not None:
        return registry.build("scaling", spec, where)
    return scenario.policies.build("scaling") if own is None else deepcopy(own_policy("scaling", own, "scaling"))


def _plain(spec: str | Mapping[str, Any]) -> str | Json:
    return spec if isinstance(spec, str) else dict(spec)


def own_policy(stage: str, given: Any, where: str) -> Any:
    """A policy that lives in the caller's program: an object as it is, a class made with its defaults."""
    method = registry.METHODS.get(stage)
    if method is None:
        known = ", ".join(registry.names(stage))
        raise HeadwayError(f"{where}: a {stage} is given by its name or as a mapping with 'name'. Known: {known}.")
    if not callable(getattr(given, method, None)):
        wanted = f"a policy's name, a mapping with 'name', or a class or object with the method {method!r}"
        raise HeadwayError(f"{where}: expected {wanted}, got {shown(given)}.")
    entry = registry.own_entry(given)
    if entry is not None and entry.stage != stage:
        raise HeadwayError(f"{where}: {entry.name!r} is of stage {entry.stage}, a policy of stage {stage} is wanted.")
    made = given
    if isinstance(given, type):
        try:
            made = given()
        except Exception as error:
            name = f"{given.__name__} could not be made"
            raise HeadwayError(f"{where}: {name}: {one_line(error)}; give an object of it.") from error
    registry.check_methods(stage, made, where)
    return made


def described(policy: Any) -> Json:
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
    life = simulation.setup.life
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
        pools=[] if life is None else [PoolFacts(one.id, one.first, one.minimum, one.maximum) for one in life.pools],
        retries=scenario.retries,
    )
