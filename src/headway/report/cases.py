"""What a page is about: run folders, a study folder or results in memory, as cases with a label each.

Of a case only the scenario and the summary are read at first; its requests are read when a chart wants them.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml
from msgspec import Struct

from headway.errors import HeadwayError
from headway.experiment.contenders import place_of, stage_label
from headway.experiment.verdict import verdict
from headway.results import store, study
from headway.results.ranking import rank
from headway.results.result import Result
from headway.scenario.overrides import DEFAULT_POLICIES
from headway.types import Json

Source = str | Path | Result
SHOWN: Final = 3  # keys in a label that tells runs apart
ASKED: Final = ("workload", "slo", "horizon", "warmup")  # what runs that are ranked have in common


class Case(Struct):
    """One run of those that a page compares."""

    label: str
    scenario: Json
    summary: Json
    source: Result | Path
    oracle: bool = False
    vary: Json = {}
    aside: str | None = None  # template or control, if it ranks behind the others

    def result(self) -> Result:
        return self.source if isinstance(self.source, Result) else Result.load(self.source)

    @property
    def folder(self) -> str:
        return "" if isinstance(self.source, Result) else str(self.source)


class Cases(Struct):
    """All of them, best first where that can be said."""

    kind: str  # run, comparison or sweep
    name: str  # of the scenario
    verdict: str
    cases: list[Case]
    baseline: str | None
    command: str | None  # that runs it again
    stage: str = "routing"
    vary: dict[str, list[Any]] = {}
    paired: list[Json] | None = None
    seeds: int = 1
    count: int = 0  # of the runs in all
    note: str = ""  # which runs these are, where they are not all


def open_cases(sources: Sequence[Source]) -> Cases:
    """Runs, or one study; told apart by the files that are there."""
    if not sources:
        raise HeadwayError("report: name at least one run folder or study folder.")
    studies = [one for one in sources if not isinstance(one, Result) and (Path(one) / study.STUDY).is_file()]
    if studies and len(sources) > 1:
        raise HeadwayError(f"{studies[0]}: is a study of its own; report it alone, or name the run folders in it.")
    return _study(Path(studies[0])) if studies else _runs(sources)


def _study(folder: Path) -> Cases:
    found = study.read(folder)
    cases = []
    for one in found["runs"]:
        scenario, summary = glance(folder / one["folder"])
        label, oracle, vary = one["label"], one.get("oracle", False), one.get("vary") or {}
        cases.append(Case(label, scenario, summary, folder / one["folder"], oracle, vary, one.get("aside")))
    if not cases:
        raise HeadwayError(f"{folder}: holds no runs; `headway compare -o` and `headway sweep -o` write some.")
    seeds = max(one.get("seeds") or 1 for one in found["runs"])
    kind, stage, vary = found["kind"], found.get("stage") or "routing", found.get("vary") or {}
    if kind == "comparison":
        order = [name for name, _ in rank([(case.label, case.summary) for case in cases])]
        cases.sort(key=lambda case: (place_of(case.aside), order.index(case.label)))
    command = again(kind, [(case.label, case.scenario, case.folder) for case in cases], stage, vary, seeds)
    baseline = found.get("baseline")
    return Cases(
        kind=kind,
        name=found["scenario"],
        verdict=found["verdict"],
        cases=cases,
        baseline=baseline,
        command=command,
        stage=stage,
        vary=vary,
        paired=found.get("paired") if kind == "comparison" else None,
        seeds=seeds,
        count=len(cases),
    )


def _runs(sources: Sequence[Source]) -> Cases:
    """Runs beside each other; the first is what the others are measured against."""
    cases = []
    for one in sources:
        source = one if isinstance(one, Result) else Path(one)
        scenario, summary = (source.scenario, source.summary()) if isinstance(source, Result) else glance(source)
        cases.append(Case("", scenario, summary, source))
    stage = _compared([case.scenario for case in cases])
    for case, label in zip(cases, labels(cases, stage), strict=True):
        case.label = label
    kind = "run" if len(cases) == 1 else "comparison"
    baseline = None if kind == "run" else cases[0].label
    ranked = rank([(case.label, case.summary) for case in cases])
    keys = differing([case.scenario for case in cases], ("policies", "name"))
    alike = len(keys) == 0
    other = [key for key in keys if key.partition(".")[0] in ASKED]
    said = verdict(ranked, cases[0].scenario, plain=baseline or "")
    if other:
        more = f" and {len(other) - SHOWN} more" if len(other) > SHOWN else ""
        said = (
            f"These runs were not asked the same, so none is the best: they differ in {', '.join(other[:SHOWN])}{more}."
        )
    command = again(kind, [(case.label, case.scenario, case.folder) for case in cases], stage) if alike else None
    order = [name for name, _ in ranked]
    cases.sort(key=lambda case: order.index(case.label))
    return Cases(kind, cases[0].scenario["name"], said, cases, baseline, command, stage, count=len(cases))


def glance(folder: Path) -> tuple[Json, Json]:
    """The scenario and the summary of a run folder, without its requests."""
    try:
        scenario = yaml.load((folder / store.SCENARIO).read_text(encoding="utf-8"), Loader=_LOADER)
        summary = msgspec.json.decode((folder / store.SUMMARY).read_bytes(), type=dict[str, Any])
    except FileNotFoundError as error:
        raise store.missing(folder, Path(error.filename).name) from None
    except OSError as error:
        raise HeadwayError(f"{folder}: cannot be read: {error.strerror or error}.") from None
    except (msgspec.DecodeError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise HeadwayError(f"{folder}: cannot be read as a run folder: {' '.join(str(error).split())}.") from None
    store.agree(folder, scenario, summary)
    return scenario, summary


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast where it is there


def _compared(scenarios: Sequence[Json]) -> str:
    """The stage whose policies differ, routing where none does or several do."""
    found = [
        stage
        for stage in DEFAULT_POLICIES
        if any(policy_of(one, stage) != policy_of(scenarios[0], stage) for one in scenarios)
    ]
    return found[0] if len(found) == 1 else "routing"


def labels(cases: Sequence[Case], stage: str) -> list[str]:
    """What tells the runs apart: their policies, other keys of their scenarios, or where they lie."""
    scenarios = [case.scenario for case in cases]
    policies = [stage_label(stage, policy_of(one, stage)) for one in scenarios]
    keys = differing(scenarios, (f"policies.{stage}", "name"))[:SHOWN]
    if keys:
        values = [flat(one) for one in scenarios]
        told = [", ".join(f"{key.rpartition('.')[2]}={one.get(key)}" for key in keys) for one in values]
        same = len(set(policies)) == 1
        policies = [words if same else f"{name} ({words})" for name, words in zip(policies, told, strict=True)]
    if len(set(policies)) < len(policies):
        names = [Path(case.folder).name for case in cases]
        beside = (
            names if all(names) and len(set(names)) == len(names) else [f"run {n}" for n in range(1, len(names) + 1)]
        )
        policies = [f"{name}, {place}" for name, place in zip(policies, beside, strict=True)]
    return policies


def differing(scenarios: Sequence[Json], but: Sequence[str] = ()) -> list[str]:
    """The dotted keys whose values are not the same everywhere, less those below the ones named."""
    tables = [flat(one) for one in scenarios]
    keys = dict.fromkeys(key for table in tables for key in table)
    return [
        key
        for key in keys
        if not any(key == one or key.startswith(f"{one}.") for one in but)
        and any(table.get(key) != tables[0].get(key) for table in tables)
    ]


def flat(value: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """A nested mapping as dotted keys; lists are values."""
    found: dict[str, Any] = {}
    for key, inner in value.items():
        if isinstance(inner, Mapping) and inner:
            found.update(flat(inner, f"{before}{key}."))
        else:
            found[f"{before}{key}"] = inner
    return found


# The command that gives the same runs again.

Run = tuple[str, Json, str]  # a label, a resolved scenario, and the folder that it lies in


def again(
    kind: str,
    runs: Sequence[Run],
    stage: str = "routing",
    vary: Mapping[str, Sequence[Any]] | None = None,
    seeds: int = 1,
) -> str | None:
    """What to type; None where the runs lie in no folder, so that there is no scenario to name, and of live traffic."""
    folder = runs[0][2]
    if not folder or any(scenario.get("live") for _, scenario, _ in runs):
        return None
    file = f"{folder}/{store.SCENARIO}"
    more = ["--seeds", str(seeds)] if seeds > 1 else []
    if kind == "run":
        return shlex.join(["headway", "run", file])
    if kind == "sweep":
        ways = [word for path, values in (vary or {}).items() for word in ("--vary", f"{path}={_listed(values)}")]
        return shlex.join(["headway", "sweep", file, *ways, *more])
    policies = ",".join(dict.fromkeys(_policy(label, policy_of(one, stage)) for label, one, _ in runs))
    where = [] if stage == "routing" else ["--stage", stage]
    return shlex.join(["headway", "compare", file, *where, "--policies", policies, *more])


def policy_of(scenario: Json, stage: str) -> Any:
    """The policy of a stage; a resolved scenario leaves out some that are as usual."""
    return scenario["policies"].get(stage, DEFAULT_POLICIES[stage])


def _listed(values: Sequence[Any]) -> str:
    return ",".join(one if isinstance(one, str) else _flow(one) for one in values)


def _policy(label: str, spec: Any) -> str:
    """A policy by its name alone where that says all, else as a mapping."""
    name = spec if isinstance(spec, str) else str(spec["name"])
    return name if label == name or isinstance(spec, str) else _flow(spec)


def _flow(value: Any) -> str:
    """JSON, which YAML reads as well."""
    return msgspec.json.encode(value).decode()
