"""Call functions in disposable processes. A call returns its value, or a `Failure` with the reason.

    confined("headway.evolve.evaluation:play", [scenario, policies, figures], Limits(cpu_s=20, deadline_s=20))

The first call starts zygotes (`zygote.py`), and later calls reuse them. A zygote is a separate interpreter, so
it can fork safely even if the caller has threads. A zygote ends when the caller ends.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import selectors
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import asdict

from headway.config.wording import one_line
from headway.errors import HeadwayError
from headway.evolve.compiled_engine import compiled_path
from headway.evolve.limits import Limits
from headway.evolve.zygote import CHUNK, HEADER, frame_of, is_whole, write_all
from headway.experiment.jobs import Job, available
from headway.experiment.policy_guard import TIMEOUT as POLICY_TIMEOUT
from headway.experiment.runner import Runner, runner_of

Arguments = Sequence[Any] | Mapping[str, Any]  # positional arguments, or arguments by name
Kind = Literal["time", "memory", "cpu", "crash", "error"]
Finished = Callable[[int, Any], None]  # called with the index of a task and its result: a value or a Failure
WHERE: Final = "evaluations"
GRACE_S: Final = 30.0  # time added to a deadline, so that a zygote can start, import its modules and answer
LIFE: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from headway.evolve.zygote import main; main({})"
)


class Failure(Struct, frozen=True):
    """The reason why a call has no value: it exceeded a limit (time, memory, cpu), its process ended (crash), or it
    raised (error)."""

    why: str
    kind: Kind


class Task(NamedTuple):
    """A call of the function "module:function". Its arguments and its return value must be JSON values."""

    call: str
    arguments: Arguments = ()


def confined(call: str, arguments: Arguments = (), limits: Limits | None = None) -> Any:
    """Run a call in its own process, and return its value or a Failure. Any thread may call this function."""
    values: list[Any] = []
    with _borrow(1) as zygotes:
        _drive([Task(call, arguments)], zygotes, limits or Limits(), lambda _, value: values.append(value))
    return values[0]


def confined_many(
    tasks: Sequence[Task],
    runner: Runner | None = None,
    limits: Limits | None = None,
    finished: Finished | None = None,
) -> list[Any]:
    """Return the value or the Failure of each task, in order. `finished` receives each result as soon as it is known.
    If the runner uses a cluster, tasks run on the machines of the cluster. Otherwise they run on this machine, in as
    many processes as the runner has slots. If a process is lost, its task runs again once. If that process is lost too,
    the result is a Failure."""
    if runner is None:
        with runner_of(None, None) as own:
            return confined_many(tasks, own, limits, finished)
    values: dict[int, Any] = {}
    chosen = limits or Limits()

    def finish(place: int, value: Any) -> None:
        values[place] = value
        if finished is not None:
            finished(place, value)

    if runner.away:
        jobs = [Job(task.call, confined, (task.call, _plain(task.arguments), chosen)) for task in tasks]
        runner.run(jobs, finish, WHERE, lambda place, why: finish(place, Failure(why, "crash")))
    elif tasks:
        with _borrow(min(runner.slots, len(tasks))) as zygotes:
            _drive(tasks, zygotes, chosen, finish)
    return [values[place] for place in range(len(tasks))]


class Zygote:
    """A zygote process, and the task that it runs now."""

    def __init__(self) -> None:
        if not hasattr(os, "fork"):
            raise HeadwayError(
                f"{WHERE}: the system call fork is needed, but {sys.platform} has none. Use Linux or macOS."
            )
        self.place = -1
        self.until = 0.0
        self._received = bytearray()
        self.process = subprocess.Popen(
            [sys.executable, "-c", LIFE.format(os.getpid()), json.dumps([*compiled_path(), *sys.path])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # so that Ctrl-C reaches only the caller
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        self._in, self._out = self.process.stdin.fileno(), self.process.stdout.fileno()

    def fileno(self) -> int:
        return self._out

    def send(self, place: int, frame: bytes, deadline_s: float) -> bool:
        """Send a task to the process. Return False if the process has ended."""
        self.place, self._received = place, bytearray()
        self.until = time.monotonic() + deadline_s + GRACE_S
        try:
            write_all(self._in, frame)
        except BrokenPipeError:
            return False
        return True

    def read(self) -> bytes | None:
        """Return the answer of the process. If the answer is not complete yet, return None. If the process has ended,
        raise EOFError."""
        chunk = os.read(self._out, CHUNK)
        if not chunk:
            raise EOFError
        self._received += chunk
        return bytes(self._received[HEADER:]) if is_whole(self._received) else None

    def close(self) -> None:
        """End the process: close its pipes, so that it ends its child and exits. If it still runs after a second, kill
        it."""
        self._close_pipes()
        try:
            self.process.wait(1)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def forget(self) -> None:
        """Close the pipes without ending the process. A forked copy of the caller calls this, because the copy does not
        own the process."""
        self.process.returncode = 0
        self._close_pipes()

    def _close_pipes(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


_IDLE: list[Zygote] = []
_LOCK = threading.Lock()


@contextlib.contextmanager
def _borrow(count: int) -> Iterator[list[Zygote]]:
    """Yield `count` zygotes. Use idle zygotes first, and start new ones if necessary. On exit, keep them as idle
    zygotes, up to a limit. After an exception, close them."""
    with _LOCK:
        zygotes = [_IDLE.pop() for _ in range(min(count, len(_IDLE)))]
    try:
        while len(zygotes) < count:
            zygotes.append(Zygote())
        yield zygotes
    except BaseException:
        for zygote in zygotes:
            zygote.close()
        raise
    with _LOCK:
        room = max(0, max(available(None), count) - len(_IDLE))
        _IDLE.extend(zygotes[:room])
    for zygote in zygotes[room:]:
        zygote.close()


@atexit.register
def close() -> None:
    """End all idle zygotes. The next call starts new zygotes."""
    with _LOCK:
        idle, _IDLE[:] = list(_IDLE), []
    for zygote in idle:
        zygote.close()


def cpu_s() -> float:
    """Return the CPU time of this process, of its idle zygotes, and of all their children that have ended. Call it
    while no task runs. Processes of a cluster do not count."""
    times = os.times()
    total = times.user + times.system + times.children_user + times.children_system
    with _LOCK:
        for zygote in _IDLE:
            with contextlib.suppress(OSError):  # a machine without /proc counts a zygote only after its end
                fields = Path(f"/proc/{zygote.process.pid}/stat").read_text().rpartition(")")[2].split()
                total += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return total


def _forget_zygotes() -> None:
    """Forget all zygotes. A forked copy of this program calls this, because the idle zygotes belong to its parent."""
    global _LOCK
    _LOCK = threading.Lock()
    for zygote in _IDLE:
        zygote.forget()
    _IDLE.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_zygotes)


def _drive(tasks: Sequence[Task], zygotes: list[Zygote], limits: Limits, finished: Finished) -> None:
    """Run tasks on zygotes. Each zygote runs one task at a time. If a zygote has died or does not answer, replace it in
    the list."""
    waiting, retried = deque(range(len(tasks))), set[int]()
    with selectors.DefaultSelector() as ears:

        def begin(zygote: Zygote) -> None:
            if not waiting:
                return
            place = waiting.popleft()
            frame = _frame(tasks[place], limits)
            if not zygote.send(place, frame, limits.deadline_s):  # the zygote ended while it was idle
                zygote = replace(zygote)
                zygote.send(place, frame, limits.deadline_s)
            ears.register(zygote, selectors.EVENT_READ, zygote)

        def replace(zygote: Zygote) -> Zygote:
            zygote.close()
            successor = zygotes[zygotes.index(zygote)] = Zygote()
            return successor

        for zygote in list(zygotes):
            begin(zygote)
        while ears.get_map():
            for zygote, answer in _wait(ears):
                ears.unregister(zygote)
                place = zygote.place
                if isinstance(answer, Failure):
                    zygote = replace(zygote)
                if isinstance(answer, Failure) and answer.kind == "crash" and place not in retried:
                    retried.add(place)  # retry once, because the cause may be outside the task
                    waiting.appendleft(place)
                else:
                    finished(place, answer if isinstance(answer, Failure) else _value(answer))
                begin(zygote)


def _wait(ears: selectors.BaseSelector) -> list[tuple[Zygote, bytes | Failure]]:
    """Wait for zygotes. Return the zygotes that have answered, died or exceeded their deadline, each with its answer or
    a Failure."""
    working = [key.data for key in ears.get_map().values()]
    ready = ears.select(max(0.0, min(zygote.until for zygote in working) - time.monotonic()))
    answers: list[tuple[Zygote, bytes | Failure]] = []
    for zygote in (key.data for key, _ in ready):
        try:
            answer = zygote.read()
        except EOFError:
            answers.append((zygote, Failure("the supervising process ended.", "crash")))
            continue
        if answer is not None:
            answers.append((zygote, answer))
    if not ready:
        late = [zygote for zygote in working if zygote.until <= time.monotonic()]
        answers += [(zygote, Failure("the supervising process did not answer.", "time")) for zygote in late]
    return answers


def _frame(task: Task, limits: Limits) -> bytes:
    try:
        folder = str(Path.cwd())
    except OSError:  # the current folder was removed
        folder = "/"
    try:
        return frame_of([task.call, _plain(task.arguments), asdict(limits), folder, os.environ.get(POLICY_TIMEOUT)])
    except (TypeError, ValueError, RecursionError) as error:
        raise HeadwayError(f"{WHERE}: JSON cannot hold the arguments of {task.call}: {one_line(error)}.") from None


def _plain(arguments: Arguments) -> list[Any] | dict[str, Any]:
    return dict(arguments) if isinstance(arguments, Mapping) else list(arguments)


def _value(answer: bytes) -> Any:
    try:
        document = json.loads(answer)
        return document["value"] if "value" in document else Failure(str(document["why"]), document["kind"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return Failure("the process wrote an invalid answer.", "crash")
