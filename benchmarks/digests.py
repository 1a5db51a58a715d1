"""Print the digests of many run folders, to show that a change of the code changes no byte of their files.

    python benchmarks/digests.py > before.txt      # in a checkout of the code before the change
    python benchmarks/digests.py > after.txt       # in this one
    diff before.txt after.txt

The scenarios are a few from each family that the tests of exactness draw, and every preset and example.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests"), str(ROOT / "tests" / "sim" / "exact")]

import headway  # noqa: E402
from drawn_scenarios import FAMILIES, scattered  # noqa: E402
from exact_runs import run  # noqa: E402
from headway.errors import HeadwayError  # noqa: E402

PRESETS = ("conversations-2026-11-17", "shared-prefix-2026-11-15", "shared-prefix-2026-11")
TRACES, RUN = Path("traces"), Path("run")


def results(each: int) -> Iterator[tuple[str, Any]]:
    for family in FAMILIES:
        for number in range(each):
            yield f"{family} {number}", run(scattered(family, number, TRACES))
    for preset in PRESETS:
        yield preset, headway.simulate(preset, trace="full")
    for file in sorted((ROOT / "examples").glob("*.yaml")):
        try:
            yield file.stem, headway.simulate(file, trace="full")
        except HeadwayError as error:  # the file is not a scenario, but that of a search or a gateway
            yield f"{file.stem} {str(error).splitlines()[0][:60]!r}", None


def main() -> None:
    each = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        TRACES.mkdir()
        for name, result in results(each):
            digest = hashlib.sha256()
            if result is not None:
                result.save(RUN)
                for file in sorted(RUN.iterdir()):
                    digest.update(
                        file.name.encode()
                        + b"\0"
                        + file.read_bytes().replace(folder.encode(), b"").replace(str(ROOT).encode(), b"")
                    )
                shutil.rmtree(RUN)
            print(digest.hexdigest()[:16], name, flush=True)


if __name__ == "__main__":
    main()
