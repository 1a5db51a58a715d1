"""Commands. `smoke`, `calibrate` and `measure` need a CUDA GPU; `predict` and `table` do not.

python -m benchmarks.gpu smoke OUT             # are the tokens right, and do replicas disturb each other?
python -m benchmarks.gpu calibrate OUT         # measured steps: OUT/steps.csv
python -m benchmarks.gpu predict OUT           # profile, predicted table and its hash
python -m benchmarks.gpu measure OUT           # the measured runs, for at most --minutes; call it until it is done
python -m benchmarks.gpu table OUT             # predicted and measured side by side
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

COMMANDS = ("smoke", "calibrate", "predict", "measure", "table")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("out", type=Path, help="folder of the results")
    parser.add_argument("--minutes", type=float, default=8.5, help="begin no run after this time")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.command in ("predict", "table"):
        from benchmarks.gpu import confirm

        getattr(confirm, options.command)(options.out)
        return
    try:
        import torch

        there = torch.cuda.is_available()
    except ImportError:
        there = False
    if not there:
        sys.exit(f"{options.command}: needs PyTorch, Triton and a CUDA GPU, and found none here.")
    from benchmarks.gpu import device

    if options.command == "measure":
        device.measure(options.out, options.minutes)
    else:
        getattr(device, options.command)(options.out)


main()
