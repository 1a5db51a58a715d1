"""The output that a verb returns, and how it is printed."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec
from cyclopts import Parameter

from headway.display.displayed import encodable, printable
from headway.errors import HeadwayError
from headway.types import Json

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

AsJson = Annotated[bool, Parameter(name="--json", negative="", help="Print one JSON document instead of a table.")]


class Page(NamedTuple):
    """Output for people: parts that are fitted to the terminal's width, then a line for the user to copy, which is
    never wrapped."""

    parts: Sequence[RenderableType]
    line: str | None = None


class Verdict(NamedTuple):
    """Output with an exit status."""

    page: Page | Json
    status: int


def text_of(page: Page | Json, console: Console) -> str:
    if not isinstance(page, Page):
        from headway.results.store import clean

        document = clean(page)
        text = msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
        return (text if encodable(text) else json.dumps(document, indent=2)) + "\n"
    with console.capture() as captured:
        for part in page.parts:
            console.print(part, soft_wrap=bool(getattr(part, "no_wrap", False)))  # source code does not wrap
    text = captured.get()
    # Rich pads tables to their width with spaces. Remove these spaces if the output is a file.
    text = text if console.is_terminal else "".join(f"{row.rstrip()}\n" for row in text.splitlines())
    if page.line is not None:
        text += f"{page.line}\n"
    return printable(text)


def say(*messages: str | None) -> None:
    """Print messages to stderr. Skip messages that are None."""
    for message in messages:
        if message is not None and sys.stderr is not None:
            with contextlib.suppress(OSError):  # stderr may be closed; the exit status still reports the error
                print(f"headway: {message}", file=sys.stderr)


def confirm(question: str, instead: str) -> bool:
    """Ask a yes-or-no question, and return whether the user agrees. The question goes to stderr, because stdout is for
    the result. If stdin is not a terminal, raise an error that tells the user to pass the options in `instead`."""
    if not sys.stdin.isatty():
        raise HeadwayError(f"not a terminal: pass {instead}.")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
