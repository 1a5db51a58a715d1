"""`headway calibrate`: a hardware profile from measured steps."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from headway.cli.page import AsJson, Page, say
from headway.types import Json

USUAL = "h200"


def calibrate(
    file: Annotated[Path, Parameter(help="A CSV of measured steps; docs/hardware.md has its columns.")],
    /,
    *,
    output: Annotated[
        Path, Parameter(name=("--output", "-o"), help="Write the profile to this file, which ends in .yaml.")
    ],
    gpu: Annotated[str | None, Parameter(help="The card that was measured; an h200 if left out.")] = None,
    model: Annotated[
        str | None, Parameter(help="Whose steps they are: a model's name or its config.json; a column says it if not.")
    ] = None,
    host: Annotated[str, Parameter(help="A step's time beside the GPU's, which steps do not tell.")] = "500us",
    as_of: Annotated[str | None, Parameter(help="When it was measured, as the profile is to say.")] = None,
    as_json: AsJson = False,
) -> Page | Json:
    """Fit a hardware profile to measured step times, and print its error by phase on steps that were held out."""
    from headway.experiment.calibrate import calibrate as fit
    from headway.report.calibration import report
    from headway.report.progress import Bar

    if gpu is None:
        say(f"no --gpu: the steps are taken for those of an {USUAL}")
    with Bar(None, "rounds of the fit") as bar:
        found = fit(file, gpu or USUAL, model, output, host, as_of, progress=bar.update)
    say(f"wrote {output}")
    example = shlex.join(["headway", "hardware", "show", str(output)])
    return found.summary() if as_json else Page([report(found)], example)
