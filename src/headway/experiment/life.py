"""Sets up scaling and faults: when instances start and stop during a run."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from random import Random
from typing import Any

from headway.control.autoscaler import Autoscaler
from headway.errors import HeadwayError
from headway.experiment.engines import pools
from headway.policies.scaling.thresholds import Static
from headway.results.recorder import Targets
from headway.scenario.life_spec import Scaling
from headway.scenario.scenario import Scenario
from headway.sim.setup import ClusterSetup, FaultSetup, LifeSetup, PoolSetup
from headway.streams import derive
from headway.types import Request
from headway.views.pool import PoolView
from headway.workload import durations

PS_PER_US = 1_000_000


def life_setup(scenario: Scenario, setup: ClusterSetup, build: Callable[[Any, str], Any]) -> LifeSetup | None:
    """Return the settings of scaling and faults for a simulation. If the scenario has neither, so that all instances
    exist from start to end, return None."""
    scaled = pools(scenario.cluster, build)
    named = scenario.scaling is not None or bool(scenario.faults)
    if not named and static(scaled) and not any(pool.scales() for pool in scenario.cluster.scaling_pools().values()):
        return None
    scaling = Scaling() if scenario.scaling is None else scenario.scaling
    firsts = [engine.view.index for engine in setup.engines if not engine.rank]
    places = dict(zip(scenario.cluster.engine_ids(), firsts, strict=True))
    return LifeSetup(
        pools=scaled,
        provisioning=draws(scaling.provisioning, "scaling.provisioning"),
        loading=draws(scaling.model_load, "scaling.model_load"),
        seed=derive(scenario.seed.simulation, "scaling"),
        scaling=scaling,
        faults=[
            FaultSetup(fault.at_ps, places[fault.instance], fault.kind, fault.duration_ps, fault.factor or Fraction(1))
            for fault in scenario.faults
        ],
        retries=scenario.retries,
    )


def static(pools: list[PoolSetup]) -> bool:
    """Return whether all pools keep their size."""
    return all(isinstance(pool.scaling, Static) for pool in pools)


def draws(spec: Any, where: str) -> Callable[[Random], Callable[[], int]]:
    """Return a function that takes a random stream and returns a sampler of durations, in picoseconds."""
    make = durations.maker(spec, where)

    def maker(rng: Random) -> Callable[[], int]:
        draw = make(rng)
        return lambda: draw() * PS_PER_US

    return maker


def autoscaler(scenario: Scenario, setup: ClusterSetup, life: LifeSetup) -> Autoscaler | None:
    """Return the autoscaler of a run. If all pools keep their size, return None."""
    if static(life.pools):
        return None
    if any(pool.shows_ranks for pool in life.pools):
        wrong = "an autoscaler counts engines, not ranks"
        raise HeadwayError(f"cluster.dp_balance: {wrong}; use vllm, or set policies.scaling: static.")
    watches = []
    for pool in life.pools:
        views = [setup.views[index] for index in pool.places]
        model, role = views[0].model, views[0].role
        low, high = pool.minimum, pool.maximum
        watches.append(PoolView(pool.id, model, role, low, high, views, block_tokens=setup.block_tokens))
    policies = [pool.scaling for pool in life.pools]
    met = partial(met_slo, scenario.slo, scenario.workload.slos())
    scaling = life.scaling
    return Autoscaler(watches, policies, scaling.interval_ps, scaling.triggers, scaling.window_ps, met)


def met_slo(
    common: Targets,
    tenants: dict[str, Targets],
    request: Request,
    first_ps: int,
    now_ps: int,
    outcome: str,
    output_tokens: int,
) -> bool | None:
    """Return whether a finished request met the SLO of its tenant, or else the common SLO. If there is no SLO, return
    None."""
    slo = tenants.get(request.tenant, common)
    return slo.met(request.arrival_ps, first_ps, now_ps, outcome, output_tokens)
