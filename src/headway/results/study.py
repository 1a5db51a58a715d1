"""A study folder: the run folders of a comparison or sweep, and `study.json` that describes them.

    study.json    format, version, kind (comparison or sweep), scenario, stage, baseline, verdict, varied keys, the runs
                  with their folders, labels and values, and the paired differences
    NAME/         the run folder of a run's first seed
    seeds/        the summaries of a sweep's further seeds, one file per run key

Everything is written under a temporary name first, so that the folder never contains an incomplete file or run.
"""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EEXIST, ENOTEMPTY
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from headway import __version__
from headway.errors import HeadwayError
from headway.results import store
from headway.results.result import Result
from headway.types import Json

FORMAT: Final = 1
STUDY: Final = store.STUDY
SEEDS: Final = "seeds"
PART: Final = ".part"  # suffix of files and folders that are being written
UNFINISHED: Final = "Unfinished: some runs are missing."  # the study's verdict until all runs are done
TRIES: Final = 10  # maximum number of attempts to replace a folder
LONGEST: Final = 100  # maximum number of characters of a folder's name, without the run key
Kind = Literal["comparison", "sweep"]


def check(folder: str | Path, kind: Kind) -> None:
    """Raise unless a study of this kind can be written to the folder. Other files are never overwritten."""
    store.check(folder, "study", _read_study)
    study = _read_study(Path(folder))
    if study is not None and study["kind"] != kind:
        raise HeadwayError(f"{folder}: contains a {study['kind']}; use another folder for this {kind}.")


def read(folder: str | Path) -> Json:
    """Read the `study.json` of a folder."""
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
    """Return the entry of a run in `study.json`. If the run is ranked behind all other runs, `aside` gives the reason:
    "template" or "control"."""
    return {"folder": folder, "label": label, "oracle": oracle, "aside": aside, "vary": vary or {}, "seeds": seeds}


def write_whole(file: Path, text: str) -> None:
    """Write a file that is either complete or absent."""
    part = file.with_name(f".{file.name}.{os.getpid()}{PART}")  # two processes may write the same run
    with store.writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, encoding="utf-8", newline="\n")
        part.replace(file)


def save(result: Result, folder: Path) -> None:
    """Write a run folder that is either complete or absent. An existing folder is replaced."""
    with _new_folder(folder) as part:
        result.save(part)


def adopt(folder: Path, files: dict[str, bytes]) -> None:
    """Write files that a worker returned: run folders, and summaries of seeds. `files` maps paths in the study folder
    to contents."""
    runs: dict[str, dict[str, bytes]] = {}
    for place, content in files.items():
        name, _, rest = place.partition("/")
        if name == SEEDS:
            write_whole(folder / place, content.decode())
        else:
            runs.setdefault(name, {})[rest] = content
    for name, contents in runs.items():
        with _new_folder(folder / name) as part:
            for file, content in contents.items():
                (part / file).parent.mkdir(parents=True, exist_ok=True)
                (part / file).write_bytes(content)


@contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder, and let it replace `folder` at the end. This works even if another process replaces
    `folder` in the meantime."""
    part = folder.with_name(f".{folder.name}.{os.getpid()}{PART}")
    with store.writing(folder):
        shutil.rmtree(part, ignore_errors=True)
        yield part
        for left in reversed(range(TRIES)):
            shutil.rmtree(folder, ignore_errors=True)
            try:
                part.replace(folder)
                return
            except OSError as error:
                if not left or error.errno not in (ENOTEMPTY, EEXIST):
                    raise


def clear_parts(folder: Path) -> None:
    """Remove partial files and folders of interrupted processes, but not those that another process is writing."""
    for place in (folder, folder / SEEDS):
        for part in sorted(place.glob(f".*{PART}")) if place.is_dir() else []:
            if _others(part.name):
                continue
            if part.is_dir():
                shutil.rmtree(part, ignore_errors=True)
            else:
                part.unlink(missing_ok=True)


def _others(name: str) -> bool:
    """Return whether another running process owns the partial file or folder with this name."""
    match = re.search(rf"\.(\d+){re.escape(PART)}$", name)
    if match is None or int(match[1]) == os.getpid() or not hasattr(os, "getpgid"):
        return False
    try:
        os.getpgid(int(match[1]))
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # the process exists, but belongs to another user
        pass
    return True


def remove_runs(folder: Path) -> None:
    """Remove the run folders of the old study, before a new study replaces it."""
    for run in (_read_study(folder) or {}).get("runs", []):
        place = folder / Path(str(run["folder"])).name
        if (place / store.MANIFEST).is_file():
            shutil.rmtree(place, ignore_errors=True)


def by_key(folder: Path) -> dict[str, list[str]]:
    """Return the run folders in a sweep's folder, by the run keys at the end of their names."""
    if not folder.is_dir():
        return {}
    folders: dict[str, list[str]] = {}
    for name in sorted(place.name for place in folder.iterdir() if place.is_dir()):
        if match := re.fullmatch(r"[^.].*-([0-9a-f]{16})", name):
            folders.setdefault(match[1], []).append(name)
    return folders


def read_summary(folder: Path, key: str, trace: str) -> Json | None:
    """Return the summary of a complete run that this version wrote for a run key; None if there is no such run."""
    if not store.has(folder, key, trace):
        return None
    try:
        there = all((folder / name).is_file() for name in (store.SCENARIO, store.REQUESTS))
        summary = msgspec.json.decode((folder / store.SUMMARY).read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError):
        return None
    return summary if there else None


def write_seed(folder: Path, key: str, summary: Json) -> None:
    """Write the summary of a further seed to a file that is named after its run key."""
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
    """Return a folder name for a label: characters that a file system or a shell may reject become dashes."""
    words = re.sub(r"[^A-Za-z0-9._=+,]+", "-", text).strip("-.")
    return words[:LONGEST].rstrip("-.,") or "run"


def folders(labels: list[str]) -> list[str]:
    """Return a folder name for each label, distinct also on file systems that ignore case."""
    in_use: set[str] = {SEEDS}
    names = []
    for label in labels:
        name, count = slug(label), 2
        while name.lower() in in_use:
            name, count = f"{slug(label)}-{count}", count + 1
        in_use.add(name.lower())
        names.append(name)
    return names
