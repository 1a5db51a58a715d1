"""`headway emulate`: engines without GPUs, timed by the simulator."""

from __future__ import annotations

import logging
import sys
from typing import Annotated

from cyclopts import Parameter

from headway.cli.choice import ScenarioFile
from headway.cli.page import say
from headway.errors import HeadwayError


def emulate(
    scenario: ScenarioFile = None,
    /,
    *,
    replicas: Annotated[
        int | None, Parameter(help="How many engines; as many as the scenario has if left out.")
    ] = None,
    listen: Annotated[
        str, Parameter(help="Address of the first; each further one has the next port. Port 0: any that are free.")
    ] = "127.0.0.1:9100",
    speed: Annotated[float, Parameter(help="Simulated seconds a second: 0.1 is ten times as slow.")] = 1.0,
    model: Annotated[str | None, Parameter(help="A further name that clients may call the model by.")] = None,
    output_tokens: Annotated[int, Parameter(help="Mean length of answers whose length nobody has said.")] = 128,
    max_model_len: Annotated[
        int | None, Parameter(help="Longest prompt with its answer, in tokens; what the KV cache holds if left out.")
    ] = None,
    events: Annotated[
        str | None,
        Parameter(
            help="Publish KV events, as in tcp://127.0.0.1:5557; each replica has two ports, the second for replays."
        ),
    ] = None,
    tick: Annotated[
        float | None,
        Parameter(help="Metrics are as of the last multiple of so many seconds of the clock, not of now."),
    ] = None,
    changes: Annotated[
        list[str] | None,
        Parameter(
            name="--set", negative="", help="Change a key of the scenario, as in cluster.gpu=a100; repeat for more."
        ),
    ] = None,
) -> None:
    """Serve OpenAI's API with the timing of the scenario's simulated engines, until Ctrl-C or SIGTERM."""
    from headway.experiment.engines import engine_room

    try:
        from headway.emulator.host import Settings, run
        from headway.gateway.settings import address
    except ImportError as error:
        missing = f"emulate: {error.name} is not installed; install headway[gateway] for the emulator."
        raise HeadwayError(missing) from None
    if not 0 < speed <= 1000:
        raise HeadwayError(f"--speed: is above 0 and at most 1000, got {speed}.")
    if output_tokens < 1 or (max_model_len is not None and max_model_len < 2):
        raise HeadwayError("--output-tokens, --max-model-len: are numbers of tokens, at least 1 and 2.")
    if tick is not None and not 0.001 <= tick <= 3600:
        raise HeadwayError(f"--tick: is from 0.001 to 3600 seconds, got {tick}.")
    if replicas is not None:
        changes = [*(changes or ()), f"cluster.instances={replicas}"]
    setup, scheduler = engine_room(scenario, changes or ())
    host, port = address(listen, "--listen")
    told, events_port = (None, 0) if events is None else _events(events)
    settings = Settings(host, port, speed, model, output_tokens, max_model_len, told, events_port, tick)
    logging.basicConfig(level=logging.INFO, format="headway: %(message)s", stream=sys.stderr)

    def started(found: list[dict[str, object]]) -> None:
        for one in found:
            heard = f", KV events at {one['events']}" if "events" in one else ""
            say(f"{one['name']} at {one['url']}/v1{heard}")
        say(f"emulating {len(found)} engines at {speed:g} times the speed, until Ctrl-C or SIGTERM")

    run(setup, scheduler, settings, started)


def _events(text: str) -> tuple[str, int]:
    place, _, port = text.rpartition(":")
    if not place.startswith("tcp://") or not port.isdecimal() or int(port) > 65535:
        raise HeadwayError(f"--events: expected an address such as tcp://127.0.0.1:5557, got {text!r}.")
    return place, int(port)
