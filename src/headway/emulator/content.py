"""The content of a request's KV blocks: keys for the simulator's cache, and hashes and tokens for KV events.

A request describes its prompt in one of two ways:

    by tokens   text or token ids: the key of a full block is a hash of its tokens and of all earlier tokens
    by a path   the keys of a workload, as in the simulator: blocks have these keys, and the tokens are made up

All blocks of a generated output have the same key, as in the simulator. If the prompt is described by tokens, the
output's blocks also have hashes. When a later prompt contains such a block, `Aliases` maps the block's hash to the
output's key.
"""

from __future__ import annotations

import sys
from array import array
from collections import OrderedDict
from itertools import accumulate, groupby
from typing import Final

import xxhash

from headway.emulator.tokens import WORD_IDS, mix, word
from headway.hashing import stable
from headway.types import Path

MADE_UP: Final = 32_000  # made-up token ids are smaller than this number


class Aliases:
    """Maps the block hashes of generated outputs to the outputs' keys, in a least-recently-used table."""

    def __init__(self, most: int = 262_144) -> None:
        self.most = most
        self._keys: OrderedDict[int, int] = OrderedDict()

    def of(self, name: int) -> int:
        key = self._keys.get(name)
        if key is None:
            return name
        self._keys.move_to_end(name)
        return key

    def learn(self, name: int, key: int) -> None:
        self._keys[name] = key
        self._keys.move_to_end(name)
        if len(self._keys) > self.most:
            self._keys.popitem(last=False)


class TokenContent:
    """A prompt described by tokens. `seed` determines the answer, so the same prompt has the same answer."""

    def __init__(self, ids: array[int], root: int, size: int, aliases: Aliases, output_key: int | None = None) -> None:
        self.ids, self.size, self.aliases = ids, size, aliases
        self.prompt_tokens = len(ids)
        self.names: list[int] = []
        self._root = root
        self._chain(ids)
        self.keys = [aliases.of(name) for name in self.names]
        runs = [(key, len(list(blocks))) for key, blocks in groupby(self.keys)]
        self.path = Path(tuple(key for key, _ in runs), tuple(accumulate(blocks * size for _, blocks in runs)))
        rest = _pack(ids[len(self.names) * size :])
        self.seed = xxhash.xxh3_64_intdigest(rest, self.names[-1] if self.names else root)
        self.output_key = stable("output", self.seed) if output_key is None else output_key

    def _chain(self, ids: array[int]) -> None:
        """Compute the hashes of the full blocks that have no hash yet, and append the hashes to `names`."""
        size, digest, names = self.size, xxhash.xxh3_64_intdigest, self.names
        name = names[-1] if names else self._root
        packed = memoryview(_pack(ids))
        for at in range(len(names) * size * 4, len(ids) // size * size * 4, size * 4):
            name = digest(packed[at : at + size * 4], name)
            names.append(name)

    def key(self, block: int) -> int:
        """Return the cache key of a block."""
        return self.keys[block] if block < len(self.keys) else self.output_key

    def hash(self, block: int) -> int:
        return self.names[block]

    def tokens(self, block: int) -> list[int]:
        return self.ids[block * self.size : (block + 1) * self.size].tolist()

    def add_output(self, tokens: int) -> None:
        """Compute the hashes of the output's blocks, so that a later prompt finds these blocks."""
        known = len(self.names)
        self.ids = self.ids[: self.prompt_tokens]
        self.ids.extend([WORD_IDS[word(self.seed, number)] for number in range(tokens)])
        self._chain(self.ids)
        for name in self.names[known:]:
            self.aliases.learn(name, self.output_key)


class PathContent:
    """A prompt described by a path."""

    def __init__(self, path: Path, prompt_tokens: int, size: int, output_key: int | None, number: int) -> None:
        self.path, self.prompt_tokens, self.size = path, prompt_tokens, size
        self.seed = stable("path", *(path.keys[-1:] or (number,)))
        self.output_key = stable("output", self.seed, number) if output_key is None else output_key

    def key(self, block: int) -> int:
        for key, end in self.path.blocks(self.size):
            if block < end:
                return key
        return self.output_key

    def hash(self, block: int) -> int:
        return stable("block", self.key(block), block)

    def tokens(self, block: int) -> list[int]:
        """Return made-up token ids, which are the same for blocks with the same content."""
        seed, first = stable("tokens", self.key(block)), block * self.size
        return [mix(seed, first + number) % MADE_UP for number in range(self.size)]

    def add_output(self, tokens: int) -> None: ...  # do nothing: `key` returns `output_key` for all output blocks


Content = TokenContent | PathContent


def _pack(ids: array[int]) -> bytes:
    if sys.byteorder == "big":
        ids = ids[:]
        ids.byteswap()
    return ids.tobytes()
