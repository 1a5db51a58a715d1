"""Verbs on policies and hardware profiles: what there is to choose from, a policy file checked without running it, and
a profile fitted to measurements (`headway calibrate`)."""

import shlex
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from headway.cli.options import output_to
from headway.cli.page import AsJson, Page, Verdict, say
from headway.errors import HeadwayError
from headway.types import Json

USUAL_GPU = "h200"
Stage = Literal["admission", "priority", "routing", "scheduler", "scaling"]


def policies(name: str | None = None, /, *, as_json: AsJson = False) -> Page | Json:
    """List the policies, or show one with its parameters and the signals it reads.

    Parameters
    ----------
    name:
        A policy's name, of whatever stage.
    """
    from headway.report import catalogue

    entries = catalogue.find(name)
    if as_json:
        return {"policies": [catalogue.document(entry) for entry in entries]}
    return Page([catalogue.listing(entries)] if name is None else [catalogue.page(entry) for entry in entries])


policy = App(name="policy", help="Look at policies in files of your own.", help_format="plaintext")


@policy.command
def check(
    file: Annotated[Path, Parameter(help="A source in the policy language, or a bundle (.yaml).")],
    /,
    *,
    stage: Annotated[
        Stage | None, Parameter(help="What the source is for; found from its function if left out.")
    ] = None,
    as_json: AsJson = False,
) -> Page | Json | Verdict:
    """Check a policy: print what it reads, its parameters and complexity, or each thing that is refused and why."""
    from headway.experiment.check_policy import check_policy
    from headway.report.catalogue import policy_file_page as page

    document = check_policy(file, stage)
    if document["ok"]:
        return document if as_json else Page([page(document)])
    texts = "\n".join(rejection["text"] for rejection in document["rejections"])
    return Verdict(document if as_json else Page([], texts), 2)


hardware = App(name="hardware", help="Look at hardware profiles: the constants of step times.", help_format="plaintext")


@hardware.command(name="list")
def list_profiles(*, as_json: AsJson = False) -> Page | Json:
    """List every profile: measured or of a spec sheet, its fit error and the range that it holds for."""
    from headway.experiment.hardware import hardware as describe
    from headway.report.hardware import listing

    document = describe()
    return document if as_json else Page([listing(document)])


@hardware.command
def show(
    name: Annotated[str, Parameter(help="A GPU's name, or the file of a profile (.yaml).")],
    /,
    *,
    model: Annotated[str, Parameter(help="Whose steps are shown: a model's name or its config.json.")] = "llama-3.1-8b",
    tp: Annotated[int, Parameter(help="How many GPUs it is split over.")] = 1,
    as_json: AsJson = False,
) -> Page | Json:
    """Show a profile: where it is from, what was measured, its error and range, its constants, example steps."""
    from headway.experiment.hardware import hardware as describe
    from headway.report.hardware import page

    document = describe(name, model, tp)
    return document if as_json else Page([page(document)])


def calibrate(
    file: Annotated[
        Path, Parameter(help="A CSV of measured steps, or with --scenario an engine's run; see docs/hardware.md.")
    ],
    /,
    *,
    output: Annotated[Path, output_to("Write the profile to this file, which ends in .yaml.")],
    scenario: Annotated[
        str | None, Parameter(help="What simulates the engine's run; the file is then that run, request by request.")
    ] = None,
    gpu: Annotated[str | None, Parameter(help="The card that was measured; an h200 if left out.")] = None,
    model: Annotated[
        str | None, Parameter(help="Whose steps they are: a model's name or its config.json; a column says it if not.")
    ] = None,
    host: Annotated[
        str | None, Parameter(help="A step's time beside the GPU's, which steps do not tell; 500us if left out.")
    ] = None,
    as_of: Annotated[str | None, Parameter(help="When it was measured, as the profile is to say.")] = None,
    as_json: AsJson = False,
) -> Page | Json:
    """Fit a hardware profile to measured step times, or match one with an engine's run; print its held-out error."""
    from headway.experiment.calibrate import HOST
    from headway.experiment.calibrate import calibrate as fit_steps
    from headway.experiment.engine_fit import calibrate_run
    from headway.report import validation
    from headway.report.progress import Bar

    example = shlex.join(["headway", "hardware", "show", str(output)])
    if scenario is not None:
        for option, value in {"--gpu": gpu, "--model": model, "--host": host}.items():
            if value is not None:
                raise HeadwayError(f"{option}: the scenario says it; leave it out with --scenario.")
        with Bar(None, "runs") as bar:
            run_fit = calibrate_run(file, scenario, output, as_of, progress=bar.update)
        say(f"wrote {output}")
        return run_fit.summary() if as_json else Page([validation.of_run(run_fit)], example)
    if gpu is None:
        say(f"no --gpu: the steps are taken for those of an {USUAL_GPU}")
    with Bar(None, "rounds of the fit") as bar:
        fit = fit_steps(file, gpu or USUAL_GPU, model, output, host or HOST, as_of, progress=bar.update)
    say(f"wrote {output}")
    return fit.summary() if as_json else Page([validation.calibration_report(fit)], example)
