"""Runs over HTTP: replicas behind the real gateway, with requests from `headway load`, in real or dilated time.

This process computes the steps. A second one has the replicas' HTTP server, and starts the gateway and the clients.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from benchmarks.gpu.engine_loop import SHOWN, EngineLoop, Lane, Line, line_pair
from benchmarks.gpu.scheduler import Backend, Replica, Row
from benchmarks.gpu.server import Server
from benchmarks.gpu.steps import composition_of
from benchmarks.gpu.virtual import limits_of
from headway.config.documents import yaml_text
from headway.experiment.engines import engines
from headway.results.result import Result
from headway.scenario.scenario import Scenario
from headway.twin.live_cluster import Process, gateway_file, meanwhile, serving, wait_until_applied, warm
from headway.types import PS_PER_SECOND, Json

KEY = "HEADWAY_GPU_KEY"  # environment variable with the admin key of the gateway
COMMAND = (sys.executable, "-m", "headway.cli")


class Zeros:
    """A backend without a model."""

    def run(self, rows: list[Row]) -> list[int]:
        return [0] * len(rows)


def measured_clock(replica: Replica) -> float:
    start = perf_counter()
    replica.begin(0)
    return perf_counter() - start


def simulated_clock(scenario: Scenario, spin: bool) -> Callable[[Replica], float]:
    """Return a clock with the step times of the simulator. It can spin for so long, as a GPU's host does."""
    latency = engines(scenario.cluster)[0].latency

    def clock(replica: Replica) -> float:
        start = perf_counter()
        step = composition_of(replica.begin(0))
        context = sum(step.contexts) + len(step.contexts)
        seconds: float = latency.run(len(step.contexts), context, step.chunks)[0] / PS_PER_SECOND
        while spin and perf_counter() - start < seconds:
            pass
        return seconds

    return clock


def run_live(
    scenario: Scenario,
    backend: Backend,
    clock: Callable[[Replica], float],
    dilation: float,
    vocabulary: int,
    folder: Path,
    deploy: Json | None = None,
) -> tuple[Result, list[dict[str, float]], Json | None]:
    """Serve the scenario's workload with its policies in a gateway. Return what clients saw, in the replicas' time, the
    figures of each replica, and what `headway deploy` did.

    `deploy` has the routing policy (`routing`) to deploy and the number of requests that arrive before (`after`)."""
    limits, count = limits_of(scenario), len(scenario.cluster.instance_ids())
    context = get_context("spawn")
    board = context.RawArray("q", count * len(SHOWN))
    own, other = line_pair()
    lanes = [Lane(backend, limits, place, board) for place in range(count)]
    document = {"scenario": scenario.resolved(), "count": count, "dilation": dilation, "vocabulary": vocabulary}
    child = context.Process(target=serve, args=(other, board, document, deploy, folder))
    child.start()
    other.close()
    with own:
        EngineLoop(lanes, Line(own), dilation, clock).run()
    child.join()
    if child.exitcode:
        raise SystemExit("the server of the replicas failed")
    deployed = folder.with_suffix(".json")
    result = json.loads(deployed.read_text()) if deployed.exists() else None
    return Result.load(folder), [lane.report() for lane in lanes], result


def serve(end: socket.socket, board: Any, document: Json, deploy: Json | None, folder: Path) -> None:
    """Serve until the clients have ended. The target of the second process."""
    with end:
        asyncio.run(_serve(end, board, document, deploy, folder))


async def _serve(end: socket.socket, board: Any, document: Json, deploy: Json | None, folder: Path) -> None:
    scenario = Scenario.load(document["scenario"])
    model = scenario.cluster.default_model()
    server = Server(Line(end), board, limits_of(scenario), document["count"], model, document["vocabulary"])
    urls = await server.start()
    await asyncio.to_thread(drive, scenario, urls, 1 / document["dilation"], folder, server, deploy)


def drive(
    scenario: Scenario, urls: dict[str, str], speed: float, folder: Path, server: Server, deploy: Json | None
) -> None:
    """Start the gateway, warm it up, send the workload, and write the run to the folder."""
    with TemporaryDirectory(prefix="headway-gpu-") as place:
        file, config = Path(place, "gateway.yaml"), gateway_file(scenario, {}, speed, urls)
        config["admin"] = {"listen": f"127.0.0.1:{free_port()}", "key_env": KEY}
        os.environ[KEY] = "local"
        file.write_text(yaml_text({**config, "policies": meanwhile(config["policies"])}))
        workload = Path(place, "scenario.yaml")
        workload.write_text(yaml_text(scenario.resolved()))
        with Process("serve", str(file)) as router:
            url = serving(router)
            warm(url, scenario, len(urls), speed)
            file.write_text(yaml_text(config))
            wait_until_applied(router)
            server.reset()
            deployment = Deployment(server, file, deploy) if deploy else None
            command = [*COMMAND, "load", url, str(workload), "--truth", "--speed", f"{speed:g}", "-o", str(folder)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            if deployment is not None:
                folder.with_suffix(".json").write_text(json.dumps(deployment.done.result(60)))


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


class Deployment:
    """Runs `headway deploy` when so many of the measured requests have arrived, while the others arrive."""

    def __init__(self, server: Server, file: Path, plan: Json) -> None:
        self.server, self.file, self.after = server, file, plan["after"]
        self.bundle = file.with_name("best.yaml")
        self.bundle.write_text(yaml_text({"format": 1, "policies": {"routing": plan["routing"]}}))
        self.done: Future[Json] = Future()
        self.task: asyncio.Task[None] | None = None
        server.on_request = self._look

    def _look(self, number: int) -> None:
        if number == self.after:
            self.task = self.server.loop.create_task(self._deploy())

    async def _deploy(self) -> None:
        start = perf_counter()
        process = await asyncio.create_subprocess_exec(
            *COMMAND, "deploy", str(self.bundle), "--to", str(self.file), "--yes", "--json",
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        out, error = await process.communicate()
        self.done.set_result(
            {
                "exit": process.returncode,
                "said": (out or error).decode(),
                "begun": self.after,
                "confirmed": self.server.measured,
                "seconds": perf_counter() - start,
            }
        )
