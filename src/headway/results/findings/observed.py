"""What the detectors look at: a run's columns and what several of them need, each thing computed once."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from headway.results.columns import Columns, word_of
from headway.results.findings.stays import Stays, stays
from headway.results.recorder import RunFacts, Targets
from headway.results.records import Preemption, Thrash
from headway.results.waits import Waits
from headway.types import PS_PER_SECOND, Json
from headway.units import duration_ps

if TYPE_CHECKING:
    from headway.results.result import Result


class Observed:
    def __init__(self, result: Result) -> None:
        self.result = result
        self.scenario: Json = result.scenario
        self.summary: Json = result.summary()
        self.requests = Columns(result.requests)
        self.instances = result.instance_ids()
        self.warmup: int = self.scenario.get("warmup") or 0
        requests = self.requests
        self.started_ps = requests.arrival_ps[0] if len(requests) else 0
        length_ps: int = round(self.summary["duration_s"] * PS_PER_SECOND)  # as near as a float has it
        self.ended_ps: int = max(self.started_ps + length_ps, max(requests.finished_ps, default=0))

    @property
    def length_ps(self) -> int:
        return self.ended_ps - self.started_ps

    @property
    def preemptions(self) -> list[Preemption]:
        return self.result.preemptions

    @property
    def thrashes(self) -> list[Thrash]:
        return self.result.thrashes

    @cached_property
    def classes(self) -> dict[int, str]:
        """The SLO classes by their numbers."""
        return word_of(self.requests.names["slo_class"])

    @cached_property
    def tenants(self) -> dict[int, str]:
        return word_of(self.requests.names["tenant"])

    @cached_property
    def waits(self) -> Waits:
        return Waits(self.requests, self.ended_ps)

    @cached_property
    def stays(self) -> dict[int, Stays]:
        """What was at each instance, and when."""
        return stays(self.requests, self.ended_ps)

    @cached_property
    def peers(self) -> dict[int, tuple[str, str]]:
        """The instances by index, each with what it shares with those that a router may choose instead: the model and
        the part that it plays."""
        found = {}
        for place, one in enumerate(self.summary["instances"]):
            found[one.get("index", place)] = (one.get("model", ""), one.get("role", ""))
        return found

    @cached_property
    def facts(self) -> RunFacts:
        """What was promised, read back from the resolved scenario."""
        workload = self.scenario.get("workload", {})
        tenants = workload.get("tenants") or {}
        own = {name: _targets(keys["slo"]) for name, keys in tenants.items() if keys.get("slo")}
        slo = self.scenario.get("slo") or {}
        return RunFacts(
            started_ps=self.started_ps,
            ended_ps=self.ended_ps,
            block_tokens=1,
            warmup=self.warmup,
            policy_metrics={},
            slo=_targets(workload.get("slo") or slo),  # a tenant's own, where it is the only one, is the workload's
            tenant_slos=own,
        )

    @cached_property
    def waiting(self) -> list[int]:
        """The requests that count and whose wait at an instance is known."""
        return [row for queue in self.waits.queues() for row in queue.rows if row >= self.warmup]

    def home(self, row: int) -> int:
        """The instance at which a request waited."""
        prefill = self.requests.prefill_instance[row]
        return prefill if prefill >= 0 else self.requests.instance[row]

    def name(self, instance: int) -> str:
        return self.instances.get(instance, f"instance {instance}")


def _targets(slo: Json) -> Targets:
    given = {name: slo.get(name) for name in ("ttft", "tpot", "e2e")}
    return Targets(*(None if text is None else duration_ps(text, f"slo.{name}") for name, text in given.items()))
