"""vLLM itself on the CPU, as a process of its own from the environment that `make live` builds."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import tiny_model
from event_relay import EventRelay
from openai import OpenAI

from free_ports import free_port

HOME: Final = Path(__file__).resolve().parents[2] / ".venv-live"
INSTALLED: Final = HOME / ".installed"
BLOCK: Final = 32  # tokens; the attention of the CPU takes no shorter blocks
BLOCKS: Final = 800
BATCH: Final = 16  # requests
BUDGET: Final = 2048  # tokens of a step
START_S: Final = 300.0  # longer than any start seen, on a machine with other things to do

ENVIRONMENT: Final = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine computes itself: a worker beside it would spin between steps
    "TORCHDYNAMO_DISABLE": "1",  # compiling would take longer than all that it saves here
    "VLLM_SERVER_DEV_MODE": "1",  # for /reset_prefix_cache
}


class Vllm:
    """One replica. Its events are published on a socket in `folder`, whose path must be short."""

    def __init__(self, name: str, model: Path, folder: Path, core: int | None = None, more: Sequence[str] = ()) -> None:
        """`core` is the one that it runs on, so that replicas do not slow each other down; `more` are options."""
        self.name, self.model, self.port = name, model, free_port()
        self.events, self.replay = f"ipc://{folder}/{name}.events", f"ipc://{folder}/{name}.replay"
        self.topic = f"kv@{name}"
        self.log = folder / f"{name}.log"
        events = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": self.events,
            "replay_endpoint": self.replay,
            "topic": self.topic,
        }
        command = [
            *(str(HOME / "bin" / "vllm"), "serve", str(model), "--served-model-name", tiny_model.NAME),
            *("--load-format", "dummy", "--dtype", "bfloat16", "--enforce-eager"),
            *("--host", "127.0.0.1", "--port", str(self.port)),
            *("--max-model-len", str(tiny_model.CONTEXT), "--max-num-seqs", str(BATCH)),
            *("--max-num-batched-tokens", str(BUDGET), "--enable-prompt-tokens-details"),
            *("--enable-prefix-caching", "--prefix-caching-hash-algo", "sha256_cbor"),
            *("--block-size", str(BLOCK), "--num-gpu-blocks-override", str(BLOCKS)),
            *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
            *("--kv-events-config", json.dumps(events)),
            *more,
        ]
        self.relay = EventRelay(self.events, f"ipc://{folder}/{name}.relay")  # before its first event
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                env={**os.environ, **ENVIRONMENT},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        if core is not None:
            os.sched_setaffinity(self.process.pid, {core})  # before it starts others, which inherit it

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait(self) -> None:
        """Until it answers."""
        end = time.monotonic() + START_S
        while True:
            if self.process.poll() is not None or time.monotonic() > end:
                self.stop()
                raise RuntimeError(f"vLLM did not start; the end of {self.log}:\n{self.log.read_text()[-4000:]}")
            try:
                urllib.request.urlopen(f"{self.url}/health", timeout=5).close()
                return
            except (urllib.error.URLError, OSError):
                time.sleep(0.5)  # vLLM says only by its answer that it serves

    def client(self) -> OpenAI:
        return OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=120)

    def prefill(self, prompt: str) -> float:
        """Seconds until its first and only token."""
        start = time.monotonic()
        self.client().completions.create(model=tiny_model.NAME, prompt=prompt, max_tokens=1)
        return time.monotonic() - start

    def forget(self) -> None:
        """Empties its prefix cache, which it tells as an event."""
        urllib.request.urlopen(f"{self.url}/reset_prefix_cache", b"", timeout=300).close()

    def metrics(self) -> str:
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=300) as page:
            return str(page.read().decode())

    def counter(self, name: str) -> float:
        """A metric of the page, over all its labels."""
        found = re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", self.metrics(), re.MULTILINE)
        assert found, f"the page has no {name}"
        total = 0.0
        for value in found:
            total += float(value)
        return total

    def stop(self) -> None:
        """Its processes are a group, and end together."""
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(20)
        self.relay.stop()


def two(folder: Path) -> list[Vllm]:
    """Two replicas of one model, both up."""
    model = tiny_model.write(folder / "model")
    engines: list[Vllm] = []
    cores: list[int | None] = [None, None]
    if hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) > 1:
        cores = list(sorted(os.sched_getaffinity(0))[:2])
    try:
        for name, core in zip(("v0", "v1"), cores, strict=True):
            engines.append(Vllm(name, model, folder, core))
        for engine in engines:
            engine.wait()
    except BaseException:
        for engine in engines:
            engine.stop()
        raise
    return engines
