"""The examples in a folder of a reader, for tests of what the pages show."""

from __future__ import annotations

from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
SUITE = "18_evolve.yaml"


def link_examples(folder: Path) -> None:
    """Link all examples into `folder`. The suite for searches is a copy with fewer requests and seeds: the example
    itself is run whole by a test of its own."""
    place = folder / "examples"
    place.mkdir()
    for file in (ROOT / "examples").iterdir():
        if file.name != SUITE:
            (place / file.name).symlink_to(file)
    suite = yaml.safe_load((ROOT / "examples" / SUITE).read_text(encoding="utf-8"))
    for workload in suite["workloads"].values():
        workload["requests"] = 30
    for part, seeds in (("train", [1]), ("validation", [11]), ("held_out", [101, 102])):
        for case in suite[part]:
            case["seeds"] = seeds
    (place / SUITE).write_text(yaml.safe_dump(suite, sort_keys=False), encoding="utf-8")
