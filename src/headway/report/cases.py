"""The runs of a page: run folders, a study folder or results in memory, each with a label.

At first, only the scenario and the summary of a run are read; its requests are read when a chart needs them.
"""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from headway.config.dated_defaults import CURRENT, SETS
from headway.display.displayed import flat
from headway.errors import HeadwayError
from headway.experiment.contenders import place_of, stage_label
from headway.experiment.verdict import verdict
from headway.policies.registry import DEFAULT_POLICIES
from headway.results import store, study
from headway.results.ranking import rank
from headway.results.result import Result
from headway.types import Json

Source = str | Path | Result
SHOWN: Final = 3  # maximum number of differing keys that a label shows
ASKED: Final = ("workload", "slo", "horizon", "warmup")  # runs are ranked only if these sections are equal


class Case(Struct):
    """One of the runs that a page compares."""

    label: str
    scenario: Json
    summary: Json
    source: Result | Path
    oracle: bool = False
    vary: Json = {}
    aside: str | None = None  # template or control if the run ranks behind the others; otherwise None

    def result(self) -> Result:
        return self.source if isinstance(self.source, Result) else Result.load(self.source)

    @property
    def folder(self) -> str:
        return "" if isinstance(self.source, Result) else str(self.source)


class Cases(Struct):
    """All runs of a page, best first if they can be ranked."""

    kind: str  # run, comparison or sweep
    name: str  # name of the scenario
    verdict: str
    cases: list[Case]
    baseline: str | None
    command: str | None  # the command that repeats the runs; None if no command can
    stage: str = "routing"
    vary: dict[str, list[Any]] = {}
    paired: list[Json] | None = None
    seeds: int = 1
    count: int = 0  # total number of runs, including those that are not shown
    note: str = ""  # says which runs are shown; empty if all are shown


def open_cases(sources: Sequence[Source]) -> Cases:
    """Open runs or one study. A folder with a `study.json` is a study."""
    if not sources:
        raise HeadwayError("report: name at least one run folder or study folder.")
    paths = [Path(source) for source in sources if not isinstance(source, Result)]
    studies = [path for path in paths if (path / study.STUDY).is_file()]
    if studies and len(sources) > 1:
        raise HeadwayError(f"{studies[0]}: is a study folder; report it alone, or name the run folders in it.")
    return _study(studies[0]) if studies else _runs(sources)


def _study(folder: Path) -> Cases:
    document = study.read(folder)
    cases = []
    for run in document["runs"]:
        scenario, summary = store.read_documents(folder / run["folder"])
        label, oracle, vary = run["label"], run.get("oracle", False), run.get("vary") or {}
        cases.append(Case(label, scenario, summary, folder / run["folder"], oracle, vary, run.get("aside")))
    if not cases:
        raise HeadwayError(f"{folder}: contains no runs; `headway compare -o` and `headway sweep -o` write some.")
    seeds = max(run.get("seeds") or 1 for run in document["runs"])
    kind, stage, vary = document["kind"], document.get("stage") or "routing", document.get("vary") or {}
    if kind == "comparison":
        order = [name for name, _ in rank([(case.label, case.summary) for case in cases])]
        cases.sort(key=lambda case: (place_of(case.aside), order.index(case.label)))
    return Cases(
        kind=kind,
        name=document["scenario"],
        verdict=document["verdict"],
        cases=cases,
        baseline=document.get("baseline"),
        command=again(kind, cases, stage, vary, seeds),
        stage=stage,
        vary=vary,
        paired=document.get("paired") if kind == "comparison" else None,
        seeds=seeds,
        count=len(cases),
    )


def _runs(sources: Sequence[Source]) -> Cases:
    """Open several runs; the first is the baseline."""
    cases = []
    for source in sources:
        if isinstance(source, Result):
            cases.append(Case("", source.scenario, source.summary(), source))
        else:
            cases.append(Case("", *store.read_documents(Path(source)), Path(source)))
    scenarios = [case.scenario for case in cases]
    stage = _compared_stage(scenarios)
    for case, label in zip(cases, labels(cases, stage), strict=True):
        case.label = label
    kind = "run" if len(cases) == 1 else "comparison"
    baseline = None if kind == "run" else cases[0].label
    ranked = rank([(case.label, case.summary) for case in cases])
    keys = differing(scenarios, ("policies", "name"))
    other = [key for key in keys if key.partition(".")[0] in ASKED]
    if other:
        more = f" and {len(other) - SHOWN} more" if len(other) > SHOWN else ""
        keys_text = f"{', '.join(other[:SHOWN])}{more}"
        sentence = f"These runs have different tasks, so they are not ranked: they differ in {keys_text}."
    else:
        sentence = verdict(ranked, scenarios[0], plain=baseline or "")
    command = None if keys else again(kind, cases, stage)
    order = [name for name, _ in ranked]
    cases.sort(key=lambda case: order.index(case.label))
    return Cases(kind, cases[0].scenario["name"], sentence, cases, baseline, command, stage, count=len(cases))


def _compared_stage(scenarios: Sequence[Json]) -> str:
    """Return the stage whose policies differ; if no stage or several stages differ, return routing."""
    policies = {stage: [policy_of(scenario, stage) for scenario in scenarios] for stage in DEFAULT_POLICIES}
    stages = [stage for stage, specs in policies.items() if any(spec != specs[0] for spec in specs)]
    return stages[0] if len(stages) == 1 else "routing"


def labels(cases: Sequence[Case], stage: str) -> list[str]:
    """Return a distinct label for each run: its policy, and other keys in which the scenarios differ. If labels are
    still equal, add the names of the folders."""
    scenarios = [case.scenario for case in cases]
    policies = [
        stage_label(stage, policy_of(scenario, stage), SETS[scenario.get("defaults", CURRENT)].auto)
        for scenario in scenarios
    ]
    keys = differing(scenarios, (f"policies.{stage}", "name"))[:SHOWN]
    if keys:
        tables = [flat(scenario) for scenario in scenarios]
        texts = [", ".join(f"{key.rpartition('.')[2]}={table.get(key)}" for key in keys) for table in tables]
        same = len(set(policies)) == 1
        policies = [text if same else f"{name} ({text})" for name, text in zip(policies, texts, strict=True)]
    if len(set(policies)) < len(policies):
        places = [Path(case.folder).name for case in cases]
        if not all(places) or len(set(places)) < len(places):
            places = [f"run {turn}" for turn in range(1, len(places) + 1)]
        policies = [f"{name}, {place}" for name, place in zip(policies, places, strict=True)]
    return policies


def differing(scenarios: Sequence[Json], but: Sequence[str] = ()) -> list[str]:
    """Return the dotted keys whose values differ between the scenarios. Leave out the keys in `but` and all keys below
    them."""
    tables = [flat(scenario) for scenario in scenarios]
    keys = dict.fromkeys(key for table in tables for key in table)
    return [
        key
        for key in keys
        if not any(key == name or key.startswith(f"{name}.") for name in but)
        and any(table.get(key) != tables[0].get(key) for table in tables)
    ]


def again(
    kind: str,
    cases: Sequence[Case],
    stage: str = "routing",
    vary: Mapping[str, Sequence[Any]] | None = None,
    seeds: int = 1,
) -> str | None:
    """Return the command that repeats the runs; None for live traffic, and for runs without a folder."""
    folder = cases[0].folder
    if not folder or any(case.scenario.get("live") for case in cases):
        return None
    file = f"{folder}/{store.SCENARIO}"
    more = ["--seeds", str(seeds)] if seeds > 1 else []
    if kind == "run":
        return shlex.join(["headway", "run", file])
    if kind == "sweep":
        axes = {path: ",".join(map(_flow, values)) for path, values in (vary or {}).items()}
        options = [word for path, values in axes.items() for word in ("--vary", f"{path}={values}")]
        return shlex.join(["headway", "sweep", file, *options, *more])
    policies = ",".join(dict.fromkeys(_policy(case.label, policy_of(case.scenario, stage)) for case in cases))
    where = [] if stage == "routing" else ["--stage", stage]
    return shlex.join(["headway", "compare", file, *where, "--policies", policies, *more])


def policy_of(scenario: Json, stage: str) -> Any:
    """Return the policy of a stage. If the resolved scenario omits the stage, return the stage's default policy."""
    return scenario["policies"].get(stage, DEFAULT_POLICIES[stage])


def _policy(label: str, spec: Any) -> str:
    """Write a policy as its name if it has no parameters, else as a mapping."""
    name = spec if isinstance(spec, str) else str(spec["name"])
    return name if label == name else _flow(spec)


def _flow(value: Any) -> str:
    """Write a string unchanged, and any other value as JSON, which is also YAML."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
