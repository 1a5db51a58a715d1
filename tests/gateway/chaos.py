"""A gateway under random faults: three engines, etcd, two gateway processes and thousands of requests.

`python tests/gateway/chaos.py --minutes 10` is `make chaos`. It prints what became of the requests, and what is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from random import Random

sys.path.append(str(Path(__file__).resolve().parents[1]))  # as pytest does; this file is also a program

from chaos_clients import BROKEN, CUT, ERROR, SERVED, SILENT, VANISHED, Asked, Clients
from chaos_engines import MODEL, Engine
from etcd_server import EtcdServer

from free_ports import free_port

ADMIN_KEY = "chaos-admin-key"
ROUTING = ("kv-aware-spill", "least-loaded", "round-robin", "lmetric")
SILENCE_S = 3.0  # without a heartbeat, a gateway process is replaced after this time
GRACE_S = 4.0  # time after the end of a fault in which its consequences may still show
SERVED_SHARE = 0.999
FEW_BROKEN = 3  # an engine's broken answers of one kind that the log need not tell
NOTICED_S = 4.0  # the log must tell of engines that are down for longer than this
LINE = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z ")
TOLD_S = 10.0  # time after the end of a fault in which the log must tell of it
TRACES = {
    "etcd loss": r"etcd: lost|etcd: .*(unreachable|no answer|refused|cannot)",
    "reload": r"reloaded|refused",
    "policy swap": r"policies: version|refused",
    "worker stop": r"no heartbeat",
    "fd shortage": r"open files: ",
}
STILL, STILL_S = "standstill", 1.0  # time after which the process with the proxies counts as still
GROWTH_MB = 40  # most that a gateway process may grow between the first and the last tenth of the run


@dataclass
class Fault:
    kind: str
    subject: str
    began: float
    ended: float = 0.0
    detail: str = ""


@dataclass
class Chaos:
    """One run: its parts, the faults that were planted, and the memory of the gateway's processes over time."""

    folder: Path
    seconds: float
    rate: float
    rng: Random
    engines: list[Engine] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    memory: list[dict[int, float]] = field(default_factory=list)
    settings: dict[str, object] = field(default_factory=dict)
    offset: float = field(default_factory=lambda: time.time() - time.monotonic())

    # --- parts --------------------------------------------------------------------------------------------------------

    async def run(self) -> list[str]:
        """Run everything, print the outcome, and return what is wrong."""
        self.engines = [Engine(name, self.folder) for name in "abc"]
        self.etcd = EtcdServer().start()
        self.port, self.admin = free_port(), free_port()
        for engine in self.engines:
            await engine.start()
        for engine in self.engines:
            await engine.wait_ready()
        self.put("/headway/nodes/c", {"url": self.engines[2].url, "models": [MODEL]})
        self.write_file(routing=ROUTING[0])
        command = [sys.executable, "-m", "headway.cli", "serve", str(self.folder / "gateway.yaml"), "--workers", "2"]
        environment = {**os.environ, "CHAOS_ADMIN_KEY": ADMIN_KEY}
        with (self.folder / "gateway.log").open("wb") as log:
            self.gateway = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        clients = Clients(f"http://127.0.0.1:{self.port}", MODEL, self.rate, self.rng)
        try:
            await self.wait_served(clients)
            clients.asked.clear()
            end = time.monotonic() + self.seconds
            watching = [asyncio.create_task(watch) for watch in (self.watch_memory(), self.watch_self())]
            planting = asyncio.create_task(self.plant(end - 3))
            await clients.run(self.seconds)
            await planting
            for watch in watching:
                watch.cancel()
            wrong = [*self.judge(clients.asked), *await self.judge_rest(), *self.judge_log()]
        finally:
            self.gateway.send_signal(signal.SIGTERM)
            self.gateway.wait(60)
            for engine in self.engines:
                await engine.stop()
            self.etcd.stop()
        return wrong

    def write_file(self, **changes: object) -> None:
        self.settings |= changes
        backends = {engine.name: {"url": engine.url, "models": [MODEL]} for engine in self.engines[:2]}
        document = {
            "listen": f"127.0.0.1:{self.port}",
            "backends": backends,
            "etcd": self.etcd.url,
            "admin": {"listen": f"127.0.0.1:{self.admin}", "key_env": "CHAOS_ADMIN_KEY"},
            "policies": {"routing": self.settings["routing"]},
            "retries": self.settings.get("retries", 2),
            "health": {"interval": "1s", "timeout": "1s", "fall": 2},
            "worker_silence": f"{SILENCE_S}s",
        }
        (self.folder / "new.yaml").write_text(json.dumps(document))
        (self.folder / "new.yaml").replace(self.folder / "gateway.yaml")  # at once, as an editor should

    def put(self, key: str, value: object) -> None:
        coded = [base64.b64encode(text.encode()).decode() for text in (key, json.dumps(value))]
        body = json.dumps(dict(zip(("key", "value"), coded, strict=True))).encode()
        with urllib.request.urlopen(f"{self.etcd.url}/v3/kv/put", body, timeout=10) as answer:
            answer.read()

    async def wait_served(self, clients: Clients) -> None:
        for _ in range(120):
            await clients.run(0.3)
            if clients.asked and all(asked.outcome in (SERVED, VANISHED) for asked in clients.asked):
                return
            clients.asked.clear()
            await asyncio.sleep(0.2)
        raise RuntimeError(f"The gateway does not serve; see {self.folder / 'gateway.log'}.")

    def workers(self) -> list[int]:
        children = Path(f"/proc/{self.gateway.pid}/task/{self.gateway.pid}/children").read_text().split()
        return [int(pid) for pid in children if b"spawn_main" in _read(Path(f"/proc/{pid}/cmdline"))]

    async def watch_memory(self) -> None:
        while True:
            sizes = {}
            for pid in self.workers():
                size = re.search(rb"VmRSS:\s+(\d+)", _read(Path(f"/proc/{pid}/status")))
                if size is not None:
                    sizes[pid] = int(size[1]) / 1024
            self.memory.append(sizes)
            await asyncio.sleep(max(1.0, self.seconds / 100))

    async def watch_self(self) -> None:
        """Record when this process itself stands still, because the machine is busy: the proxies of all engines stand
        still with it, so no engine is sound."""
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.1)
            if (now := time.monotonic()) - before > STILL_S:
                self.faults.append(Fault(STILL, "the engines", before, now))

    # --- faults -------------------------------------------------------------------------------------------------------

    async def plant(self, end: float) -> None:
        """Plant random faults until the end. At least one engine is always sound."""
        broken: dict[str, asyncio.Task[None]] = {}
        elsewhere: asyncio.Task[None] | None = None
        first = list(self.kinds())  # every kind once, then at random
        self.rng.shuffle(first)
        while time.monotonic() < end:
            await asyncio.sleep(self.rng.expovariate(1 / 1.2))
            kind = first.pop() if first else self.rng.choice(list(self.kinds()))
            broken = {name: task for name, task in broken.items() if not task.done()}
            if kind in self.engine_faults():
                sound = [engine for engine in self.engines if engine.name not in broken]
                if len(sound) < 2:
                    continue
                engine = self.rng.choice(sound)
                broken[engine.name] = asyncio.create_task(self.break_engine(kind, engine))
            elif elsewhere is None or elsewhere.done():
                elsewhere = asyncio.create_task(self.record(kind, "gateway", self.other_faults()[kind]))
            else:
                first.append(kind)
        await asyncio.gather(*broken.values(), *([elsewhere] if elsewhere else []))

    def kinds(self) -> list[str]:
        return [*self.engine_faults(), *self.other_faults()]

    def engine_faults(self) -> dict[str, Callable[[Engine], Awaitable[None]]]:
        modes = {mode: self.proxy_fault(mode) for mode in ("cut", "reset", "garbage", "slow")}
        return {"kill": self.kill_engine, "hang": self.hang_engine, **modes}

    def other_faults(self) -> dict[str, Callable[[], Awaitable[None]]]:
        return {
            "etcd loss": self.lose_etcd,
            "reload": self.reload,
            "policy swap": self.swap_policy,
            "worker stop": self.stop_worker,
            "fd shortage": self.lack_descriptors,
        }

    async def record(self, kind: str, subject: str, act: Callable[[], Awaitable[None]]) -> None:
        fault = Fault(kind, subject, time.monotonic())
        self.faults.append(fault)
        await act()
        fault.ended = time.monotonic()

    async def break_engine(self, kind: str, engine: Engine) -> None:
        await self.record(kind, engine.name, lambda: self.engine_faults()[kind](engine))
        await asyncio.sleep(2)  # the engine recovers before its next fault

    def proxy_fault(self, mode: str) -> Callable[[Engine], Awaitable[None]]:
        async def break_answers(engine: Engine) -> None:
            engine.mode = mode
            await asyncio.sleep(self.rng.uniform(1, 5))
            engine.mode = "pass"

        return break_answers

    async def kill_engine(self, engine: Engine) -> None:
        await asyncio.to_thread(engine.kill)  # the proxies of the other engines go on
        await asyncio.sleep(self.rng.uniform(0, 3))
        await asyncio.to_thread(engine.launch)
        await engine.wait_ready()

    async def hang_engine(self, engine: Engine) -> None:
        engine.freeze()
        await asyncio.sleep(self.rng.uniform(2, 8))
        engine.thaw()

    async def lose_etcd(self) -> None:
        await asyncio.to_thread(self.etcd.kill)
        await asyncio.sleep(self.rng.uniform(1, 5))
        await asyncio.to_thread(self.etcd.start)

    async def reload(self) -> None:
        self.write_file(retries=self.rng.choice((2, 3, 4)))
        self.gateway.send_signal(signal.SIGHUP)
        await asyncio.sleep(0.5)

    async def swap_policy(self) -> None:
        self.write_file(routing=self.rng.choice([name for name in ROUTING if name != self.settings["routing"]]))
        self.gateway.send_signal(signal.SIGHUP)
        await asyncio.sleep(0.5)

    def serving(self) -> list[int]:
        """Return the gateway processes that accept connections. A process that starts does not."""
        address = f"0100007F:{self.port:04X}"
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
        listening = {f"socket:[{row[9]}]" for row in rows if row[1] == address and row[3] == "0A"}
        return [
            pid for pid in self.workers() if any(_link(file) in listening for file in Path(f"/proc/{pid}/fd").iterdir())
        ]

    async def stop_worker(self) -> None:
        """Stop the younger of two processes, so that the memory of one is known to the end. It may still start."""
        fault = self.of_kind("worker stop")[-1]
        workers, serving = self.workers(), self.serving()
        if len(workers) < 2 or not set(serving) - {workers[-1]}:
            fault.kind = "no worker to stop"
            return
        os.kill(workers[-1], signal.SIGSTOP)
        await asyncio.sleep(SILENCE_S + 5)
        left = _state(workers[-1])
        fault.detail = f" (process {workers[-1]}, {'serving' if workers[-1] in serving else 'starting'}, now {left})"

    async def lack_descriptors(self) -> None:
        fault = self.of_kind("fd shortage")[-1]
        limits: dict[int, int] = {}
        for pid in self.workers():
            limits[pid] = _count_files(pid)
            with suppress(ProcessLookupError):
                _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
                resource.prlimit(pid, resource.RLIMIT_NOFILE, (limits[pid], hard))
        opened: list[asyncio.StreamWriter] = []
        with suppress(OSError):  # a gateway process may just be replaced
            for _ in range(60):
                opened.append((await asyncio.open_connection("127.0.0.1", self.port))[1])
        end, full = time.monotonic() + self.rng.uniform(1, 3), False
        while time.monotonic() < end:
            full = full or any(_count_files(pid) >= limit - 2 for pid, limit in limits.items())
            await asyncio.sleep(0.1)
        if not full:  # other requests have just ended, so that these connections found room
            fault.kind = "few files"
        for writer in opened:
            writer.close()
        for pid in self.workers():
            with suppress(ProcessLookupError):
                _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
                resource.prlimit(pid, resource.RLIMIT_NOFILE, (hard, hard))

    # --- the verdict --------------------------------------------------------------------------------------------------

    def judge(self, asked: list[Asked]) -> list[str]:
        counts = Counter(each.outcome for each in asked)
        cut = [each for each in asked if each.outcome == CUT]
        unexplained = [each for each in cut if not self.explains(each)]
        short = sum(each.status == 503 and _during(each, self.of_kind("fd shortage")) for each in asked)
        still = sum(each.outcome == ERROR and _during(each, self.of_kind(STILL)) for each in asked)
        excused = counts[VANISHED] + counts[BROKEN] + short + still + len(cut) - len(unexplained)
        able = len(asked) - excused
        share = counts[SERVED] / max(1, able)
        print(f"{len(asked):,} requests: " + ", ".join(f"{count:,} {name}" for name, count in counts.most_common()))
        print(f"{counts[SERVED]:,} of {able:,} that a sound engine could serve were served: {share:.4%}")
        print("faults: " + ", ".join(f"{count} {kind}" for kind, count in Counter(f.kind for f in self.faults).items()))
        if still:
            print(f"{still:,} errors while the engines stood still, because the machine was busy")
        for each in [*unexplained, *(each for each in asked if each.outcome == ERROR and not self.explains(each))][:20]:
            active = [f"{fault.kind} of {fault.subject}" for fault in self.faults if _during(each, [fault])]
            at = time.strftime("%H:%M:%S", time.gmtime(each.began + self.offset))
            print(f"  {at} for {each.ended - each.began:.1f} s: {each.status} {each.text[:80]} ({', '.join(active)})")
        texts = Counter((each.status, each.text[:120]) for each in asked if each.outcome in (ERROR, BROKEN, CUT))
        for (status, text), count in texts.most_common(12):
            print(f"  {count:,} × {status}: {text}")
        wrong = []
        if counts[SILENT]:
            wrong.append(f"{counts[SILENT]} requests got no answer.")
        if unexplained:
            wrong.append(f"{len(unexplained)} requests were cut off while no gateway process was replaced.")
        if share < SERVED_SHARE:
            wrong.append(f"Only {share:.3%} of the requests that a sound engine could serve were served.")
        return wrong

    def of_kind(self, kind: str) -> list[Fault]:
        return [fault for fault in self.faults if fault.kind == kind]

    def explains(self, asked: Asked) -> bool:
        """Return whether a process that was replaced or that could open no file explains the outcome. If a process can
        open no file for a new connection, it can only close the connection."""
        if asked.outcome == CUT and _during(asked, self.of_kind("worker stop")):
            return True
        return (not asked.status or asked.status == 503) and _during(asked, self.of_kind("fd shortage"))

    async def judge_rest(self) -> list[str]:
        """Return what the gateway still holds after the last request, and how its memory grew."""
        for _ in range(100):
            left = self.left_over()
            if not any(left.values()):
                break
            await asyncio.sleep(0.2)
        wrong = [f"{name} is {value:g} after the last request." for name, value in left.items() if value]
        tenth = max(1, len(self.memory) // 10)
        for pid in self.memory[-1] if self.memory else ():
            sizes = [sizes[pid] for sizes in self.memory if pid in sizes]
            if len(sizes) > 3 * tenth:
                begin, end = min(sizes[tenth : 2 * tenth]), min(sizes[-tenth:])
                print(f"memory of process {pid}: {begin:.0f} MB, at the end {end:.0f} MB")
                if end - begin > GROWTH_MB:
                    wrong.append(f"A gateway process grew from {begin:.0f} to {end:.0f} MB.")
        return wrong

    def left_over(self) -> dict[str, float]:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.admin}/metrics", headers={"authorization": f"Bearer {ADMIN_KEY}"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read().decode()
        sums = dict.fromkeys(("inflight_requests", "waiting_requests", "held_bytes"), 0.0)
        for name, value in re.findall(r"^headway_(\w+?)(?:\{[^}]*\})? ([\d.e+-]+)$", text, re.MULTILINE):
            if name in sums:
                sums[name] += float(value)
        return sums

    def judge_log(self) -> list[str]:
        """Return the faults that the log does not tell, each by a line with a time within the fault."""
        text = (self.folder / "gateway.log").read_text(errors="replace")
        lines = [(_seconds(line[:24]), line) for line in text.splitlines() if LINE.match(line)]
        wrong = []
        for fault in self.faults:
            pattern = self.trace_of(fault)
            begin, end = (at + self.offset for at in (fault.began, fault.ended))
            begin -= TOLD_S if fault.kind in ("kill", "hang") else 0  # an engine may be down since its last fault
            if pattern and not any(begin <= at <= end + TOLD_S and re.search(pattern, line) for at, line in lines):
                wrong.append(
                    f"The log does not tell of {fault.kind} of {fault.subject}{fault.detail} at {time.ctime(begin)}."
                )
        for kind in ("cut", "reset", "garbage"):  # these are logged at most every 10 s for each engine
            # A fault of an engine that has hardly any requests may break only answers to clients that have vanished.
            names = {engine.name for engine in self.engines if engine.broken[kind] > FEW_BROKEN}
            if names and not re.search(rf"\b[{''.join(names)}]: a request failed", text):
                wrong.append(f"The log does not tell of {kind} of the engines {', '.join(sorted(names))}.")
        if "Traceback" in text:
            wrong.append("The log has a traceback.")
        return wrong

    def trace_of(self, fault: Fault) -> str | None:
        """Return a pattern of the line that tells of a fault; None if the fault may leave no line of its own."""
        seconds = fault.ended - fault.began
        if fault.kind in ("kill", "hang"):  # a short one of an engine that has no request meanwhile leaves no trace
            return rf"\b{fault.subject}: .*(eject|fail|lost|no answer)" if seconds > NOTICED_S else None
        earlier = [other.ended for other in self.faults if other.kind == fault.kind and other.began < fault.began]
        if fault.kind in ("etcd loss", "fd shortage") and earlier and fault.began - max(earlier) < TOLD_S:
            return None  # a shortage is logged at most every 10 s, and a loss once until etcd is back
        return TRACES.get(fault.kind)


def _seconds(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp()


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except (FileNotFoundError, ProcessLookupError):  # the process has just ended
        return b""


def _count_files(pid: int) -> int:
    """Return the number of files that a process has open; 0 if it has just ended."""
    try:
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))
    except (FileNotFoundError, ProcessLookupError):
        return 0


def _state(pid: int) -> str:
    """Return the state of a process, such as T for stopped; "gone" if it has ended."""
    fields = _read(Path(f"/proc/{pid}/stat")).decode().rpartition(")")[2].split()
    return fields[0] if fields else "gone"


def _link(file: Path) -> str:
    try:
        return str(file.readlink())
    except OSError:  # the file has been closed meanwhile
        return ""


def _during(asked: Asked, faults: list[Fault]) -> bool:
    return any(fault.began <= asked.ended and asked.began <= fault.ended + GRACE_S for fault in faults)


def run_chaos(seconds: float, rate: float, seed: int) -> list[str]:
    with tempfile.TemporaryDirectory(prefix="headway-chaos-", ignore_cleanup_errors=True) as folder:
        wrong = asyncio.run(Chaos(Path(folder), seconds, rate, Random(seed)).run())
        if wrong:
            print((Path(folder) / "gateway.log").read_text(errors="replace")[-20_000:], file=sys.stderr)
        return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rate", type=float, default=90.0, help="requests per second")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    wrong = run_chaos(60 * options.minutes, options.rate, options.seed)
    print("\n".join(wrong) or "Nothing is wrong.")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
