"""Verbs on policies and hardware profiles: `policies`, `policy check`, `hardware` and `calibrate`."""

import shlex
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from headway.cli.options import output_to
from headway.cli.page import AsJson, Page, Verdict, say
from headway.errors import HeadwayError
from headway.types import Json

USUAL_GPU = "h200"
Stage = Literal["admission", "priority", "estimator", "routing", "decider", "scheduler", "scaling"]


def policies(name: str | None = None, /, *, as_json: AsJson = False) -> Page | Json:
    """List the policies, or describe one.

    Parameters
    ----------
    name:
        Name of a policy, to print its rule, parameters and signals.
    """
    from headway.report import catalogue

    entries = catalogue.find(name)
    if as_json:
        return {"policies": [catalogue.document(entry) for entry in entries]}
    return Page([catalogue.listing(entries)] if name is None else [catalogue.page(entry) for entry in entries])


policy = App(name="policy", help="Check a policy file.", help_format="plaintext")


@policy.command
def check(
    file: Annotated[
        Path, Parameter(help="A source in the policy language, a bundle (.yaml), or a Python policy (my.py:MyPolicy).")
    ],
    /,
    *,
    stage: Annotated[Stage | None, Parameter(help="Stage of the source. Default: detected from its function.")] = None,
    as_json: AsJson = False,
) -> Page | Json | Verdict:
    """Check a policy file: print its signals, parameters and complexity, or every error."""
    from headway.experiment.check_policy import check_policy
    from headway.report.catalogue import policy_file_page as page

    document = check_policy(file, stage)
    if document["ok"]:
        return document if as_json else Page([page(document)])
    texts = "\n".join(rejection["text"] for rejection in document["rejections"])
    return Verdict(document if as_json else Page([], texts), 2)


hardware = App(name="hardware", help="List and show hardware profiles.", help_format="plaintext")


@hardware.command(name="list")
def list_profiles(*, as_json: AsJson = False) -> Page | Json:
    """List every profile: source, fit error and valid range."""
    from headway.experiment.hardware import hardware as describe
    from headway.report.hardware import listing

    document = describe()
    return document if as_json else Page([listing(document)])


@hardware.command
def show(
    name: Annotated[str, Parameter(help="Name of a GPU, or a profile file (.yaml).")],
    /,
    *,
    model: Annotated[str, Parameter(help="Model for the example steps: a name or a config.json.")] = "llama-3.1-8b",
    tp: Annotated[int, Parameter(help="Number of GPUs per instance (tensor parallelism).")] = 1,
    as_json: AsJson = False,
) -> Page | Json:
    """Show a profile: source, measurements, error, valid range, constants and example steps."""
    from headway.experiment.hardware import hardware as describe
    from headway.report.hardware import page

    document = describe(name, model, tp)
    return document if as_json else Page([page(document)])


def calibrate(
    file: Annotated[
        Path, Parameter(help="CSV of measured steps, or with --scenario a recorded run; see docs/hardware.md.")
    ],
    /,
    *,
    output: Annotated[Path, output_to("Write the profile to this .yaml file.")],
    scenario: Annotated[
        str | None, Parameter(help="Scenario that simulates the recorded run; FILE then has one row per request.")
    ] = None,
    gpu: Annotated[str | None, Parameter(help="The measured GPU. Default: h200.")] = None,
    model: Annotated[
        str | None, Parameter(help="The measured model: a name or a config.json. Default: the file's model column.")
    ] = None,
    host: Annotated[
        str | None, Parameter(help="Host time to add to each measured step. Default: 500us, assumed.")
    ] = None,
    as_of: Annotated[str | None, Parameter(help="Date of the measurement, for the profile.")] = None,
    as_json: AsJson = False,
) -> Page | Json:
    """Fit a hardware profile to measurements.

    The measurements are step times, or with --scenario a recorded run. Prints the held-out error.
    """
    from headway.display.progress import Bar
    from headway.experiment.calibrate import calibrate as fit_steps
    from headway.experiment.engine_fit import calibrate_run
    from headway.report import validation

    example = shlex.join(["headway", "hardware", "show", str(output)])
    if scenario is not None:
        for option, value in {"--gpu": gpu, "--model": model, "--host": host}.items():
            if value is not None:
                raise HeadwayError(f"{option}: cannot be combined with --scenario. The scenario sets this value.")
        with Bar(None, "runs") as bar:
            run_fit = calibrate_run(file, scenario, output, as_of, progress=bar.update)
        say(f"wrote {output}")
        return run_fit.summary() if as_json else Page([validation.of_run(run_fit)], example)
    if gpu is None:
        say(f"no --gpu: assuming an {USUAL_GPU}")
    with Bar(None, "rounds of the fit") as bar:
        fit = fit_steps(file, gpu or USUAL_GPU, model, output, host, as_of, progress=bar.update)
    say(f"wrote {output}")
    return fit.summary() if as_json else Page([validation.calibration_report(fit)], example)
