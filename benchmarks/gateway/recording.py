"""Measure the cost of recording: the gateway with and without `records`, in turn, at 10,000 requests per minute.

python recording.py [--rounds 5] [--seconds 20] [--prompt-bytes 2000] [--policy kv-aware] [--json]

The gateways share one core; engines and clients share another. CPU is the user and system time of a gateway's process
from /proc, divided by the number of requests. Ratios are given for all rounds together and for each round. During the
run a separate process writes the folders, and no request waits for it; its CPU time is reported separately."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from routers import LOAD_CPU, ROUTER_CPU, Router, Started, headway, times, two_engines

HERE = Path(__file__).resolve().parent
PLAIN, RECORDING = "without", "with records"
FOLDER = 2000  # requests per folder, so that some folders are written during the measurement
TICK_US = 1e6 / os.sysconf("SC_CLK_TCK")


class Turn(NamedTuple):
    cpu_us: float
    requests: int


def measure(one: Started, given: argparse.Namespace, stream: bool, seconds: float) -> Turn:
    command = [sys.executable, str(HERE / "load.py"), str(one.port), "--clients", str(given.clients)]
    command += ["--prompt-bytes", str(given.prompt_bytes), "--seconds", str(seconds), "--rate", str(given.rate)]
    before = times(one.process.pid)
    done = subprocess.run(
        [*command, *(["--stream"] * stream)],
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=lambda: os.sched_setaffinity(0, {LOAD_CPU}),
    )
    found = json.loads(done.stdout)
    if found["errors"]:
        raise SystemExit(f"{one.router.name}: {found['errors']} requests failed")
    return Turn((times(one.process.pid) - before) * TICK_US, found["requests"])


def rounds(started: list[Started], given: argparse.Namespace, stream: bool) -> dict[str, list[Turn]]:
    turns: dict[str, list[Turn]] = {one.router.name: [] for one in started}
    for number in range(given.rounds + 1):
        for one in started if number % 2 else reversed(started):
            turn = measure(one, given, stream, given.seconds if number else 3.0)
            if number:  # the first round is a warm-up
                turns[one.router.name].append(turn)
        print(f"round {number} of {given.rounds} done, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    return turns


def each_us(turns: list[Turn]) -> float:
    return sum(turn.cpu_us for turn in turns) / sum(turn.requests for turn in turns)


def told(turns: dict[str, list[Turn]], written_us: float) -> dict[str, Any]:
    pairs = zip(turns[RECORDING], turns[PLAIN], strict=True)
    each = [each_us([more]) / each_us([less]) for more, less in pairs]
    return {
        PLAIN: each_us(turns[PLAIN]),
        RECORDING: each_us(turns[RECORDING]),
        "ratio": each_us(turns[RECORDING]) / each_us(turns[PLAIN]),
        "ratios of rounds": each,
        "writer": written_us,
        "requests": sum(turn.requests for turn in turns[RECORDING]),
    }


def waited_us(pid: int) -> float:
    """Return the CPU time of those children of a process that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[13]) + int(fields[14])) * TICK_US


def written_us(one: Started, folder: Path) -> float:
    """Return the CPU time of the process that writes folders, per recorded request."""
    time.sleep(5.0)  # gives the process time to finish the last folder
    lines = [len(file.read_bytes().splitlines()) for file in folder.glob("0*/*/requests.jsonl")]
    return waited_us(one.process.pid) / max(1, sum(lines))


def case(given: argparse.Namespace, engines: list[int], stream: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place:
        folder, policies = Path(place), f"{{routing: {given.policy}}}"
        more = f"records: {{folder: {folder / 'records'}, requests: {FOLDER}}}\n"
        made = [Router(PLAIN, "ours", headway(policies)), Router(RECORDING, "ours", headway(policies, more))]
        started: list[Started] = []
        try:
            started += [Started(one, engines, folder, ROUTER_CPU) for one in made]
            for one in started:
                one.wait()
            turns = rounds(started, given, stream)
            return told(turns, written_us(started[1], folder / "records"))
        finally:
            for one in started:
                one.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rate", type=float, default=10_000 / 60, help="requests a second")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--prompt-bytes", type=int, default=2000)
    parser.add_argument("--policy", default="kv-aware")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with two_engines() as engines:
        found = {name: case(given, engines, stream) for name, stream in (("whole", False), ("64 chunks", True))}
    load = [round(value, 1) for value in os.getloadavg()]
    if given.json:
        print(json.dumps({"load": load, "cases": found}))
        return
    for name, one in found.items():
        spread = f"{min(one['ratios of rounds']):.3f} to {max(one['ratios of rounds']):.3f} by round"
        print(f"{name}: {one[PLAIN]:.0f} µs of CPU a request, {one[RECORDING]:.0f} µs with records: ", end="")
        print(f"{one['ratio']:.3f} ({spread}; {one['requests']:,} requests); the writer {one['writer']:.0f} µs")
    print(f"load of the machine at the end: {load}")


if __name__ == "__main__":
    main()
