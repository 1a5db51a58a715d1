"""`headway load`: a workload, sent to any endpoint."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from headway.cli.choice import AS_IT_IS, Choice, ScenarioFile
from headway.cli.page import AsJson, Page, say
from headway.errors import HeadwayError
from headway.types import Json

if TYPE_CHECKING:
    from headway.scenario.scenario import Scenario


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
    truth: Annotated[
        bool, Parameter(negative="", help="Tell an emulator the lengths and the content that the workload has.")
    ] = False,
    ignore_eos: Annotated[
        bool, Parameter(help="Ask engines for as many tokens as the workload has, whatever the model says.")
    ] = True,
    key_env: Annotated[str | None, Parameter(help="An environment variable with the bearer to send.")] = None,
    speed: Annotated[float, Parameter(help="The workload's seconds a second: 0.25 sends four times as slowly.")] = 1.0,
    output: Annotated[
        Path | None, Parameter(name=("--output", "-o"), help="Write the run's files to this folder.")
    ] = None,
    choice: Choice = AS_IT_IS,
    as_json: AsJson = False,
) -> Page | Json:
    """Send a workload to an OpenAI endpoint, each request at its time, and print what its clients saw."""
    try:
        from headway.load.asking import Ask
        from headway.load.open_loop import load as send
        from headway.load.open_loop import reach
    except ImportError as error:
        raise HeadwayError(f"load: {error.name} is not installed; install headway[gateway] for it.") from None
    from headway.report.live_tables import report
    from headway.report.progress import Bar
    from headway.results import store

    if not 1e-6 <= speed <= 1e6:
        raise HeadwayError(f"--speed: is from 1e-6 to 1e6, got {speed}.")
    if trace is not None and scenario is not None:
        raise HeadwayError("--trace: brings the requests, and so does the scenario; leave one of them out.")
    if key_env is not None and not os.environ.get(key_env):
        raise HeadwayError(f"--key-env: the environment variable {key_env} is not set.")
    if key_env is not None and not (os.environ[key_env].isascii() and os.environ[key_env].isprintable()):
        raise HeadwayError(f"--key-env: {key_env} has signs that no header may have; a line's end, perhaps.")
    if output is not None:
        store.check(output)
    loaded = choice.load(scenario) if trace is None else _of_trace(trace, choice)
    ask = Ask(url, model, api, truth, ignore_eos, None if key_env is None else os.environ[key_env])
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
