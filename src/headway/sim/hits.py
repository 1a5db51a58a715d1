"""How much of the prompts an instance has found in its cache of late."""

from __future__ import annotations

from collections import deque

REQUESTS = 100  # the last to enter the batch, each when it does so for the first time


class HitRate:
    __slots__ = ("cached", "last", "tokens")

    def __init__(self) -> None:
        self.last: deque[tuple[int, int]] = deque()  # tokens found cached, tokens of the prompt
        self.cached = 0
        self.tokens = 0

    def add(self, cached: int, tokens: int) -> None:
        self.last.append((cached, tokens))
        self.cached += cached
        self.tokens += tokens
        if len(self.last) > REQUESTS:
            cached, tokens = self.last.popleft()
            self.cached -= cached
            self.tokens -= tokens

    def share(self) -> float:
        """Of the prompts' tokens; 0 before the first request."""
        return self.cached / self.tokens if self.tokens else 0.0
