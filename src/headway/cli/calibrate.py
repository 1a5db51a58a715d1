"""`headway calibrate`: a hardware profile from measured steps."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from headway.cli.options import output_to
from headway.cli.page import AsJson, Page, say
from headway.errors import HeadwayError
from headway.types import Json

USUAL = "h200"


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
        say(f"no --gpu: the steps are taken for those of an {USUAL}")
    with Bar(None, "rounds of the fit") as bar:
        fit = fit_steps(file, gpu or USUAL, model, output, host or HOST, as_of, progress=bar.update)
    say(f"wrote {output}")
    return fit.summary() if as_json else Page([validation.calibration_report(fit)], example)
