"""Contexts: how much of the earlier turns each prompt of a conversation repeats. The prompt begins with the prefix of
its group; the context follows.

    linear      the whole history, unchanged: if a cache still holds the history, all of it is a hit
    sublinear   a summary, new in every turn: in turn n, its length is the length of the history divided by sqrt(n)
    bounded     linear up to `context_limit` tokens; beyond this limit, the oldest tokens are dropped, so that all later
                tokens change their position

A chain of thought is generated, but later prompts do not repeat it. So the answer after the chain of thought has
another position in the next prompt, and counts as new tokens there.
"""

from math import isqrt

from headway.types import Path
from headway.workload.shapes import MAX_TOKENS


class Context:
    """The context of one conversation. It creates the prompt of each turn."""

    __slots__ = (
        "_added",
        "_ends",
        "_history",
        "_keys",
        "_limit",
        "_output",
        "_sublinear",
        "_turn",
        "outer",
        "prefix",
        "prefix_tokens",
    )

    def __init__(
        self,
        prefix: int,
        prefix_tokens: int,
        growth: str = "linear",
        limit: int | None = None,
        added: bool = False,
        outer: tuple[int, int] | None = None,
    ) -> None:
        """`added` says whether the prefix comes in addition to the new tokens of the first turn. `outer` is the key and
        the length of the outer prefix with which the prefix begins."""
        self.prefix = prefix
        self.outer = outer
        self._added = added
        self.prefix_tokens = prefix_tokens  # 0 if the session has no group
        self._sublinear = growth == "sublinear"
        self._limit = limit if growth == "bounded" else None
        self._keys: tuple[int, ...] = ()  # keys of the last prompt
        self._ends: tuple[int, ...] = ()
        self._output = (0, 0, False)  # last answer: (key, number of tokens, True if it directly follows the prompt)
        self._history = 0  # number of tokens that a linear context would repeat after the prefix
        self._turn = 0

    def prompt(self, new_tokens: int, key: int) -> Path:
        """Return the next prompt, which ends with `new_tokens` new tokens. In the first turn, `new_tokens` includes the
        prefix unless `added` is set."""
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
        """Record the output of the last prompt. Later turns do not repeat the first `hidden` tokens of this output."""
        visible = max(0, tokens - hidden)
        self._output = (key, visible, not hidden)
        self._history += visible

    def _first(self, tokens: int, key: int) -> Path:
        if self._added:
            tokens = min(tokens + self.prefix_tokens, MAX_TOKENS)
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
        if self.outer is not None:
            self._keys, self._ends = nested(self.outer, self._keys, self._ends)
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


def nested(
    outer: tuple[int, int], keys: tuple[int, ...], ends: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the keys and ends of a prompt whose prefix begins with an outer prefix, given as (key, tokens)."""
    key, tokens = outer
    return ((key, *keys), (tokens, *ends)) if tokens < ends[-1] else ((key,), ends[-1:])
