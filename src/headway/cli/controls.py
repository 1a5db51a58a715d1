"""`headway controls`: the five B3 controls on one scenario."""

from __future__ import annotations

from headway.cli.choice import AS_IT_IS, Choice, ScenarioFile
from headway.cli.page import AsJson, Page, say
from headway.errors import HeadwayError
from headway.types import Json


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
