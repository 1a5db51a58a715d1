"""What the detectors look at: a run's columns and what several of them need, each thing computed once."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from headway.results.columns import Columns, word_of
from headway.results.findings.stays import Stays, stays
from headway.results.promises import promises
from headway.results.recorder import RunFacts
from headway.results.records import Preemption, Thrash
from headway.results.waits import Waits
from headway.types import Json

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
        self.started_ps, self.ended_ps = result.span_ps()

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
        return {index: (one.get("model", ""), one.get("role", "")) for index, one in self.result.instances().items()}

    @cached_property
    def facts(self) -> RunFacts:
        """What was promised, read back from the resolved scenario."""
        promised = promises(self.scenario)
        return RunFacts(
            started_ps=self.started_ps,
            ended_ps=self.ended_ps,
            block_tokens=1,
            warmup=self.warmup,
            policy_metrics={},
            slo=promised.everybody,
            tenant_slos=promised.own,
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
