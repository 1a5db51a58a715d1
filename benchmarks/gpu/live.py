"""Runs over HTTP: replicas behind the real gateway, with requests from `headway load`, in real or dilated time."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from benchmarks.gpu.scheduler import Backend, Replica
from benchmarks.gpu.server import Server
from benchmarks.gpu.virtual import limits_of
from headway.results.result import Result
from headway.scenario.scenario import Scenario
from headway.twin.live_cluster import Process, gateway_file, meanwhile, serving, wait_until_applied, warm


def run_live(
    scenario: Scenario,
    backend: Backend,
    clock: Callable[[Replica], float],
    dilation: float,
    vocabulary: int,
    folder: Path,
) -> tuple[Result, list[dict[str, Any]]]:
    """Serve the scenario's workload with its policies in a gateway. Return what clients saw, in the replicas' time, and
    the lag of each replica."""

    async def run() -> list[dict[str, Any]]:
        model = scenario.cluster.default_model()
        count = len(scenario.cluster.instance_ids())
        server = Server(backend, limits_of(scenario), count, dilation, model, vocabulary, clock)
        urls = await server.start()
        await asyncio.to_thread(drive, scenario, urls, 1 / dilation, folder)
        return [
            {
                "steps": engine.lag.steps,
                "mean_lag_ms": engine.lag.late_s / max(1, engine.lag.steps) * 1e3,
                "worst_lag_ms": engine.lag.worst_s * 1e3,
                "preemptions": engine.replica.preemptions,
            }
            for engine in server.engines
        ]

    lags = asyncio.run(run())
    return Result.load(folder), lags


def drive(scenario: Scenario, urls: dict[str, str], speed: float, folder: Path) -> None:
    """Start the gateway, warm it up, send the workload, and write the run to the folder."""
    with TemporaryDirectory(prefix="headway-gpu-") as place:
        file, config = Path(place, "gateway.yaml"), gateway_file(scenario, {}, speed, urls)
        file.write_bytes(msgspec.json.encode({**config, "policies": meanwhile(config["policies"])}))
        workload = Path(place, "scenario.yaml")
        workload.write_bytes(msgspec.json.encode(scenario.resolved()))
        with Process("serve", str(file)) as router:
            url = serving(router)
            warm(url, scenario, len(urls), speed)
            file.write_bytes(msgspec.json.encode(config))
            wait_until_applied(router)
            command = [sys.executable, "-m", "headway.cli", "load", url, str(workload), "--truth"]
            command += ["--speed", f"{speed:g}", "-o", str(folder)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
