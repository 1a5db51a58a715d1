"""An answer before it is given: its tokens one by one, known from the beginning, and why it ends."""

from __future__ import annotations

from headway.emulator.tokens import WORD_IDS, WORDS, word
from headway.emulator.tools import Call


class Script:
    """`tokens` of them; `cut` is where its text ends, where a stop string ends it."""

    __slots__ = ("call", "cut", "reason", "seed", "stop_reason", "tokens")

    def __init__(self, seed: int, tokens: int, reason: str = "stop", call: Call | None = None) -> None:
        self.seed, self.tokens, self.reason, self.call = seed, tokens, reason, call
        self.stop_reason: str | None = None
        self.cut: int | None = None

    def id(self, number: int) -> int:
        return WORD_IDS[word(self.seed, number)]

    def piece(self, number: int) -> str:
        """The text of a token."""
        if self.call is not None:
            return self.call.pieces[number]
        found = WORDS[word(self.seed, number)]
        if self.cut is not None and len(found) * (number + 1) > self.cut:
            found = found[: max(0, self.cut - len(found) * number)]
        return found

    def text(self, tokens: int) -> str:
        return "".join([self.piece(number) for number in range(tokens)])

    def stop_at(self, stops: list[str], included: bool) -> None:
        """It ends with the first token by which one of these has come."""
        text = self.text(self.tokens)
        found = [(text.find(stop) + len(stop), stop) for stop in stops if stop in text]
        if not found:
            return
        end, self.stop_reason = min(found)
        self.reason = "stop"
        self.cut = end if included else end - len(self.stop_reason)
        self.tokens = -(-end // len(WORDS[0]))
