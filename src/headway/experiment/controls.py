"""The five B3 controls on one scenario: LMetric, and four runs whose difference from LMetric shows one effect each."""

from collections.abc import Iterable
from typing import Any, ClassVar, Final

from msgspec import Struct
from msgspec.structs import replace

from headway.config.arguments import checked
from headway.display.displayed import Displayed, columns_of
from headway.display.progress import Bar, watch
from headway.experiment.compare import run_all
from headway.experiment.contenders import contenders
from headway.experiment.paired import HEADLINE
from headway.experiment.runner import Progress, runner_of
from headway.results.ranking import value
from headway.scenario.scenario import DEFAULT, Scenario, Source
from headway.types import Json
from headway.workload import trace_spec
from headway.workload.replay import open_replayed

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
    """A control, and the effect that its comparison with LMetric isolates."""

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
        "the value of knowing the caches, all else equal",
    ),
    Control(
        "sticky",
        "sticky",
        "yes, hard",
        "no, hits by locality",
        "first turn only",
        "never",
        "the gain of binding sessions over scoring each request, and the cost of its hot spots",
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


class Controls(Displayed, Struct, frozen=True):
    """The summaries of the controls that ran, by name, LMetric first."""

    _view: ClassVar[str] = "headway.report.notebook:controls_view"

    scenario: Json
    summaries: dict[str, Json]
    missing: str | None  # why the control `capped` did not run; None if it ran

    def difference(self, name: str, path: str) -> float | None:
        """Return a figure of a control minus the same figure of LMetric."""
        its, base = value(self.summaries[name], path), value(self.summaries[BASE], path)
        return None if its is None or base is None else its - base

    def columns(self) -> dict[str, list[Any]]:
        """Return a row for each control, with its figures and their differences from LMetric."""
        return columns_of(
            {
                "control": name,
                **{path: value(summary, path) for path in dict.fromkeys((*FIGURES, *HEADLINE))},
                **{f"{path} - {BASE}": self.difference(name, path) for path in FIGURES},
            }
            for name, summary in self.summaries.items()
        )

    def summary(self) -> Json:
        """Return the document that `headway controls --json` prints."""
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


@checked
def controls(
    scenario: Source = DEFAULT,
    *,
    overrides: str | Iterable[str] = (),
    workers: int | None = None,
    progress: Progress | bool = True,
) -> Controls:
    """Run a scenario with `lmetric`, `load-only`, `sticky` and `unified`. Then run `lmetric` again with at most eight
    turns of each session. The runs use `workers` processes. The scenario's own routing policy is ignored."""
    loaded = Scenario.load(scenario, overrides)
    resolved = loaded.resolved()
    # Replace the scenario's routing policy. Otherwise a control with the same name would use its parameters.
    loaded = replace(loaded, policies=replace(loaded.policies, routing="random"))
    resolved["policies"]["routing"] = BASE
    missing = _uncappable(resolved["workload"])
    ran = [control for control in CONTROLS if control.name != CAPPED or missing is None]
    chosen = contenders(loaded, [control.routing for control in ran])
    tasks = [
        (_cap_turns(resolved) if control.name == CAPPED else resolved, contender)
        for control, contender in zip(ran, chosen, strict=True)
    ]
    with watch(progress, lambda: Bar(None, "policies")) as report, runner_of(workers) as runner:
        runs = run_all(tasks, runner, report)
    summaries = {control.name: summary for control, [summary] in zip(ran, runs, strict=True)}
    return Controls(resolved, summaries, missing)


def _cap_turns(resolved: Json) -> Json:
    """Return the scenario with only the first turns of each session of its trace."""
    workload = resolved["workload"]
    steps = [*(workload["trace"].get("transforms") or []), {"cap": {"max_turns": MAX_TURNS}}]
    return {**resolved, "workload": {**workload, "trace": {**workload["trace"], "transforms": steps}}}


def _uncappable(workload: Json) -> str | None:
    """If a workload has no sessions to shorten, return a sentence that says why. Otherwise return None."""
    trace = workload.get("trace")
    if trace is None:
        return f"{CAPPED} did not run: it needs a trace with sessions (workload.trace), and this workload is generated."
    info = open_replayed(replace(trace_spec.parse(trace), transforms=None), seed=0).info
    if info.sessions or info.block_tokens is not None:
        return None
    return f"{CAPPED} did not run: this {info.format} trace has neither sessions nor blocks to derive them from."
