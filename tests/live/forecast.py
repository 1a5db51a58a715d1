"""Two replicas of vLLM behind a gateway, recorded under a workload; and the same simulated, with what was fitted.

Prompts of 24 groups, whose beginnings are more than one replica's cache holds and less than both hold together: a
policy that keeps groups apart finds most prompts cached, and one that takes turns computes many twice.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec
import tiny_model
import yaml
from msgspec import Struct
from vllm_engine import BATCH, BLOCK, BLOCKS, BUDGET, Vllm

from headway import simulate, validate
from headway.experiment.validate import Validation
from headway.twin.live_cluster import Process, serving
from headway.types import Json

GROUPS, SHARED = 24, 37 * BLOCK
WARM_UP: Final = 24  # requests, of empty caches
WEIGHTED: Final = {"name": "weighted", "scorers": {"prefix-affinity": 3, "active-requests": 2}}
POLICIES: Final[dict[str, Any]] = {
    "round-robin": "round-robin",
    "least-loaded": "least-loaded",
    "weighted": WEIGHTED,
    "lmetric": "lmetric",
}
# Of the order of a slow core's; the fit starts there.
GUESS: Final = {
    "model": "linear",
    "step": "10ms",
    "prefill_token": "100us",
    "prefill_pair": "10ns",
    "sequence": "500us",
    "context_token": "100ns",
    "chunk": "10ms",
}
STATISTICS: Final = ("mean", "p50", "p90")
KINDS: Final = ("ttft", "tpot", "e2e")
Command = Callable[..., Any]  # `headway ARGUMENTS` as its own process


def scenario(model: Path, requests: int, rate: str, seed: int, routing: Any, latency: Json = GUESS) -> Json:
    """The workload, and the replicas as they are: cache, blocks, limits of a step, and how often they are asked."""
    return {
        "name": "two replicas of vLLM",
        "seed": seed,
        "warmup": WARM_UP,
        "workload": {
            "requests": requests,
            "rate": rate,
            "prompt_tokens": {"dist": "uniform", "min": SHARED + 16, "max": SHARED + 400},
            "output_tokens": {"dist": "uniform", "min": 8, "max": 24},
            "prefix": {"groups": GROUPS, "tokens": SHARED},
        },
        "cluster": {
            "instances": 2,
            "model": str(model / "config.json"),
            "gpu": "l4",  # gives a price; times and blocks are told
            "max_batch_size": BATCH,
            "max_batch_tokens": BUDGET,
            "kv": {"block_tokens": BLOCK, "gpu_blocks": BLOCKS},
            "latency": latency,
        },
        "policies": {"routing": routing},
        "signals": {"poll_interval": "500ms", "kv_event_delay": "20ms"},
    }


class Recording(Struct):
    folder: Path  # of the gateway's records
    seen: Json  # what clients saw
    others: float  # the share of the machine that others used meanwhile
    waited: float  # of the time that the engines had something to do, the share in which their core did something else


def record(headway: Command, engines: list[Vllm], what: Json, folder: Path) -> Recording:
    """From empty caches on, through a gateway of its own."""
    folder.mkdir()
    backends = {
        engine.name: {
            "url": engine.url,
            "models": [tiny_model.NAME],
            "engine": "vllm",
            "max_batch_size": BATCH,
            "events": engine.events,
            "events_replay": engine.replay,
        }
        for engine in engines
    }
    gateway = {
        "listen": "127.0.0.1:0",
        "backends": backends,
        "policies": what["policies"],
        "tokens": {"path": str(engines[0].model)},
        "records": {"folder": str(folder / "records")},
        "shutdown": {"lame_duck": "0s"},
    }
    (folder / "gateway.yaml").write_bytes(msgspec.json.encode(gateway))
    (folder / "scenario.yaml").write_text(yaml.safe_dump(what))
    for number, engine in enumerate(engines):
        engine.prefill(tiny_model.text(SHARED, 900_000 + number))  # so that nothing is its first
        engine.forget()
    machine = Machine(engines)
    with Process("serve", str(folder / "gateway.yaml")) as process:
        line = ("load", serving(process), str(folder / "scenario.yaml"), "--model", tiny_model.NAME, "--json")
        done = headway(*line)
        assert done.returncode == 0, done.stderr
    found = next((folder / "records" / "0001").iterdir())
    return Recording(found, json.loads(done.stdout), *machine.since())


class Machine:
    """What its cores did since, as the system tells."""

    def __init__(self, engines: list[Vllm]) -> None:
        self.sessions = [engine.process.pid for engine in engines]
        self.before = self._read()

    def since(self) -> tuple[float, float]:
        """`others` and `waited` of a recording."""
        whole, busy, ours, ran, waited = (now - then for now, then in zip(self._read(), self.before, strict=True))
        return max(0.0, busy - ours) / whole, waited / (ran + waited)

    def _read(self) -> tuple[float, ...]:
        """Ticks in all, busy ones, and those of this process, what it has waited for, and the engines; and of the
        engines how long they ran and how long they waited for their core."""
        fields = [int(one) for one in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        whole, own = float(sum(fields)), os.times()
        ours = (own.user + own.system + own.children_user + own.children_system) * os.sysconf("SC_CLK_TCK")
        ran = waited = 0
        for file in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):  # it has ended
                told = file.read_text().rpartition(")")[2].split()
                if int(told[3]) not in self.sessions:
                    continue
                ours += int(told[11]) + int(told[12])
                for task in file.parent.glob("task/*/schedstat"):
                    times = task.read_text().split()
                    ran, waited = ran + int(times[0]), waited + int(times[1])
        return whole, whole - fields[3] - fields[4], ours, ran, waited  # without idle, and waiting for a disk


class Forecast(Struct):
    """One policy: what was recorded, and what had been predicted."""

    policy: str
    recording: Recording
    predicted: Json  # a summary
    errors: Validation

    @property
    def hits(self) -> tuple[float, float]:
        """Shares of prompt tokens found cached: predicted, and as the engines told."""
        predicted, told = (one["cache"]["token_hit_ratio"] for one in (self.predicted, self.recording.seen))
        return predicted, told

    def ms(self, side: str, kind: str = "ttft", statistic: str = "mean") -> float:
        """`side` is simulated or recorded."""
        return float(self.errors.latency[kind][statistic][f"{side}_ms"])

    def __str__(self) -> str:
        parts = [f"{self.policy:12}"]
        for kind in KINDS:
            told = (
                f"{self.ms('simulated', kind, one):.0f}/{self.ms('recorded', kind, one):.0f} "
                f"({100 * self.errors.latency[kind][one]['error']:+.0f} %)"
                for one in STATISTICS
            )
            parts.append(f"{kind.upper()} {', '.join(told)}")
        predicted, told_so = self.hits
        parts.append(f"hits {100 * predicted:.1f}/{100 * told_so:.1f} %")
        parts.append(f"others {100 * self.recording.others:.0f} %, engines waited {100 * self.recording.waited:.0f} %")
        return "; ".join(parts)


def forecast(policy: str, what: Json, recording: Recording) -> Forecast:
    simulated = simulate(what)
    return Forecast(policy, recording, simulated.summary(), validate(simulated, recording.folder))


def order(found: list[Forecast], side: str) -> list[str]:
    """The policies by their mean TTFT, best first."""
    return [one.policy for one in sorted(found, key=lambda one: one.ms(side))]
