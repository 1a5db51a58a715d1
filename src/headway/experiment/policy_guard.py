"""Detects that a user's policy raises an error, hangs or ends the process. The error then names the policy, and the
request that it handled.

If a simulation has only built-in policies, the guard does not watch it. The guard samples the stack at regular times. A
policy hangs if the same call of it is on the stack in `SAMPLES` samples in a row. The guard counts samples instead of
seconds, so that it does not blame a policy if the whole process was stopped for a while.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import sysconfig
import threading
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

from headway.config.units import positive_seconds
from headway.config.wording import one_line
from headway.errors import HeadwayError, InvariantError
from headway.policies.queues import Ticket
from headway.policies.user_policies import outside
from headway.types import Request
from headway.views.events import Finished, FirstToken, Routed

TIMEOUT: Final = "HEADWAY_POLICY_TIMEOUT"  # an environment variable, which worker processes inherit
DEFAULT: Final = "30s"
SAMPLES: Final = 10
INTERRUPT: Final = getattr(signal, "SIGURG", None)  # a signal that is ignored by default; it wakes a policy that sleeps
LIBRARIES = tuple(Path(sysconfig.get_path(kind)).resolve() for kind in ("stdlib", "platstdlib", "purelib", "platlib"))
Step = tuple[FrameType, int]  # a frame and its current line


class PolicyStopped(BaseException):
    """Raised inside a policy that hangs or tries to end the process. It is not an `Exception`, because a policy might
    catch every `Exception`."""


@contextmanager
def policy_guard(policies: Iterable[Any]) -> Iterator[None]:
    """Turn errors of a user's policy into a `HeadwayError` that names the policy. Leave errors of Headway unchanged."""
    parts = [part for policy in policies for part in (policy, *getattr(policy, "_parts", ()))]
    modules = {type(part).__module__ for part in parts if outside(type(part))}  # the modules of user policies
    watch = Watch(modules, positive_seconds(os.environ.get(TIMEOUT, DEFAULT), TIMEOUT)) if modules else None
    try:
        if watch is None:
            yield
        else:
            with watch:
                yield
    except (HeadwayError, InvariantError, KeyboardInterrupt):
        raise
    except PolicyStopped:
        raise HeadwayError(watch.verdict if watch is not None else "") from None
    except BaseException as error:
        sentence = describe(list(traceback.walk_tb(error.__traceback__)), modules, one_line(error))
        if sentence is None:
            raise
        raise HeadwayError(sentence) from error


class Watch:
    """Interrupts a call of a policy that takes longer than `limit_s`, and prevents the policy from calling `os._exit`.

    A thread samples the stack of the simulation. If the process is confined and may not start threads, a timer takes
    the samples.
    """

    def __init__(self, modules: set[str], limit_s: float) -> None:
        self.modules, self.limit_s = modules, limit_s
        self.verdict = ""
        self._thread = threading.get_ident()
        self._process = os.getpid()
        self._signals = INTERRUPT is not None and threading.current_thread() is threading.main_thread()
        self._done = threading.Event()
        self._watcher: threading.Thread | None = threading.Thread(target=self._watch, name="policy-watch", daemon=True)
        self._call: FrameType | None = None
        self._samples = 0

    def __enter__(self) -> None:
        self._exit, os._exit = os._exit, self._refuse  # type: ignore[assignment]
        if self._signals and INTERRUPT is not None:
            self._handler = signal.signal(INTERRUPT, self._stop)
        try:
            assert self._watcher is not None
            self._watcher.start()
        except RuntimeError:
            self._watcher = None
            self._alarm = signal.signal(signal.SIGALRM, self._ring)
            self._alarm_s, _ = signal.setitimer(signal.ITIMER_REAL, *[self.limit_s / SAMPLES] * 2)

    def __exit__(self, *_: object) -> None:
        os._exit = self._exit
        if self._watcher is None:
            signal.setitimer(signal.ITIMER_REAL, max(0.0, self._alarm_s))
            signal.signal(signal.SIGALRM, self._alarm)
        else:
            self._done.set()
            self._watcher.join()
        if self._signals and INTERRUPT is not None:
            signal.signal(INTERRUPT, self._handler)

    def _watch(self) -> None:
        while not self._done.wait(self.limit_s / SAMPLES):
            if self._hangs(sys._current_frames().get(self._thread)):
                self._interrupt()

    def _ring(self, _: int, frame: FrameType | None) -> None:
        """Take a sample when the timer fires. During a simulation, this timer replaces the process's own alarm. If that
        alarm becomes due, deliver it."""
        if self._alarm_s:
            self._alarm_s -= self.limit_s / SAMPLES
            if self._alarm_s <= 0:
                signal.signal(signal.SIGALRM, self._alarm)
                os.kill(self._process, signal.SIGALRM)
        if self._hangs(frame):
            raise PolicyStopped

    def _hangs(self, frame: FrameType | None) -> bool:
        """Take a sample of the stack, and return whether the same call of a policy has been on it for too long."""
        steps = _stack(frame)
        call = next((frame for frame, _ in steps if _theirs(frame, self.modules)), None)
        self._samples = self._samples + 1 if call is not None and call is self._call else 0
        self._call = call
        if self._samples < SAMPLES:
            return False
        text = f"has not returned for {self.limit_s:g} s"
        more = f"Allow more with {TIMEOUT} or, on the command line, --policy-timeout."
        self.verdict = f"{describe(steps, self.modules, text)} {more}"
        return True

    def _interrupt(self) -> None:
        if self._signals and INTERRUPT is not None:
            signal.pthread_kill(self._thread, INTERRUPT)
        else:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), ctypes.py_object(PolicyStopped))
        if self._samples == 2 * SAMPLES and sys.stderr is not None:
            print(f"headway: {self.verdict} It cannot be interrupted: end the process.", file=sys.stderr)

    def _stop(self, *_: object) -> None:
        if self.verdict:
            raise PolicyStopped

    def _refuse(self, status: int) -> None:
        """Replace `os._exit`: if a policy calls it, raise `PolicyStopped` instead of ending the process. A child
        process that the policy forked may exit."""
        text = f"calls os._exit({status}), which would end Headway"
        sentence = None if os.getpid() != self._process else describe(_stack(sys._getframe(1)), self.modules, text)
        if sentence is None:
            self._exit(status)
        self.verdict = sentence or ""
        raise PolicyStopped


def _stack(frame: FrameType | None) -> list[Step]:
    """Return the frames of a simulation, outermost first, without the frames of the program that started it."""
    steps: list[Step] = []
    while frame is not None and frame.f_globals.get("__name__") != "headway.experiment.run":
        steps.append((frame, frame.f_lineno))
        frame = frame.f_back
    return steps[::-1]


def describe(steps: Sequence[Step], modules: set[str], problem: str) -> str | None:
    """Return a sentence with the problem, its location in the user's policy, and the request that the policy handled.
    If no frame belongs to the user's code, return None."""
    theirs = [place for place, (frame, _) in enumerate(steps) if _theirs(frame, modules)]
    if not theirs:
        return None
    frame, line = steps[theirs[-1]]
    entry, _ = steps[theirs[0]]
    callers = [_request(ours) for ours, _ in reversed(steps[: theirs[0]])]
    request = next(filter(None, (*callers, _request(entry))), None)
    at = "" if request is None else f", at request {request.id}"
    place = f"{_relative(frame.f_code.co_filename)} line {line}, in {_function(frame)}"
    if _owner(frame) != _owner(entry):
        place += f", called from {_function(entry)}"
    return f"{place}: {problem}{at}."


def _owner(frame: FrameType) -> str:
    """Return the name of the class of a method, or an empty string for a function."""
    return type(frame.f_locals["self"]).__name__ if "self" in frame.f_locals else ""


def _function(frame: FrameType) -> str:
    return ".".join(filter(None, (_owner(frame), frame.f_code.co_name)))


def _theirs(frame: FrameType, modules: set[str]) -> bool:
    """Return whether a frame runs the user's code: its module defines a policy of the user, or belongs neither to
    Headway nor to a library. A method that the user's object inherits from a class of Headway counts as well."""
    module = str(frame.f_globals.get("__name__"))
    if module in modules or type(frame.f_locals.get("self")).__module__ in modules:
        return True
    file = frame.f_code.co_filename
    if not modules or module.startswith("headway.") or file.startswith("<frozen"):
        return False
    return not set(LIBRARIES) & set(Path(file).resolve().parents)


def _request(frame: FrameType) -> Request | None:
    """Return the request in a function's local variables: a variable that is a request, or the request of a variable
    that is an event or a ticket."""
    for value in frame.f_locals.values():
        if isinstance(value, Request):
            return value
        if isinstance(value, Routed | FirstToken | Finished | Ticket):
            return value.request
    return None


def _relative(file: str) -> str:
    near = os.path.relpath(file) if Path(file).exists() else file
    return file if near.startswith(os.pardir) else near
