"""What all candidates share in a case: the validated scenario, its requests and its idle engines.

A zygote prepares a case before it forks a child, and the child uses its copy. So the requests of a case are drawn once
for all candidates of a worker, and a run can still use them only once. The process that runs the search prepares
nothing.
"""

from __future__ import annotations

import contextlib
import os
from hashlib import blake2b
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from headway.experiment.engines import engines
from headway.experiment.run import prepare, run_prepared
from headway.scenario.references import replace_by_stamps
from headway.scenario.scenario import Scenario
from headway.sim.setup import EngineSetup
from headway.types import Json
from headway.workload.traffic import Traffic

SWITCH: Final = "HEADWAY_SHARED_CASES"  # environment variable; 0: every run prepares its case itself
MOST_REHEARSED: Final = 2_000  # maximum number of requests of a case that is rehearsed
MOST_EACH: Final = 20_000  # maximum number of requests of a case that is prepared
MOST: Final = 100_000  # maximum number of requests of all prepared cases; they take about 100 MB


class SharedCase(Struct):
    """A case, ready for one run."""

    scenario: Scenario
    traffic: Traffic
    engines: list[EngineSetup]

    @classmethod
    def of(cls, scenario: Scenario, rehearse: bool) -> SharedCase:
        """Prepare a case. A rehearsal runs it once with default policies, so that its latency models already know the
        times of the usual steps."""
        known = engines(scenario.cluster)
        if rehearse:
            run_prepared(prepare(scenario, built=known), figures=())
        fresh = engines(scenario.cluster)
        for engine, other in zip(fresh, known, strict=True):
            engine.latency = other.latency
        traffic = scenario.workload.plan(scenario.seed.workload, scenario.cluster.default_model())
        traffic.draw_ahead()
        return cls(scenario, traffic, fresh)


class SharedCases:
    """The prepared cases of this process, by their scenario."""

    def __init__(self) -> None:
        self._seen: set[bytes] = set()
        self._ready: dict[bytes, SharedCase | None] = {}  # None: the case cannot be prepared
        self._requests = 0

    def prepare(self, document: Json) -> bool:
        """Prepare a case when it is asked for the second time, and return True then. If its number of requests is large
        or unknown, or if it cannot be prepared, do nothing: the run then reports what is wrong."""
        if os.environ.get(SWITCH) == "0":
            return False
        key = key_of(document)
        if key not in self._seen:
            self._seen.add(key)
            return False
        if key in self._ready:
            return False
        if self._requests > MOST:
            self._ready.clear()
            self._requests = 0
        self._ready[key] = None
        with contextlib.suppress(Exception):
            scenario = Scenario.load(document)
            requests = count_of(scenario)
            if requests is not None and requests <= MOST_EACH:
                self._ready[key] = SharedCase.of(scenario, rehearse=requests <= MOST_REHEARSED)
                self._requests += requests
        return self._ready[key] is not None

    def take(self, document: Json) -> SharedCase | None:
        """Return the prepared case, if there is one. Each process can take a case only once."""
        if not self._ready:
            return None
        with contextlib.suppress(Exception):  # the run reports what is wrong with the document
            return self._ready.pop(key_of(document), None)
        return None


def key_of(document: Json) -> bytes:
    """Return a key of a case. It changes if a file of the case, such as its trace, changes."""
    text = msgspec.json.encode([str(Path.cwd()), replace_by_stamps(document)], order="sorted")
    return blake2b(text, digest_size=16).digest()


def count_of(scenario: Scenario) -> int | None:
    """Return the largest possible number of requests of a scenario. If it is not in the scenario, return None."""
    workload = scenario.workload
    if workload.trace is None:
        return workload.requests
    limit = workload.trace.get("limit")
    return limit if isinstance(limit, int) else None
