"""The earlier turns of conversations, so that the prompt of the next turn repeats them word for word.

The path of a workload's request refers to an answer by its key. If the answer has arrived, the prompt of a later turn
has all earlier turns and the answer. New words then fill it up to the planned length. So a turn has the planned length
even if an answer was shorter, or if the engine's tokens between messages made the last prompt longer.
"""

from typing import Final

from msgspec import Struct

from headway.load.prompt_texts import prompt_text
from headway.types import Request
from headway.workload.traffic import Planned

KEPT: Final = 1 << 28  # maximum number of characters; beyond it the oldest talk is dropped, its next turn made up


class Talk(Struct, frozen=True):
    """The messages of client and engine in turn, the client's first, and their total length in tokens."""

    turns: tuple[str, ...]
    tokens: int

    @property
    def size(self) -> int:
        return sum(map(len, self.turns))


class Conversations:
    def __init__(self) -> None:
        self._talks: dict[int, Talk] = {}  # talks by the key of their last answer
        self._size = 0
        self._questions: dict[int, tuple[str, ...]] = {}  # messages of the requests in flight, by request

    def ask(self, request: Request) -> tuple[str, ...]:
        """Return the messages before the answer, in order. The client sends the first and the last one."""
        talk = next((self._talks[key] for key in reversed(request.path.keys) if key in self._talks), Talk((), 0))
        turns = (*talk.turns, prompt_text(request, min(talk.tokens, request.prompt_tokens - 1)))
        if request.session is not None:
            self._questions[request.id] = turns
        return turns

    def record_answer(self, planned: Planned, answer: str = "", tokens: int = 0) -> None:
        """Record the answer to a request. `tokens` is the engine's count of prompt and answer."""
        turns = self._questions.pop(planned.request.id, None)
        if turns is None or not answer:
            return
        for key in planned.request.path.keys:  # the new talk replaces the talks that it continues
            self._drop(key)
        talk = self._talks[planned.output_key] = Talk((*turns, answer), tokens)
        self._size += talk.size
        while self._size > KEPT:
            self._drop(next(iter(self._talks)))

    def _drop(self, key: int) -> None:
        if (talk := self._talks.pop(key, None)) is not None:
            self._size -= talk.size
