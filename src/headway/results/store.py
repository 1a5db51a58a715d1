"""Writes and reads run folders. Equal runs give equal bytes.

    manifest.json          format number, version, run key, seeds and trace level; marks the folder as a run folder
    scenario.yaml          the resolved scenario, which reproduces the run
    summary.json           the summary document
    requests.jsonl         one object per request, in order of arrival
    findings.jsonl         the findings, most severe first

The following files exist only if they have entries, with one object per line:

    decisions.jsonl        routing decisions with their inputs and outcomes, if traced
    admission.jsonl        requests that admission rejected or delayed, if decisions were traced
    priorities.jsonl       priorities of requests with their reasons, if decisions were traced
    gauges.jsonl           use of the GPUs' KV caches over time, if decisions were traced
    events.jsonl           changes of batches and moves of KV blocks, in a full trace
    preemptions.jsonl      preempted requests
    thrashes.jsonl         blocks that were loaded right after they were stored
    queue_limits.jsonl     what kept waiting requests out of the batch of each instance, over time
    scaling.jsonl          changes by the autoscaler
    states.jsonl           state changes of instances
    counterfactuals.jsonl  simulated alternatives
    prompts.jsonl          the keys of the prompts' blocks, for live traffic

No file contains a wall-clock time. The files are not compressed, because zlib's output differs between builds.
"""

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

import msgspec
import yaml
from yaml.emitter import ScalarAnalysis

from headway import __version__
from headway.config.wording import cut
from headway.errors import HeadwayError
from headway.results.decisions import Decisions, PriorityRecord, Verdict
from headway.results.lines import DecisionFile, read_requests, write_lines, write_requests
from headway.results.lines import clean as clean
from headway.results.recorder import ScaleRecord, StateChange
from headway.results.records import (
    Batch,
    Counterfactual,
    Finding,
    KvMove,
    Preemption,
    Prompt,
    QueueLimit,
    Series,
    Thrash,
)
from headway.results.table import Table
from headway.types import Json

FORMAT = 1
TRACES: Final = ("minimal", "decisions", "full")  # levels of detail of a trace, least first; see `experiment.run`
MANIFEST, SCENARIO, SUMMARY, REQUESTS = "manifest.json", "scenario.yaml", "summary.json", "requests.jsonl"
DECISIONS, ADMISSION = "decisions.jsonl", "admission.jsonl"
STUDY = "study.json"  # file that marks a folder of several runs
LONGEST: Final = 300  # maximum number of characters of a path in an error message
# Keys that readers of a run rely on, with their types.
PARTS_OF_SCENARIO: Final = {"workload": dict, "cluster": dict, "policies": dict, "seed": dict, "warmup": int}
PARTS_OF_SUMMARY: Final = {"requests": dict, "latency": dict, "instances": list}
WORD: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./-]*")
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C loader is ten times as fast
# The other lists of a result: name of the list -> its file, and the type of the lines in it.
LISTS: Final[dict[str, tuple[str, Any]]] = {
    "findings": ("findings.jsonl", Finding),
    "series": ("gauges.jsonl", Series),
    "events": ("events.jsonl", Batch | KvMove),
    "priorities": ("priorities.jsonl", PriorityRecord),
    "preemptions": ("preemptions.jsonl", Preemption),
    "thrashes": ("thrashes.jsonl", Thrash),
    "queue_limits": ("queue_limits.jsonl", QueueLimit),
    "scaling_events": ("scaling.jsonl", ScaleRecord),
    "states": ("states.jsonl", StateChange),
    "counterfactuals": ("counterfactuals.jsonl", Counterfactual),
    "prompts": ("prompts.jsonl", Prompt),
}


class RunFiles(msgspec.Struct):
    """The contents of a run folder."""

    scenario: Json
    summary: Json
    requests: Table
    lists: Mapping[str, Sequence[Any]]  # the other lists of the run, by their names in LISTS
    decisions: Decisions | None = None
    key: str = ""
    trace: str = "minimal"

    def parts(self) -> dict[str, Sequence[Any]]:
        """Return the lines of each JSONL file, except those of the requests. Files without lines are left out."""
        parts = {LISTS[name][0]: lines for name, lines in self.lists.items()}
        if self.decisions is not None:
            parts |= {DECISIONS: self.decisions, ADMISSION: self.decisions.verdicts}
        return {file: lines for file, lines in parts.items() if len(lines)}

    def files(self) -> list[str]:
        """Return the names of all files in the folder."""
        return sorted((MANIFEST, REQUESTS, SCENARIO, SUMMARY, *self.parts()))


class Manifest(msgspec.Struct):
    format: int
    headway: str
    seed: Any = None
    trace: str = "minimal"
    key: str = ""  # run key; empty until the folder is complete, or if a policy was a Python object


class _Dumper(yaml.SafeDumper):
    """Writes words at once, and prepares each tag once, because PyYAML examines each of their characters."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.prepared_tags: dict[str, str] = {}

    def ignore_aliases(self, data: object) -> bool:  # write each value in full, without YAML anchors
        return True

    def analyze_scalar(self, scalar: str) -> ScalarAnalysis:
        """Return how a text may be written. Most texts are words, which may be written in every way."""
        if WORD.fullmatch(scalar) is None:
            return super().analyze_scalar(scalar)
        return ScalarAnalysis(scalar, False, False, True, True, True, True, True)  # not empty, and only one line

    def write_plain(self, text: str, split: bool = True) -> None:
        if self.root_context or WORD.fullmatch(text) is None:
            super().write_plain(text, split)
            return
        if not self.whitespace:
            text = f" {text}"
        self.whitespace = self.indention = False
        self.column += len(text)
        self.stream.write(text)

    def prepare_tag(self, tag: str) -> str:
        text = self.prepared_tags.get(tag)
        if text is None:
            text = self.prepared_tags[tag] = super().prepare_tag(tag)
        return text


def pretty(document: Json) -> str:
    return msgspec.json.format(msgspec.json.encode(clean(document)), indent=2).decode()


def write(folder: str | Path, run: RunFiles) -> None:
    """Write a run folder. The manifest is written first, without the run key: it marks the folder as a run folder, so
    that a repeated write may overwrite the folder after an interruption. At the end the manifest is written again, with
    the key."""
    place = Path(folder)
    with writing(place):
        check(place)
        place.mkdir(parents=True, exist_ok=True)
        old = (SUMMARY, REQUESTS, SCENARIO, DECISIONS, ADMISSION, *(file for file, _ in LISTS.values()))
        for name in old:  # remove the old files, so that the folder never contains files of two runs
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


@contextlib.contextmanager
def writing(place: str | Path) -> Iterator[None]:
    """If writing a file or folder raises an `OSError`, raise a `HeadwayError` with a readable message instead."""
    try:
        yield
    except OSError as error:
        raise HeadwayError(f"{cut(str(place), LONGEST)}: cannot be written: {error.strerror or error}.") from None


def add(folder: str | Path, name: str, lines: Sequence[msgspec.Struct]) -> None:
    """Write one list of a run's records into the existing run folder. `name` is a key of LISTS."""
    file = Path(folder) / LISTS[name][0]
    part = file.with_suffix(".part")  # write a temporary file, so that an interrupted write leaves the folder readable
    with writing(file):
        if not lines:
            file.unlink(missing_ok=True)
            return
        try:
            write_lines(part, lines)
            part.replace(file)
        finally:
            part.unlink(missing_ok=True)


def manifest(folder: str | Path) -> Manifest | None:
    """Return the manifest of a run folder; None if the folder is not a run folder."""
    try:
        return msgspec.json.decode((Path(folder) / MANIFEST).read_bytes(), type=Manifest)
    except (OSError, msgspec.DecodeError):
        return None


def check(folder: str | Path, kind: str = "run", read: Callable[[Path], object | None] = manifest) -> None:
    """Raise unless a folder of this kind can be written at this path. The path must be new, empty, or a folder of the
    same kind, because Headway never overwrites other files. `read` returns None if a folder is not of this kind. Call
    this function before the simulation."""
    place = Path(folder)
    with writing(place):
        if place.exists() and not place.is_dir():
            raise HeadwayError(f"{place}: is a file; name a folder to write the {kind} into.")
        if place.is_dir() and any(place.iterdir()) and read(place) is None:
            wrong = f"contains other files and is not a {kind} folder"
            raise HeadwayError(f"{place}: {wrong}; use a new or an empty folder.")
        nearest = next(above for above in (place, *place.absolute().parents) if above.exists())
    if not nearest.is_dir():
        raise HeadwayError(f"{place}: cannot be written: {nearest} is not a folder.")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise HeadwayError(f"{place}: cannot be written: Permission denied.")


def has(folder: str | Path, key: str, trace: str) -> bool:
    """Return whether the folder has a run with this key that this version of Headway wrote. The trace level of the run
    must be at least `trace`."""
    known = manifest(folder)
    if known is None or (known.format, known.headway, known.key) != (FORMAT, __version__, key):
        return False
    return known.trace in TRACES and TRACES.index(known.trace) >= TRACES.index(trace)


def _text(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8", newline="\n")


def read(folder: str | Path) -> RunFiles:
    """Read a run folder."""
    place = Path(folder)
    with _reading(place):
        about = _part(place, MANIFEST, lambda file: msgspec.json.decode(file.read_bytes(), type=Manifest))
        if about.format != FORMAT:
            _unreadable(folder, f"it has format {about.format}, this version reads format {FORMAT}")
        scenario, summary = read_documents(place)
        requests = _part(place, REQUESTS, read_requests)
        lists = {name: _lines(place, file, kind) for name, (file, kind) in LISTS.items()}
        decisions = None
        if about.trace != "minimal":
            there = (place / DECISIONS).exists()
            decisions = Decisions(DecisionFile(place / DECISIONS) if there else [], _lines(place, ADMISSION, Verdict))
    _check_same_run(place, summary, requests, decisions)
    return RunFiles(scenario, summary, requests, lists, decisions, about.key, about.trace)


def read_documents(folder: Path) -> tuple[Json, Json]:
    """Read the scenario and the summary of a run folder, without its requests."""
    with _reading(folder):
        scenario = _part(folder, SCENARIO, lambda file: yaml.load(file.read_text(encoding="utf-8"), Loader=_LOADER))
        summary = _part(folder, SUMMARY, lambda file: msgspec.json.decode(file.read_bytes(), type=dict[str, Any]))
    for name, part, keys in ((SCENARIO, scenario, PARTS_OF_SCENARIO), (SUMMARY, summary, PARTS_OF_SUMMARY)):
        if not isinstance(part, dict) or any(not isinstance(part.get(key), kind) for key, kind in keys.items()):
            _unreadable(folder, f"{name} lacks keys that every run writes")
    return scenario, summary


@contextlib.contextmanager
def _reading(folder: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise _missing(folder, Path(error.filename).name) from None
    except OSError as error:
        _unreadable(folder, error.strerror or str(error))


def _missing(folder: Path, name: str) -> HeadwayError:
    if not folder.exists():
        return HeadwayError(f"{folder}: no such folder; `headway run -o` writes one.")
    if (folder / STUDY).is_file():
        return HeadwayError(f"{folder}: contains several runs; name the folder of one of them.")
    runs = [file.parent for depth in ("*", "*/*") for file in folder.glob(f"{depth}/{MANIFEST}")]
    if runs and not (folder / MANIFEST).exists():
        return HeadwayError(f"{folder}: not a run folder, but contains some; name one of them, such as {min(runs)}.")
    return HeadwayError(f"{folder}: not a complete run folder, {name} is missing; `headway run -o` writes one.")


def _check_same_run(folder: Path, summary: Json, requests: Table, decisions: Decisions | None) -> None:
    """Raise if the files of a run folder are from two runs, or if a file is incomplete."""
    arrived, rows = summary["requests"].get("arrived"), len(requests)
    if arrived != rows:
        _unreadable(folder, f"{REQUESTS} has {rows:,} requests, but {SUMMARY} counts {arrived:,}; run it again")
    if decisions is None:
        return
    routed = sum(at >= 0 for at in requests.column("routed_ps"))
    if len(decisions) < routed or (len(decisions) and decisions[-1].request >= rows):
        _unreadable(folder, f"{DECISIONS} and {REQUESTS} are not from the same run; run it again")


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
