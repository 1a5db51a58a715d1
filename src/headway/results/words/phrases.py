"""Sentences whose every figure and name is known to come from somewhere: a template, and the facts in its places."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final

from msgspec import Struct

from headway.config.wording import cut
from headway.results.statistics import PS_PER_MS
from headway.types import PS_PER_SECOND

LETTERS_A_TOKEN: Final = 4
FEWEST_TOKENS: Final = 50  # in which the outcome of a run can be told
PIECES: Final = re.compile(r"[A-Z]{2,}(?![a-z])|[A-Z]?[a-z]+|[A-Z]|\n| {2,}| (?=[^A-Za-z\s])|[^\sA-Za-z]")
WORDS: Final = re.compile(r"[A-Za-z]+")
# Words in names of ours and of many users, which tokenizers know.
COMMON: Final = frozenset(
    re.findall(
        r"\w+",
        """
        agent agentic api background batch chat class cluster code coder completion data decode default
        editor free gold group high index instance interactive internal large low main model offline
        online pool prefill prefix premium queue random realtime reasoning replica scenario search
        server session shared silver small standard tenant test user users
        """,
    )
)


def tokens(text: str, made_up: Collection[str] = ()) -> int:
    """How many tokens a text is to a language model, guessed so that no common tokenizer makes more of it.

    Every digit, sign and line break counts as one token, a byte of anything beyond ASCII too, and so does a space
    before a digit or such a sign, which tokenizers do not join to it. A word in small letters counts as one for every
    four letters, begun; of a word in capitals every letter counts, and so does every letter of a word of `made_up`,
    which has words in small letters that no tokenizer need know.
    """
    return sum(_cost(piece, made_up) for piece in PIECES.findall(text))


def made_up_words(names: Collection[str]) -> frozenset[str]:
    """The words of names that are not everybody's."""
    return frozenset(word.lower() for name in names for word in WORDS.findall(name)) - COMMON


def _cost(piece: str, made_up: Collection[str]) -> int:
    if not piece.isascii():
        return len(piece.encode("utf-8", "replace"))
    if not piece.isalpha():
        return 1
    if piece.isupper() or piece.lower() in made_up:
        return len(piece)
    return -(-len(piece) // LETTERS_A_TOKEN)


LONGEST_NAME: Final = 40  # characters of a name
NO_VALUE: Final = "none"


class Fact(Struct, frozen=True):
    """A figure or a name in a summary: where it comes from, its value there, and how it is written."""

    source: str
    value: int | float | str
    text: str


Part = str | Fact
Parts = tuple[Part, ...]


class Line(Struct, frozen=True):
    """One sentence or two. The lower its weight the longer it stays; a line of depth 1 goes with that above it, and
    stands or falls with it where it is one of the `bound` next."""

    parts: Parts
    weight: int
    depth: int = 0
    bound: int = 0

    @property
    def text(self) -> str:
        return text_of(self.parts)


class Section(Struct):
    title: Parts
    lines: list[Line]
    numbered: bool = False
    titled: Callable[[int], Parts] | None = None  # the title for so many entries, no longer than that for all


def text_of(parts: Parts) -> str:
    return "".join(part if isinstance(part, str) else part.text for part in parts)


def said(template: str, *given: Fact | Parts) -> Parts:
    """The template with a fact, or a phrase of some, in the place of each {}."""
    texts = template.split("{}")
    if len(texts) != len(given) + 1:
        raise ValueError(f"{template!r} has {len(texts) - 1} places for {len(given)} facts.")
    found: list[Part] = [texts[0]]
    for fact, text in zip(given, texts[1:], strict=True):
        found.extend((fact,) if isinstance(fact, Fact) else fact)
        found.append(text)
    return tuple(part for part in found if part != "")


def joined(phrases: Sequence[Fact | Parts], between: str = ", ") -> Parts:
    found: list[Part] = []
    for phrase in phrases:
        if found:
            found.append(between)
        found.extend((phrase,) if isinstance(phrase, Fact) else phrase)
    return tuple(found)


def facts_of(parts: Parts) -> Iterator[Fact]:
    return (part for part in parts if isinstance(part, Fact))


# --- how values are written ------------------------------------------------------------------------------------


def name(source: str, value: str) -> Fact:
    """A name of the user's own."""
    return Fact(source, value, cut(clean(value), LONGEST_NAME) or '""')


def clean(text: str) -> str:
    """On one line, and without the signs that Markdown would take for its own."""
    return re.sub(r"[\s`*|<>]+", " ", text).strip()


def quoted(source: str, value: str) -> Fact:
    """A sentence of somebody else's, without its full stop."""
    return Fact(source, value, " ".join(value.split()).rstrip("."))


def number(source: str, value: int) -> Fact:
    """A number that names something, as that of a request."""
    return Fact(source, value, str(value))


def count(source: str, value: int) -> Fact:
    return Fact(source, value, f"{value:,}")


def amount(source: str, value: float) -> Fact:
    """A number of whatever size, with as many digits as say something."""
    return Fact(source, value, f"{value:,}" if isinstance(value, int) else _written(value))


def percent(source: str, value: float) -> Fact:
    return Fact(source, value, f"{100 * value:.1f} %")


def ratio(source: str, value: float) -> Fact:
    return Fact(source, value, f"{value:.3f}")


def ms(source: str, value: float | None) -> Fact:
    """Milliseconds, as a summary has them."""
    return Fact(source, NO_VALUE, NO_VALUE) if value is None else Fact(source, value, f"{_written(value)} ms")


def ms_of(source: str, ps: int) -> Fact:
    """A duration in picoseconds, written in milliseconds."""
    return ms(source, ps / PS_PER_MS)


def at(source: str, ps: int) -> Fact:
    """An instant, in seconds since the clock began."""
    return Fact(source, ps / PS_PER_SECOND, f"t={ps / PS_PER_SECOND:.3f} s")


def seconds(source: str, value: float) -> Fact:
    return Fact(source, value, f"{_written(value)} s")


def _written(value: float) -> str:
    size = abs(value)
    decimals = 0 if size >= 100 or value == 0 else 1 if size >= 10 else 2 if size >= 1 else 3
    return f"{value:,.{decimals}f}"
