"""Verbs that run or load engines, real or emulated: `emulate`, `load`, `twin` and `conformance`."""

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
from headway.cli.page import AsJson, Page, Verdict, say
from headway.errors import HeadwayError
from headway.types import Json

if TYPE_CHECKING:
    from headway.scenario.scenario import Scenario


def emulate(
    scenario: ScenarioFile = None,
    /,
    *,
    replicas: Annotated[int | None, Parameter(help="Number of engines. Default: as many as the scenario has.")] = None,
    listen: Annotated[
        str,
        Parameter(help="Address of the first engine; each further engine uses the next port. Port 0: any free ports."),
    ] = "127.0.0.1:9100",
    speed: Annotated[float, Parameter(help="Simulated seconds per real second; 0.1 is ten times as slow.")] = 1.0,
    model: Annotated[str | None, Parameter(help="Another name under which clients may request the model.")] = None,
    output_tokens: Annotated[int, Parameter(help="Mean answer length in tokens, if the request sets none.")] = 128,
    max_model_len: Annotated[
        int | None, Parameter(help="Maximum length of prompt plus answer, in tokens. Default: what the KV cache holds.")
    ] = None,
    events: Annotated[
        str | None,
        Parameter(
            help="Publish KV events here, such as tcp://127.0.0.1:5557. Each engine uses two ports, one for replays."
        ),
    ] = None,
    tick: Annotated[
        float | None,
        Parameter(help="Refresh metrics only every N seconds, to emulate stale metrics."),
    ] = None,
    changes: Annotated[
        list[str] | None, flag("Set a key of the scenario, such as cluster.gpu=a100; repeat for more.", "--set")
    ] = None,
) -> None:
    """Run emulated engines that answer with simulated timing.

    They speak OpenAI's API until Ctrl-C or SIGTERM.
    """
    from headway.experiment.engines import engine_room

    with needs("gateway", "emulate"):
        from headway.emulator.host import Settings, serve
        from headway.gateway.settings import address
        from headway.http.event_loop import run_loop
        from headway.http.server_log import log_to_stderr
    if not 0 < speed <= 1000:
        raise HeadwayError(f"--speed: must be above 0 and at most 1000, got {speed}.")
    if output_tokens < 1 or (max_model_len is not None and max_model_len < 2):
        raise HeadwayError("--output-tokens must be at least 1, and --max-model-len at least 2.")
    if tick is not None and not 0.001 <= tick <= 3600:
        raise HeadwayError(f"--tick: must be between 0.001 and 3600 seconds, got {tick}.")
    if replicas is not None:
        changes = [*(changes or ()), f"cluster.instances={replicas}"]
    setup, scheduler = engine_room(scenario, changes or ())
    host, port = address(listen, "--listen")
    publisher, events_port = (None, 0) if events is None else _events(events)
    settings = Settings(host, port, speed, model, output_tokens, max_model_len, publisher, events_port, tick)

    def announce(engines: list[dict[str, object]]) -> None:
        for engine in engines:
            kv_events = f", KV events at {engine['events']}" if "events" in engine else ""
            say(f"{engine['name']} at {engine['url']}/v1{kv_events}")
        say(f"emulating {len(engines)} engines at {speed:g} times the speed (stop with Ctrl-C or SIGTERM)")

    with log_to_stderr():
        run_loop(serve(setup, scheduler, settings, announce))


def _events(text: str) -> tuple[str, int]:
    place, _, port = text.rpartition(":")
    if not place.startswith("tcp://") or not port.isdecimal() or int(port) > 65535:
        raise HeadwayError(f"--events: expected an address such as tcp://127.0.0.1:5557, got {text!r}.")
    return place, int(port)


def load(
    url: Annotated[str, Parameter(help="The endpoint, such as http://127.0.0.1:8000, with or without /v1.")],
    scenario: ScenarioFile = None,
    /,
    *,
    trace: Annotated[
        Path | None, Parameter(help="Send the requests of this trace instead of the scenario's requests.")
    ] = None,
    model: Annotated[str | None, Parameter(help="Model to request. Default: the model of the workload.")] = None,
    api: Annotated[
        Literal["completions", "chat"], Parameter(help="API to call: completions or chat completions.")
    ] = "completions",
    truth: Annotated[bool, flag("Send true answer lengths and block contents, which only an emulator reads.")] = False,
    ignore_eos: Annotated[
        bool, Parameter(help="Generate as many tokens as the workload says, even if the model would stop.")
    ] = True,
    key_env: KeyVariable = None,
    speed: Annotated[float, Parameter(help="Workload seconds per real second; 0.25 is four times as slow.")] = 1.0,
    output: RunOutput = None,
    choice: Choice = AS_IT_IS,
    as_json: AsJson = False,
) -> Page | Json:
    """Send a workload to an OpenAI endpoint and measure latency."""
    with needs("gateway", "load"):
        from headway.load.asking import Ask
        from headway.load.driver import load as send
        from headway.load.driver import reach
    from headway.display.progress import Bar
    from headway.report.live_tables import report
    from headway.results import store

    if not 1e-6 <= speed <= 1e6:
        raise HeadwayError(f"--speed: must be between 1e-6 and 1e6, got {speed}.")
    if trace is not None and scenario is not None:
        raise HeadwayError("--trace: cannot be combined with a scenario; both name the requests.")
    key = read_key(key_env)
    if key is not None and not (key.isascii() and key.isprintable()):
        raise HeadwayError(
            f"--key-env: {key_env} has characters that an HTTP header may not have, such as a line break."
        )
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
        Parameter(help="Routing policies, separated by commas. Default: round-robin,least-loaded,weighted,lmetric."),
    ] = None,
    speed: Annotated[
        float | None, Parameter(help="Simulated seconds per real second. Default: the shortest step lasts --step.")
    ] = None,
    step: Annotated[float, Parameter(help="Minimum wall-clock duration of a step, in milliseconds.")] = 20.0,
    output: Annotated[Path | None, output_to("Write both runs of every policy to this folder.")] = None,
    choice: Choice = AS_IT_IS,
    as_json: AsJson = False,
) -> Verdict:
    """Compare a simulation with a live run on emulated engines.

    The exit status is 1 if they disagree.
    """
    with needs("gateway", "twin"):
        from headway.twin.check import twin as run_pairs
        from headway.twin.check import twin_report as report
    from headway.display.progress import Bar

    if speed is not None and not 0 < speed <= 1000:
        raise HeadwayError(f"--speed: must be above 0 and at most 1000, got {speed}.")
    if not 0 < step <= 10_000:
        raise HeadwayError(f"--step: must be above 0 and at most 10000 milliseconds, got {step}.")
    loaded = choice.load(scenario)
    with Bar(None, "requests") as bar:
        twins = run_pairs(loaded, policies, speed=speed, step_ms=step, output=output, progress=bar.update)
    if output is not None:
        say(f"wrote {2 * len(twins.pairs)} runs to {output}")
    return Verdict(twins.summary() if as_json else Page([report(twins)]), 0 if twins.agrees else 1)


def conformance(
    url: Annotated[
        str | None,
        Parameter(help="URL of your router, which routes to the engines at --listen. Default: Headway's gateway."),
    ] = None,
    /,
    *,
    start: Annotated[
        str | None,
        Parameter(help="Command that starts the router; it may contain {engines}, {port} and {metrics_port}."),
    ] = None,
    reload: Annotated[
        str | None,
        Parameter(help="Command that makes the router use other {engines}; it may contain {port} and {pid}."),
    ] = None,
    listen: Annotated[
        str, Parameter(help="Address of the first engine; the others use the next ports. Port 0: any free ports.")
    ] = "127.0.0.1:0",
    engines: Annotated[int, Parameter(help="Number of engines.")] = 3,
    model: Annotated[str | None, Parameter(help="Model to request. Default: the model that the engines serve.")] = None,
    metrics: Annotated[str | None, Parameter(help="URL of the router's Prometheus metrics.")] = None,
    key_env: KeyVariable = None,
    as_json: AsJson = False,
) -> Verdict:
    """Test a router in front of emulated engines.

    The checks cover affinity, streaming, cancellation, failures, overload and reloads. If one fails, the exit status
    is 1.
    """
    with needs("gateway", "conformance"):
        from headway.conformance.conformance_run import conformance as check
        from headway.conformance.conformance_run import conformance_report as report
        from headway.gateway.settings import address
    from headway.display.progress import Bar

    if not 2 <= engines <= 16:
        raise HeadwayError(f"--engines: must be between 2 and 16, got {engines}.")
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
            reload=reload,
            say=say if url is not None and start is None else lambda _: None,
            progress=bar.update,
        )
    return Verdict(checks.summary() if as_json else Page([report(checks)]), 0 if checks.passed else 1)
