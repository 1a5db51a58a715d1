"""Contexts: what each turn's prompt repeats of the turns before, behind the prefix of its group.

    linear      the whole history, word for word: a cache that still holds it is hit to its end
    sublinear   a summary, new in every turn: in turn n the history's length divided by the square root of n
    bounded     linear up to `context_limit` tokens; beyond it the oldest are dropped, and what follows moves up

What was generated and is not repeated (a reasoning chain) shifts the answer behind it, which then counts as new text.
"""

from math import isqrt

from headway.types import Path


class Context:
    """The context of one conversation, asked for the prompt of turn after turn."""

    __slots__ = ("_ends", "_history", "_keys", "_limit", "_output", "_sublinear", "_turn", "prefix", "prefix_tokens")

    def __init__(self, prefix: int, prefix_tokens: int, growth: str = "linear", limit: int | None = None) -> None:
        self.prefix = prefix
        self.prefix_tokens = prefix_tokens  # 0 without a group
        self._sublinear = growth == "sublinear"
        self._limit = limit if growth == "bounded" else None
        self._keys: tuple[int, ...] = ()  # the last prompt
        self._ends: tuple[int, ...] = ()
        self._output = (0, 0, False)  # the last answer: key, tokens, whether it stands right behind the prompt
        self._history = 0  # tokens that a linear context would repeat behind the prefix
        self._turn = 0

    def prompt(self, new_tokens: int, key: int) -> Path:
        """The next prompt, with `new_tokens` of its own; of the first they are all there is, the prefix included."""
        self._turn += 1
        if self._turn == 1:
            return self._first(new_tokens, key)
        history = self._history
        if self._sublinear:
            history = max(1, isqrt(history * history // self._turn))
        elif self._limit is None or history <= self._limit:
            return self._continue(new_tokens, key)
        else:
            history = self._limit
        self._history += new_tokens
        return self._behind_prefix(self.prefix_tokens + history + new_tokens, key)

    def add_answer(self, key: int, tokens: int, hidden: int) -> None:
        """What came of the last prompt: `tokens` in all, the first `hidden` of which no later turn repeats."""
        visible = max(0, tokens - hidden)
        self._output = (key, visible, not hidden)
        self._history += visible

    def _first(self, tokens: int, key: int) -> Path:
        self.prefix_tokens = min(self.prefix_tokens, tokens)
        self._history = tokens - self.prefix_tokens
        return self._behind_prefix(tokens, key)

    def _behind_prefix(self, tokens: int, key: int) -> Path:
        shared = self.prefix_tokens
        if not shared:
            self._keys, self._ends = (key,), (tokens,)
        elif tokens == shared:
            self._keys, self._ends = (self.prefix,), (tokens,)
        else:
            self._keys, self._ends = (self.prefix, key), (shared, tokens)
        return Path(self._keys, self._ends)

    def _continue(self, new_tokens: int, key: int) -> Path:
        answer, answer_tokens, in_place = self._output
        end = self._ends[-1] + answer_tokens
        self._history += new_tokens
        if in_place:
            self._keys += (answer, key)
            self._ends += (end, end + new_tokens)
        else:
            self._keys += (key,)
            self._ends += (end + new_tokens,)
        return Path(self._keys, self._ends)
