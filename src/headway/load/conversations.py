"""The earlier turns of conversations, so that the prompt of the next turn repeats them word for word.

The path of a workload's request refers to an earlier answer by its key. If that answer has arrived, the prompt consists
of all earlier turns including the answer, followed by new words that fill the prompt up to the planned length.
Therefore a prompt has the planned length even if an answer was shorter than planned, or if the engine's tokens between
messages made the last prompt longer.
"""

from collections import OrderedDict
from typing import Final

from msgspec import Struct

from headway.load.prompt_texts import prompt_text
from headway.types import Request
from headway.workload.traffic import Planned

KEPT: Final = 1 << 28  # maximum number of characters of all talks together; above it, drop the oldest talks


class Talk(Struct, frozen=True):
    """The messages of a conversation, which alternate between client and engine, and their total length in tokens."""

    turns: tuple[str, ...]
    tokens: int

    @property
    def size(self) -> int:
        return sum(map(len, self.turns))


class Conversations:
    def __init__(self) -> None:
        self._talks: OrderedDict[int, Talk] = OrderedDict()  # key of the last answer -> conversation
        self._size = 0
        self._questions: dict[int, tuple[str, ...]] = {}  # id of each request in flight -> its messages

    def ask(self, request: Request) -> tuple[str, ...]:
        """Return the messages of a request. They alternate between client and engine; the first and the last message
        are the client's."""
        talk = next((self._talks[key] for key in reversed(request.path.keys) if key in self._talks), Talk((), 0))
        turns = (*talk.turns, prompt_text(request, min(talk.tokens, request.prompt_tokens - 1)))
        if request.session is not None:
            self._questions[request.id] = turns
        return turns

    def record_answer(self, planned: Planned, answer: str = "", tokens: int = 0) -> None:
        """Record the answer to a request. `tokens` is the engine's count of the tokens in prompt and answer."""
        turns = self._questions.pop(planned.request.id, None)
        if turns is None or not answer:
            return
        for key in planned.request.path.keys:  # the request continues these talks; the new talk replaces them
            self._drop(key)
        talk = self._talks[planned.output_key] = Talk((*turns, answer), tokens)
        self._size += talk.size
        while self._size > KEPT:
            self._drop(next(iter(self._talks)))

    def _drop(self, key: int) -> None:
        if (talk := self._talks.pop(key, None)) is not None:
            self._size -= talk.size
