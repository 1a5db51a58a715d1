"""Whether a simulation keeps what it promises after each single event: `attach` before its `run`, `over` after it."""

from __future__ import annotations

from headway.sim.simulation import Simulation
from watch.blocks import Gpus, Stores
from watch.events import Broken, Watcher
from watch.lives import Lives
from watch.tokens import Times, Tokens
from watch.transfers import Links, Ownership

__all__ = ["Broken", "Watcher", "attach"]


def attach(simulation: Simulation) -> Watcher:
    if simulation.capacity is not None:  # what is lost with an instance is not counted as the other parts count
        return Watcher(simulation, [Lives(simulation)])
    tokens = Tokens(simulation)
    gpus = Gpus(simulation, tokens.generated, tokens.positions)
    parts = [Ownership(simulation), tokens, gpus, Stores(simulation), Links(simulation), Times(simulation)]
    return Watcher(simulation, parts)
