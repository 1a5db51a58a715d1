"""What a run gives back: the resolved scenario, one row a request, and the summary."""

from __future__ import annotations

from pathlib import Path

import msgspec

from headway.results import store
from headway.results.checks import verify
from headway.results.decisions import Decisions
from headway.results.metrics import summarise
from headway.results.recorder import InstanceStats, Recorder, RunFacts, ScaleRecord, StateChange
from headway.results.records import Counterfactual, Finding, Preemption, Series, Thrash
from headway.results.table import Table
from headway.types import Json


class Result:
    """One run. `requests` has its columns, `summary()` its figures, `scenario` what would run it again.

    Where instances come and go, `states` has what they went through and `scaling_events` what the autoscaler did;
    `preemptions` and `thrashes` are told one by one, all in order of time. Where decisions were traced, `decisions` has
    them and `series` how full the GPUs were over time. `counterfactuals` are what was asked for of them.
    """

    __slots__ = (
        "_findings",
        "_summary",
        "counterfactuals",
        "decisions",
        "preemptions",
        "requests",
        "scaling_events",
        "scenario",
        "series",
        "states",
        "thrashes",
        "trace",
    )

    def __init__(
        self,
        scenario: Json,
        requests: Table,
        summary: Json,
        scaling_events: list[ScaleRecord] | None = None,
        states: list[StateChange] | None = None,
        *,
        trace: str = "minimal",
        preemptions: list[Preemption] | None = None,
        thrashes: list[Thrash] | None = None,
        decisions: Decisions | None = None,
        series: list[Series] | None = None,
        counterfactuals: list[Counterfactual] | None = None,
    ) -> None:
        self.scenario = scenario
        self.requests = requests
        self._summary = summary
        self.scaling_events = scaling_events or []
        self.states = states or []
        self.trace = trace  # how much was written down: minimal, decisions or full
        self.preemptions = preemptions or []
        self.thrashes = thrashes or []
        self.decisions = decisions
        self.series = series or []
        self.counterfactuals = counterfactuals or []
        self._findings: list[Finding] | None = None

    @classmethod
    def of(cls, scenario: Json, recorder: Recorder, instances: list[InstanceStats], facts: RunFacts) -> Result:
        """The result of a finished run; one that breaks an invariant is refused."""
        verify(recorder, instances, facts)
        summary = summarise(recorder, instances, facts)
        return cls(scenario, Table.of(recorder), summary, recorder.scaled, recorder.states)

    def instance_ids(self) -> dict[int, str]:
        """The names of the instances that were there, by index."""
        return {one.get("index", place): one["id"] for place, one in enumerate(self._summary["instances"])}

    @classmethod
    def load(cls, folder: str | Path) -> Result:
        """A result that was saved before."""
        kept = store.read(folder)
        return cls(kept.scenario, kept.requests, kept.summary, kept.scaling_events, kept.states)

    def summary(self) -> Json:
        return self._summary

    def to_json(self) -> str:
        """The summary as one JSON document, keys in the order of their definition."""
        return store.pretty(self._summary)

    def save(self, folder: str | Path) -> list[str]:
        """Write the run into a folder: scenario.yaml, summary.json, requests.jsonl and manifest.json; where instances
        come and go states.jsonl, too, and scaling.jsonl. Returns their names."""
        kept = store.Kept(self.scenario, self._summary, self.requests, self.scaling_events, self.states)
        store.write(folder, kept)
        return kept.files()

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Result)
            and self.scenario == other.scenario
            and msgspec.json.encode(self._summary) == msgspec.json.encode(other._summary)
            and self.requests == other.requests
            and self.scaling_events == other.scaling_events
            and self.states == other.states
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        requests = self._summary["requests"]
        return f"Result({requests['completed']} of {requests['arrived']} requests completed)"
