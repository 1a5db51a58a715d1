"""A process that does nothing but to fork: it has everything imported and no threads, so that a child costs a
millisecond and is safe whatever the program that wanted it is made of.

It reads tasks from one pipe and answers on another, a frame each: eight bytes of length, then JSON. Each task runs in
a child of its own, with limits; the zygote waits for it, kills it when its time is up, and says what became of it.
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
from typing import Any, Final, NamedTuple, NoReturn

from headway.config.wording import one_line
from headway.errors import HeadwayError
from headway.evolve.limits import MB, PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG, Limits, confine, control, sieve
from headway.policies import registry

HEADER: Final = 8  # bytes that say how long a frame is
CHUNK: Final = 1 << 18
WANT_OF_MEMORY: Final = 77  # the status with which a child ends that could not even say so
LOOK_S: Final = 2.0  # how often a zygote looks whether its parent is still there
SWEEP_S: Final = 5.0  # how long it tries to end what a child left behind


class Task(NamedTuple):
    """A call as it travels: a function named "module:function", arguments, limits, and where to be."""

    call: str
    arguments: list[Any] | dict[str, Any]
    limits: Limits
    folder: str


def frame_of(document: Any) -> bytes:
    text = json.dumps(document, allow_nan=False, separators=(",", ":")).encode()
    return len(text).to_bytes(HEADER, "big") + text


def is_whole(frame: bytes | bytearray) -> bool:
    """Whether all of a frame has come."""
    return len(frame) >= HEADER and len(frame) >= HEADER + int.from_bytes(frame[:HEADER], "big")


def failure(kind: str, why: str) -> dict[str, str]:
    return {"kind": kind, "why": why}


def main(parent: int) -> None:
    """The life of a zygote: tasks until its parent closes the pipe, or is gone."""
    tasks, answers = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)  # nothing that is printed here may get among the answers
    os.close(nothing)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # its parent decides
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    control(PR_SET_CHILD_SUBREAPER, 1)
    _warm_up()
    sieve()
    gc.collect()
    gc.freeze()
    with contextlib.suppress(BrokenPipeError):
        zygote = Zygote(parent, tasks)
        while (text := zygote.next()) is not None:
            call, arguments, limits, folder = json.loads(text)
            write_all(answers, zygote.attend(Task(call, arguments, Limits(**limits), folder)))


def _warm_up() -> None:
    """Load what every evaluation needs: a child that had to do it would pay for it each time."""
    for name in ("headway.experiment.run", "headway.results.findings", "headway.results.words"):
        import_module(name)
    for entry in registry.entries():  # compiles the templates
        _ = entry.parameters


class Zygote:
    def __init__(self, parent: int, tasks: int) -> None:
        self.parent = parent
        self.tasks = tasks
        self.bell, ring = os.pipe()  # rings when a child ends
        for end in (self.bell, ring):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(ring, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def next(self) -> bytes | None:
        """The next task; None when there will be none any more."""
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

    def attend(self, task: Task) -> bytes:
        """Run a task in a child and tell what came of it, as a frame."""
        try:
            call = _function(task.call)
        except Exception as error:
            return frame_of(failure("error", f"{one_line(error)}."))
        reading, writing = os.pipe()
        try:
            child = os.fork()
        except OSError as error:
            child, why = -1, one_line(error)
        if not child:
            _live(call, task, writing)
        os.close(writing)
        if child < 0:
            os.close(reading)
            return frame_of(failure("crash", f"no process could be started for it: {why}."))
        try:
            written, late = self._watch(child, reading, task.limits)
        finally:
            os.close(reading)
            end = self._end(child)
        if written is not None and len(written) == HEADER + int.from_bytes(written[:HEADER], "big"):
            return bytes(written)
        return frame_of(_fate(task.limits, written, late, end))

    def _watch(self, child: int, reading: int, limits: Limits) -> tuple[bytearray | None, bool]:
        """What a child wrote until it was done, dead, or out of time; None where it is more than it may write."""
        written, deadline, most = bytearray(), time.monotonic() + limits.deadline_s, HEADER + limits.result_mb * MB
        poll = select.poll()
        poll.register(reading, select.POLLIN)
        poll.register(self.bell, select.POLLIN)
        poll.register(self.tasks, 0)  # to hear when the other end is closed
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
                if _dead(child):  # while a process that it left behind keeps the pipe open
                    written += _rest(reading, most)  # it may have written after the poll, and then died
                    return (written, False) if len(written) <= most else (None, False)
        return written, True

    def _end(self, child: int) -> _End:
        """End a child, and everything that it began."""
        for kill in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(child, signal.SIGKILL)
        _, status, usage = os.wait4(child, 0)
        _sweep()
        return _End(status, usage.ru_utime + usage.ru_stime)


class _End(NamedTuple):
    status: int
    cpu_s: float


def _function(name: str) -> Callable[..., Any]:
    module, _, attribute = name.partition(":")
    function = getattr(import_module(module), attribute, None)
    if not callable(function):
        raise HeadwayError(f"{module} has no function {attribute!r}")
    return function  # type: ignore[no-any-return]


def _live(call: Callable[..., Any], task: Task, writing: int) -> NoReturn:
    """The whole life of a child."""
    try:
        _begin(task, writing)
        answer = frame_of({"value": _call(call, task.arguments)})
        if len(answer) > task.limits.result_mb * MB:
            answer = frame_of(failure("error", f"its result is larger than {task.limits.result_mb:g} MB."))
    except BaseException as error:
        if _of_memory(error):
            os._exit(WANT_OF_MEMORY)
        answer = frame_of(failure("error", f"{one_line(error)}."))
    try:
        write_all(writing, answer)
    finally:
        os._exit(0)


def _call(call: Callable[..., Any], arguments: list[Any] | dict[str, Any]) -> Any:
    return call(**arguments) if isinstance(arguments, dict) else call(*arguments)


def _begin(task: Task, writing: int) -> None:
    """A session of its own, nothing open but the pipe, and the limits."""
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
            with contextlib.suppress(OSError):  # the listing itself
                os.close(other)
    sys.dont_write_bytecode = True
    with contextlib.suppress(OSError):
        os.chdir(task.folder)
    confine(task.limits)


def _of_memory(error: BaseException | None) -> bool:
    """Whether this error is one of memory, or comes of one."""
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
    """What is in a pipe now, up to a little more than `most`."""
    os.set_blocking(reading, False)
    rest = b""
    with contextlib.suppress(BlockingIOError):
        while len(rest) <= most and (chunk := os.read(reading, CHUNK)):
            rest += chunk
    return rest


def _dead(child: int) -> bool:
    """Whether a child has ended; it stays to be waited for."""
    if hasattr(os, "waitid"):
        return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    try:
        os.kill(child, 0)
    except ProcessLookupError:
        return True
    return False


def _sweep() -> None:
    """End the children of a child that is gone, which have become the zygote's own."""
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


def _fate(limits: Limits, written: bytearray | None, late: bool, end: _End) -> dict[str, str]:
    """Why a child gave no answer, in a sentence."""
    if late:
        return failure("time", f"it was not done after {limits.deadline_s:g} s and was ended.")
    if written is None:
        return failure("error", f"its result is larger than {limits.result_mb:g} MB.")
    if os.WIFEXITED(end.status):
        status = os.WEXITSTATUS(end.status)
        if status == WANT_OF_MEMORY:
            return failure("memory", f"it wanted more than {limits.memory_mb:g} MB of memory.")
        return failure("crash", f"it ended itself, with status {status}, and gave no result.")
    number = os.WTERMSIG(end.status)
    if number == signal.SIGXCPU or (number == signal.SIGKILL and end.cpu_s >= limits.cpu_s):
        return failure("cpu", f"it used more than {limits.cpu_s:g} s of CPU time.")
    if number == signal.SIGALRM:
        return failure("time", f"it was not done after {limits.deadline_s:g} s and was ended.")
    return failure("crash", f"it was ended by {_signal(number)}.")


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
