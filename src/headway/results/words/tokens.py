"""How many tokens a text is to a language model, guessed so that no common tokenizer makes more of it.

Every digit, sign and line break counts as one token, a byte of anything beyond ASCII too, and so does a space before a
digit or such a sign, which tokenizers do not join to it. A word in small letters counts as one for every four letters,
begun; of a word in capitals every letter counts, and so does every letter of a word that is a name somebody made up.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

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
    """At least as many as the text has. `made_up` are words, in small letters, that no tokenizer need know."""
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
