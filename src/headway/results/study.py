"""A study folder: several runs, each an ordinary run folder, and `study.json` that says what they were run for.

    study.json    format, version, kind (comparison or sweep), scenario, stage, baseline, verdict, what was varied, the
                  runs with their folders, labels and values, and the paired differences
    NAME/         a run folder, of the first seed
    seeds/        the summaries of a sweep's further seeds, one file a run key

What lies in it is whole: everything is written under another name first.
"""

import os
import re
import shutil
from collections.abc import Callable
from errno import EEXIST, ENOTEMPTY
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from headway import __version__
from headway.config.wording import cut
from headway.errors import HeadwayError
from headway.results import store
from headway.results.result import Result
from headway.types import Json

FORMAT: Final = 1
STUDY: Final = store.STUDY
SEEDS: Final = "seeds"
PART: Final = ".part"  # what is still being written ends so
UNFINISHED: Final = "Unfinished: some runs are missing."  # the verdict while they are made
TRIES: Final = 10  # to take the place of a folder
LONGEST: Final = 100  # characters of a folder's name, but for its key
Kind = Literal["comparison", "sweep"]


def check(folder: str | Path, kind: Kind) -> None:
    """Raise unless a study of this kind can be written there: never over somebody else's files."""
    place = Path(folder)
    try:
        theirs = place.is_dir() and any(place.iterdir())
    except OSError as error:
        raise HeadwayError(f"{cut(str(place))}: cannot be written: {error.strerror or error}.") from None
    if not theirs:
        store.check(place)
        return
    study = _read_study(place)
    if study is None:
        raise HeadwayError(f"{place}: holds other files and is not a study folder; name a new or an empty folder.")
    if study.get("kind") != kind:
        raise HeadwayError(f"{place}: holds a {study.get('kind')}; name another folder for this {kind}.")
    if not os.access(place, os.W_OK | os.X_OK):
        raise HeadwayError(f"{place}: cannot be written: Permission denied.")


def read(folder: str | Path) -> Json:
    """The `study.json` of a folder."""
    study = _read_study(Path(folder))
    if study is None:
        raise HeadwayError(f"{folder}: not a study folder; `headway compare -o` and `headway sweep -o` write one.")
    if study.get("format") != FORMAT:
        wrong = f"it has format {study.get('format')}, this version reads format {FORMAT}"
        raise HeadwayError(f"{folder}: cannot be read as a study folder: {wrong}.")
    return study


def _read_study(place: Path) -> Json | None:
    try:
        study = msgspec.json.decode((place / STUDY).read_bytes())
    except (OSError, msgspec.DecodeError):
        return None
    return study if isinstance(study, dict) and "kind" in study and "runs" in study else None


def write(
    folder: str | Path,
    kind: Kind,
    scenario: Json,
    runs: list[Json],
    *,
    stage: str,
    verdict: str,
    baseline: str | None = None,
    vary: Json | None = None,
    paired: list[Json] | None = None,
) -> None:
    document: Json = {
        "format": FORMAT,
        "headway": __version__,
        "kind": kind,
        "scenario": scenario["name"],
        "stage": stage,
        "baseline": baseline,
        "verdict": verdict,
        "vary": vary or {},
        "runs": runs,
        "paired": paired,
    }
    write_whole(Path(folder) / STUDY, store.pretty(document) + "\n")


def run_entry(
    folder: str,
    label: str,
    oracle: bool = False,
    vary: Json | None = None,
    seeds: int = 1,
    aside: str | None = None,
) -> Json:
    """A run as `study.json` tells of it; `aside` is template or control, if it ranks behind the others."""
    return {"folder": folder, "label": label, "oracle": oracle, "aside": aside, "vary": vary or {}, "seeds": seeds}


def write_whole(file: Path, text: str) -> None:
    """A file that is either whole or not there."""
    part = file.with_name(f".{file.name}.{os.getpid()}{PART}")  # two points of a sweep may be one run
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, encoding="utf-8", newline="\n")
        part.replace(file)
    except OSError as error:
        raise HeadwayError(f"{file}: cannot be written: {error.strerror or error}.") from None


def save(result: Result, folder: Path) -> None:
    """Write a run folder that is either whole or not there; one of that name is replaced."""
    _write_folder(folder, result.save)


def adopt(folder: Path, files: dict[str, bytes]) -> None:
    """Take in run folders and seeds' summaries that were written elsewhere, by their places in a study folder."""
    runs: dict[str, dict[str, bytes]] = {}
    for place, content in files.items():
        name, _, rest = place.partition("/")
        if name == SEEDS:
            write_whole(folder / place, content.decode())
        else:
            runs.setdefault(name, {})[rest] = content
    for name, contents in runs.items():
        _write_folder(folder / name, partial(_write_files, contents))


def _write_files(contents: dict[str, bytes], folder: Path) -> None:
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def _write_folder(folder: Path, write: Callable[[Path], object]) -> None:
    part = folder.with_name(f".{folder.name}.{os.getpid()}{PART}")
    try:
        shutil.rmtree(part, ignore_errors=True)
        write(part)
        _put(part, folder)
    except OSError as error:
        raise HeadwayError(f"{folder}: cannot be written: {error.strerror or error}.") from None


def _put(part: Path, folder: Path) -> None:
    """A folder takes the place of another, even where somebody else does the same at that moment."""
    for left in reversed(range(TRIES)):
        shutil.rmtree(folder, ignore_errors=True)
        try:
            part.replace(folder)
            return
        except OSError as error:
            if not left or error.errno not in (ENOTEMPTY, EEXIST):
                raise


def clear_parts(folder: Path) -> None:
    """Remove what was still being written when somebody ended it, but not what another process is writing."""
    for place in (folder, folder / SEEDS):
        for part in sorted(place.glob(f".*{PART}")) if place.is_dir() else []:
            if _others(part.name):
                continue
            if part.is_dir():
                shutil.rmtree(part, ignore_errors=True)
            else:
                part.unlink(missing_ok=True)


def _others(name: str) -> bool:
    """Whether a process other than this one is at work on a part of that name."""
    match = re.search(rf"\.(\d+){re.escape(PART)}$", name)
    if match is None or int(match[1]) == os.getpid() or not hasattr(os, "getpgid"):
        return False
    try:
        os.getpgid(int(match[1]))
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # it is somebody else's
        pass
    return True


def remove_runs(folder: Path) -> None:
    """Remove the run folders of the study that is there, before another takes its place."""
    for run in (_read_study(folder) or {}).get("runs", []):
        place = folder / Path(str(run["folder"])).name
        if (place / store.MANIFEST).is_file():
            shutil.rmtree(place, ignore_errors=True)


def by_key(folder: Path) -> dict[str, list[str]]:
    """The run folders of a sweep that is there, by the run keys that their names end with."""
    if not folder.is_dir():
        return {}
    folders: dict[str, list[str]] = {}
    for name in sorted(place.name for place in folder.iterdir() if place.is_dir()):
        if match := re.fullmatch(r"[^.].*-([0-9a-f]{16})", name):
            folders.setdefault(match[1], []).append(name)
    return folders


def read_summary(folder: Path, key: str, trace: str) -> Json | None:
    """The summary of a whole run folder that this version wrote for a run key; None where there is none."""
    if not store.has(folder, key, trace):
        return None
    try:
        there = all((folder / name).is_file() for name in (store.SCENARIO, store.REQUESTS))
        summary = msgspec.json.decode((folder / store.SUMMARY).read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError):
        return None
    return summary if there else None


def write_seed(folder: Path, key: str, summary: Json) -> None:
    """The summary of a further seed, under its run key."""
    document = {"format": FORMAT, "headway": __version__, "key": key, "summary": summary}
    write_whole(folder / SEEDS / f"{key}.json", store.pretty(document) + "\n")


def read_seed(folder: Path, key: str) -> Json | None:
    try:
        document = msgspec.json.decode((folder / SEEDS / f"{key}.json").read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError):
        return None
    same = tuple(map(document.get, ("format", "headway", "key"))) == (FORMAT, __version__, key)
    summary = document.get("summary")
    return summary if same and isinstance(summary, dict) else None


def slug(text: str) -> str:
    """A folder's name for a label: signs that a file system or a shell could mind become dashes."""
    words = re.sub(r"[^A-Za-z0-9._=+,]+", "-", text).strip("-.")
    return words[:LONGEST].rstrip("-.,") or "run"


def folders(labels: list[str]) -> list[str]:
    """A name for each label, no two alike, not even where upper and lower case are one."""
    in_use: set[str] = {SEEDS}
    names = []
    for label in labels:
        name, count = slug(label), 2
        while name.lower() in in_use:
            name, count = f"{slug(label)}-{count}", count + 1
        in_use.add(name.lower())
        names.append(name)
    return names
