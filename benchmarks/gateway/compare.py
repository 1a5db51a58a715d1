"""Compare the cost of routers: all run in front of the same two engines and are measured in turn, in one run.

python compare.py [--rounds 7] [--seconds 2] [--only headway,smg] [--cases 200] [--json]

The routers share one core; engines and clients share another. Each cell is the median of the rounds. The lines below
the table are computed from its cells. CPU is the user and system time of the router's processes from /proc, divided by
the number of requests."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from routers import ALL, LOAD_CPU, OTHERS, ROUTER_CPU, Started, two_engines

HERE = Path(__file__).resolve().parent


class Case(NamedTuple):
    name: str
    clients: int
    prompt_bytes: int
    stream: bool
    shown: tuple[str, ...]


CASES = [
    Case("200 B, c=1", 1, 200, False, ("p50_ms", "p99_ms")),
    Case("200 B, c=32", 32, 200, False, ("cpu_us", "per_s", "p99_ms")),
    Case("16 kB, c=32", 32, 16_000, False, ("cpu_us", "per_s")),
    Case("64 chunks, c=1", 1, 200, True, ("ttft_p50_ms", "ttft_p99_ms", "reads")),
    Case("64 chunks, c=64", 64, 200, True, ("cpu_us", "per_s", "ttft_p50_ms", "reads")),
]
Cell = dict[str, float]


def measure(port: int, case: Case, seconds: float, router: Started | None) -> Cell:
    command = [sys.executable, str(HERE / "load.py"), str(port), "--clients", str(case.clients)]
    command += ["--prompt-bytes", str(case.prompt_bytes), "--seconds", str(seconds), *(["--stream"] * case.stream)]
    before = router.cpu_s() if router is not None else 0.0
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, preexec_fn=lambda: os.sched_setaffinity(0, {LOAD_CPU})
    )
    found: Cell = json.loads(done.stdout)
    if router is not None:
        found["cpu_us"] = (router.cpu_s() - before) * 1e6 / max(1, found["requests"])
        found["rss_mb"] = router.rss_mb()
    return found


def rounds(
    started: list[Started], engines: list[int], cases: list[Case], count: int, seconds: float
) -> dict[tuple[str, str], list[Cell]]:
    """Return the cells of all rounds, by router and case."""
    found: dict[tuple[str, str], list[Cell]] = {}
    targets = [("direct", engines[0], None), *((one.router.name, one.port, one) for one in started)]
    for number in range(count + 1):
        for case in cases:
            for name, port, router in targets:
                cell = measure(port, case, seconds if number else min(1.0, seconds), router)
                if number:  # the first round is a warm-up
                    found.setdefault((name, case.name), []).append(cell)
        print(f"round {number} of {count} done, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    return found


def medians(cells: dict[tuple[str, str], list[Cell]]) -> dict[str, dict[str, Cell]]:
    found: dict[str, dict[str, Cell]] = {}
    for (name, case), some in cells.items():
        found.setdefault(name, {})[case] = {key: median(cell[key] for cell in some) for key in some[0]}
    return found


def bounds(started: list[Started], found: dict[str, dict[str, Cell]]) -> list[dict[str, Any]]:
    """Return the limits for Headway's routers, each with its measured value."""
    rust = [one.router.name for one in started if one.router.kind == "rust"]
    told: list[dict[str, Any]] = []
    for name in (one.router.name for one in started if one.router.kind == "ours"):
        for case, most in (("200 B, c=32", 1.0), ("64 chunks, c=64", 1.0), ("16 kB, c=32", 1.2)):
            if rust and case in found[name]:
                mean = sum(found[other][case]["cpu_us"] for other in rust) / len(rust)
                ratio = found[name][case]["cpu_us"] / mean
                what = f"CPU against the mean of Rust, {case}"
                told.append({"router": name, "what": what, "is": ratio, "most": most})
        case = "64 chunks, c=1"
        if case not in found[name]:
            continue
        added = found[name][case]["ttft_p50_ms"] - found["direct"][case]["ttft_p50_ms"]
        told.append({"router": name, "what": "added TTFT p50 at c=1, ms", "is": added, "most": 1.0})
    return told


def table(found: dict[str, dict[str, Cell]], told: list[dict[str, Any]]) -> str:
    columns = [(case, key) for case in CASES if case.name in found["direct"] for key in case.shown]
    lines = ["| router | " + " | ".join(f"{case.name}: {key}" for case, key in columns) + " | errors | RSS MB |"]
    lines.append("|---|" + "---:|" * (len(columns) + 2))
    for name, cases in found.items():
        cells = [cases[case.name].get(key) for case, key in columns]
        shown = ["" if cell is None else f"{cell:,.0f}" if cell >= 100 else f"{cell:.2f}" for cell in cells]
        errors = sum(cell["errors"] for cell in cases.values())
        rss = max(cell.get("rss_mb", 0.0) for cell in cases.values())
        lines.append(f"| {name} | " + " | ".join(shown) + f" | {errors:.0f} | {rss:.0f} |")
    lines.append("")
    for one in told:
        most = "" if one["most"] is None else f" (at most {one['most']})"
        lines.append(f"{one['router']}: {one['what']}: {one['is']:.2f}{most}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--only", default="", help="beginnings of routers' names, with commas between")
    parser.add_argument("--cases", default="", help="beginnings of cases' names, with commas between")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    wanted = tuple(given.only.split(",")) if given.only else ("",)
    chosen = [one for one in ALL if one.name.startswith(wanted)]
    cases = [one for one in CASES if one.name.startswith(tuple(given.cases.split(",")))]
    if not OTHERS.is_dir():
        chosen = [one for one in chosen if one.kind == "ours"]
        print("The routers of others are not installed (`make routers`); ours alone.", file=sys.stderr)
    with two_engines() as engines, tempfile.TemporaryDirectory() as folder:
        started: list[Started] = []
        try:
            started += [Started(one, engines, Path(folder), ROUTER_CPU) for one in chosen]
            for one in started:
                one.wait()
            cells = rounds(started, engines, cases, given.rounds, given.seconds)
            found = medians(cells)
            told = bounds(started, found)
        finally:
            for one in started:
                one.stop()
    load = [round(value, 1) for value in os.getloadavg()]
    if given.json:
        print(json.dumps({"load": load, "medians": found, "bounds": told}))
    else:
        print(table(found, told), f"\nload of the machine at the end: {load}")


if __name__ == "__main__":
    main()
