"""`headway agent`: registers the engine beside it in etcd, and reports its load."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from headway import __version__
from headway.cli.options import EtcdChoice, flag, read_key
from headway.cli.page import log_to_stderr, say
from headway.errors import HeadwayError

if TYPE_CHECKING:
    from headway.gateway.membership.agent_readings import Gauge
    from headway.gateway.membership.node_agent import Agent


def agent(
    *,
    engine: Annotated[str, Parameter(help="The engine's URL from here, as in http://127.0.0.1:8000.")],
    etcd: EtcdChoice,
    advertise: Annotated[str | None, Parameter(help="Its URL from the gateways, where that is another.")] = None,
    id: Annotated[str | None, Parameter(help="Its name; host and port of its URL if left out.")] = None,
    model: Annotated[list[str] | None, flag("A model it serves, repeat for more; asked of it if left out.")] = None,
    role: Literal["both", "prefill", "decode"] = "both",
    pool: str = "default",
    heartbeat: Annotated[str, Parameter(help="How often it says how it fares; a lease lasts for three.")] = "5s",
    drain: Annotated[str, Parameter(help="How long the engine may take to end its requests at SIGTERM.")] = "30s",
    changes: Annotated[
        list[str] | None, flag("More that a file says of a backend, as in max_batch_size=128.", "--set")
    ] = None,
    engine_key_env: Annotated[
        str | None, Parameter(help="The environment variable with the key that the engine wants.")
    ] = None,
    gpus: Annotated[str | None, Parameter(help="The engine's cards, as in 0,1; all of this machine if left out.")] = (
        None
    ),
    readings_file: Annotated[
        Path | None, Parameter(help='A file with {"busy": 0.4, "watts": 310}, in place of NVML.')
    ] = None,
    readings_command: Annotated[str | None, Parameter(help="A command that prints such JSON, in place of NVML.")] = (
        None
    ),
) -> None:
    """Register the engine beside it in etcd, and write load, power and readiness at every heartbeat until it ends."""
    import asyncio

    settings = etcd.settings()
    from headway.config.units import positive_seconds
    from headway.gateway.membership.agent_engine import Engine
    from headway.gateway.membership.agent_readings import WINDOW_S, Meter
    from headway.gateway.membership.etcd_client import Etcd
    from headway.gateway.membership.node import check_id
    from headway.gateway.membership.node_agent import Agent, Registration, advertised_url
    from headway.http.address import Address

    read_key(engine_key_env, "--engine-key-env")  # only whether it is there
    near = Address(engine, "--engine")
    url = advertised_url(engine, advertise, settings.endpoints)
    far = Address(url, "--advertise")
    name = check_id(id if id is not None else f"{far.host}:{far.port}".replace("::", "-"), "--id")
    more: dict[str, Any] = {**_changes(changes or [])}
    more |= {} if role == "both" else {"role": role}
    more |= {} if pool == "default" else {"pool": pool}
    gauge = _gauge(gpus, readings_file, readings_command)
    say(
        "no NVML, --readings-file or --readings-command: utilisation and power stay unknown"
        if gauge is None
        else f"utilisation and power come from {gauge.name}"
    )
    beat_s, drain_s = positive_seconds(heartbeat, "--heartbeat"), positive_seconds(drain, "--drain")
    metrics = str(more.get("metrics") or "/metrics")
    running = Agent(
        Registration(name, url, tuple(model or ()), more, __version__),
        Etcd(settings),
        Engine(near.url, engine_key_env, metrics, min(2.0, beat_s)),
        None if gauge is None else Meter(gauge, max(beat_s, WINDOW_S)),
        beat_s,
    )
    log_to_stderr()
    say(f"{name} at {url}; Ctrl-C or SIGTERM ends it")
    asyncio.run(_until_told(running, drain_s))


async def _until_told(running: Agent, drain_s: float) -> None:
    from headway.http.event_loop import end_signal

    await running.run(end_signal(), drain_s)


def _changes(texts: list[str]) -> dict[str, Any]:
    from headway.config.documents import parse_yaml
    from headway.gateway.membership.node import optional

    keys: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise HeadwayError(f"--set: expected a key and its value, as in max_batch_size=128, got {text!r}.")
        keys[key] = parse_yaml(value, f"--set {key}")
    return optional(keys, "--set")


def _gauge(gpus: str | None, file: Path | None, command: str | None) -> Gauge | None:
    from headway.gateway.membership.agent_readings import Nvml, ReadingsCommand, ReadingsFile

    if file is not None and command is not None:
        raise HeadwayError("--readings-command: a file is given as well; leave one of them out.")
    if file is not None:
        return ReadingsFile(file)
    if command is not None:
        return ReadingsCommand(command)
    if gpus is None:
        return Nvml.find()
    cards = gpus.split(",")
    if not all(card.strip().isdecimal() for card in cards):
        raise HeadwayError(f"--gpus: expected numbers of cards such as 0,1, got {gpus!r}.")
    gauge = Nvml.find([int(card) for card in cards])
    if gauge is None:
        raise HeadwayError("--gpus: NVML finds no cards here; install nvidia-ml-py beside NVIDIA's driver.")
    return gauge
