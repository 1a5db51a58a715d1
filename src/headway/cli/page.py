"""What a verb gives to be printed, and how it is printed."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec
from cyclopts import Parameter

from headway.types import Json

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

# For terminals without Unicode.
SIGNS = {"▸": ">", "×": "x", "–": "-", "·": "|", "≤": "<=", "±": "+-", "✓": "+", "✗": "x"}
PLAIN = str.maketrans({**SIGNS, **dict.fromkeys("▏▎▍▌▋▊▉█▁▂▃▄▅▆▇", "#")})

AsJson = Annotated[bool, Parameter(name="--json", negative="", help="Print one JSON document instead of a table.")]


class Page(NamedTuple):
    """What a verb shows to people: parts laid out for the terminal's width, then a line to copy, never broken."""

    parts: Sequence[RenderableType]
    line: str | None = None


class Verdict(NamedTuple):
    """What a verb shows, and the exit status that goes with it."""

    shown: Page | Json
    status: int


def text_of(shown: Page | Json, console: Console) -> str:
    if not isinstance(shown, Page):
        from headway.results.store import clean

        document = clean(shown)
        text = msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
        return (text if _prints(text) else json.dumps(document, indent=2)) + "\n"
    with console.capture() as captured:
        for part in shown.parts:
            console.print(part, soft_wrap=bool(getattr(part, "no_wrap", False)))  # source stays as it is
    text = captured.get()
    # Tables are padded to their width, which nobody wants in a file.
    text = text if console.is_terminal else "".join(f"{row.rstrip()}\n" for row in text.splitlines())
    if shown.line is not None:
        text += f"{shown.line}\n"
    return text if _prints(text) else text.translate(PLAIN)


def _prints(text: str) -> bool:
    """Whether stdout can show it."""
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def say(message: str) -> None:
    if sys.stderr is not None:
        with contextlib.suppress(OSError):  # the exit status still tells
            print(f"headway: {message}", file=sys.stderr)
