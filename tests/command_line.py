"""The command line called in this process: what a user would see, without the start of an interpreter.

`keep_process_state` puts back what a command or a user's script may change, so that tests do not depend on their order.
"""

from __future__ import annotations

import contextlib
import gc
import io
import logging
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from headway.cli import status
from headway.policies import policy_files, registry
from headway.policies.user_policies import outside

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def call_headway(
    arguments: tuple[str, ...], cwd: Path, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run `headway ARGUMENTS` in 80 columns without colours."""
    with capture_output(cwd, {"COLUMNS": "80", "NO_COLOR": "1", **environment}) as (out, err):
        code = status(list(arguments))
    return subprocess.CompletedProcess(["headway", *arguments], code, text_of(out), text_of(err))


def run_script(file: Path, cwd: Path) -> str:
    """Run a Python script as the main program, and return what it prints to stdout; it must print nothing to stderr."""
    arguments = sys.argv
    with capture_output(cwd, {"COLUMNS": "80", "NO_COLOR": "1"}) as (out, err):
        sys.argv, sys.path[:0] = [str(file)], [str(file.parent)]
        try:
            runpy.run_path(str(file), run_name="__main__")
        finally:
            sys.argv = arguments
    assert not text_of(err), f"{file.name} prints to stderr:\n{text_of(err)}"
    return text_of(out)


@contextlib.contextmanager
def capture_output(cwd: Path, environment: dict[str, str]) -> Iterator[tuple[io.TextIOWrapper, io.TextIOWrapper]]:
    """Run a block in a folder and an environment, with an empty stdin, and with a stdout and stderr of its own."""
    encoding = environment.get("PYTHONIOENCODING", "").partition(":")[0] or "utf-8"
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="") for _ in range(2))
    streams = (sys.stdin, sys.stdout, sys.stderr)
    with keep_process_state():
        sys.stdin, sys.stdout, sys.stderr = io.TextIOWrapper(io.BytesIO()), out, err
        try:
            os.environ.update(environment)
            os.chdir(cwd)
            yield out, err
        finally:
            sys.stdin, sys.stdout, sys.stderr = streams


def text_of(stream: io.TextIOWrapper) -> str:
    stream.flush()
    assert isinstance(stream.buffer, io.BytesIO)
    return stream.buffer.getvalue().decode(stream.encoding)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Processes that are started in this block hear Ctrl-C, which a shell's background jobs and their children ignore.
    Nothing runs between fork and exec: libraries with threads, such as gRPC, do not survive that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def keep_process_state() -> Iterator[None]:
    """Put back working folder, environment, import path, user policies, logging, signal handlers and the collector's
    thresholds."""
    cwd, environment, path = Path.cwd(), dict(os.environ), list(sys.path)
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    handling = {number: signal.getsignal(number) for number in SIGNALS}
    thresholds = gc.get_threshold()
    policies, files, modules = set(registry._ENTRIES), dict(policy_files._FILES), set(sys.modules)
    try:
        yield
    finally:
        for key, entry in list(registry._ENTRIES.items()):
            if key not in policies and isinstance(entry, registry.Entry) and outside(entry.make):
                del registry._ENTRIES[key]
        policy_files._FILES.clear()
        policy_files._FILES.update(files)
        for name in [name for name in sys.modules.keys() - modules if name.startswith(policy_files.FROM_FILE)]:
            del sys.modules[name]
        gc.set_threshold(*thresholds)
        for number, handler in handling.items():
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)
        root.handlers[:], root.level = handlers, level
        sys.path[:] = path
        os.chdir(cwd)
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        os.environ.update(environment)
