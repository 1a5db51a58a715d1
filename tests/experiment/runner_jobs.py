"""Jobs for the tests of runners, which other processes import by this module's name."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from headway.errors import HeadwayError, InvariantError


def square(number: int) -> int:
    return number * number


def process(_: int) -> int:
    return os.getpid()


def spoken(number: int) -> int:
    print("spoken")
    return number


def wrong(number: int) -> int:
    raise HeadwayError(f"job {number}: not like that.")


def broken() -> None:
    raise InvariantError("blocks were lost")


def ends(number: int) -> None:
    os._exit(number)


def ends_once(mark: str, number: int) -> int:
    """Kill its process the first time only; a file marks that."""
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return number
    os.kill(os.getpid(), signal.SIGKILL)
    return -1


def counted(folder: str, number: int) -> int:
    """Write a file at its start, and wait for the file that lets it continue."""
    (Path(folder) / f"begun-{number}").touch()
    while not (Path(folder) / "go").exists():
        time.sleep(0.02)  # until the next look
    return number


def at_machine(folder: str, number: int) -> int:
    """Do the same as `counted`, and write the machine and the process as well."""
    import ray

    (Path(folder) / f"at-{ray.util.get_node_ip_address()}-{os.getpid()}").touch()
    return counted(folder, number)


def where_it_is(number: int) -> Any:
    return [number, str(Path.cwd())]


def policy_timeout(number: int) -> str | None:
    return os.environ.get("HEADWAY_POLICY_TIMEOUT")
