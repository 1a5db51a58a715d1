"""The tokens of prompts: equal keys of a path give equal tokens, and an earlier answer gives its real tokens."""

from __future__ import annotations

from typing import Any

import numpy as np

from headway.types import Path


class Prompts:
    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = vocabulary
        self.answers: dict[int, Any] = {}  # key of an answer -> its tokens
        self.texts: dict[int, Any] = {}  # key of other content -> its tokens

    def tokens(self, path: Path) -> Any:
        begin, parts = 0, []
        for key, end in zip(path.keys, path.ends, strict=True):
            parts.append(self._part(key, end - begin))
            begin = end
        return np.concatenate(parts)

    def _part(self, key: int, count: int) -> Any:
        answer = self.answers.get(key)
        if answer is not None and len(answer) >= count:
            return answer[:count]
        text = self.texts.get(key)
        if text is None or len(text) < count:  # a generator's first draws do not depend on how many follow
            text = np.random.Generator(np.random.PCG64(key % 2**64)).integers(0, self.vocabulary, max(count, 256))
            text = self.texts[key] = text.astype(np.int32)
        return text[:count]
