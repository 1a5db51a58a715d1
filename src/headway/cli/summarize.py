"""`headway summarize`: a run in words."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from headway.cli.page import AsJson, Page
from headway.types import Json


def summarize(
    run: Annotated[Path, Parameter(help="A run folder, as `headway run -o` writes it.")],
    /,
    *,
    max_tokens: Annotated[int, Parameter(help="How long the text may be to a language model, 50 at least.")] = 1500,
    focus: Annotated[
        list[str] | None,
        Parameter(negative="", help="Only issues of this area, such as routing, admission or cache; repeat for more."),
    ] = None,
    examples: Annotated[int, Parameter(help="How many of the worst decisions to show.")] = 3,
    counters: Annotated[bool, Parameter(help="Say what other decisions would have given.")] = True,
    strategy: Annotated[
        Literal["issue-focused", "decision-audit", "counterfactual", "pattern-mining"],
        Parameter(help="What comes first: problems, a sample of decisions, better choices, or conditions of failure."),
    ] = "issue-focused",
    as_json: AsJson = False,
) -> Page | Json:
    """Tell in words what came of a run, what went wrong and what to try, for people and for language models."""
    from headway.results.result import Result
    from headway.results.words import compose

    summary = compose(
        Result.load(run),
        max_tokens=max_tokens,
        focus=focus or (),
        examples=examples,
        counters=counters,
        strategy=strategy,
    )
    # Not for the console to lay out: it is Markdown, and a program may read it.
    return summary.document() if as_json else Page([], summary.text.rstrip("\n"))
