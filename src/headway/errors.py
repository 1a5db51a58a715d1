"""The two types of errors: mistakes in the user's input, and bugs in Headway. Messages name what the user can set: an
argument in Python, an option on the command line."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

_ON_COMMAND_LINE: Final = ContextVar("headway_on_command_line", default=False)


class HeadwayError(Exception):
    """An error in the user's input. Its message says what is wrong, where, and what to write instead."""


class UndeclaredSignal(HeadwayError, AttributeError):
    """A policy read a signal that it did not declare. This is also an AttributeError, so that `hasattr`, `copy` and
    `pickle` work on views."""


class InvariantError(Exception):
    """An internal check of the simulator failed: the results of the run are invalid."""


@contextmanager
def command_line() -> Iterator[None]:
    """Inside this context, word all messages for users of the command line."""
    token = _ON_COMMAND_LINE.set(True)
    try:
        yield
    finally:
        _ON_COMMAND_LINE.reset(token)


def worded(command: str, python: str) -> str:
    """Return `command` on the command line, and `python` for callers of the Python functions."""
    return command if _ON_COMMAND_LINE.get() else python


def argument(name: str, option: str | None = None) -> str:
    """Return the name of an argument as the user writes it. In Python, this is `name`, such as `max_replicas`. On the
    command line, it is `option` or, without `option`, a name such as `--max-replicas`."""
    return worded(option or f"--{name.replace('_', '-')}", name)


def missing_extra(where: str, package: str, extra: str, instead: str = "") -> HeadwayError:
    """Return the error for an optional package that is not installed: it names the extra that installs the package.
    With `instead`, the message also names a way to do without the package."""
    remedy = f"Run: pip install 'headway[{extra}]'" + (f"; or {instead}" if instead else "")
    return HeadwayError(f"{where}: {package} is not installed. {remedy}.")
