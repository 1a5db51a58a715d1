"""How confident a model was of its answer: the mean log-probability of its tokens, as engines report it when asked.

A chat has `logprobs.content` and `logprobs.refusal`, a completion `logprobs.token_logprobs`; some engines give
completions the form of a chat. An answer in one piece and the events of a stream have them at the same place.
"""

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
    """The confidence of one answer, as far as it has arrived. Tokens without a log-probability do not count."""

    def __init__(self) -> None:
        self.documents = self.tokens = 0
        self.total = 0.0

    def read(self, document: bytes) -> None:
        """Read a whole answer, or the JSON of an event. Documents of another form are ignored."""
        self.documents += 1
        try:
            choices = _read(document).choices
        except msgspec.MsgspecError:
            return
        for choice in choices:
            logprobs = choice.logprobs
            if logprobs is None:
                continue
            for token in (*(logprobs.content or ()), *(logprobs.refusal or ())):
                self._add(token.logprob)
            for value in logprobs.token_logprobs or ():
                self._add(value)

    def _add(self, value: float | None) -> None:
        if value is not None:
            self.tokens += 1
            self.total += value

    @property
    def mean(self) -> float | None:
        """None without any log-probability."""
        return self.total / self.tokens if self.tokens else None

    def reaches(self, threshold: float) -> bool:
        """Return whether the mean reaches a threshold; an answer without log-probabilities does not."""
        return self.tokens > 0 and self.total >= threshold * self.tokens


def without_logprobs(document: bytes) -> bytes:
    """Return an answer as the engine would have written it unasked; documents of another form stay as they are."""
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
    """Splits a stream of events into complete lines."""

    def __init__(self) -> None:
        self.rest = b""

    def read(self, data: bytes) -> list[bytes]:
        """Return the lines that are complete now, with their ends."""
        lines = (self.rest + data if self.rest else data).splitlines(keepends=True)
        self.rest = lines.pop() if lines and not lines[-1].endswith(b"\n") else b""
        return lines


def document_of(line: bytes) -> bytes | None:
    """Return the JSON of a line, if it has one."""
    if not line.startswith(DATA):
        return None
    data = line[len(DATA) :].strip()
    return None if not data or data == DONE else data
