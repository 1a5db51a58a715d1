"""Sentences in which every figure and name has a known source: a template, and the facts that fill it."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from string import Formatter
from typing import Any, Final

from msgspec import Struct

from headway.config.wording import cut
from headway.results.statistics import PS_PER_MS
from headway.types import PS_PER_SECOND

LETTERS_A_TOKEN: Final = 4
FEWEST_TOKENS: Final = 50  # minimum limit on tokens, enough for the outcome of any run
PIECES: Final = re.compile(r"[A-Z]{2,}(?![a-z])|[A-Z]?[a-z]+|[A-Z]|\n| {2,}| (?=[^A-Za-z\s])|[^\sA-Za-z]")
WORDS: Final = re.compile(r"[A-Za-z]+")
# Words that are common in names of policies and in names that users choose. Tokenizers know these words.
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
    """Return an upper bound on the tokens of a text: no common tokenizer counts more.

    Every digit, sign, line break and non-ASCII byte is one token, and so is a space before a digit or sign. A
    lower-case word is one token for every four letters, rounded up. In upper-case words and in the words of `made_up`,
    which tokenizers may not know, every letter is one token.
    """
    return sum(_cost(piece, made_up) for piece in PIECES.findall(text))


def made_up_words(names: Collection[str]) -> frozenset[str]:
    """Return the words of these names that a tokenizer may not know: all words except those in `COMMON`."""
    return frozenset(word.lower() for text in names for word in WORDS.findall(text)) - COMMON


def _cost(piece: str, made_up: Collection[str]) -> int:
    if not piece.isascii():
        return len(piece.encode("utf-8", "replace"))
    if not piece.isalpha():
        return 1
    if piece.isupper() or piece.lower() in made_up:
        return len(piece)
    return -(-len(piece) // LETTERS_A_TOKEN)


LONGEST_NAME: Final = 40  # maximum number of characters that are shown of a name
NO_VALUE: Final = "none"


class Fact(Struct, frozen=True):
    """A figure or a name in a summary: its source, its value in that source, and its printed text."""

    source: str
    value: int | float | str
    text: str


Part = str | Fact
Parts = tuple[Part, ...]


class Line(Struct, frozen=True):
    """One or two sentences. Lines of high weight are dropped first. A line of depth 1 belongs to the line above it. The
    next `bound` lines are kept or dropped together with this one."""

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
    # Returns the title if only `n` entries are kept. The returned title is never longer than `title`.
    titled: Callable[[int], Parts] | None = None


def text_of(parts: Parts) -> str:
    return "".join(part if isinstance(part, str) else part.text for part in parts)


def phrase(template: str, *facts: Fact | Parts, of: Any = None, source: str = "") -> Parts:
    """Fill a template. Each `{}` is replaced by the next fact or phrase. Each `{name:kind}` is replaced by a fact. The
    value of this fact is the entry or attribute `name` of the argument `of`, its format is `kind`, and its source is
    `source.name`."""
    if template.count("{}") != len(facts):
        raise ValueError(f"{template!r} has {template.count('{}')} places for {len(facts)} facts.")
    rest = iter(facts)
    parts: list[Part] = []
    for text, path, kind, _ in Formatter().parse(template):
        if text:
            parts.append(text)
        if path is not None:
            fact = KINDS[kind or ""](f"{source}.{path}", _value_at(of, path)) if path else next(rest)
            parts.extend((fact,) if isinstance(fact, Fact) else fact)
    return tuple(parts)


def _value_at(values: Any, path: str) -> Any:
    for key in path.split("."):
        values = values[key] if isinstance(values, Mapping) else getattr(values, key)
    return values


def join(phrases: Sequence[Fact | Parts], between: str = ", ") -> Parts:
    parts: list[Part] = []
    for part in phrases:
        if parts:
            parts.append(between)
        parts.extend((part,) if isinstance(part, Fact) else part)
    return tuple(parts)


# --- how values are written ------------------------------------------------------------------------------------


def clean(text: str) -> str:
    """Put a text on one line, without Markdown markup characters."""
    return re.sub(r"[\s`*|<>]+", " ", text).strip()


def _digits(value: float) -> str:
    """Write a number of any size. Smaller numbers have more decimals, up to three."""
    size = abs(value)
    decimals = 0 if size >= 100 or value == 0 else 1 if size >= 10 else 2 if size >= 1 else 3
    return f"{value:,.{decimals}f}"


def _fact(write: Callable[[Any], str], source: str, value: Any) -> Fact:
    return Fact(source, value, write(value))


name = partial(_fact, lambda value: cut(clean(value), LONGEST_NAME) or '""')  # builds a `Fact` that holds a name
quote = partial(_fact, lambda value: " ".join(value.split()).rstrip("."))  # builds a `Fact` that holds a sentence
number = partial(_fact, str)  # builds a `Fact` that holds an identifier, such as a request's number
count = partial(_fact, "{:,}".format)
amount = partial(_fact, lambda value: f"{value:,}" if isinstance(value, int) else _digits(value))
percent = partial(_fact, lambda value: f"{100 * value:.1f} %")
ratio = partial(_fact, "{:.3f}".format)
seconds = partial(_fact, lambda value: f"{_digits(value)} s")


def ms(source: str, value: float | None) -> Fact:
    """Return a `Fact` that holds a duration in milliseconds. If the value is None, its text is `none`."""
    return Fact(source, NO_VALUE, NO_VALUE) if value is None else Fact(source, value, f"{_digits(value)} ms")


def ms_of(source: str, ps: int) -> Fact:
    """Return a `Fact` that holds a duration. The argument is in picoseconds, the `Fact` in milliseconds."""
    return ms(source, ps / PS_PER_MS)


def at(source: str, ps: int) -> Fact:
    """Return a `Fact` that holds a simulated time. The argument is in picoseconds, the `Fact` in seconds."""
    return Fact(source, ps / PS_PER_SECOND, f"t={ps / PS_PER_SECOND:.3f} s")


KINDS: Final[dict[str, Callable[[str, Any], Fact]]] = {
    "name": name, "quote": quote, "number": number, "count": count, "amount": amount, "percent": percent,
    "ratio": ratio, "seconds": seconds, "ms": ms, "ms_of": ms_of, "at": at,
}  # fmt: skip
