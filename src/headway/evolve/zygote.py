"""The zygote: a process that only forks children. It has imported every module and has no threads, so a child starts in
about a millisecond.

The zygote reads tasks from one pipe and writes answers to another. Tasks and answers are frames: a length in eight
bytes, followed by JSON. Each task runs in its own child, with limits. The zygote waits for the child, kills it at its
deadline, and reports the outcome.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NoReturn

from headway.config.wording import one_line
from headway.errors import HeadwayError
from headway.evolve.limits import MB, PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG, Limits, confine, control, sieve
from headway.experiment.policy_guard import TIMEOUT as POLICY_TIMEOUT
from headway.policies import registry

Arguments = list[Any] | dict[str, Any]  # positional arguments, or arguments by name
HEADER: Final = 8  # size of the length field of a frame in bytes
CHUNK: Final = 1 << 18
OUT_OF_MEMORY: Final = 77  # exit status of a child that has no memory left to write an answer
LOOK_S: Final = 2.0  # interval at which a zygote checks whether its parent still runs
SWEEP_S: Final = 5.0  # maximum time to end the processes that a child left behind


# The evaluation with which a zygote warms up.
SCENARIO: Final = {
    "workload": {"requests": 8, "rate": "100/s", "prefix": {"groups": 2, "tokens": 64}},
    "slo": {"ttft": "1s"},
}
SOURCE: Final = "def score(request, instance, cluster):\n    return cached_tokens(instance) - instance.inflight"


def frame_of(document: Any) -> bytes:
    text = json.dumps(document, allow_nan=False, separators=(",", ":")).encode()
    return len(text).to_bytes(HEADER, "big") + text


def is_whole(frame: bytes | bytearray) -> bool:
    """Return whether a frame has arrived completely."""
    return len(frame) >= HEADER and len(frame) >= HEADER + int.from_bytes(frame[:HEADER], "big")


def failure(kind: str, why: str) -> dict[str, str]:
    return {"kind": kind, "why": why}


def main(parent: int) -> None:
    """Run tasks until the parent closes the pipe or ends."""
    tasks, answers = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)  # so that printed text does not mix with the answers
    os.close(nothing)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # because the parent handles Ctrl-C
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    control(PR_SET_CHILD_SUBREAPER, 1)
    _warm_up()
    sieve()
    gc.collect()
    gc.freeze()
    with contextlib.suppress(BrokenPipeError):
        zygote = Zygote(parent, tasks)
        while (text := zygote.next()) is not None:
            call, arguments, limits, folder, policy_timeout = json.loads(text)
            _set_policy_timeout(policy_timeout)
            write_all(answers, zygote.attend(call, arguments, Limits(**limits), folder))


def _set_policy_timeout(text: str | None) -> None:
    """Adopt the caller's limit for policies, which may have changed since this process started."""
    if text is None:
        os.environ.pop(POLICY_TIMEOUT, None)
    else:
        os.environ[POLICY_TIMEOUT] = text


def _warm_up() -> None:
    """Import all modules, compile the templates, and evaluate a small candidate. Each child would otherwise spend
    longer on imports and on filling caches than on a small evaluation."""
    for entry in registry.entries():
        _ = entry.parameters  # this property compiles the templates
    play = import_module("headway.evolve.evaluation").play
    play(SCENARIO, {"routing": {"name": "code", "source": SOURCE}}, ("latency.ttft.mean",), explain=True)


class Zygote:
    def __init__(self, parent: int, tasks: int) -> None:
        self.parent = parent
        self.tasks = tasks
        self.bell, ring = os.pipe()  # `bell` becomes readable when a child has ended
        for end in (self.bell, ring):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(ring, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def next(self) -> bytes | None:
        """Return the next task. If the parent has closed the pipe or ended, return None."""
        size = self._read(HEADER)
        return None if size is None else self._read(int.from_bytes(size, "big"))

    def _read(self, size: int) -> bytes | None:
        data = bytearray()
        poll = select.poll()
        poll.register(self.tasks, select.POLLIN)
        while len(data) < size:
            if not poll.poll(LOOK_S * 1000):
                if os.getppid() != self.parent:
                    return None
                continue
            chunk = os.read(self.tasks, min(CHUNK, size - len(data)))
            if not chunk:
                return None
            data += chunk
        return bytes(data)

    def attend(self, name: str, arguments: Arguments, limits: Limits, folder: str) -> bytes:
        """Call the function "module:function" in a child, and return its value or its failure as a frame."""
        try:
            call = _function(name)
        except Exception as error:
            return frame_of(failure("error", f"{one_line(error)}."))
        self._prepare(name, arguments, folder)
        reading, writing = os.pipe()
        try:
            child = os.fork()
        except OSError as error:
            child, why = -1, one_line(error)
        if not child:
            _live(call, arguments, limits, folder, writing)
        os.close(writing)
        if child < 0:
            os.close(reading)
            return frame_of(failure("crash", f"no process could be started: {why}."))
        try:
            written, late = self._watch(child, reading, limits)
        finally:
            os.close(reading)
            status, cpu_s = self._end(child)
        if written is not None and len(written) == HEADER + int.from_bytes(written[:HEADER], "big"):
            return bytes(written)
        return frame_of(_outcome(limits, written, late, status, cpu_s))

    def _prepare(self, name: str, arguments: Arguments, folder: str) -> None:
        """If there is a function `prepare_NAME` beside the function NAME, call it with the same arguments. It prepares
        what several children share, and returns whether it prepared anything. Without it, each child does all the work
        itself."""
        module, _, attribute = name.partition(":")
        prepare = getattr(import_module(module), f"prepare_{attribute}", None)
        if callable(prepare) and isinstance(arguments, list):
            with contextlib.suppress(Exception):
                os.chdir(folder)
                if prepare(*arguments):
                    gc.freeze()  # so that no collection in a child writes to the pages that it shares

    def _watch(self, child: int, reading: int, limits: Limits) -> tuple[bytearray | None, bool]:
        """Wait for a child. Return the bytes that it wrote, and whether it missed its deadline. The bytes are None if
        they exceed the limit."""
        written, deadline, most = bytearray(), time.monotonic() + limits.deadline_s, HEADER + limits.result_mb * MB
        poll = select.poll()
        poll.register(reading, select.POLLIN)
        poll.register(self.bell, select.POLLIN)
        poll.register(self.tasks, 0)  # the poll reports when the parent closes its end of the pipe
        while (left := deadline - time.monotonic()) > 0:
            ready = dict(poll.poll(min(left, LOOK_S) * 1000 + 1))
            if ready.get(self.tasks, 0) & (select.POLLHUP | select.POLLERR) or os.getppid() != self.parent:
                self._end(child)
                os._exit(0)
            if reading in ready:
                chunk = os.read(reading, CHUNK)
                written += chunk
                if len(written) > most:
                    return None, False
                if not chunk or is_whole(written):
                    return written, False
            elif self.bell in ready:
                os.read(self.bell, CHUNK)
                if _dead(child):  # the pipe may still be open in a process that the child left behind
                    written += _rest(reading, most)  # bytes that the child wrote between the poll and its end
                    return (written, False) if len(written) <= most else (None, False)
        return written, True

    def _end(self, child: int) -> tuple[int, float]:
        """End a child and every process that it started. Return the child's exit status and its CPU time in seconds."""
        for kill in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(child, signal.SIGKILL)
        _, status, usage = os.wait4(child, 0)
        _sweep()
        return status, usage.ru_utime + usage.ru_stime


def _function(name: str) -> Callable[..., Any]:
    module, _, attribute = name.partition(":")
    function = getattr(import_module(module), attribute, None)
    if not callable(function):
        raise HeadwayError(f"{module} has no function {attribute!r}")
    return function  # type: ignore[no-any-return]


def _live(call: Callable[..., Any], arguments: Arguments, limits: Limits, folder: str, writing: int) -> NoReturn:
    """Run as the child: call a function, write the answer to the pipe, and exit."""
    try:
        _begin(limits, folder, writing)
        value = call(**arguments) if isinstance(arguments, dict) else call(*arguments)
        answer = frame_of({"value": value})
        if len(answer) > limits.result_mb * MB:
            answer = frame_of(_too_large(limits))
    except BaseException as error:
        if _of_memory(error):
            os._exit(OUT_OF_MEMORY)
        answer = frame_of(failure("error", f"{one_line(error)}."))
    try:
        write_all(writing, answer)
    finally:
        os._exit(0)


def _too_large(limits: Limits) -> dict[str, str]:
    return failure("error", f"the result is larger than the limit of {limits.result_mb:g} MB.")


def _begin(limits: Limits, folder: str, writing: int) -> None:
    """Prepare the child: start a new session, close every open file except the pipe, and set the limits."""
    control(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setsid()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGALRM, signal.SIGXCPU, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    for other in [int(place.name) for place in Path("/dev/fd").iterdir()]:
        if other > 2 and other != writing:
            with contextlib.suppress(OSError):  # the descriptor of the directory listing is already closed
                os.close(other)
    sys.dont_write_bytecode = True
    with contextlib.suppress(OSError):
        os.chdir(folder)
    confine(limits)


def _of_memory(error: BaseException | None) -> bool:
    """Return whether an error or one of its causes is a MemoryError."""
    links = 0
    while error is not None and links < 100:
        if isinstance(error, MemoryError):
            return True
        error, links = error.__cause__ or error.__context__, links + 1
    return False


def write_all(end: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(end, rest) :]


def _rest(reading: int, most: int) -> bytes:
    """Return the bytes that are in a pipe now. If the pipe has more than `most` bytes, return only a few more than
    `most`."""
    os.set_blocking(reading, False)
    rest = b""
    with contextlib.suppress(BlockingIOError):
        while len(rest) <= most and (chunk := os.read(reading, CHUNK)):
            rest += chunk
    return rest


def _dead(child: int) -> bool:
    """Return whether a child has ended, without waiting for it."""
    if hasattr(os, "waitid"):
        return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    try:
        os.kill(child, 0)
    except ProcessLookupError:
        return True
    return False


def _sweep() -> None:
    """End the processes that an ended child left behind. The zygote can do this, because it has become their parent."""
    until = time.monotonic() + SWEEP_S
    while time.monotonic() < until:
        try:
            ended, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not ended:
            with contextlib.suppress(OSError, ValueError):
                for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
                    os.kill(int(pid), signal.SIGKILL)
            time.sleep(0.001)


def _outcome(limits: Limits, written: bytearray | None, late: bool, status: int, cpu_s: float) -> dict[str, str]:
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if late or number == signal.SIGALRM:
        return failure("time", f"exceeded the time limit of {limits.deadline_s:g} s.")
    if written is None:
        return _too_large(limits)
    if number == signal.SIGXCPU or (number == signal.SIGKILL and cpu_s >= limits.cpu_s):
        return failure("cpu", f"exceeded the limit of {limits.cpu_s:g} s of CPU time.")
    if number:
        return failure("crash", f"the process was killed by signal {number} ({signal.strsignal(number)}).")
    if os.WEXITSTATUS(status) == OUT_OF_MEMORY:
        return failure("memory", f"exceeded the limit of {limits.memory_mb:g} MB of memory.")
    return failure("crash", f"the process exited with status {os.WEXITSTATUS(status)} and returned no result.")
