"""The five B3 controls on one scenario: what each part of LMetric contributes, measured by a run without it."""

import pathlib
from collections.abc import Iterable
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from headway.experiment.compare import run_all
from headway.experiment.contenders import contenders
from headway.experiment.runner import Progress, runner_of
from headway.results.ranking import value
from headway.scenario.scenario import DEFAULT, Scenario, Source
from headway.types import Json
from headway.workload.traces import open_trace
from headway.workload.traces.record import Options

BASE: Final = "lmetric"
CAPPED: Final = "capped"
MAX_TURNS: Final = 8
FIGURES: Final = (
    "latency.ttft.mean",
    "latency.ttft.p99",
    "latency.tpot.p99",
    "cache.token_hit_ratio",
    "balance.jain",
    "requests.completed",
)


class Control(Struct, frozen=True):
    """One of the five: its row of the decision matrix, and what comparing it with LMetric isolates."""

    name: str
    routing: str
    affinity: str
    cache_aware: str
    load_aware: str
    overload_break: str
    isolates: str


CONTROLS: Final = (
    Control(BASE, "lmetric", "no", "yes, uncached tokens", "yes, requests in flight", "none", ""),
    Control(
        "load-only",
        "load-only",
        "no",
        "no",
        "yes, requests in flight",
        "none",
        "what knowing the caches is worth, the rest being equal",
    ),
    Control(
        "sticky",
        "sticky",
        "yes, hard",
        "no, hits by locality",
        "first turn only",
        "never",
        "what binding sessions gains over scoring each request, and what its hot spots cost",
    ),
    Control(
        "unified",
        "unified",
        "yes, gated",
        "yes",
        "yes",
        "cold cache or overload",
        "whether gated affinity on top of LMetric helps",
    ),
    Control(
        CAPPED,
        "lmetric",
        "as lmetric",
        "as lmetric",
        "as lmetric",
        "none",
        f"how much of LMetric's hot spots comes from heavy sessions: none has more than {MAX_TURNS} turns",
    ),
)


class Controls(Struct, frozen=True):
    """The summaries of the controls that ran, by name, LMetric's first."""

    scenario: Json
    summaries: dict[str, Json]
    missing: str | None  # why `capped` did not run, where it did not

    def difference(self, name: str, path: str) -> float | None:
        """A figure of a control less LMetric's."""
        its, base = value(self.summaries[name], path), value(self.summaries[BASE], path)
        return None if its is None or base is None else its - base

    def summary(self) -> Json:
        """The document that `headway controls --json` prints."""
        ran = [control for control in CONTROLS if control.name in self.summaries]
        return {
            "scenario": self.scenario["name"],
            "controls": [
                {
                    "name": control.name,
                    "routing": control.routing,
                    "max_turns": MAX_TURNS if control.name == CAPPED else None,
                    "session_affinity": control.affinity,
                    "cache_aware": control.cache_aware,
                    "load_aware": control.load_aware,
                    "overload_break": control.overload_break,
                    "summary": self.summaries[control.name],
                }
                for control in ran
            ],
            "isolated": [
                {
                    "control": control.name,
                    "against": BASE,
                    "isolates": control.isolates,
                    "difference": {path: self.difference(control.name, path) for path in FIGURES},
                }
                for control in ran
                if control.name != BASE
            ],
            "missing": self.missing,
        }


def controls(
    scenario: Source = DEFAULT,
    *,
    overrides: str | Iterable[str] = (),
    workers: int | None = None,
    progress: Progress | None = None,
) -> Controls:
    """Run a scenario under `lmetric`, `load-only`, `sticky` and `unified`, and once more under `lmetric` with at most
    eight turns of each session, on `workers` processes; its own routing policy is not looked at."""
    loaded = Scenario.load(scenario, overrides)
    resolved = loaded.resolved()
    loaded = replace(loaded, policies=replace(loaded.policies, routing="random"))  # so that its parameters are not used
    resolved["policies"]["routing"] = BASE
    missing = _uncappable(resolved["workload"])
    ran = [control for control in CONTROLS if control.name != CAPPED or missing is None]
    chosen = contenders(loaded, [control.routing for control in ran])
    tasks = [
        (_cap_turns(resolved) if control.name == CAPPED else resolved, contender)
        for control, contender in zip(ran, chosen, strict=True)
    ]
    with runner_of(workers) as runner:
        summaries = run_all(tasks, runner, progress)
    return Controls(resolved, dict(zip([control.name for control in ran], summaries, strict=True)), missing)


def _cap_turns(resolved: Json) -> Json:
    """The scenario with its trace cut to the first turns of each session."""
    workload = resolved["workload"]
    steps = [*(workload["trace"].get("transforms") or []), {"cap": {"max_turns": MAX_TURNS}}]
    return {**resolved, "workload": {**workload, "trace": {**workload["trace"], "transforms": steps}}}


def _uncappable(workload: Json) -> str | None:
    """Why a workload has no turns that could be cut off; None where it has."""
    trace = workload.get("trace")
    if trace is None:
        return f"{CAPPED} is left out: it wants a trace with sessions (workload.trace), and this workload is generated."
    options = Options(block_tokens=trace.get("block_tokens"), limit=trace.get("limit"))
    info = open_trace(pathlib.Path(trace["path"]), trace.get("format"), options, "workload.trace.format").info
    if info.sessions or info.block_tokens is not None:
        return None
    return (
        f"{CAPPED} is left out: this {info.format} trace neither records sessions nor has blocks to derive them from."
    )
