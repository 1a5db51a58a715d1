"""Parts of error messages: expected types, lists of valid names, suggestions, and shortened values."""

import difflib
from collections.abc import Iterable, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from msgspec import Meta

from headway.errors import HeadwayError

WORDS: Final = {int: "a whole number", float: "a number", bool: "true or false", str: "text", dict: "a mapping"}
PLURALS: Final = {int: "whole numbers", float: "numbers", str: "texts"}
LONGEST: Final = 100  # maximum number of characters of a value that a message shows
LONGEST_ERROR: Final = 300  # maximum number of characters of another error that a message quotes
LIMITS: Final = (("gt", "above"), ("ge", "of at least"), ("lt", "below"), ("le", "of at most"))


def cut(text: str, longest: int = LONGEST) -> str:
    """Return a string on one line, shortened to fit into a sentence."""
    text = " ".join(text.splitlines())
    return text if len(text) <= longest else f"{text[:longest]}..."


def one_line(error: object, kind: bool = True) -> str:
    """Return the message of an exception on one line, to be put at the end of a sentence. With `kind`, the message
    begins with the class of the exception. Other objects are converted to a string."""
    try:
        text = cut(" ".join(str(error).split()).rstrip("."), LONGEST_ERROR)
    except Exception:  # the exception of a user's code may have a `__str__` that fails
        text = ""
    if not kind or not isinstance(error, BaseException) or isinstance(error, HeadwayError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def shown(value: object) -> str:
    """Return a value in the form that messages use: its `repr` on one line, shortened."""
    try:
        return cut(repr(value))
    except Exception:
        if isinstance(value, int):  # the integer is too long for Python to print
            return "a number with thousands of digits"
        return f"a {type(value).__name__} that cannot be printed"


def limit_text(limit: float) -> str:
    return f"{limit:,}" if isinstance(limit, int) else f"{limit:g}"


def suggest(word: str, known: Iterable[str]) -> str:
    """Return " Did you mean ...?" with the nearest known word. If no word is near, return the list of known words."""
    options = list(known)
    near = difflib.get_close_matches(word, options, n=1, cutoff=0.6)
    if near:
        return f" Did you mean {near[0]!r}?"
    return f" Known: {', '.join(sorted(options))}." if options else ""


def describe_type(kind: Any) -> str:
    """Describe a type in words, such as "a whole number of at least 1 or 'auto'"."""
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
    """Join words as in a sentence: "a, b and c"."""
    return f" {last} ".join(filter(None, (", ".join(words[:-1]), words[-1])))
