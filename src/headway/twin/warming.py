"""What only the first requests of a run would meet, met before it: connections that are made, code that is read.

They would come to their engines 5 to 15 ms late by the wall's clock, and so would all that follows from them.
"""

from __future__ import annotations

from typing import Final

from headway.load.asking import Ask
from headway.load.open_loop import load
from headway.scenario.scenario import Scenario
from headway.types import Json

LINES: Final = 24  # connections of the load generator
EACH: Final = 8  # requests an engine, nearly at once
# No block of a prompt is full, so that nothing of it stays in caches and indexes.
TINY: Final = {"rate": "2000/s", "prompt_tokens": 8, "output_tokens": 4}


def meanwhile(policies: Json) -> Json:
    """Other policies than these, which spread requests evenly, and after which these begin anew."""
    return {"routing": "round-robin" if "least-loaded" in str(policies["routing"]) else "least-loaded"}


def warm(url: str, scenario: Scenario, replicas: int, speed: float) -> None:
    few = {"workload": {**TINY, "requests": EACH * replicas}, "cluster": {"instances": 1}}
    load(Ask(url, model=scenario.cluster.default_model(), truth=True), few, speed=speed)
