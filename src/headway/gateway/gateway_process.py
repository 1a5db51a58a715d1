"""The gateway as one process or several processes, which serve until a signal arrives, and then drain.

Several processes listen on the same port and exchange state as peers. Their parent starts and stops them, and replaces
a process that has died or hangs.
"""

import asyncio
import gc
import logging
import multiprocessing
import os
import secrets
import signal
import socket
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import Any, Final

from msgspec.structs import replace

from headway.errors import HeadwayError
from headway.gateway.app import App
from headway.gateway.config import Config
from headway.gateway.live_scaling import ONE_PROCESS
from headway.gateway.peers import PeerSettings
from headway.gateway.worker_watch import Counter, Watch, beat, is_stopped
from headway.http.address import why_not_listening
from headway.http.event_loop import accept_hangup, hangup_pending, run_loop
from headway.http.open_files import most_files, raise_limit
from headway.http.server_log import change_log, log_to_stderr

START_S: Final = 300.0  # longest time until a worker serves, which includes loading tokenizers
LOOK_S: Final = 0.5  # longest time between two looks at the workers
context = multiprocessing.get_context("spawn")
log = logging.getLogger("headway.gateway")


def serve(source: Path, started: Callable[[str], None], workers: int = 1) -> None:
    """Serve until SIGTERM or Ctrl-C, then drain. When the gateway accepts requests, call `started` with its address."""
    config = Config.load(source)
    with log_to_stderr(config.log):
        if workers > 1 and config.scaling is not None:
            raise HeadwayError(f"scaling: {ONE_PROCESS} Remove `--workers` or `scaling`.")
        if workers == 1:
            run(config, started)
        else:
            Crew(source, config, workers).run(started)


def collect_seldom() -> None:
    """Make garbage collections rare: requests leave no reference cycles, and a collection delays all requests."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)


def run(config: Config, started: Callable[[str], None], heartbeats: Counter | None = None) -> None:
    """Serve in this process."""
    raise_limit()
    collect_seldom()
    run_loop(_serve(config, started, heartbeats))


async def _serve(config: Config, started: Callable[[str], None], heartbeats: Counter | None) -> None:
    loop = asyncio.get_running_loop()
    app = App(loop, config, files=most_files())
    loop.set_exception_handler(app.open_files.handle)
    try:
        await app.run()
        ended = _handle_signals(app)
        if heartbeats is not None:  # a process that is stopped when it listens must have sent a heartbeat before
            beat(heartbeats, loop)
            _end_with_parent(loop, ended)
        server = await app.listen()
    except (HeadwayError, OSError) as error:
        await app.drain(0.0)
        raise error if isinstance(error, HeadwayError) else _not_listening(config, error) from None
    host, port = server.sockets[0].getsockname()[:2]
    started(f"{config.scheme}://{host}:{port}")
    await ended.wait()
    await app.drain(app.shutdown.limit_s, app.shutdown.lame_duck_s)
    log.info("shutdown: complete")


def _end_with_parent(loop: asyncio.AbstractEventLoop, ended: asyncio.Event) -> None:
    """Shut down if the parent process dies. Otherwise, the worker would go on beside the workers of the next start."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def end() -> None:
        loop.remove_reader(parent.sentinel)
        log.error("the parent process has died; this worker shuts down")
        ended.set()

    loop.add_reader(parent.sentinel, end)


def _handle_signals(app: App) -> asyncio.Event:
    """Return an event that SIGTERM and Ctrl-C set. Ctrl-C skips the lame-duck time, and a second Ctrl-C ends the
    requests in flight. SIGHUP reloads the file."""
    ended = asyncio.Event()

    def interrupt() -> None:
        app.hurry()
        ended.set()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    loop.add_signal_handler(signal.SIGHUP, app.reload)
    loop.add_signal_handler(signal.SIGINT, interrupt)
    accept_hangup()
    return ended


def _not_listening(config: Config, error: OSError) -> HeadwayError:
    return HeadwayError(f"listen: cannot listen on {config.host}:{config.port}: {why_not_listening(error)}.")


class Worker:
    def __init__(self, number: int, process: BaseProcess, link: Connection, watch: Watch, pause_s: float) -> None:
        self.number, self.process, self.link, self.watch = number, process, link, watch
        self.pause_s = pause_s  # pause before its start
        self.ready = False
        self.ending = False


def _work(source: Any, number: int, peers: PeerSettings, port: int, heartbeats: Counter, link: Connection) -> None:
    """Run a worker process. The worker configures logging itself, because a spawned process does not inherit the
    logging configuration of its parent."""
    try:
        config = Config.load(source)
        if config.peers is not None:
            raise HeadwayError("peers: only a gateway with one process can have peers. Remove `--workers` or `peers`.")
        journal = config.journal
        if journal is not None and number:
            journal = replace(journal, file=journal.file.with_name(f"{journal.file.name}.{number}"))
        config = replace(config, listen=(config.host, port), peers=peers, journal=journal, worker=number)
        with log_to_stderr(config.log, number):
            run(config, lambda address: link.send(("ready", address)), heartbeats)
    except HeadwayError as error:
        link.send(("wrong", str(error)))
    except (BrokenPipeError, KeyboardInterrupt):
        pass


class Crew:
    def __init__(self, source: Any, config: Config, count: int) -> None:
        self.source, self.config, self.count = source, config, count
        self.folder = tempfile.TemporaryDirectory(prefix="headway-")
        self.key = secrets.token_bytes(32)
        # This socket does not listen. It reserves the port for the workers.
        self.keeper = socket.socket(socket.AF_INET6 if ":" in config.host else socket.AF_INET)
        self.keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            self.keeper.bind((config.host, config.port))
        except OSError as error:
            raise _not_listening(config, error) from None
        self.port: int = self.keeper.getsockname()[1]
        self.workers: dict[int, Worker] = {}
        self.pending: dict[int, tuple[float, float]] = {}  # number of a worker to start -> time, and pause before it
        self.ending = self.reloading = False
        self.announced = False  # whether all workers have served at the same time
        self.error = ""  # error message of the first worker that could not serve; empty if all serve

    def start(self, number: int, pause_s: float = 0.0) -> None:
        here, there = context.Pipe(duplex=False)
        sockets = [f"unix:{self.folder.name}/{place}.sock" for place in range(self.count)]  # the folder is private
        peers = PeerSettings(sockets.pop(number), tuple(sockets), "", f"worker-{number}", key=self.key, orders=True)
        heartbeats: Any = context.RawValue("L", 0)
        arguments = (self.source, number, peers, self.port, heartbeats, there)
        process = context.Process(target=_work, args=arguments, name=f"headway-{number}")
        with hangup_pending():  # the worker handles it when it can
            process.start()
        there.close()
        self.workers[number] = Worker(number, process, here, Watch(heartbeats, time.monotonic), pause_s)

    def run(self, started: Callable[[str], None]) -> None:
        for ending in (signal.SIGTERM, signal.SIGINT):
            signal.signal(ending, self._end)
        signal.signal(signal.SIGHUP, self._reload)
        woken, waking = socket.socketpair()
        for end in (woken, waking):
            end.setblocking(False)
        signal.set_wakeup_fd(waking.fileno(), warn_on_full_buffer=False)
        accept_hangup()
        for number in range(self.count):
            self.start(number)
        while self.workers or (self.pending and not self.ending):
            links = [worker.link for worker in self.workers.values()]
            sentinels = [worker.process.sentinel for worker in self.workers.values()]
            wait([woken, *links, *sentinels], timeout=LOOK_S)
            with suppress(BlockingIOError):
                woken.recv(4096)
            if self.reloading:
                self._pass_reload()
            self._start_pending()
            for worker in list(self.workers.values()):
                self._check(worker)
                if self.ending and not worker.ending:
                    worker.ending = True
                    # A worker that still starts has no requests to end, and may be stuck.
                    (worker.process.terminate if worker.ready else worker.process.kill)()
            complete = len(self.workers) == self.count and all(each.ready for each in self.workers.values())
            if complete and not self.announced:
                self.announced = True
                started(f"{self.config.scheme}://{self.config.host}:{self.port}")
        signal.set_wakeup_fd(-1)
        self.folder.cleanup()
        if self.error:
            raise HeadwayError(self.error)

    def _check(self, worker: Worker) -> None:
        """Read a worker's messages, and replace the worker if it has died."""
        try:
            while worker.link.poll():
                kind, text = worker.link.recv()
                if kind == "wrong" and self.announced:  # the other workers serve on, although the file is invalid now
                    log.error("worker %d cannot start: %s", worker.number, text)
                elif kind == "wrong":
                    self.error = self.error or text
                    self.ending = True
                worker.ready = kind == "ready"
        except EOFError:
            pass
        if worker.process.is_alive():
            silent_s = worker.watch.look(not worker.ready and is_stopped(worker.process.pid))
            late = not worker.ready and time.monotonic() - worker.watch.started > START_S
            if silent_s <= self.config.worker_silence_s and not late:
                return
            why = f"has not started within {START_S:g} s" if late else f"has sent no heartbeat for {silent_s:.0f} s"
            log.error("worker %d %s; it is killed", worker.number, why)
            worker.process.kill()
        worker.process.join()
        worker.link.close()
        del self.workers[worker.number]
        if not self.ending:
            pause_s = worker.watch.pause_s(worker.pause_s)
            words = "worker %d has died (exit code %s); a new one starts in %g s"
            log.warning(words, worker.number, worker.process.exitcode, pause_s)
            self.pending[worker.number] = (time.monotonic() + pause_s, pause_s)

    def _start_pending(self) -> None:
        for number, (due, pause_s) in list(self.pending.items()):
            if not self.ending and time.monotonic() >= due:
                del self.pending[number]
                self.start(number, pause_s)

    def _pass_reload(self) -> None:
        """Pass a SIGHUP to the workers, and change the log of this process."""
        self.reloading = False
        for worker in self.workers.values():
            if worker.process.pid is not None and worker.process.is_alive():
                os.kill(worker.process.pid, signal.SIGHUP)
        with suppress(HeadwayError):  # the workers report it
            change_log(Config.load(self.source).log)

    def _reload(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGHUP. The loop in `run` then passes it to the workers."""
        self.reloading = True

    def _end(self, number: int = 0, frame: FrameType | None = None) -> None:
        """Handle a signal. The loop in `run` then stops the workers."""
        self.ending = True
