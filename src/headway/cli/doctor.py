"""`headway doctor`: says what is wrong with a gateway's file or with a running gateway."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from headway.cli.options import needs
from headway.cli.page import AsJson, Page, Verdict

if TYPE_CHECKING:
    from rich.console import Group

    from headway.gateway.doctor.problems import Report

FOUND, CANNOT_TELL = 1, 4


def doctor(
    target: Annotated[str, Parameter(help="The gateway's YAML file, or the URL of a running gateway's admin API.")],
    /,
    *,
    key_env: Annotated[
        str, Parameter(help="Environment variable that holds the admin API's key, unless the file names one.")
    ] = "HEADWAY_ADMIN_KEY",
    fail_if: Annotated[
        Literal["error", "warning", "note"], Parameter(help="Least severe problem for which the exit status is 1.")
    ] = "error",
    as_json: AsJson = False,
) -> Verdict:
    """Find problems of a gateway, its file and its engines.

    The exit status is 1 if there are errors, and 4 if nothing could be checked.
    """
    with needs("gateway", "doctor"):
        from headway.gateway.doctor.examine import examine
    report = examine(target, os.environ.get(key_env, "").strip() or None)
    status = CANNOT_TELL if not report.reached else FOUND if report.fails(fail_if) else 0
    return Verdict(report.document() if as_json else Page([doctor_report(report)]), status)


def doctor_report(report: Report) -> Group:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from headway.gateway.doctor.problems import LEVELS

    table = Table.grid(padding=(0, 2))
    for problem in report.sorted():
        what = Text(f"{problem.where}: {problem.what}", style="bold" if problem.level == "error" else "")
        table.add_row(problem.level, Group(what, Text(problem.remedy)))
    counts = {level: sum(problem.level == level for problem in report.problems) for level in LEVELS}
    words = [f"{count} {level}{'' if count == 1 else 's'}" for level, count in counts.items()]
    summary = Text(f"{', '.join(words)}; checked: {', '.join(report.checked) or 'nothing'}")
    return Group(table, "", summary) if report.problems else Group(summary)
