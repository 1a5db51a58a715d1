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

No file holds a wall-clock time. They are not compressed: zlib's bytes differ from build to build.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

import msgspec
import yaml

from headway import __version__
from headway.results.decisions import Decisions, Verdict
from headway.results.lines import DecisionFile, read_requests, write_lines, write_requests
from headway.results.lines import clean as clean
from headway.results.recorder import ScaleRecord, StateChange
from headway.results.records import Batch, Counterfactual, Finding, KvMove, Preemption, Series, Thrash
from headway.results.table import Table
from headway.types import HeadwayError, Json
from headway.wording import cut

FORMAT = 1
MANIFEST, SCENARIO, SUMMARY, REQUESTS = "manifest.json", "scenario.yaml", "summary.json", "requests.jsonl"
DECISIONS, ADMISSION = "decisions.jsonl", "admission.jsonl"
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
}


class Kept(msgspec.Struct):
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
        found = {LISTS[name][0]: lines for name, lines in self.lists.items()}
        if self.decisions is not None:
            found |= {DECISIONS: self.decisions, ADMISSION: self.decisions.verdicts}
        return {file: lines for file, lines in found.items() if len(lines)}

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


def write(folder: str | Path, kept: Kept) -> None:
    """Write a run folder. The manifest goes first, so that a write cut short can be repeated, and last with the key."""
    place = Path(folder)
    try:
        check(place)
        place.mkdir(parents=True, exist_ok=True)
        old = (SUMMARY, REQUESTS, SCENARIO, DECISIONS, ADMISSION, *(file for file, _ in LISTS.values()))
        for name in old:  # never a mixture of two runs
            (place / name).unlink(missing_ok=True)
        manifest = Manifest(FORMAT, __version__, kept.scenario.get("seed"), kept.trace)
        _text(place / MANIFEST, pretty(msgspec.to_builtins(manifest)) + "\n")
        plain = clean(msgspec.to_builtins(kept.scenario))
        _text(place / SCENARIO, yaml.dump(plain, Dumper=_Dumper, sort_keys=False, allow_unicode=True))
        write_requests(place / REQUESTS, kept.requests)
        for file, lines in kept.parts().items():
            write_lines(place / file, lines)
        _text(place / SUMMARY, pretty(kept.summary) + "\n")
        manifest.key = kept.key
        _text(place / MANIFEST, pretty(msgspec.to_builtins(manifest)) + "\n")
    except OSError as error:
        raise HeadwayError(f"{folder}: cannot be written: {error.strerror or error}.") from None


def add(folder: str | Path, name: str, lines: Sequence[msgspec.Struct]) -> None:
    """Write one list of a run, as in LISTS, into the folder that has the rest of it."""
    write_lines(Path(folder) / LISTS[name][0], lines)


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


def _text(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8", newline="\n")


def read(folder: str | Path) -> Kept:
    """A run folder that was written before."""
    place = Path(folder)
    try:
        told = msgspec.json.decode((place / MANIFEST).read_bytes(), type=Manifest)
        if told.format != FORMAT:
            _unreadable(folder, f"it has format {told.format}, this version reads format {FORMAT}")
        scenario = yaml.safe_load((place / SCENARIO).read_text(encoding="utf-8"))
        summary = msgspec.json.decode((place / SUMMARY).read_bytes(), type=dict[str, Any])
        requests = read_requests(place / REQUESTS)
        lists = {name: _lines(place / file, kind) for name, (file, kind) in LISTS.items()}
        decisions = None
        if told.trace != "minimal":
            rows = DecisionFile(place / DECISIONS) if (place / DECISIONS).exists() else []
            decisions = Decisions(rows, _lines(place / ADMISSION, Verdict))
    except FileNotFoundError as error:
        name = Path(error.filename).name
        raise HeadwayError(
            f"{folder}: not a whole run folder, {name} is missing; `headway run -o` writes one."
        ) from None
    except OSError as error:
        _unreadable(folder, error.strerror or str(error))
    except (msgspec.DecodeError, UnicodeDecodeError, yaml.YAMLError) as error:
        _unreadable(folder, " ".join(str(error).split()))
    if not isinstance(scenario, dict):
        _unreadable(folder, f"{SCENARIO} is not a mapping")
    return Kept(scenario, summary, requests, lists, decisions, told.key, told.trace)


def _lines(file: Path, kind: Any) -> list[Any]:
    return msgspec.json.Decoder(kind).decode_lines(file.read_bytes()) if file.exists() else []


def _unreadable(folder: str | Path, why: str) -> NoReturn:
    raise HeadwayError(f"{folder}: cannot be read as a run folder: {why}.")
