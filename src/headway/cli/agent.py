"""`headway agent`: registers an engine in etcd and reports its load."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from headway import __version__
from headway.cli.options import EtcdChoice, flag, read_key
from headway.cli.page import say
from headway.errors import HeadwayError

if TYPE_CHECKING:
    from headway.gateway.membership.agent_readings import Gauge
    from headway.gateway.membership.node_agent import Agent


def agent(
    *,
    engine: Annotated[str, Parameter(help="URL of the engine as seen from this host, such as http://127.0.0.1:8000.")],
    etcd: EtcdChoice,
    advertise: Annotated[str | None, Parameter(help="URL for gateways, if it differs from --engine.")] = None,
    id: Annotated[str | None, Parameter(help="Name of the engine. Default: host and port of its URL.")] = None,
    model: Annotated[
        list[str] | None, flag("A model that the engine serves; repeat for more. Default: ask the engine.")
    ] = None,
    role: Literal["both", "prefill", "decode"] = "both",
    pool: str = "default",
    heartbeat: Annotated[
        str, Parameter(help="Interval between reports. The etcd lease lasts for three intervals.")
    ] = "5s",
    drain: Annotated[
        str, Parameter(help="After SIGTERM, wait this long for the engine to finish its requests.")
    ] = "30s",
    changes: Annotated[
        list[str] | None, flag("Set another key of the backend, such as max_batch_size=128; repeat for more.", "--set")
    ] = None,
    engine_key_env: Annotated[
        str | None, Parameter(help="Environment variable that holds the engine's API key.")
    ] = None,
    gpus: Annotated[
        str | None, Parameter(help="GPUs of the engine, such as 0,1. Default: all GPUs of this machine.")
    ] = (None),
    readings_file: Annotated[
        Path | None,
        Parameter(
            help='Read utilisation and power from this file, such as {"busy": 0.4, "watts": 310}, instead of NVML.'
        ),
    ] = None,
    readings_command: Annotated[
        str | None,
        Parameter(help="Run this command instead of reading NVML. It must print the JSON of --readings-file."),
    ] = (None),
) -> None:
    """Register an engine in etcd and report its load.

    The agent writes load, power and readiness at every heartbeat until it ends.
    """
    import asyncio

    settings = etcd.settings()
    from headway.config.units import positive_seconds
    from headway.gateway.membership.agent_engine import Engine
    from headway.gateway.membership.agent_readings import WINDOW_S, Meter
    from headway.gateway.membership.etcd_client import Etcd
    from headway.gateway.membership.node import Node, check_id
    from headway.gateway.membership.node_agent import Agent, advertised_url
    from headway.http.address import Address
    from headway.http.server_log import log_to_stderr

    read_key(engine_key_env, "--engine-key-env")  # raises an error if the variable is not set
    near = Address(engine, "--engine")
    url = advertised_url(engine, advertise, settings.endpoints)
    far = Address(url, "--advertise")
    name = check_id(id if id is not None else f"{far.host}:{far.port}".replace("::", "-"), "--id")
    more: dict[str, Any] = {**_changes(changes or [])}
    more |= {} if role == "both" else {"role": role}
    more |= {} if pool == "default" else {"pool": pool}
    gauge = _gauge(gpus, readings_file, readings_command)
    say(
        "utilisation and power are unknown: NVML is missing, and there is no --readings-file or --readings-command"
        if gauge is None
        else f"utilisation and power come from {gauge.name}"
    )
    beat_s, drain_s = positive_seconds(heartbeat, "--heartbeat"), positive_seconds(drain, "--drain")
    metrics = str(more.get("metrics") or "/metrics")
    running = Agent(
        name,
        Node(url, model or [], **more, version=__version__),
        Etcd(settings),
        Engine(near.url, engine_key_env, metrics, min(2.0, beat_s)),
        None if gauge is None else Meter(gauge, max(beat_s, WINDOW_S)),
        beat_s,
    )
    say(f"registering {name} at {url} (stop with Ctrl-C or SIGTERM)")
    with log_to_stderr():
        asyncio.run(_run_until_signal(running, drain_s))


async def _run_until_signal(running: Agent, drain_s: float) -> None:
    from headway.http.event_loop import end_signal

    await running.run(end_signal(), drain_s)


def _changes(texts: list[str]) -> dict[str, Any]:
    from headway.config.documents import parse_yaml
    from headway.gateway.membership.node import optional

    keys: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise HeadwayError(f"--set: expected key=value, as in max_batch_size=128, got {text!r}.")
        keys[key] = parse_yaml(value, f"--set {key}")
    return optional(keys, "--set")


def _gauge(gpus: str | None, file: Path | None, command: str | None) -> Gauge | None:
    from headway.gateway.membership.agent_readings import command_gauge, file_gauge, find_nvml

    if file is not None and command is not None:
        raise HeadwayError("--readings-command: cannot be combined with --readings-file.")
    if file is not None:
        return file_gauge(file)
    if command is not None:
        return command_gauge(command)
    if gpus is None:
        return find_nvml()
    cards = gpus.split(",")
    if not all(card.strip().isdecimal() for card in cards):
        raise HeadwayError(f"--gpus: expected GPU numbers such as 0,1, got {gpus!r}.")
    gauge = find_nvml([int(card) for card in cards])
    if gauge is None:
        raise HeadwayError("--gpus: NVML finds no GPU. Install nvidia-ml-py and NVIDIA's driver.")
    return gauge
