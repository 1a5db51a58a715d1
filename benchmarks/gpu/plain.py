"""The engine's step in plain PyTorch, one request after another: slow, on any device, for tests."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.gpu.model import Weights, attend, feed_forward, norm, rotate, rotations, split_heads
from benchmarks.gpu.scheduler import Row


class PlainBackend:
    def __init__(self, weights: Weights, blocks: int, block_tokens: int = 16, positions: int = 1024) -> None:
        shape, device = weights.shape, weights.embedding.device
        self.weights, self.size = weights, block_tokens
        slots = blocks * block_tokens
        # NaN shows up in the output if a step reads a slot that no step has written.
        self.keys, self.values = (
            torch.full((shape.layers, slots, shape.kv_heads, shape.head), float("nan"), device=device) for _ in "kv"
        )
        self.cos, self.sin = rotations(shape, positions, str(device))

    def run(self, rows: list[Row]) -> list[int]:
        """Compute layer by layer, because a request may read what another one writes in the same layer."""
        weights, shape = self.weights, self.weights.shape
        states = []
        for row in rows:
            tokens = torch.tensor(row.job.tokens[row.past : row.past + row.new], dtype=torch.long)
            states.append(weights.embedding[tokens.to(weights.embedding.device)])
        for layer in range(shape.layers):
            queries = []
            for row, x in zip(rows, states, strict=True):
                q, k, v = split_heads(norm(x, weights.scale) @ weights.qkv[layer].T, shape)
                at = slice(row.past, row.past + row.new)
                slots = self._slots(row)
                self.keys[layer, slots[at]] = rotate(k, self.cos[at], self.sin[at])
                self.values[layer, slots[at]] = v
                queries.append(rotate(q, self.cos[at], self.sin[at]))
            for place, (row, q) in enumerate(zip(rows, queries, strict=True)):
                slots = self._slots(row)
                seen = attend(q, self.keys[layer, slots], self.values[layer, slots], row.past)
                x = states[place] + seen @ weights.out[layer].T
                states[place] = x + feed_forward(x, weights, layer)
        last = norm(torch.stack([x[-1] for x in states]), weights.scale) @ weights.logits.T
        assert bool(torch.isfinite(last).all())
        return [int(token) for token in last.argmax(-1)]

    def _slots(self, row: Row) -> Any:
        blocks = torch.tensor(row.job.blocks)
        at = torch.arange(row.past + row.new)
        return (blocks[at // self.size] * self.size + at % self.size).to(self.keys.device)
