"""Labels in a table's column, broken between words and never inside a name.

A label is a policy with its parameters, such as `weighted(prefix-affinity:3, queue-depth:2)`, or any value that was
varied. It may break before a parenthesis and behind a comma or a space; where a word is still too long, behind the
colon of `file.py:Class` or the sign of `parameter=value`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Generic, TypeVar

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table

USUAL: Final = 28  # characters of a label in a line, while its words are shorter
LONGEST: Final = 40  # characters of a word that is not broken
FIGURES: Final = 15  # columns that labels leave to figures in a narrow terminal
WORDS: Final = re.compile(r"\(?[^\s,(]*,?\s*")
PARTS: Final = re.compile(r"[^:=]*[:=]+|[^:=]+")
C = TypeVar("C")


def wrap(label: str, width: int) -> str:
    """Return the label in lines of at most `width` characters, unless a part of a word is longer."""
    lines = [""]
    for word in words(label):
        for part in [word] if len(word.rstrip()) <= width else PARTS.findall(word):
            if lines[-1] and len(lines[-1] + part.rstrip()) > width:
                lines.append("")
            lines[-1] += part
    return "\n".join(line.rstrip() for line in lines)


def least_width(labels: Iterable[str], room: int) -> int:
    """Return the width at which none of these labels breaks inside a name, within the `room` of the whole table."""
    parts = [part.rstrip() for label in labels for word in words(label) for part in PARTS.findall(word)]
    return max(1, min(max(map(len, parts), default=1), LONGEST, room - FIGURES))


def words(label: str) -> list[str]:
    """Return the pieces between which a label may break; together they are the label."""
    return [word for word in WORDS.findall(label) if word]


class Fitted(Generic[C]):
    """A table whose last figures go in a narrow terminal, rather than that a label breaks inside a name.

    `build` makes the table of some figures, with labels in lines of a width. The figures `kept` stay.
    """

    def __init__(
        self,
        labels: Iterable[str],
        figures: Sequence[C],
        build: Callable[[Sequence[C], int], Table],
        kept: Sequence[C] = (),
    ) -> None:
        self.labels = list(labels)
        self.figures = list(figures)
        self.build = build
        self.kept = kept or self.figures[:1]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide = options.update(max_width=10_000)
        room = options.max_width
        shown, least = list(self.figures), least_width(self.labels, room)
        while True:
            rest = Measurement.get(console, wide, self.build(shown, least)).maximum - least
            more = [place for place, figure in enumerate(shown) if figure not in self.kept]
            if rest + least <= room or not more:
                break
            shown.pop(more[-1])
        yield self.build(shown, max(least, min(USUAL, room - rest)))
