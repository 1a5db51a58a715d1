"""The two sides of a check: scenarios, policies or recordings, and the workloads on which they meet."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from headway.config.documents import presets, read_yaml
from headway.config.wording import cut, shown, suggest
from headway.display.displayed import flat
from headway.errors import HeadwayError, argument
from headway.evolve.suite import Suite
from headway.policies import registry
from headway.policies.bundle import Bundle, is_bundle
from headway.results.result import Result
from headway.results.store import MANIFEST, STUDY
from headway.scenario import overrides, references
from headway.scenario.scenario import STAGES, Scenario, load_data, validate
from headway.types import Json

# Seeds of the cases of a suite begin here: a search has not seen them, neither in its training nor in its validation.
SUITE_SEED: Final = 1000
DOCUMENTS: Final = (".yaml", ".yml")
SUITE_KEY: Final = "objectives"  # only suites have this key
SCENARIO_KEYS: Final = ("workload", "cluster")
SAME: Final = ("workload", "warmup", "horizon")  # sections that must be equal on both sides
BASE, CANDIDATE = "base", "candidate"


class Side(Struct, frozen=True):
    """The base or the candidate. Exactly one of the last three fields is set."""

    name: str  # base or candidate
    label: str
    scenario: Json | None = None  # not yet validated
    policies: Json | None = None  # policies by stage, or the file of a policy under the key `file`
    recording: Path | Result | None = None


class Workload(Struct, frozen=True):
    """One workload with the two scenarios that run it."""

    name: str
    base: Json
    candidate: Json
    first_seed: int = 0  # added to the number of the seed


def read_side(name: str, source: Any, label: str | None = None) -> Side:
    """Read one side of a check: a scenario (file, preset, trace, mapping), a policy (name, `file.py:Class`, bundle),
    a run folder, a folder of recorded traffic, or a result."""
    if isinstance(source, Bundle):
        return Side(name, label or source.name, policies=dict(source.policies))
    if isinstance(source, Scenario | Mapping):
        data = load_data(source)
        return Side(name, label or str(data.get("name", name)), scenario=data)
    if isinstance(source, Result):
        return Side(name, label or str(source.scenario["name"]), recording=source)
    text = str(source)
    label = label or text
    path, exists = _path(text)
    if registry.is_file(text) or path.suffix == ".py":
        return Side(name, label, policies=_of_class(text, name))
    if not exists:
        return _by_name(name, text, label)
    if path.is_dir() and _is_recording(path):
        return Side(name, label, recording=path)
    if path.suffix in DOCUMENTS and path.is_file():
        document = read_yaml(path)
        if isinstance(document, Mapping) and SUITE_KEY in document:
            remedy = f"Name two policies, and the suite with {argument('on')}."
            raise HeadwayError(f"{name}: {cut(text)} is a suite. {remedy}")
        if _is_policy(document):
            return Side(name, label, policies={"file": str(path)})
    return Side(name, label, scenario=load_data(text))


def _path(text: str) -> tuple[Path, bool]:
    """Return a text as a path, and whether there is something at this path."""
    try:
        path = Path(text).expanduser()
        return path, path.exists()
    except (OSError, RuntimeError, ValueError):  # an unknown user, a path that is too long, or no permission
        return Path(text), False


def _by_name(name: str, text: str, label: str) -> Side:
    """Return the side that a name stands for: a routing policy or the preset of a scenario."""
    policies, scenarios = registry.names("routing"), presets("scenarios")
    if registry.canonical(text) in policies:
        return Side(name, label, policies={"routing": text})
    if Path(text).suffix or text in scenarios:
        return Side(name, label, scenario=load_data(text))
    near = get_close_matches(text, [*policies, *scenarios], n=1)
    hint = suggest(text, near) if near else ""
    raise HeadwayError(f"{name}: there is no file, preset or routing policy called {shown(text)}.{hint}")


def _is_recording(folder: Path) -> bool:
    """Return whether a folder is a run folder, a study, or contains run folders, also those of several gateways."""
    if any((folder / file).exists() for file in (MANIFEST, STUDY)):
        return True
    return any(folder.glob(f"*/{MANIFEST}")) or any(folder.glob(f"*/*/{MANIFEST}"))


def _is_policy(document: object) -> bool:
    """Return whether a document is a bundle or a policy file."""
    if not isinstance(document, Mapping) or any(key in document for key in SCENARIO_KEYS):
        return False
    return is_bundle(document) or any(registry.canonical(str(key)).startswith("routing-") for key in document)


def _of_class(reference: str, name: str) -> Json:
    if not registry.is_file(reference):
        raise HeadwayError(f"{name}: {cut(reference)}: name the class in the file, as in {cut(reference)}:MyRouter.")
    entries = registry.load_all(reference, name)
    stages = {entry.stage for entry in entries}
    if len(stages) != 1 or not stages <= {*STAGES}:
        raise HeadwayError(f"{name}: {cut(reference)} is not a policy of one stage; name a policy, not a part of one.")
    return {stages.pop(): {"name": references.absolute(reference)}}


def meet(base: Side, candidate: Side, on: Any, base_set: Iterable[str], candidate_set: Iterable[str]) -> list[Workload]:
    """Return the workloads of a check of simulated sides. Policies run in the scenario of the other side, in `on`, or
    in the cases of a suite; without `on`, in those of the embedded suite."""
    scenarios = [side for side in (base, candidate) if side.scenario is not None]
    if on is not None and scenarios:
        wrong = f"the {scenarios[0].name} is a scenario, so both sides run in scenarios of their own"
        raise HeadwayError(f"{argument('on')}: {wrong}. Give policies as both sides, or leave this out.")
    first_seed, places = 0, {"": (scenarios[0].scenario or {}) if scenarios else {}}
    if not scenarios:
        first_seed, places = _places(on)
    workloads = []
    for name, data in places.items():
        resolved = [
            _resolved(side, data, changes, name) for side, changes in ((base, base_set), (candidate, candidate_set))
        ]
        workloads.append(Workload(name or resolved[0]["name"], resolved[0], resolved[1], first_seed))
        _check_same(resolved[0], resolved[1])
    return workloads


def _places(on: Any) -> tuple[int, dict[str, Json]]:
    """Return the first seed, and the scenarios in which policies meet, by name."""
    document = read_yaml(Path(on)) if isinstance(on, str | Path) and Path(on).suffix in DOCUMENTS else None
    is_suite = isinstance(document, Mapping) and SUITE_KEY in document
    if on is None or isinstance(on, Suite) or is_suite or (isinstance(on, str) and on in presets("suites")):
        suite = Suite.load() if on is None else Suite.load(on)
        cases = suite.cases("validation" if suite.parts.get("validation") else "train")
        by_key = {case.key: case for case in cases}  # one case for each workload, whatever its seeds
        names = [case.name for case in by_key.values()]
        unique = [name if names.count(name) == 1 else f"{name} ({n})" for n, name in enumerate(names, 1)]
        documents = [{**case.scenario, "seed": 0} for case in by_key.values()]
        return SUITE_SEED, dict(zip(unique, documents, strict=True))
    data = load_data(on)
    return 0, {str(data.get("name", "scenario")): data}


def _resolved(side: Side, data: Json, changes: Iterable[str], workload: str) -> Json:
    """Return the whole scenario of one side in one workload."""
    data = data if side.scenario is None else side.scenario
    if side.policies is not None:
        file = side.policies.get("file")
        data = (
            overrides.with_policies(data, side.policies)
            if file is None
            else overrides.choose_policies(data, config=Path(file))
        )
    option = argument(f"{side.name}_set")
    try:
        loaded = validate(overrides.apply(data, changes, f"{option} "))
        return loaded.resolved()
    except HeadwayError as error:
        place = f", {workload}" if workload else ""
        text = str(error)
        raise HeadwayError(text if text.startswith(option) else f"{side.name}{place}: {text}") from None


def _check_same(base: Json, candidate: Json) -> None:
    """Check that both sides have the same workload. Their policies, clusters and other seeds may differ."""
    sides = [
        {
            **references.replace_by_digests({key: side.get(key) for key in SAME}),
            "seed": {"workload": side["seed"]["workload"]},
        }
        for side in (base, candidate)
    ]
    before, after = (flat(side) for side in sides)
    for key in {**before, **after}:
        if before.get(key) != after.get(key):
            values = f"{_shown(before, key)} in the base and {_shown(after, key)} in the candidate"
            raise HeadwayError(f"{key}: is {values}. A check needs the same workload on both sides.")


def _shown(values: Json, key: str) -> str:
    return "not set" if values.get(key) is None else shown(values[key])


def same(workloads: Iterable[Workload]) -> bool:
    """Return whether both sides are the same scenarios, so that there is nothing to run."""
    return all(_without_name(each.base) == _without_name(each.candidate) for each in workloads)


def _without_name(scenario: Json) -> Json:
    return {key: value for key, value in scenario.items() if key not in ("name", "leap")}
