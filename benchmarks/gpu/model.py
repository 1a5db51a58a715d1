"""The architecture of Llama, random weights, and a plain version of it without cache, blocks or batches."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

EPSILON = 1e-5
THETA = 500_000.0


@dataclass(frozen=True)
class Shape:
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head: int
    inner: int
    vocabulary: int

    @property
    def group(self) -> int:
        """Query heads of each KV head."""
        return self.heads // self.kv_heads


SHAPES = {
    "llama-3.2-1b": Shape(16, 2048, 32, 8, 64, 8192, 128_256),
    "llama-3.1-8b": Shape(32, 4096, 32, 8, 128, 14_336, 128_256),
    "tiny": Shape(2, 128, 8, 2, 32, 256, 1000),
}


class Weights:
    """Random weights, each matrix scaled so that its products keep the size of their input."""

    def __init__(self, shape: Shape, device: str, dtype: Any, seed: int = 0) -> None:
        self.shape = shape
        draw = torch.Generator(device=device).manual_seed(seed)

        def matrix(rows: int, columns: int, scale: float | None = None) -> Any:
            values = torch.empty(rows, columns, device=device, dtype=dtype)
            return values.normal_(0.0, scale or 1.0 / math.sqrt(columns), generator=draw)

        layers = range(shape.layers)
        self.embedding = matrix(shape.vocabulary, shape.hidden, 1.0)
        self.qkv = [matrix((shape.heads + 2 * shape.kv_heads) * shape.head, shape.hidden) for _ in layers]
        self.out = [matrix(shape.hidden, shape.heads * shape.head) for _ in layers]
        self.up = [matrix(2 * shape.inner, shape.hidden) for _ in layers]
        self.down = [matrix(shape.hidden, shape.inner) for _ in layers]
        self.logits = matrix(shape.vocabulary, shape.hidden)
        self.scale = torch.ones(shape.hidden, device=device, dtype=dtype)  # of every norm


def rotations(shape: Shape, positions: int, device: str) -> tuple[Any, Any]:
    """Return the cosines and sines of the rotary embedding, one row for each position."""
    speeds = 1.0 / THETA ** (torch.arange(0, shape.head, 2, dtype=torch.float64) / shape.head)
    angles = torch.outer(torch.arange(positions, dtype=torch.float64), speeds)
    return angles.cos().float().to(device), angles.sin().float().to(device)


def norm(x: Any, scale: Any) -> Any:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + EPSILON) * scale


def rotate(x: Any, cos: Any, sin: Any) -> Any:
    """Rotate heads: x has the axes token, head, dimension."""
    left, right = x.chunk(2, -1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)


def attend(q: Any, k: Any, v: Any, past: int) -> Any:
    """Causal attention of tokens after `past` earlier ones; k and v have the keys and values of all."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(q.shape[-1])
    seen = torch.arange(k.shape[0], device=q.device) <= past + torch.arange(q.shape[0], device=q.device)[:, None]
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen, float("-inf")).softmax(-1), v).flatten(1)


def split_heads(qkv: Any, shape: Shape) -> tuple[Any, Any, Any]:
    width = shape.head
    q, k, v = qkv.split([shape.heads * width, shape.kv_heads * width, shape.kv_heads * width], -1)
    return q.unflatten(-1, (-1, width)), k.unflatten(-1, (-1, width)), v.unflatten(-1, (-1, width))


def feed_forward(x: Any, weights: Weights, layer: int) -> Any:
    gate, up = (norm(x, weights.scale) @ weights.up[layer].T).chunk(2, -1)
    return (F.silu(gate) * up) @ weights.down[layer].T


def generate(weights: Weights, prompt: list[int], count: int) -> list[int]:
    """Return the next `count` tokens after a prompt, each computed from all tokens before it. Nothing is cached."""
    shape, tokens = weights.shape, list(prompt)
    device = weights.embedding.device
    cos, sin = rotations(shape, len(prompt) + count, device)
    for _ in range(count):
        x = weights.embedding[torch.tensor(tokens, device=device)]
        for layer in range(shape.layers):
            q, k, v = split_heads(norm(x, weights.scale) @ weights.qkv[layer].T, shape)
            q, k = (rotate(each, cos[: len(tokens)], sin[: len(tokens)]) for each in (q, k))
            x = x + attend(q, k, v, 0) @ weights.out[layer].T
            x = x + feed_forward(x, weights, layer)
        tokens.append(int((norm(x[-1:], weights.scale) @ weights.logits.T).argmax()))
    return tokens[len(prompt) :]
