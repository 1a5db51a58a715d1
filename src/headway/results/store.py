"""A run folder: what a run was and what came of it, the same bytes for the same run.

    scenario.yaml    the resolved scenario, which runs it again
    summary.json     the summary document
    requests.jsonl   one object a request, in order of arrival
    scaling.jsonl    one object for each time that the autoscaler changed the size of a pool, where it did
    states.jsonl     one object for each state that an instance got into, where instances come and go
    manifest.json    format number, version and seeds; marks the folder as a run's

No file holds a wall-clock time. The requests are not compressed: zlib's bytes differ from build to build.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import msgspec
import yaml
from msgspec import structs

from headway import __version__
from headway.results.recorder import ScaleRecord, StateChange
from headway.results.table import COLUMNS, Row, Table
from headway.types import HeadwayError, Json
from headway.wording import cut

FORMAT = 1
MANIFEST, SCENARIO, SUMMARY, REQUESTS = "manifest.json", "scenario.yaml", "summary.json", "requests.jsonl"
SCALING, STATES = "scaling.jsonl", "states.jsonl"
BATCH = 4096  # rows encoded at a time
Line = TypeVar("Line", bound=msgspec.Struct)


class Kept(msgspec.Struct):
    """What a run folder holds."""

    scenario: Json
    summary: Json
    requests: Table
    scaling_events: list[ScaleRecord] = []
    states: list[StateChange] = []

    def files(self) -> list[str]:
        """What they are called in the folder."""
        more = {SCALING: self.scaling_events, STATES: self.states}
        return sorted((MANIFEST, REQUESTS, SCENARIO, SUMMARY, *(name for name, lines in more.items() if lines)))


class Manifest(msgspec.Struct):
    format: int
    headway: str
    seed: Any = None


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:  # every value is written where it stands
        return True


def pretty(document: Json) -> str:
    return msgspec.json.format(msgspec.json.encode(clean(document)), indent=2).decode()


def clean(value: Any) -> Any:
    """Plain values with whatever of their text is not Unicode (a file's name in another code) replaced by `?`."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {clean(key): clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean(item) for item in value]
    return value


def write(folder: str | Path, kept: Kept) -> None:
    """Write a run folder. The manifest goes first, so that a write cut short can be repeated."""
    place = Path(folder)
    try:
        check(place)
        place.mkdir(parents=True, exist_ok=True)
        for name in (SUMMARY, REQUESTS, SCENARIO, SCALING, STATES):  # never a mixture of two runs
            (place / name).unlink(missing_ok=True)
        manifest = Manifest(FORMAT, __version__, kept.scenario.get("seed"))
        _text(place / MANIFEST, pretty(msgspec.to_builtins(manifest)) + "\n")
        plain = clean(msgspec.to_builtins(kept.scenario))
        _text(place / SCENARIO, yaml.dump(plain, Dumper=_Dumper, sort_keys=False, allow_unicode=True))
        _requests(place / REQUESTS, kept.requests)
        _lines(place / SCALING, [structs.replace(one, reason=clean(one.reason)) for one in kept.scaling_events])
        _lines(place / STATES, kept.states)
        _text(place / SUMMARY, pretty(kept.summary) + "\n")
    except OSError as error:
        raise HeadwayError(f"{folder}: cannot be written: {error.strerror or error}.") from None


def check(folder: str | Path) -> None:
    """Raise unless a run can be written there: never over somebody else's files. Best asked before the simulation."""
    place = Path(folder)
    try:
        if place.exists() and not place.is_dir():
            raise HeadwayError(f"{place}: is a file; name a folder to write the run into.")
        if place.is_dir() and any(place.iterdir()) and not _is_run(place):
            raise HeadwayError(f"{place}: holds other files and is not a run folder; name a new or an empty folder.")
        nearest = next(above for above in (place, *place.absolute().parents) if above.exists())
    except OSError as error:
        raise HeadwayError(f"{cut(str(place))}: cannot be written: {error.strerror or error}.") from None
    if not nearest.is_dir():
        raise HeadwayError(f"{place}: cannot be written: {nearest} is not a folder.")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise HeadwayError(f"{place}: cannot be written: Permission denied.")


def _is_run(place: Path) -> bool:
    try:
        msgspec.json.decode((place / MANIFEST).read_bytes(), type=Manifest)
    except (OSError, msgspec.DecodeError):
        return False
    return True


def _text(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8", newline="\n")


def _requests(file: Path, table: Table) -> None:
    encoder = msgspec.json.Encoder()
    columns = table.values()
    with file.open("wb") as out:
        for start in range(0, len(table), BATCH):
            batch = zip(*(column[start : start + BATCH] for column in columns), strict=True)
            rows = [Row(*row) for row in batch]
            try:
                out.write(encoder.encode_lines(rows))
            except UnicodeEncodeError:  # a reason of the policy's own making
                out.write(encoder.encode_lines([structs.replace(row, reason=clean(row.reason)) for row in rows]))


def _lines(file: Path, lines: Sequence[msgspec.Struct]) -> None:
    if lines:
        file.write_bytes(msgspec.json.Encoder().encode_lines(lines))


def read(folder: str | Path) -> Kept:
    """A run folder that was written before."""
    place = Path(folder)
    try:
        manifest = msgspec.json.decode((place / MANIFEST).read_bytes(), type=Manifest)
        if manifest.format != FORMAT:
            _unreadable(folder, f"it has format {manifest.format}, this version reads format {FORMAT}")
        scenario = yaml.safe_load((place / SCENARIO).read_text(encoding="utf-8"))
        summary = msgspec.json.decode((place / SUMMARY).read_bytes(), type=dict[str, Any])
        rows = msgspec.json.Decoder(Row).decode_lines((place / REQUESTS).read_bytes())
        scaled = _read_lines(place / SCALING, ScaleRecord)
        states = _read_lines(place / STATES, StateChange)
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
    table = Table({name: [getattr(row, name) for row in rows] for name in COLUMNS})
    return Kept(scenario, summary, table, scaled, states)


def _read_lines(file: Path, kind: type[Line]) -> list[Line]:
    return msgspec.json.Decoder(kind).decode_lines(file.read_bytes()) if file.exists() else []


def _unreadable(folder: str | Path, why: str) -> NoReturn:
    raise HeadwayError(f"{folder}: cannot be read as a run folder: {why}.")
