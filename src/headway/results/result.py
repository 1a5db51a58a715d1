"""The result of a run: the resolved scenario, one row per request, the summary, and further records."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from headway.config.arguments import checked
from headway.display.displayed import Displayed, Types
from headway.results import store
from headway.results.checks import verify
from headway.results.decisions import Decisions, PriorityRecord
from headway.results.findings import find
from headway.results.garbage import collecting_seldom
from headway.results.metrics import summarise
from headway.results.recorder import InstanceStats, Recorder, RunFacts, ScaleRecord, StateChange
from headway.results.records import (
    Batch,
    Counterfactual,
    Findings,
    KvMove,
    Preemption,
    Prompt,
    QueueLimit,
    Series,
    Thrash,
)
from headway.results.scaling import with_delays
from headway.results.scope import stages_of, within
from headway.results.statistics import PS_PER_MS
from headway.results.table import TYPES, Table
from headway.types import PS_PER_SECOND, Json


class Result(Displayed):
    """The result of one run. `requests` has the columns of the requests, `summary()` returns the figures, and
    `scenario` reproduces the run.

    With autoscaling or faults, `states` lists the instances' states and `scaling_events` the autoscaler's changes.
    `preemptions` and `thrashes` list single events. `queue_limits` says what kept requests out of the batches. All
    lists are in order of time. If decisions were traced, they are in `decisions`, and `series` has the use of the KV
    caches over time. A full trace has changes of batches and moves of KV blocks in `events`. `counterfactuals` are
    simulated alternatives. `prompts` exist only for live traffic.
    """

    __slots__ = (
        "_findings", "_key", "_summary", "counterfactuals", "decisions", "events", "preemptions", "priorities",
        "prompts", "queue_limits", "requests", "scaling_events", "scenario", "series", "states", "thrashes", "trace",
    )  # fmt: skip

    _view: ClassVar[str] = "headway.report.notebook:run_view"
    _types: ClassVar[Types] = TYPES

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
        priorities: list[PriorityRecord] | None = None,
        queue_limits: list[QueueLimit] | None = None,
        decisions: Decisions | None = None,
        series: list[Series] | None = None,
        counterfactuals: list[Counterfactual] | None = None,
        events: list[Batch | KvMove] | None = None,
        prompts: list[Prompt] | None = None,
    ) -> None:
        self.scenario = scenario
        self.requests = requests
        self._summary = summary
        self.scaling_events = scaling_events or []
        self.states = states or []
        self.trace = trace  # level of detail: minimal, decisions or full
        self.preemptions = preemptions or []
        self.thrashes = thrashes or []
        self.priorities = priorities or []
        self.queue_limits = queue_limits or []
        self.decisions = decisions
        self.series = series or []
        self.counterfactuals = counterfactuals or []
        self.events = events or []
        self.prompts = prompts or []
        self._findings: Findings | None = None
        self._key: Callable[[], str] = str

    @classmethod
    def of(
        cls,
        scenario: Json,
        recorder: Recorder,
        instances: list[InstanceStats],
        facts: RunFacts,
        figures: Collection[str] | None = None,
    ) -> Result:
        """Return the result of a finished run; raise if it breaks an invariant. If only some `figures` are needed, the
        summary lacks the costly sections that have none of them."""
        verify(recorder, instances, facts)
        summary = summarise(recorder, instances, facts, figures)
        return cls(
            scenario,
            Table.of(recorder),
            summary,
            with_delays(recorder.scaled, recorder.states),
            recorder.states,
            preemptions=recorder.preempted,
            thrashes=recorder.thrashed,
            queue_limits=recorder.limits,
            events=recorder.events,
        )

    def instances(self) -> dict[int, Json]:
        """Return the summary's entries of the instances, by index."""
        return {each.get("index", place): each for place, each in enumerate(self._summary["instances"])}

    def instance_ids(self) -> dict[int, str]:
        """Return the names of the instances, by index."""
        return {index: instance["id"] for index, instance in self.instances().items()}

    def span_ps(self) -> tuple[int, int]:
        """Return the time of the first arrival and the end of the run."""
        arrivals, ends = self.requests.column("arrival_ps"), self.requests.column("finished_ps")
        begun: int = arrivals[0] if len(arrivals) else 0
        length = round(self._summary["duration_s"] * PS_PER_SECOND)  # exact only to the precision of a float
        return begun, max(begun + length, max(ends, default=0))

    @classmethod
    @checked
    def load(cls, folder: str | Path) -> Result:
        """Read a result that `save` wrote."""
        run = store.read(folder)
        lists: dict[str, Any] = dict(run.lists)
        findings = lists.pop("findings")
        result = cls(run.scenario, run.requests, run.summary, trace=run.trace, decisions=run.decisions, **lists)
        result._findings = Findings(findings)
        result._key = lambda: run.key
        return result

    def key(self) -> str:
        """Return the run key: runs with the same key have the same result. The key is an empty string if a policy was a
        Python object of the caller."""
        return self._key()

    @checked
    def findings(self, *, may: str | Iterable[str] | None = None) -> Findings:
        """Return the problems of the run, first the one that explains most of the loss.

        `may` names the stages that you may change, such as `["routing", "admission"]`: the findings then have only
        suggestions for these stages. See docs/findings.md for the stages."""
        if self._findings is None:
            self._findings = Findings(find(self))
        return self._findings if may is None else within(self._findings, stages_of(may))

    def summary(self) -> Json:
        return self._summary

    def to_json(self) -> str:
        """Return the summary as one JSON document, with its keys in the order of their definition."""
        return store.pretty(self._summary)

    @checked
    def save(self, folder: str | Path) -> list[str]:
        """Write the run into a folder that `load` reads (see `results.store`), and return the names of its files."""
        lists = {name: getattr(self, name) for name in store.LISTS if name != "findings"}
        with collecting_seldom():
            lists["findings"] = self.findings()
            run = store.RunFiles(
                self.scenario, self._summary, self.requests, lists, self.decisions, self.key(), self.trace
            )
            store.write(folder, run)
        return run.files()

    def columns(self) -> dict[str, list[Any]]:
        """Return the columns of the requests, and their latencies in milliseconds. A missing latency is None."""
        requests = self.requests
        arrived, first, ended = (requests.column(f"{name}_ps") for name in ("arrival", "first_token", "finished"))
        steps = [tokens - 1 for tokens in requests.column("output_tokens")]
        done = [outcome == "completed" for outcome in requests.column("outcome")]
        ends = [at if completed else -1 for at, completed in zip(ended, done, strict=True)]
        return {
            **dict(requests),
            "queue_wait_ms": _between(arrived, requests.column("started_ps")),
            "ttft_ms": _between(arrived, first),
            "tpot_ms": [
                None if gap is None or many < 1 else gap / many
                for gap, many in zip(_between(first, ends), steps, strict=True)
            ],
            "e2e_ms": _between(arrived, ends),
        }

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Result)
            and self.scenario == other.scenario
            and msgspec.json.encode(self._summary) == msgspec.json.encode(other._summary)
            and self.requests == other.requests
            and all(getattr(self, name) == getattr(other, name) for name in store.LISTS if name != "findings")
            and self.decisions == other.decisions
        )

    __hash__ = None  # type: ignore[assignment]


def _between(begin_ps: Sequence[int], end_ps: Sequence[int]) -> list[float | None]:
    """Return the time between two events of each request in milliseconds; None if one of the events never happened."""
    pairs = zip(begin_ps, end_ps, strict=True)
    return [(end - begin) / PS_PER_MS if min(begin, end) >= 0 else None for begin, end in pairs]
