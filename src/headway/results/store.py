"""A run folder: what a run was and what came of it, the same bytes for the same run.

    manifest.json          format number, version, run key, seeds and how much was traced; marks the folder as a run's
    scenario.yaml          the resolved scenario, which runs it again
    summary.json           the summary document
    requests.jsonl         one object a request, in order of arrival
    findings.jsonl         what somebody should know of it, the worst first

and, where there is any of it, one object each in

    decisions.jsonl        routing decisions with what they rested on and what came of them; where they were traced
    admission.jsonl        requests that admission refused or put off; where decisions were traced
    gauges.jsonl           how full the GPUs were over time; where decisions were traced
    events.jsonl           changes of the batches and moves of KV blocks, of a full trace
    preemptions.jsonl      requests that had to yield their blocks
    thrashes.jsonl         blocks that were loaded right after they had been stored away
    scaling.jsonl          what the autoscaler did
    states.jsonl           the states that instances got into
    counterfactuals.jsonl  what other targets would have given
    prompts.jsonl          the blocks that prompts are made of, by their keys; of live traffic

No file holds a wall-clock time. They are not compressed: zlib's bytes differ from build to build.
"""

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

import msgspec
import yaml

from headway import __version__
from headway.config.wording import cut
from headway.errors import HeadwayError
from headway.results.decisions import Decisions, Verdict
from headway.results.lines import DecisionFile, read_requests, write_lines, write_requests
from headway.results.lines import clean as clean
from headway.results.recorder import ScaleRecord, StateChange
from headway.results.records import Batch, Counterfactual, Finding, KvMove, Preemption, Prompt, Series, Thrash
from headway.results.table import Table
from headway.types import Json

FORMAT = 1
TRACES: Final = ("minimal", "decisions", "full")  # how much of a run is written down, see `experiment.run`
MANIFEST, SCENARIO, SUMMARY, REQUESTS = "manifest.json", "scenario.yaml", "summary.json", "requests.jsonl"
DECISIONS, ADMISSION = "decisions.jsonl", "admission.jsonl"
STUDY = "study.json"  # marks a folder of several runs
# What whoever reads a run counts on, by key.
PARTS_OF_SCENARIO: Final = {"workload": dict, "cluster": dict, "policies": dict, "seed": dict, "warmup": int}
PARTS_OF_SUMMARY: Final = {"requests": dict, "latency": dict, "instances": list}
# The other lists of a result: the file of each, and what its lines are.
LISTS: Final[dict[str, tuple[str, Any]]] = {
    "findings": ("findings.jsonl", Finding),
    "series": ("gauges.jsonl", Series),
    "events": ("events.jsonl", Batch | KvMove),
    "preemptions": ("preemptions.jsonl", Preemption),
    "thrashes": ("thrashes.jsonl", Thrash),
    "scaling_events": ("scaling.jsonl", ScaleRecord),
    "states": ("states.jsonl", StateChange),
    "counterfactuals": ("counterfactuals.jsonl", Counterfactual),
    "prompts": ("prompts.jsonl", Prompt),
}


class RunFiles(msgspec.Struct):
    """What a run folder holds."""

    scenario: Json
    summary: Json
    requests: Table
    lists: Mapping[str, Sequence[Any]]  # by name, as in LISTS
    decisions: Decisions | None = None
    key: str = ""
    trace: str = "minimal"

    def parts(self) -> dict[str, Sequence[Any]]:
        """The lines of each file that there is beside the requests'."""
        parts = {LISTS[name][0]: lines for name, lines in self.lists.items()}
        if self.decisions is not None:
            parts |= {DECISIONS: self.decisions, ADMISSION: self.decisions.verdicts}
        return {file: lines for file, lines in parts.items() if len(lines)}

    def files(self) -> list[str]:
        """What they are called in the folder."""
        return sorted((MANIFEST, REQUESTS, SCENARIO, SUMMARY, *self.parts()))


class Manifest(msgspec.Struct):
    format: int
    headway: str
    seed: Any = None
    trace: str = "minimal"
    key: str = ""  # empty as long as the folder is not whole, and where a policy was an object of somebody's program


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:  # every value is written where it stands
        return True


def pretty(document: Json) -> str:
    return msgspec.json.format(msgspec.json.encode(clean(document)), indent=2).decode()


def write(folder: str | Path, run: RunFiles) -> None:
    """Write a run folder. The manifest goes first, so that a write cut short can be repeated, and last with the key."""
    place = Path(folder)
    try:
        check(place)
        place.mkdir(parents=True, exist_ok=True)
        old = (SUMMARY, REQUESTS, SCENARIO, DECISIONS, ADMISSION, *(file for file, _ in LISTS.values()))
        for name in old:  # never a mixture of two runs
            (place / name).unlink(missing_ok=True)
        manifest = Manifest(FORMAT, __version__, run.scenario.get("seed"), run.trace)
        _text(place / MANIFEST, pretty(msgspec.to_builtins(manifest)) + "\n")
        plain = clean(msgspec.to_builtins(run.scenario))
        _text(place / SCENARIO, yaml.dump(plain, Dumper=_Dumper, sort_keys=False, allow_unicode=True))
        write_requests(place / REQUESTS, run.requests)
        for file, lines in run.parts().items():
            write_lines(place / file, lines)
        _text(place / SUMMARY, pretty(run.summary) + "\n")
        manifest.key = run.key
        _text(place / MANIFEST, pretty(msgspec.to_builtins(manifest)) + "\n")
    except OSError as error:
        raise HeadwayError(f"{folder}: cannot be written: {error.strerror or error}.") from None


def add(folder: str | Path, name: str, lines: Sequence[msgspec.Struct]) -> None:
    """Write one list of a run, as in LISTS, into the folder that has the rest of it."""
    file = Path(folder) / LISTS[name][0]
    part = file.with_suffix(".part")  # the folder stays whole
    try:
        if lines:
            write_lines(part, lines)
            part.replace(file)
        else:
            file.unlink(missing_ok=True)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()
        raise HeadwayError(f"{file}: cannot be written: {error.strerror or error}.") from None


def check(folder: str | Path) -> None:
    """Raise unless a run can be written there: never over somebody else's files. Best asked before the simulation."""
    place = Path(folder)
    try:
        if place.exists() and not place.is_dir():
            raise HeadwayError(f"{place}: is a file; name a folder to write the run into.")
        if place.is_dir() and any(place.iterdir()) and manifest(place) is None:
            raise HeadwayError(f"{place}: holds other files and is not a run folder; name a new or an empty folder.")
        nearest = next(above for above in (place, *place.absolute().parents) if above.exists())
    except OSError as error:
        raise HeadwayError(f"{cut(str(place))}: cannot be written: {error.strerror or error}.") from None
    if not nearest.is_dir():
        raise HeadwayError(f"{place}: cannot be written: {nearest} is not a folder.")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise HeadwayError(f"{place}: cannot be written: Permission denied.")


def manifest(folder: str | Path) -> Manifest | None:
    """What a folder says of itself, if it is a run's."""
    try:
        return msgspec.json.decode((Path(folder) / MANIFEST).read_bytes(), type=Manifest)
    except (OSError, msgspec.DecodeError):
        return None


def has(folder: str | Path, key: str, trace: str) -> bool:
    """Whether this version has written a run of that key there, with as much of it as is asked for."""
    known = manifest(folder)
    if known is None or (known.format, known.headway, known.key) != (FORMAT, __version__, key):
        return False
    return known.trace in TRACES and TRACES.index(known.trace) >= TRACES.index(trace)


def _text(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8", newline="\n")


def read(folder: str | Path) -> RunFiles:
    """A run folder that was written before."""
    place = Path(folder)
    try:
        about = _part(place, MANIFEST, lambda file: msgspec.json.decode(file.read_bytes(), type=Manifest))
        if about.format != FORMAT:
            _unreadable(folder, f"it has format {about.format}, this version reads format {FORMAT}")
        scenario = _part(place, SCENARIO, lambda file: yaml.safe_load(file.read_text(encoding="utf-8")))
        summary = _part(place, SUMMARY, lambda file: msgspec.json.decode(file.read_bytes(), type=dict[str, Any]))
        requests = _part(place, REQUESTS, read_requests)
        lists = {name: _lines(place, file, kind) for name, (file, kind) in LISTS.items()}
        decisions = None
        if about.trace != "minimal":
            there = (place / DECISIONS).exists()
            decisions = Decisions(DecisionFile(place / DECISIONS) if there else [], _lines(place, ADMISSION, Verdict))
    except FileNotFoundError as error:
        raise missing(place, Path(error.filename).name) from None
    except OSError as error:
        _unreadable(folder, error.strerror or str(error))
    agree(place, scenario, summary, requests, decisions)
    return RunFiles(scenario, summary, requests, lists, decisions, about.key, about.trace)


def missing(folder: Path, name: str) -> HeadwayError:
    """Why a folder in which a file is not there is no run folder."""
    if not folder.exists():
        return HeadwayError(f"{folder}: there is no such folder; `headway run -o` writes one.")
    if (folder / STUDY).is_file():
        return HeadwayError(f"{folder}: holds several runs; name the folder of one of them.")
    runs = [file.parent for depth in ("*", "*/*") for file in folder.glob(f"{depth}/{MANIFEST}")]
    if runs and not (folder / MANIFEST).exists():
        return HeadwayError(f"{folder}: is no run folder, but has some below it; name one of them, as in {min(runs)}.")
    return HeadwayError(f"{folder}: not a whole run folder, {name} is missing; `headway run -o` writes one.")


def agree(folder: Path, scenario: Any, summary: Json, requests: Table | None = None, traced: Any = None) -> None:
    """Raise where the parts of a run folder are not what a run writes, are of two runs, or where one was cut short."""
    for name, part, keys in ((SCENARIO, scenario, PARTS_OF_SCENARIO), (SUMMARY, summary, PARTS_OF_SUMMARY)):
        if not isinstance(part, dict) or any(not isinstance(part.get(key), kind) for key, kind in keys.items()):
            _unreadable(folder, f"{name} is not as a run writes it")
    if requests is None:
        return
    arrived, rows = summary["requests"].get("arrived"), len(requests)
    if arrived != rows:
        _unreadable(folder, f"{REQUESTS} has {rows:,} requests where {SUMMARY} tells of {arrived:,}; write it again")
    routed = 0 if traced is None else sum(at >= 0 for at in requests.column("routed_ps"))
    if traced is not None and (len(traced) < routed or (len(traced) and traced[-1].request >= rows)):
        _unreadable(folder, f"{DECISIONS} does not have the decisions on the requests of {REQUESTS}; write it again")


def _part(folder: Path, name: str, read: Callable[[Path], Any]) -> Any:
    try:
        return read(folder / name)
    except (msgspec.DecodeError, UnicodeDecodeError, yaml.YAMLError) as error:
        _unreadable(folder, f"{name}: {' '.join(str(error).split())}")


def _lines(folder: Path, name: str, kind: Any) -> list[Any]:
    if not (folder / name).exists():
        return []
    lines: list[Any] = _part(folder, name, lambda file: msgspec.json.Decoder(kind).decode_lines(file.read_bytes()))
    return lines


def _unreadable(folder: str | Path, why: str) -> NoReturn:
    raise HeadwayError(f"{folder}: cannot be read as a run folder: {why}.")
