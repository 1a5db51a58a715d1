"""Predict a cluster of engines on one GPU, measure it, and compare.

    python -m benchmarks.gpu all OUT               # everything below, in this order
    python -m benchmarks.gpu smoke OUT             # are the tokens right, and how long do a few steps take?
    python -m benchmarks.gpu calibrate OUT         # measured steps: OUT/steps.csv
    python -m benchmarks.gpu predict OUT           # profile, predicted table and its hash
    python -m benchmarks.gpu measure OUT           # the runs in virtual time, for at most --minutes; repeat until done
    python -m benchmarks.gpu live OUT              # over HTTP: one engine in real time, several in dilated time
    python -m benchmarks.gpu table OUT             # predicted and measured side by side

With --quick, `all` takes a few minutes; its figures say little. `predict` and `table` need no GPU. The others need
PyTorch, Triton and a CUDA GPU, `predict` needs SciPy, and `live` the extra `gateway`. OUT/own.json has the searched
policies by name, in the form of a scenario's routing policy.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ON_GPU = ("smoke", "calibrate", "measure", "live")
ORDER = ("smoke", "calibrate", "predict", "measure", "live", "table")
SHORTENED = ("calibrate", "predict", "live")  # by --quick
OWN = Path(__file__).with_name("own.json")  # the policies of docs/confirmed.md


def has_gpu() -> bool:
    if find_spec("torch") is None or find_spec("triton") is None:
        return False
    import torch

    return bool(torch.cuda.is_available())


def run(command: str, out: Path, minutes: float, quick: bool) -> None:
    if command in ON_GPU:
        from benchmarks.gpu import device as place
    else:
        from benchmarks.gpu import confirm as place  # type: ignore[no-redef]

    options: dict[str, Any] = {"minutes": minutes} if command == "measure" else {}
    if command in SHORTENED:
        options["quick"] = quick
    getattr(place, command)(out, **options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("all", *ORDER))
    parser.add_argument("out", type=Path, help="folder of the results")
    parser.add_argument("--minutes", type=float, help="begin no measured run later. Default: 8.5; all: no limit")
    parser.add_argument("--quick", action="store_true", help="few steps, runs and policies: whether all of it works")
    options = parser.parse_args()
    commands = ORDER if options.command == "all" else (options.command,)
    if not has_gpu() and any(command in ON_GPU for command in commands):
        sys.exit(f"{options.command}: needs PyTorch, Triton and a CUDA GPU, and found none here.")
    options.out.mkdir(parents=True, exist_ok=True)
    if not (options.out / "own.json").exists() and OWN.exists():
        shutil.copy(OWN, options.out / "own.json")
    minutes = options.minutes or (float("inf") if options.command == "all" else 8.5)
    for command in commands:
        run(command, options.out, minutes, options.quick)


if __name__ == "__main__":  # a process of `live` imports this file
    main()
