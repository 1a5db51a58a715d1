"""Measure what converting a table of one's own costs, at several sizes: `python benchmarks/tables.py [ROWS ...]`.

The rows are in no order, and have sessions, tenants and prefixes. Each table is converted in a process of its own. The
cost of a row and the peak memory should not grow with the table.
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

from headway import convert_trace

SIZES = (200_000, 1_000_000)
MAPPING = "arrival=when,session=conv,tenant=org,prompt=in_tok,output=out_tok,prefix=system"


def table(count: int) -> Iterator[str]:
    draw = Random(1).random
    yield "when;conv;org;in_tok;out_tok;system\n"
    for number in range(count):
        second = number // 100 + int(draw() * 20_000)
        day, clock = divmod(second, 86_400)
        when = f"2026-01-{1 + day:02d}T{clock // 3600:02d}:{clock // 60 % 60:02d}:{clock % 60:02d}"
        session, prompt, output = int(draw() * count), 20 + int(draw() * 3980), 1 + int(draw() * 899)
        milliseconds = int(draw() * 1000)
        yield f"{when}.{milliseconds:03d}Z;c{session:09d};org{number % 9};{prompt};{output};s{number % 99}\n"


def measure(source: str) -> tuple[float, float]:
    """Convert a table. Return the CPU seconds and the peak memory in MiB."""
    begun = time.process_time()
    convert_trace(source, f"{source}.headway.jsonl", columns=MAPPING, progress=False)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)
    return time.process_time() - begun, peak


def main(sizes: list[int]) -> None:
    print(f"{'rows':>12} {'MB':>7} {'CPU s':>8} {'µs a row':>9} {'peak MiB':>9}")
    for count in sizes:
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "table.csv"
            with source.open("w", encoding="utf-8") as target:
                target.writelines(table(count))
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                seconds, peak = pool.apply(measure, (str(source),))
            size = source.stat().st_size / 1e6
            print(f"{count:>12,} {size:>7.0f} {seconds:>8.1f} {seconds / count * 1e6:>9.1f} {peak:>9.0f}", flush=True)


if __name__ == "__main__":
    main([int(argument.replace("_", "")) for argument in sys.argv[1:]] or list(SIZES))
