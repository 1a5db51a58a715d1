"""Find the package with the compiled engine, which `make compiled` puts into build/compiled of the repository.

The workers of a search use it, and give the same bytes in less CPU time. The process that runs the search itself uses
the sources. An installed wheel with a compiled engine needs nothing from here.
"""

from __future__ import annotations

import os
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Final

SOURCES: Final = Path(__file__).resolve().parents[1]  # the package of this process
SWITCH: Final = "HEADWAY_COMPILED"  # environment variable; 0: workers use the sources


def compiled_path() -> list[str]:
    """Return the folder of the compiled package as a list to put before `sys.path`. The list is empty if there is no
    such folder, or if it was compiled from other sources or for another Python."""
    folder = SOURCES.parents[1] / "build" / "compiled"
    if os.environ.get(SWITCH) == "0" or not is_current(SOURCES, folder / SOURCES.name):
        return []
    return [str(folder)]


@cache
def is_current(sources: Path, package: Path) -> bool:
    """Return whether a package has the same sources, and an extension of this Python for its engine."""
    if not any((package / "sim" / f"instance{suffix}").is_file() for suffix in EXTENSION_SUFFIXES[:1]):
        return False
    files = {file.relative_to(sources): file for file in sources.rglob("*") if file.suffix in (".py", ".yaml")}
    return all(_same(file, package / place) for place, file in files.items())


def _same(file: Path, other: Path) -> bool:
    try:
        return file.stat().st_size == other.stat().st_size and file.read_bytes() == other.read_bytes()
    except OSError:
        return False
