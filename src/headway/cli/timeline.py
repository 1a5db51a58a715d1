"""`headway timeline`: a run for a trace viewer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from headway.cli.page import AsJson, Page, say
from headway.types import Json


def timeline(
    run: Annotated[Path, Parameter(help="A run folder, as `headway run -o` writes it.")],
    /,
    *,
    output: Annotated[
        Path | None,
        Parameter(name=("--output", "-o"), help="The file to write; timeline.json in the run's folder if left out."),
    ] = None,
    as_json: AsJson = False,
) -> Page | Json:
    """Write a run as a timeline that Perfetto (ui.perfetto.dev) and Chrome (chrome://tracing) open."""
    from headway.results.result import Result
    from headway.results.timeline import write

    file = run / "timeline.json" if output is None else output
    write(Result.load(run), file)
    say(f"wrote {file}")
    return {"timeline": str(file)} if as_json else Page([f"Drop {file} onto ui.perfetto.dev, or open it there."])
