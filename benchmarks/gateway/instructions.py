"""Count the instructions that a request costs a gateway, by valgrind. Unlike CPU time, the count hardly depends on what
else the machine does.

python instructions.py [--requests 1000] [--base FOLDER]

`--base` names the folder `src` of another version. Each gateway runs twice, with fewer and with more requests; the
difference leaves out the start. Needs `valgrind`."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from routers import ROUTER_CPU, Command, Router, Started, two_engines
from securing import contenders, wait

HERE = Path(__file__).resolve().parent
WARM_UP = 200
COUNTED = re.compile(r"I\s+refs:\s+([\d,]+)")
ENOUGH_S = 300.0


def under_valgrind(command: Command, reports: Path) -> Command:
    counting = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
    each = ["--trace-children=yes", f"--log-file={reports}/%p.log"]

    def counted(port: int, ports: list[int], folder: Path) -> list[str]:
        last = command(port, ports, folder)
        # Polls and checks follow the clock, which runs fast beside a gateway under valgrind.
        with Path(last[-1]).open("a") as file:
            file.write("signals: off\nhealth: {path: null}\n")
        return [*counting, *each, *last]

    return counted


def count(router: Router, options: list[str], requests: int, engines: list[int], folder: Path) -> int:
    """Return the instructions of a gateway from its start to its end, with this many requests."""
    with tempfile.TemporaryDirectory() as reports:
        watched = router._replace(command=under_valgrind(router.command, Path(reports)))
        started = Started(watched, engines, folder, ROUTER_CPU)
        wait(started)
        load = [sys.executable, str(HERE / "load.py"), str(started.port), "--clients", "1", *options]
        load += ["--requests", str(requests), "--seconds", str(ENOUGH_S)]
        found = json.loads(subprocess.run(load, capture_output=True, text=True, check=True).stdout)
        if found["errors"] or found["requests"] < requests:
            raise SystemExit(f"{router.name}: {found['errors']} requests failed, {found['requests']} were answered")
        started.stop()
        counts = [COUNTED.search(file.read_text()) for file in Path(reports).iterdir()]
    if not any(counts):
        raise SystemExit(f"{router.name}: valgrind reported no count")
    return sum(int(found[1].replace(",", "")) for found in counts if found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--base")
    parser.add_argument("--only", nargs="*", help="names of the gateways")
    given = parser.parse_args()
    found: dict[str, float] = {}
    with two_engines() as engines, tempfile.TemporaryDirectory() as place:
        for router, options in contenders(Path(place), given.base):
            if "--reconnect" in options or (given.only and router.name not in given.only):
                continue
            few, many = (count(router, options, WARM_UP + more, engines, Path(place)) for more in (0, given.requests))
            found[router.name] = (many - few) / given.requests
            ratio = found[router.name] / found["plain"] if "plain" in found else 1.0
            print(f"{router.name}: {found[router.name]:,.0f} instructions a request, {ratio:.3f} of plain")
    if given.base is not None:
        print(f"plain, against the base: {found['plain'] / found['plain, base']:.4f}")


if __name__ == "__main__":
    main()
