"""A suite: the cases and objectives by which candidates are judged. A YAML file is read as a validated `Suite`.

objectives   figures with direction and weight
baseline     the policies that gains are measured against
scenario     sections that all cases share: cluster, slo, signals, ...
workloads    workload sections by name
train        the cases of the search: a list of {workload, seeds}, which may change `cluster` or `scenario`
validation   the cases on which the winner is chosen
held_out     the cases of the final comparison, which the search never uses
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from headway.config import documents
from headway.config.arguments import checked
from headway.config.dated_defaults import FIRST, SETS, set_of
from headway.config.keys import Doc, Form, PositiveSeconds
from headway.config.schema import Later, Part
from headway.config.section import read
from headway.config.wording import cut, shown, suggest
from headway.errors import HeadwayError
from headway.evolve.evaluation import Case
from headway.evolve.knees import HIGHEST, LOWEST, Knee, Knees
from headway.evolve.objectives import OBJECTIVES_FORM, Objective, read_objectives
from headway.evolve.windows import Windows, scenarios
from headway.experiment.load_levels import load_of
from headway.policies.bundle import POLICIES_FORM, Bundle
from headway.scenario import references
from headway.scenario.cluster_spec import Cluster
from headway.scenario.scenario import Scenario
from headway.types import Json
from headway.workload.spec import WorkloadSpec

DEFAULT: Final = "routing-2026-11"
PARTS: Final = ("train", "validation", "held_out")
HELD_OUT: Final = "held_out"
MOST_SEEDS: Final = 1000  # maximum number of seeds in one entry of a part
NOT_SHARED: Final = ("workload", "seed", "policies", "name")  # sections that only cases or candidates may set


def _changes(*without: str) -> Form:
    """Return the form of a mapping that changes sections of a scenario, except the sections in `without`."""
    return Form.of(Part(Scenario, without=without, changes=True), None)


SEEDS_FORM: Final = Form.of(list[int], {"type": "string", "pattern": r"^\s*[0-9]+\s*\.\.\s*[0-9]+\s*$"}, Windows)
AtLoads = Callable[[str, list[Scenario], list[float], str], Iterable[tuple[str, list[Scenario]]]]
ENTRIES_FORM: Final = Form.of(Later("cases", lambda: list[EntryKeys]))


class Cascade(Struct, frozen=True):
    """Early stopping: if the fitness of a candidate on the `first` cases of the train part is below `threshold`, the
    candidate skips the other cases."""

    first: Annotated[int, Meta(ge=1), "cases of train that every candidate runs"]
    threshold: Annotated[float, Meta(ge=-10, le=10), "fitness on them below which a candidate runs no others"]


class Suite(Struct, frozen=True):
    """A validated suite. Create it with `Suite.load`."""

    name: str
    objectives: tuple[Objective, ...]
    baseline: Json  # stage -> policy of the baseline
    parts: dict[str, tuple[Case, ...]]
    cascade: Cascade | None = None
    deadline_s: float = 60.0  # wall-clock limit of one simulation

    @classmethod
    @checked
    def load(cls, source: str | Path | Mapping[str, Any] | Suite = DEFAULT, knees: Knees | None = None) -> Suite:
        """Load a suite from a file, the name of a preset, or a mapping. If entries have `loads`, find the knees of
        their workloads, except those that `knees` has."""
        if isinstance(source, Suite):
            return source
        knees = knees or Knees()
        if isinstance(source, Mapping):
            return _suite(dict(source), "suite", None, knees)
        path = Path(source).expanduser()
        if path.is_file():
            return _suite(documents.read_yaml(path), str(path), path.parent, knees)
        known = documents.presets("suites")
        if str(source) in known:
            data = documents.parse_yaml(known[str(source)], str(source))
            data["scenario"] = {"defaults": FIRST, **data.get("scenario", {})}
            return _suite(data, str(source), None, knees)
        name = cut(str(source))
        raise HeadwayError(f"{name}: no suite file and no preset has this name.{suggest(name, known)}")

    def cases(self, part: str = "train") -> tuple[Case, ...]:
        """Return the cases of a part, in order. If the part has no cases, raise an error."""
        if part not in PARTS:
            raise HeadwayError(f"part: {shown(part)} is not a part of a suite.{suggest(str(part), PARTS)}")
        if not self.parts.get(part):
            raise HeadwayError(f"{self.name}: the part {part!r} has no cases. Add some to the suite.")
        return self.parts[part]

    @property
    def auto(self) -> bool:
        """Whether `lru_blocks` is `auto` by default in the scenarios of the suite."""
        return SETS[set_of(self.cases()[0].scenario)].auto

    def for_search(self) -> Suite:
        """Return a copy of the suite without its held-out cases."""
        return replace(self, parts={name: cases for name, cases in self.parts.items() if name != HELD_OUT})


class EntryKeys(Struct):
    """An entry of `train`, `validation` or `held_out`: one case for each of its seeds."""

    workload: Annotated[Any, Form.of(str, WorkloadSpec), "name of one of `workloads`, or a workload section"]
    seeds: Annotated[Any, SEEDS_FORM, "list of seeds, a range such as 101..110, or the windows of a trace"]
    name: Annotated[str | None, Doc("name of the cases", default="the name of the workload")] = None
    loads: Annotated[
        list[Annotated[float, Meta(ge=LOWEST, le=HIGHEST)]] | None,
        "loads as multiples of the knee, which `headway plan` finds for the baseline",
    ] = None
    cluster: Annotated[Any, Form.of(Part(Cluster), None), "changes of the cluster"] = msgspec.field(
        default_factory=dict
    )
    scenario: Annotated[Any, _changes("seed", "policies", "name"), "changes of other sections"] = msgspec.field(
        default_factory=dict
    )


class SuiteKeys(Struct):
    """The top level of a suite's file."""

    objectives: Annotated[Any, OBJECTIVES_FORM, "figures with direction and weight"]
    train: Annotated[Any, ENTRIES_FORM, "the cases of the search"]
    name: Annotated[str | None, Doc("name of the suite", default="the name of the file")] = None
    baseline: Annotated[Any, POLICIES_FORM, "the policies that gains are measured against, by stage"] = msgspec.field(
        default_factory=dict
    )
    scenario: Annotated[Any, _changes(*NOT_SHARED), "sections that all cases share"] = msgspec.field(
        default_factory=dict
    )
    workloads: Annotated[Any, Form.of(dict[str, WorkloadSpec | None]), "workload sections by name"] = msgspec.field(
        default_factory=dict
    )
    validation: Annotated[Any, ENTRIES_FORM, "the cases that choose the winner"] = msgspec.field(default_factory=list)
    held_out: Annotated[Any, ENTRIES_FORM, "the cases of the final comparison, which the search never sees"] = (
        msgspec.field(default_factory=list)
    )
    knee: Annotated[Knee, "how the knees for `loads` are found"] = Knee()
    cascade: Annotated[Cascade | None, "early stopping of bad candidates"] = None
    deadline_s: Annotated[PositiveSeconds, "wall-clock limit of one simulation"] = 60.0


def _suite(data: Any, source: str, folder: Path | None, knees: Knees) -> Suite:
    """Read every section of a suite. If a key is unknown, raise an error. Errors begin with the name of the file."""
    try:
        if not isinstance(data, dict):
            raise HeadwayError(f"expected a mapping with 'objectives' and 'train', got {shown(data)}.")
        for key in ("objectives", "train"):
            if key not in data:
                raise HeadwayError(f"{key!r} is missing. A suite needs 'objectives' and 'train'.")
        keys = read(SuiteKeys, references.absolute(data, folder), "")
        shared = _section(keys.scenario, "scenario")
        _check_absent(shared, NOT_SHARED, "scenario")
        baseline = _baseline(keys.baseline)
        at = partial(_at_loads, knees=knees, baseline=baseline, knee=keys.knee)
        suite = Suite(
            name=keys.name or Path(source).stem,
            objectives=read_objectives(keys.objectives, "objectives"),
            baseline=baseline,
            parts={part: _part(part, getattr(keys, part), shared, keys.workloads, at) for part in PARTS},
            cascade=keys.cascade,
            deadline_s=keys.deadline_s,
        )
        _check(suite)
        return suite
    except HeadwayError as error:
        raise HeadwayError(f"{source}: {error}") from None


def _check_absent(scenario: Json, sections: Iterable[str], where: str) -> None:
    for section in sections:
        if section in scenario:
            raise HeadwayError(f"{where}.{section}: only cases and candidates may set this section. Remove it here.")


def _check(suite: Suite) -> None:
    """Check that the train part has cases. Check that no case is in two parts, because a search must not use its
    held-out cases."""
    train = suite.cases("train")
    if suite.cascade is not None and suite.cascade.first >= len(train):
        raise HeadwayError(
            f"cascade.first: must be less than {len(train)}, the number of train cases, got {suite.cascade.first}."
        )
    parts: dict[tuple[str, int | None], str] = {}
    for part, cases in suite.parts.items():
        for case in cases:
            fixed = is_fixed(case.scenario["workload"])
            first = parts.setdefault((case.key, None if fixed else case.seed), part)
            if first != part:
                remedy = "Use another slice: a trace is the same under every seed" if fixed else "Use another seed"
                raise HeadwayError(f"{part}: {case.label} is also a case of {first!r}. {remedy}.")


def is_fixed(workload: Json) -> bool:
    """Return whether the workload is a trace without random draws, so that its requests are the same for every seed."""
    trace = workload.get("trace")
    return trace is not None and trace.get("starts") is None and trace.get("format") != "servegen"


def _baseline(data: object) -> Json:
    try:
        bundle = Bundle.read({"name": "baseline", "policies": data})
        bundle.check()
        return dict(bundle.policies)
    except HeadwayError as error:
        raise HeadwayError(f"baseline: {str(error).removeprefix('bundle: ')}") from None


def _part(part: str, data: object, shared: Json, workloads: object, at: AtLoads) -> tuple[Case, ...]:
    if not isinstance(data, list):
        raise HeadwayError(f"{part}: expected a list of {{workload, seeds}}, got {shown(data)}.")
    cases: dict[str, Case] = {}
    for place, entry in enumerate(data):
        where = f"{part}[{place}]"
        for case in _cases(entry, where, shared, workloads, at):
            if case.label in cases:
                raise HeadwayError(f"{where}: {case.label} is listed twice. Set a 'name' or use another seed.")
            cases[case.label] = case
    return tuple(cases.values())


def _cases(data: object, where: str, shared: Json, workloads: object, at: AtLoads) -> Iterable[Case]:
    """Yield the cases of one entry of a part: for each of its loads, one case for each seed. The scenario of a case is
    the shared scenario with the workload and the changes of the entry."""
    entry = read(EntryKeys, data, where)
    name, workload = _workload(entry.workload, workloads, f"{where}.workload")
    changes = _section(entry.scenario, f"{where}.scenario")
    _check_absent(changes, [section for section in NOT_SHARED if section != "workload"], f"{where}.scenario")
    scenario = shared
    for change in ({"workload": workload}, changes, {"cluster": _section(entry.cluster, f"{where}.cluster")}):
        scenario = _merge(scenario, change)
    name = entry.name or name
    if not name:
        raise HeadwayError(f"{where}.name: is missing. An inline workload needs a name.")
    windows = read(Windows, entry.seeds, f"{where}.seeds") if isinstance(entry.seeds, dict) else None
    if windows is None:
        seeds, parts = _seeds(entry.seeds, f"{where}.seeds"), [_scenario(scenario, name, where)]
    else:
        parts = [_scenario(part, name, where) for part in scenarios(windows, scenario, f"{where}.seeds")]
        seeds = list(range(len(parts)))
    for own, loaded in [(name, parts)] if entry.loads is None else at(name, parts, entry.loads, f"{where}.loads"):
        several = loaded * len(seeds) if windows is None else loaded
        yield from (Case(own, each.resolved(), seed, each.key()) for seed, each in zip(seeds, several, strict=True))


def _at_loads(
    name: str, parts: list[Scenario], loads: list[float], where: str, *, knees: Knees, baseline: Json, knee: Knee
) -> Iterable[tuple[str, list[Scenario]]]:
    """Yield the name and the scenarios of an entry at each of its loads. The windows of a trace have the knee of the
    first one."""
    if not loads:
        raise HeadwayError(f"{where}: the list is empty. Name at least one load, such as 1 for the knee itself.")
    for share in loads:
        own = f"{name} at {share:g}"
        value = knees.load(share, parts[0], baseline, knee, where)
        changed = [(part.resolved(), load_of(part)) for part in parts]
        yield (
            own,
            [
                _scenario({**each, "workload": load.scale(each["workload"], value)}, own, where)
                for each, load in changed
            ],
        )


def _scenario(scenario: Json, name: str, where: str) -> Scenario:
    try:
        return Scenario.load({**scenario, "name": name, "seed": 0})
    except HeadwayError as error:
        raise HeadwayError(f"{where}: {error}") from None


def _workload(data: object, known: object, where: str) -> tuple[str, Json]:
    if isinstance(data, dict):
        return "", data
    if not isinstance(known, dict):
        raise HeadwayError(f"workloads: expected workload sections by name, got {shown(known)}.")
    if not isinstance(data, str) or data not in known:
        names = [str(name) for name in known]
        raise HeadwayError(f"{where}: {shown(data)} is not under 'workloads'.{suggest(str(data), names)}")
    return data, _section(known[data], f"workloads.{data}")


def _seeds(data: object, where: str) -> list[int]:
    if isinstance(data, list):
        valid = all(type(seed) is int and abs(seed) < 2**63 for seed in data)
        if valid and 0 < len(data) <= MOST_SEEDS:
            return data
    elif isinstance(data, str):
        first, dots, last = data.partition("..")
        if dots and first.strip().isdecimal() and last.strip().isdecimal() and len(data) < 40:
            low, high = int(first), int(last)
            if low <= high < low + MOST_SEEDS and high < 2**63:
                return list(range(low, high + 1))
    expected = f"a list of 1 to {MOST_SEEDS:,} whole numbers below 2^63, or a range such as 101..110"
    raise HeadwayError(f"{where}: expected {expected}, got {shown(data)}.")


def _section(data: object, where: str) -> Json:
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise HeadwayError(f"{where}: expected a mapping, got {shown(data)}.")
    return {str(key): value for key, value in data.items()}


def _merge(scenario: Json, changes: Mapping[str, Any]) -> Json:
    """Return the scenario with changes. Sections are merged key by key, and a changed key replaces the whole old
    value."""
    merged = dict(scenario)
    for name, change in changes.items():
        both = isinstance(change, dict) and isinstance(merged.get(name), dict)
        merged[name] = {**merged[name], **change} if both else change
    return merged
