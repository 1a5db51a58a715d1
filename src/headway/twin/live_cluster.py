"""The live cluster of a scenario: processes with emulated engines, and the gateway in front of them."""

import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec

import headway.load as _near
from headway.errors import HeadwayError
from headway.experiment.engines import engines
from headway.load.asking import Ask
from headway.load.driver import load
from headway.scenario.scenario import Scenario
from headway.sim.setup import EngineSetup
from headway.types import PS_PER_SECOND, Json

START_S: Final = 60.0
STOP_S: Final = 10.0
LOOK_S: Final = 0.02


class Process(AbstractContextManager["Process"]):
    """A running process of `headway ARGUMENTS`."""

    def __init__(self, *arguments: str) -> None:
        self.arguments = arguments
        source = str(Path(_near.__file__).parents[2])
        path = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-m", "headway.cli", *arguments],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._stderr,
            start_new_session=True,  # so that Ctrl-C reaches only the parent process, which then stops this process
        )

    def output(self) -> str:
        """Return the text that the process has written to stderr so far."""
        self._stderr.seek(0)
        return self._stderr.read().decode(errors="replace")

    def wait_for(self, pattern: str) -> str:
        """Wait until the text on stderr matches a pattern, and return that text."""
        end = time.monotonic() + START_S
        while not re.search(pattern, output := self.output()):
            if self.process.poll() is not None or time.monotonic() > end:
                last = (output.strip().splitlines() or ["it printed nothing"])[-1].removeprefix("headway: ")
                raise HeadwayError(f"`headway {self.arguments[0]}` did not start: {last}")
            time.sleep(LOOK_S)
        return output

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._stderr.close()


def engine_urls(process: Process) -> dict[str, str]:
    """Wait until a process of `headway emulate` serves, and return the URLs of its engines by name."""
    output = process.wait_for(r"emulating \d+ engines")
    return dict(re.findall(r"^headway: (\S+) at (http://\S+)/v1", output, re.MULTILINE))


def serving(process: Process) -> str:
    """Wait until a process of `headway serve` serves, and return its URL."""
    return str(re.findall(r"serving at (http://\S+)", process.wait_for(r"serving at http://\S+"))[0])


def wait_until_applied(process: Process) -> None:
    """Wait until `headway serve` has applied the current version of its file."""
    refused = re.search(r"is refused, .*?: (.*)", process.wait_for(r"policies are in force|is refused, "))
    if refused is not None:
        raise HeadwayError(refused[1])


# A warm-up opens connections and loads code before a run.
# Without a warm-up, the first requests would reach their engines 5 to 15 ms late by the wall clock.

LINES: Final = 24  # number of connections of the load generator
EACH: Final = 8  # number of warm-up requests for each engine, all sent nearly at once
# The prompts of the warm-up are shorter than a block, so that they leave nothing in caches and indexes.
TINY: Final = {"rate": "2000/s", "prompt_tokens": 8, "output_tokens": 4}


def meanwhile(policies: Json) -> Json:
    """Return policies for the warm-up, which spread requests evenly. They differ from `policies`, so the gateway must
    swap its policies after the warm-up. Therefore `policies` start without state."""
    return {"routing": "round-robin" if "least-loaded" in str(policies["routing"]) else "least-loaded"}


def warm(url: str, scenario: Scenario, replicas: int, speed: float) -> None:
    few = {"workload": {**TINY, "requests": EACH * replicas}, "cluster": {"instances": 1}}
    load(Ask(url, model=scenario.cluster.default_model(), truth=True), few, speed=speed)


STEP_MS: Final = 20.0  # the emulators are slowed down until the shortest step takes this long by the wall clock
POLL_S: Final = 0.1  # wall-clock polling interval if the scenario's signals are always fresh
OFTEN_S: Final = 0.01  # minimum polling interval, in wall-clock seconds
DIGITS: Final = 6  # number of decimals of a tick in seconds; the ticks of three processes agree to this precision
LONG: Final = "30d"  # a time to live that no run reaches, so that nothing expires, as in the simulation
# Settings of an engine that the gateway's configuration must contain too.
STATIC: Final = ("pool", "kv_blocks", "max_batch_size", "max_batch_tokens", "max_queue", "capacity")
GATEWAY: Final = (
    "admission",
    "priority",
    "flow",
    "estimator",
    "routing",
    "decider",
)  # policy stages that a gateway runs


def check(scenario: Scenario) -> None:
    """Raise an error if a live run cannot match the simulation."""
    unsupported = {
        "routers: a twin supports only one router": scenario.routers.count > 1,
        "scaling: a twin does not support autoscaling": scenario.scaling is not None,
        "faults: a twin does not support faults": bool(scenario.faults),
        "signals.belief: a twin does not support KV events": scenario.signals.belief != "routed",
        "cluster.dp_balance: a twin addresses ranks itself (direct)": any(
            pool.dp > 1 and pool.dp_balance != "direct" for pool in scenario.cluster.by_name().values()
        ),
        "cluster: a twin does not support prefill/decode disaggregation": scenario.cluster.disaggregated(),
    }
    for sentence, used in unsupported.items():
        if used:
            raise HeadwayError(f"{sentence}. Remove it from the scenario.")
    signals = scenario.signals
    if signals.poll_delay_ps and signals.poll_delay_ps >= signals.poll_interval_ps:
        raise HeadwayError("signals.poll_delay: must be shorter than poll_interval in a twin.")


def pace(scenario: Scenario, step_ms: float = STEP_MS) -> float:
    """Return the speed (at most 1, two significant digits) at which the shortest step takes `step_ms` in real time."""
    shortest: int = min(engine.latency.run(1, 1, ())[0] for engine in engines(scenario.cluster))
    speed = min(1.0, shortest / PS_PER_SECOND / (step_ms / 1000))
    grain = 10.0 ** (1 - math.floor(math.log10(speed)))
    return math.floor(speed * grain) / grain


@contextmanager
def live_cluster(scenario: Scenario, policies: Mapping[str, Any], speed: float) -> Iterator[str]:
    """Start the cluster and yield the gateway's URL. `policies` override the scenario's policies, by stage."""
    with TemporaryDirectory(prefix="headway-twin-") as folder:
        file = Path(folder, "scenario.yaml")
        file.write_bytes(msgspec.json.encode(scenario.resolved()))
        options = ("--listen", "127.0.0.1:0", "--speed", str(speed), "--tick", str(tick_s(scenario, speed)))
        with Process("emulate", str(file), *options) as fleet:
            gateway = Path(folder, "gateway.yaml")
            config = gateway_file(scenario, policies, speed, engine_urls(fleet))
            gateway.write_bytes(msgspec.json.encode({**config, "policies": meanwhile(config["policies"])}))
            with Process("serve", str(gateway)) as router:
                url = serving(router)
                warm(url, scenario, len(config["backends"]), speed)
                gateway.write_bytes(msgspec.json.encode(config))
                wait_until_applied(router)
                yield url


def tick_s(scenario: Scenario, speed: float) -> float:
    """Return the router's polling interval in wall-clock seconds."""
    return max(OFTEN_S, round(scenario.signals.poll_interval_ps / PS_PER_SECOND / speed or POLL_S, DIGITS))


def engine_name(engine: EngineSetup) -> str:
    """Return the name of the engine that an instance is, or is a rank of."""
    return engine.view.id if engine.ranks == 1 else engine.view.id.removesuffix(f"-rank-{engine.rank}")


def gateway_file(scenario: Scenario, policies: Mapping[str, Any], speed: float, urls: Mapping[str, str]) -> Json:
    seen = [(engine, engine.target or engine.view) for engine in engines(scenario.cluster)]
    backends = {
        view.id: {
            "url": urls[engine_name(engine)],
            "models": list(view.serves),
            "engine": "vllm",
            **({"rank": engine.rank} if engine.ranks > 1 and engine.target is None else {}),
            **{name: getattr(view, name) for name in STATIC},
        }
        for engine, view in seen
        if view.id
    }
    own = {**scenario.resolved()["policies"], **policies}
    interval, delay = tick_s(scenario, speed), round(scenario.signals.poll_delay_ps / PS_PER_SECOND / speed, DIGITS)
    return {
        "listen": "127.0.0.1:0",
        "defaults": scenario.defaults,
        "max_backends": len(backends),
        "backends": backends,
        "policies": {stage: own[stage] for stage in GATEWAY if stage in own},
        "tokens": {"block_tokens": scenario.cluster.kv.block_tokens},
        "signals": {
            "interval": f"{interval}s",
            "ticks": f"{delay}s",
            "stale": f"{max(5.0, 10 * interval)}s",
            "timeout": "5s",
            "effective_load": scenario.signals.effective_load,
        },
        "events": {"ttl": LONG},
        "timeouts": {"silence": "600s"},
        "shutdown": {"lame_duck": "0s"},
    }
