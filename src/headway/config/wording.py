"""Words for errors: what was expected, what is known, what may have been meant, and what was given, cut to fit."""

import difflib
from collections.abc import Iterable, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from msgspec import Meta

from headway.errors import HeadwayError

WORDS: Final = {int: "a whole number", float: "a number", bool: "true or false", str: "text", dict: "a mapping"}
PLURALS: Final = {int: "whole numbers", float: "numbers", str: "texts"}
LONGEST: Final = 100  # characters of a value in a message
LONGEST_ERROR: Final = 300  # of another error's text
LIMITS: Final = (("gt", "above"), ("ge", "of at least"), ("lt", "below"), ("le", "of at most"))


def cut(text: str, longest: int = LONGEST) -> str:
    """Text short enough for a sentence, on one line."""
    text = " ".join(text.splitlines())
    return text if len(text) <= longest else f"{text[:longest]}..."


def one_line(error: object, kind: bool = True) -> str:
    """The text of an exception, or any other, for the end of a sentence; `kind` puts an exception's class first."""
    try:
        text = cut(" ".join(str(error).split()).rstrip("."), LONGEST_ERROR)
    except Exception:  # a user's exception whose `__str__` fails
        text = ""
    if not kind or not isinstance(error, BaseException) or isinstance(error, HeadwayError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def shown(value: object) -> str:
    """A value as a message quotes it: as it would be written, on one line, cut where that is long."""
    try:
        return cut(" ".join(repr(value).splitlines()))
    except ValueError:  # an integer of more digits than Python writes
        return "a number of thousands of digits" if isinstance(value, int) else unwritable(value)
    except Exception:
        return unwritable(value)


def unwritable(value: object) -> str:
    return f"a {type(value).__name__} that cannot be written"


def limit_text(limit: float) -> str:
    return f"{limit:,}" if isinstance(limit, int) else f"{limit:g}"


def suggest(word: str, known: Iterable[str]) -> str:
    """' Did you mean ...?' with the nearest known word, or the list of what is known."""
    options = list(known)
    near = difflib.get_close_matches(word, options, n=1, cutoff=0.6)
    if near:
        return f" Did you mean {near[0]!r}?"
    return f" Known: {', '.join(sorted(options))}." if options else ""


def describe_type(kind: Any) -> str:
    """A type in words: "a whole number of at least 1 or 'auto'"."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        limits = [
            f"{word} {limit_text(limit)}"
            for name, word in LIMITS
            for mark in inner[1:]
            if isinstance(mark, Meta) and (limit := getattr(mark, name)) is not None
        ]
        return " ".join(filter(None, (describe_type(inner[0]), " and ".join(limits))))
    if origin is Literal:
        return " or ".join(repr(value) for value in inner)
    if origin in (Union, UnionType):
        return " or ".join(describe_type(part) for part in inner if part is not NoneType)
    if origin in (list, tuple):
        return f"a list of {PLURALS.get(inner[0], 'values')}"
    if origin is dict:
        return f"a mapping of names to {PLURALS.get(inner[1], 'values')}"
    return WORDS.get(kind, "a value")


def join_words(words: Sequence[str], last: str = "and") -> str:
    """Words as in a sentence: a, b and c."""
    return f" {last} ".join(filter(None, (", ".join(words[:-1]), words[-1])))
