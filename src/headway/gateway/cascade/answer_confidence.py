"""The confidence of an answer: the mean log-probability of its tokens, which engines report on request.

In the answer to a chat request, each choice has the log-probabilities in `logprobs.content` and `logprobs.refusal`. In
the answer to a completion request, they are in `logprobs.token_logprobs`. Some engines use the chat fields for both.
The events of a stream have the same fields as a complete answer.
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
    """The confidence of the part of an answer that has arrived so far. Tokens without a log-probability do not
    count."""

    def __init__(self) -> None:
        self.documents = self.tokens = 0
        self.total = 0.0

    def read(self, document: bytes) -> None:
        """Add the log-probabilities in a JSON document, which is a whole answer or one event of a stream. If the
        document does not have the form of an answer, ignore it."""
        self.documents += 1
        try:
            choices = _read(document).choices
        except msgspec.MsgspecError:
            return
        for logprobs in (choice.logprobs for choice in choices if choice.logprobs is not None):
            tokens = (*(logprobs.content or ()), *(logprobs.refusal or ()))
            for value in (*(token.logprob for token in tokens), *(logprobs.token_logprobs or ())):
                if value is not None:
                    self.tokens += 1
                    self.total += value

    @property
    def mean(self) -> float | None:
        """The mean log-probability of the tokens; None if no token has a log-probability."""
        return self.total / self.tokens if self.tokens else None

    def reaches(self, threshold: float) -> bool:
        """Return whether the mean log-probability reaches a threshold; False if no token has a log-probability."""
        return self.tokens > 0 and self.total >= threshold * self.tokens


def without_logprobs(document: bytes) -> bytes:
    """Return an answer without its log-probabilities. If the document is not an answer with choices, return it
    unchanged."""
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
        """Return the lines that this piece of the stream completes, with their line ends."""
        lines = (self.rest + data if self.rest else data).splitlines(keepends=True)
        self.rest = lines.pop() if lines and not lines[-1].endswith(b"\n") else b""
        return lines


def document_of(line: bytes) -> bytes | None:
    """Return the JSON document in a line of an event stream; None if the line has no document."""
    if not line.startswith(DATA):
        return None
    data = line[len(DATA) :].strip()
    return None if not data or data == DONE else data
