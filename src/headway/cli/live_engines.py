"""Verbs that run engines, real or emulated, under a workload: `emulate`, `load`, `twin` and `conformance`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from headway.cli.options import (
    AS_IT_IS,
    Choice,
    KeyVariable,
    RunOutput,
    ScenarioFile,
    flag,
    needs,
    output_to,
    read_key,
)
from headway.cli.page import AsJson, Page, Verdict, log_to_stderr, say
from headway.errors import HeadwayError
from headway.types import Json

if TYPE_CHECKING:
    from headway.scenario.scenario import Scenario


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
    output_tokens: Annotated[
        int, Parameter(help="Mean length of an answer, in tokens, if the request does not set one.")
    ] = 128,
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
        list[str] | None, flag("Change a key of the scenario, as in cluster.gpu=a100; repeat for more.", "--set")
    ] = None,
) -> None:
    """Serve OpenAI's API with the timing of the scenario's simulated engines, until Ctrl-C or SIGTERM."""
    from headway.experiment.engines import engine_room

    with needs("gateway", "emulate", " for the emulator"):
        from headway.emulator.host import Settings, run
        from headway.gateway.settings import address
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
    publisher, events_port = (None, 0) if events is None else _events(events)
    settings = Settings(host, port, speed, model, output_tokens, max_model_len, publisher, events_port, tick)
    log_to_stderr()

    def announce(engines: list[dict[str, object]]) -> None:
        for engine in engines:
            kv_events = f", KV events at {engine['events']}" if "events" in engine else ""
            say(f"{engine['name']} at {engine['url']}/v1{kv_events}")
        say(f"emulating {len(engines)} engines at {speed:g} times the speed, until Ctrl-C or SIGTERM")

    run(setup, scheduler, settings, announce)


def _events(text: str) -> tuple[str, int]:
    place, _, port = text.rpartition(":")
    if not place.startswith("tcp://") or not port.isdecimal() or int(port) > 65535:
        raise HeadwayError(f"--events: expected an address such as tcp://127.0.0.1:5557, got {text!r}.")
    return place, int(port)


def load(
    url: Annotated[str, Parameter(help="The endpoint, as in http://127.0.0.1:8000; /v1 may be left out.")],
    scenario: ScenarioFile = None,
    /,
    *,
    trace: Annotated[
        Path | None, Parameter(help="Send a trace's requests instead of a scenario's, in any format that is read.")
    ] = None,
    model: Annotated[str | None, Parameter(help="The model that is asked for; the workload's if left out.")] = None,
    api: Annotated[
        Literal["completions", "chat"], Parameter(help="As a prompt, or as the messages of a chat.")
    ] = "completions",
    truth: Annotated[bool, flag("Tell an emulator the lengths and the content that the workload has.")] = False,
    ignore_eos: Annotated[
        bool, Parameter(help="Ask engines for as many tokens as the workload has, whatever the model says.")
    ] = True,
    key_env: KeyVariable = None,
    speed: Annotated[float, Parameter(help="The workload's seconds a second: 0.25 sends four times as slowly.")] = 1.0,
    output: RunOutput = None,
    choice: Choice = AS_IT_IS,
    as_json: AsJson = False,
) -> Page | Json:
    """Send a workload to an OpenAI endpoint, each request at its time, and print what its clients saw."""
    with needs("gateway", "load", " for it"):
        from headway.load.asking import Ask
        from headway.load.driver import load as send
        from headway.load.driver import reach
    from headway.report.live_tables import report
    from headway.report.progress import Bar
    from headway.results import store

    if not 1e-6 <= speed <= 1e6:
        raise HeadwayError(f"--speed: is from 1e-6 to 1e6, got {speed}.")
    if trace is not None and scenario is not None:
        raise HeadwayError("--trace: brings the requests, and so does the scenario; leave one of them out.")
    key = read_key(key_env)
    if key is not None and not (key.isascii() and key.isprintable()):
        raise HeadwayError(f"--key-env: {key_env} has signs that no header may have; a line's end, perhaps.")
    if output is not None:
        store.check(output)
    loaded = choice.load(scenario) if trace is None else _of_trace(trace, choice)
    ask = Ask(url, model, api, truth, ignore_eos, key)
    reach(url)
    with Bar(loaded.workload.requests, "requests") as bar:
        result = send(ask, loaded, speed=speed, progress=bar.update)
    if output is not None:
        say(f"wrote {', '.join(result.save(output))} to {output}")
    return result.summary() if as_json else Page([report(result.summary(), result.scenario)])


def _of_trace(file: Path, choice: Choice) -> Scenario:
    from headway.scenario import overrides
    from headway.scenario.scenario import validate

    data = {"name": file.name, "workload": {"trace": {"path": str(file.absolute())}}}
    return validate(overrides.apply(data, choice.changes or ()))


def twin(
    scenario: ScenarioFile = None,
    /,
    *,
    policies: Annotated[
        str | None,
        Parameter(help="Routing policies, separated by commas; round-robin,least-loaded,weighted,lmetric if left out."),
    ] = None,
    speed: Annotated[
        float | None, Parameter(help="Simulated seconds a second; so that a step lasts --step if left out.")
    ] = None,
    step: Annotated[float, Parameter(help="Milliseconds of the wall's clock that the shortest step lasts.")] = 20.0,
    output: Annotated[Path | None, output_to("Write every policy's two runs to this folder.")] = None,
    choice: Choice = AS_IT_IS,
    as_json: AsJson = False,
) -> Verdict:
    """Run a scenario simulated and live (gateway and emulated engines); print both, and whether they agree.

    Ends with status 1 where they do not.
    """
    with needs("gateway", "twin", " for it"):
        from headway.twin.check import twin as run_pairs
        from headway.twin.check import twin_report as report
    from headway.report.progress import Bar

    if speed is not None and not 0 < speed <= 1000:
        raise HeadwayError(f"--speed: is above 0 and at most 1000, got {speed}.")
    if not 0 < step <= 10_000:
        raise HeadwayError(f"--step: is a number of milliseconds, at most 10000, got {step}.")
    loaded = choice.load(scenario)
    with Bar(None, "requests") as bar:
        twins = run_pairs(loaded, policies, speed=speed, step_ms=step, output=output, progress=bar.update)
    if output is not None:
        say(f"wrote {2 * len(twins.pairs)} runs to {output}")
    return Verdict(twins.summary() if as_json else Page([report(twins)]), 0 if twins.agrees else 1)


def conformance(
    url: Annotated[
        str | None, Parameter(help="A router that is pointed at the engines of --listen; Headway's own if left out.")
    ] = None,
    /,
    *,
    start: Annotated[
        str | None,
        Parameter(help="The command that starts the router, with {engines}, {port} and perhaps {metrics_port} in it."),
    ] = None,
    listen: Annotated[
        str, Parameter(help="Address of the first engine; the others have the next ports. Port 0: any that are free.")
    ] = "127.0.0.1:0",
    engines: Annotated[int, Parameter(help="How many engines.")] = 3,
    model: Annotated[str | None, Parameter(help="The model that is asked for; the engines' own if left out.")] = None,
    metrics: Annotated[str | None, Parameter(help="The router's Prometheus page.")] = None,
    key_env: KeyVariable = None,
    as_json: AsJson = False,
) -> Verdict:
    """Try a router with emulated engines behind it: affinity, streaming, cancelling, failures, overload.

    Ends with status 1 where a check fails.
    """
    with needs("gateway", "conformance", " for it"):
        from headway.conformance.conformance_run import conformance as check
        from headway.conformance.conformance_run import conformance_report as report
        from headway.gateway.settings import address
    from headway.report.progress import Bar

    if not 2 <= engines <= 16:
        raise HeadwayError(f"--engines: there are 2 to 16, got {engines}.")
    key = read_key(key_env)
    with Bar(None, "checks") as bar:
        checks = check(
            url,
            start,
            listen=address(listen, "--listen"),
            engines=engines,
            model=model,
            metrics=metrics,
            key=key,
            say=say if url is not None and start is None else lambda _: None,
            progress=bar.update,
        )
    return Verdict(checks.summary() if as_json else Page([report(checks)]), 0 if checks.passed else 1)
