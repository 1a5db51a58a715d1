"""Calls that no caller should have to trust, for the tests of disposable processes."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import headway


def add(left: float, right: float) -> float:
    return left + right


def where() -> list[int]:
    """Return the ids of this process and its parent."""
    return [os.getpid(), os.getppid()]


def here() -> str:
    return str(Path.cwd())


def simulated(path: str) -> Any:
    return headway.simulate(path).summary()


def wrong() -> None:
    raise headway.HeadwayError("policy: line 3: no such thing.")


def loops() -> None:
    while True:
        pass


def sleeps() -> None:
    time.sleep(1000)  # longer than any deadline


def eats() -> int:
    kept = []
    while True:
        kept.append(bytearray(1 << 24))


def eats_and_wraps() -> None:
    try:
        eats()
    except MemoryError as error:
        raise headway.HeadwayError("policy: could not decide.") from error


def bombs() -> None:
    while True:
        os.fork()


def leaves_others(count: int) -> list[int]:
    """Leave children in sessions of their own, with every open pipe."""
    pids = []
    for _ in range(count):
        pid = os.fork()
        if not pid:
            os.setsid()
            time.sleep(1000)  # until it is killed
        pids.append(pid)
    return pids


def leaves_others_and_ends() -> None:
    leaves_others(1)
    os._exit(0)


def writes(path: str) -> None:
    Path(path).write_text("something")


def removes(path: str) -> None:
    Path(path).unlink()


def calls_out(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), 5) as line:
        line.sendall(b"hello")


def executes() -> None:
    os.execv(sys.executable, [sys.executable, "-c", "print(1)"])


def frees_itself() -> None:
    """Raise its own limits, as root may."""
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def ends() -> None:
    os._exit(5)


def exits() -> None:
    sys.exit(5)


def crashes() -> None:
    ctypes.string_at(0)


def returns_much(size: int) -> str:
    return "a" * size


def returns_nan() -> float:
    return float("nan")


def returns_an_object() -> object:
    return object()


def returns_depth() -> list[Any]:
    result: list[Any] = []
    for _ in range(100_000):
        result = [result]
    return result


def forges(text: str) -> None:
    """Write text to every open pipe."""
    for end in range(3, 64):
        try:
            os.write(end, text.encode())
        except OSError:
            continue
    os._exit(0)


def prints() -> str:
    print("to be heard by nobody")
    os.write(1, b"nor this\n")
    return "done"


def stops() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def ends_its_parent() -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(1000)  # until it is killed, too


def ends_its_parent_once(path: str) -> str:
    """End the parent if the file `path` exists, after removing it."""
    if Path(path).exists():
        Path(path).unlink()
        ends_its_parent()
    return "done"


def open_files() -> list[str]:
    result = []
    for place in Path("/dev/fd").iterdir():
        try:
            result.append(str(place.readlink()).split(":")[0])
        except OSError:
            continue
    return sorted(result)
