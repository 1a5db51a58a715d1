"""The verbs of the command line; each calls a function of the public API and prints what it gives."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, CycloptsError, Parameter

from headway import __version__
from headway.cli.agent import agent
from headway.cli.calibrate import calibrate
from headway.cli.choice import AS_IT_IS, Choice, ScenarioFile
from headway.cli.conformance import conformance
from headway.cli.deploy import deploy
from headway.cli.emulate import emulate
from headway.cli.epp import epp
from headway.cli.evolve import evolve
from headway.cli.explain import explain
from headway.cli.fleet import fleet
from headway.cli.hardware import hardware
from headway.cli.interop import export, import_
from headway.cli.key import key
from headway.cli.kvd import kvd
from headway.cli.load import load
from headway.cli.page import AsJson, Page, Verdict, say, text_of
from headway.cli.plan import plan
from headway.cli.policy import policy
from headway.cli.replay import replay
from headway.cli.report import report
from headway.cli.run import Trace, run
from headway.cli.serve import serve
from headway.cli.summarize import summarize
from headway.cli.sweep import sweep
from headway.cli.timeline import timeline
from headway.cli.trace import trace
from headway.cli.twin import twin
from headway.cli.validate import validate
from headway.cli.where import RayCluster, Workers
from headway.types import HeadwayError, InvariantError, Json

app = App(
    name="headway",
    version=__version__,
    help="A laboratory for LLM-inference routing: simulate a serving cluster exactly, compare its routing policies.",
    help_format="plaintext",
    suppress_keyboard_interrupt=False,
)
app.command(trace)
app.command(run)
app.command(plan)
app.command(policy)
app.command(explain)
app.command(report)
app.command(sweep)
app.command(evolve)
app.command(summarize)
app.command(timeline)
app.command(hardware)
app.command(calibrate)
app.command(validate)
app.command(serve)
app.command(deploy)
app.command(epp)
app.command(export)
app.command(import_)
app.command(emulate)
app.command(load)
app.command(twin)
app.command(conformance)
app.command(kvd)
app.command(agent)
app.command(fleet)
app.command(replay)
app.command(key)
workload = App(name="workload", help="Look at the workload of a scenario.", help_format="plaintext")
app.command(workload)


@app.command
def compare(
    scenario: ScenarioFile = None,
    /,
    *,
    policies: Annotated[
        str | None,
        Parameter(help="Policies, separated by commas: names, mappings as {name: weighted, scorers: {...}}, bundles."),
    ] = None,
    stage: Annotated[
        str, Parameter(help="Whose policies are compared: admission, priority, flow, routing, scheduler or scaling.")
    ] = "routing",
    by: Annotated[
        str | None, Parameter(help="Rank by this figure of the JSON document, as in latency.ttft.p99.")
    ] = None,
    per: Annotated[
        Literal["tenant", "class"] | None, Parameter(help="Print the figures of each tenant or SLO class as well.")
    ] = None,
    seeds: Annotated[int, Parameter(help="Run every policy under so many seeds, and tell what is within noise.")] = 1,
    baseline: Annotated[
        str | None, Parameter(help="The policy that the others are measured against; the plain one if left out.")
    ] = None,
    workers: Workers = None,
    ray: RayCluster = None,
    output: Annotated[
        Path | None, Parameter(name=("--output", "-o"), help="Write every policy's run to this folder.")
    ] = None,
    trace: Annotated[Trace, Parameter(help="What is written of these runs beside the requests.")] = "minimal",
    choice: Choice = AS_IT_IS,
    as_json: AsJson = False,
) -> Page | Json:
    """Simulate a scenario under every policy of a stage, on all cores, and print them best first."""
    from headway.experiment.compare import compare as compare_policies
    from headway.experiment.contenders import contenders
    from headway.experiment.notes import lost_prefixes, unmeasured, unscaled, unstruck
    from headway.report import terminal
    from headway.report.progress import CompareProgress

    given = choice.routing()
    if policies is not None and given and stage == "routing":
        raise HeadwayError(
            f"--policies: says what is compared, and so does {next(iter(given))}; leave one of them out."
        )
    loaded = choice.load(scenario)
    with CompareProgress(seeds) as progress:
        comparison = compare_policies(
            loaded,
            policies,
            stage=stage,
            by=by,
            seeds=seeds,
            baseline=baseline,
            workers=workers,
            ray=ray,
            output=output,
            trace=trace,
            progress=progress,
        )
    if output is not None:
        say(f"wrote {len(comparison.ranked):,} runs and study.json to {output}")
    beside = [unscaled(loaded, stage == "scaling"), unstruck(loaded, (summary for _, summary in comparison.ranked))]
    beside.append(unmeasured(loaded))
    if stage == "routing":
        beside.append(lost_prefixes(loaded.cluster, {one.name: one.spec for one in contenders(loaded, policies)}))
    for said in beside:
        if said is not None:
            say(said)
    return comparison.summary(per) if as_json else Page([terminal.comparison_report(comparison, per)])


@app.command
def controls(
    scenario: ScenarioFile = None,
    /,
    *,
    choice: Choice = AS_IT_IS,
    as_json: AsJson = False,
) -> Page | Json:
    """Run the five B3 controls (lmetric, load-only, sticky, unified, capped) and print what each isolates."""
    from headway.experiment.controls import controls as run_controls
    from headway.experiment.notes import unmeasured
    from headway.report.controls import report
    from headway.report.progress import CompareProgress

    given = next(iter(choice.routing()), None)
    if given is not None:
        raise HeadwayError(f"{given}: the controls bring their own routing policies; leave it out.")
    loaded = choice.load(scenario)
    with CompareProgress() as progress:
        found = run_controls(loaded, progress=progress)
    if (said := unmeasured(loaded)) is not None:
        say(said)
    return found.summary() if as_json else Page([report(found)])


@app.command
def policies(name: str | None = None, /, *, as_json: AsJson = False) -> Page | Json:
    """List the policies, or show one with its parameters and the signals it reads.

    Parameters
    ----------
    name:
        A policy's name, of whatever stage.
    """
    from headway.report import catalogue

    found = catalogue.find(name)
    if as_json:
        return {"policies": [catalogue.document(entry) for entry in found]}
    return Page([catalogue.listing(found)] if name is None else [catalogue.page(entry) for entry in found])


@workload.command
def preview(
    scenario: ScenarioFile = None,
    /,
    *,
    requests: Annotated[int, Parameter(help="How many requests to look at, from the first on.")] = 10_000,
    html: Annotated[Path | None, Parameter(help="Write a page for a browser to this file.")] = None,
    choice: Choice = AS_IT_IS,
    as_json: AsJson = False,
) -> Page | Json:
    """Print a workload's rate over time, lengths, sessions and prefix sharing before anything is simulated."""
    from headway.experiment.look import preview as look
    from headway.report import preview as shown
    from headway.report.html import write
    from headway.report.progress import Bar

    if requests < 1:
        raise HeadwayError(f"--requests: look at one request at least, got {requests}.")
    loaded = choice.load(scenario)
    with Bar(None, "drawing requests"):
        found = look(loaded, requests=requests)
    if html is not None:
        write(html, shown.page(found))
        say(f"wrote {html}")
    return found if as_json else Page([shown.report(found)])


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and leave with its exit status: 0 good, 2 wrong usage or input, 3 one of our invariants broke."""
    sys.exit(status(list(sys.argv[1:] if arguments is None else arguments)))


def status(arguments: list[str]) -> int:
    if sys.stdout is None:
        return _complain("stdout: is closed; there is nowhere to print to.", 2)
    width = os.environ.get("COLUMNS", "")
    if width.isdecimal() and not width.strip("0"):
        del os.environ["COLUMNS"]  # some programs say 0 for a width they do not know
    for output in (sys.stdout, sys.stderr):
        if isinstance(output, io.TextIOWrapper):
            output.reconfigure(errors="replace")  # a terminal that cannot show a sign is no reason to fail
    try:
        return _answer(arguments or ["--help"])
    except HeadwayError as error:
        return _complain(str(error), 2)
    except CycloptsError as error:
        return _complain(" ".join(str(error).split()) + " (headway --help tells more.)", 2)
    except InvariantError as error:
        return _complain(f"an invariant of the simulator broke, please report it: {error}", 3)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _drop_stdout()  # the reader has had enough
        return 0
    except OSError as error:
        why = error.strerror or error
        if error.filename is not None:
            return _complain(f"{error.filename}: cannot be read or written ({why}).", 2)
        _drop_stdout()  # what has no name is stdout: on a full disk, for one
        return _complain(f"stdout: cannot be written ({why}).", 2)
    except Exception as error:
        traceback.print_exc()
        return _complain(f"this is a mistake of ours, please report it: {type(error).__name__}: {error}", 3)


def _answer(arguments: list[str]) -> int:
    """Run a verb, print what it gives, and give its exit status. Standard output is for that alone: what anybody else
    prints meanwhile, such as a policy of the user's own, goes to standard error."""
    from rich.console import Console

    console = Console(highlight=False, file=sys.stdout)
    with contextlib.redirect_stdout(sys.stderr):
        shown = app(arguments, console=console, exit_on_error=False, print_error=False, result_action="return_value")
    code = shown.status if isinstance(shown, Verdict) else 0
    shown = shown.shown if isinstance(shown, Verdict) else shown
    if shown is not None:  # the help prints itself
        sys.stdout.write(text_of(shown, console))
    sys.stdout.flush()
    return code


def _drop_stdout() -> None:
    """Hand the interpreter a stdout that it can flush on its way out."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(message: str, code: int) -> int:
    say(message)
    return code
