"""How sure a model was of its answer: the mean log-probability of its tokens, as engines tell it when asked.

A chat has `logprobs.content` and `logprobs.refusal`, a completion `logprobs.token_logprobs`; some engines give
completions the form of a chat. An answer in one piece and the events of a stream have them at the same place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

NULL: Final = Raw(b"null")
DATA: Final = b"data:"
DONE: Final = b"[DONE]"


class _Token(Struct):
    logprob: float | None = None


class _Logprobs(Struct):
    content: list[_Token] | None = None
    refusal: list[_Token] | None = None
    token_logprobs: list[float | None] | None = None


class _Choice(Struct):
    logprobs: _Logprobs | None = None


class _Answer(Struct):
    choices: list[_Choice] = []


_read: Callable[[bytes], _Answer] = msgspec.json.Decoder(_Answer).decode
_whole: Callable[[bytes], dict[str, Raw]] = msgspec.json.Decoder(dict[str, Raw]).decode
_choices: Callable[[Raw], list[dict[str, Raw]]] = msgspec.json.Decoder(list[dict[str, Raw]]).decode
_encode: Callable[[Any], bytes] = msgspec.json.Encoder().encode


class Confidence:
    """Of one answer, as far as it has come. A token without a log-probability is not counted."""

    __slots__ = ("documents", "tokens", "total")

    def __init__(self) -> None:
        self.documents = self.tokens = 0
        self.total = 0.0

    def read(self, document: bytes) -> None:
        """A whole answer, or the JSON of an event. What has another form tells nothing."""
        self.documents += 1
        try:
            choices = _read(document).choices
        except msgspec.MsgspecError:
            return
        for choice in choices:
            found = choice.logprobs
            if found is None:
                continue
            for token in (*(found.content or ()), *(found.refusal or ())):
                self._add(token.logprob)
            for value in found.token_logprobs or ():
                self._add(value)

    def _add(self, value: float | None) -> None:
        if value is not None:
            self.tokens += 1
            self.total += value

    @property
    def mean(self) -> float | None:
        """None where nothing was told."""
        return self.total / self.tokens if self.tokens else None

    def reaches(self, threshold: float) -> bool:
        """An answer of which nothing is told is not confident."""
        return self.tokens > 0 and self.total >= threshold * self.tokens


def without_logprobs(document: bytes) -> bytes:
    """As the engine would have written it unasked; what has another form stays as it is."""
    try:
        answer = _whole(document)
        if "choices" not in answer:
            return document
        choices = _choices(answer["choices"])
    except msgspec.MsgspecError:
        return document
    for choice in choices:
        if "logprobs" in choice:
            choice["logprobs"] = NULL
    return _encode({**answer, "choices": choices})


class Lines:
    """Those of a stream of events, as they become whole."""

    __slots__ = ("rest",)

    def __init__(self) -> None:
        self.rest = b""

    def read(self, data: bytes) -> list[bytes]:
        """With their ends."""
        found = (self.rest + data if self.rest else data).splitlines(keepends=True)
        self.rest = found.pop() if found and not found[-1].endswith(b"\n") else b""
        return found


def document_of(line: bytes) -> bytes | None:
    """The JSON of a line, if it has one."""
    if not line.startswith(DATA):
        return None
    data = line[len(DATA) :].strip()
    return None if not data or data == DONE else data
