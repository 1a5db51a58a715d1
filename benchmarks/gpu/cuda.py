"""The engine's step on a CUDA GPU: one CUDA graph for each padded number of tokens.

All replicas share the weights, the graphs and one pool of KV blocks, of which each has its own part. A step is one copy
to the GPU, one graph, one copy back. `last` has the times of the last step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import triton

from benchmarks.gpu import kernels
from benchmarks.gpu.model import EPSILON, Weights, rotations
from benchmarks.gpu.scheduler import Row

DECODE_KEYS = 256  # keys of an item of a decode
TILE = 32  # query tokens of an item of a chunk
FEWEST_ITEMS = 48  # if a step has fewer items of chunks, their keys are divided
SHORTEST_RANGE = 512  # minimum number of keys of such a range
CHUNK_ITEMS = 640  # maximum number of items of chunks
LOG2_E = math.log2(math.e)


def decode_sizes(most: int) -> list[int]:
    """Return the padded numbers of tokens of steps that only decode."""
    return [size for size in (1, 2, 4, *range(8, most + 1, 8)) if size <= most]


def mixed_sizes(most: int) -> list[int]:
    return [*range(64, most + 1, 64)]


@dataclass
class Times:
    host_s: float = 0.0  # from the call to the start of the copy to the GPU
    gpu_s: float = 0.0  # of the graph alone, from events
    all_s: float = 0.0  # from the call to the tokens on the host


class CudaBackend:
    def __init__(
        self,
        weights: Weights,
        blocks: int,
        *,
        block_tokens: int = 16,
        max_batch_tokens: int = 2048,
        max_batch_size: int = 64,
        positions: int = 8192,
        graphs: bool = True,
    ) -> None:
        """`blocks` includes the blocks of all replicas. One more block takes what padding tokens write."""
        self.weights, self.shape, self.page = weights, weights.shape, block_tokens
        self.most_tokens, self.most_rows = max_batch_tokens, max_batch_size
        self.device = str(weights.embedding.device)
        shape, dtype = self.shape, weights.embedding.dtype
        self.precision = "ieee" if dtype == torch.float32 else "tf32"
        slots = (blocks + 1) * block_tokens
        size = (slots, shape.kv_heads, shape.head)
        self.scratch = blocks * block_tokens  # first slot of the additional block
        self.keys, self.values = (
            [torch.zeros(size, device=self.device, dtype=dtype) for _ in range(shape.layers)] for _ in "kv"
        )
        self.cos, self.sin = rotations(shape, positions, self.device)
        self.decode_sizes, self.mixed_sizes = decode_sizes(max_batch_size), mixed_sizes(max_batch_tokens)
        self.table_width = positions // block_tokens
        self.decode_items = max_batch_size * -(-positions // DECODE_KEYS)
        self._lay_out()
        rows = self.decode_items + CHUNK_ITEMS * TILE
        self.part_sums = torch.zeros(rows * shape.heads * shape.head, device=self.device)
        self.part_peaks, self.part_weights = (torch.zeros(rows * shape.heads, device=self.device) for _ in "pw")
        self.graphs: dict[tuple[int, bool], Any] = {}
        self.last = Times()
        self.results = torch.zeros(self.most_rows, dtype=torch.long, device=self.device)
        cuda = self.device != "cpu"
        self.on_host = torch.zeros(self.most_rows, dtype=torch.long, pin_memory=cuda)
        if cuda and graphs:
            self.events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            self._capture_all()

    def _lay_out(self) -> None:
        """Divide one buffer of integers into the inputs of a step."""
        most = self.most_tokens
        sizes = {
            "counts": 2, "last": self.most_rows, "ids": most, "positions": most, "slots": most, "parts": 3 * most,
            "decodes": self.decode_items * 8, "chunks": CHUNK_ITEMS * 8, "tables": self.most_rows * self.table_width,
        }  # fmt: skip
        total = sum(sizes.values())
        cuda = self.device != "cpu"
        self.packed = torch.zeros(total, dtype=torch.int32, pin_memory=cuda)
        self.inputs = torch.zeros(total, dtype=torch.int32, device=self.device)
        host = self.packed.numpy()
        self.host: dict[str, Any] = {}
        self.gpu: dict[str, Any] = {}
        at = 0
        for name, size in sizes.items():
            self.host[name], self.gpu[name] = host[at : at + size], self.inputs[at : at + size]
            at += size
        self.host["parts"] = self.host["parts"].reshape(-1, 3)
        for name in ("decodes", "chunks"):
            self.host[name] = self.host[name].reshape(-1, 8)
        self.host["tables"] = self.host["tables"].reshape(self.most_rows, self.table_width)

    # --- the step -----------------------------------------------------------------------------------------------

    def run(self, rows: list[Row]) -> list[int]:
        start = perf_counter()
        order = sorted(range(len(rows)), key=lambda place: rows[place].new > 1)  # decodes first
        size, mixed = self._fill([rows[place] for place in order])
        filled = perf_counter()
        self.inputs.copy_(self.packed, non_blocking=True)
        if self.graphs:
            self.events[0].record()
            self.graphs[size, mixed].replay()
            self.events[1].record()
        else:
            self._step(size, mixed)
        self.on_host.copy_(self.results, non_blocking=True)
        if self.device != "cpu":
            torch.cuda.synchronize()
        found = self.on_host.tolist()
        tokens = [0] * len(rows)
        for number, place in enumerate(order):
            tokens[place] = found[number]
        self.last = Times(filled - start, 0.0, perf_counter() - start)
        if self.graphs:
            self.last.gpu_s = self.events[0].elapsed_time(self.events[1]) / 1e3
        return tokens

    def padded(self, decodes: int, tokens: int) -> int:
        """Return the number of tokens of the graph for a step with so many decodes and tokens."""
        sizes = self.decode_sizes if decodes == tokens else self.mixed_sizes
        return next(size for size in sizes if size >= tokens)

    def _fill(self, rows: list[Row]) -> tuple[int, bool]:
        """Write the inputs of a step. `rows` has the decodes first."""
        host, page = self.host, self.page
        decodes = sum(row.new == 1 for row in rows)
        total = sum(row.new for row in rows)
        size = self.padded(decodes, total)
        ids, positions, slots, parts, tables = (host[name] for name in ("ids", "positions", "slots", "parts", "tables"))
        at = items = 0
        for number, row in enumerate(rows):
            job, past, new = row.job, row.past, row.new
            end = past + new
            table = tables[number]
            table[: len(job.blocks)] = job.blocks
            ids[at : at + new] = job.tokens[past:end]
            if new == 1:
                positions[at] = past
                slots[at] = table[past // page] * page + past % page
                parts[at] = items, 1, -(-end // DECODE_KEYS)
                for begin in range(0, end, DECODE_KEYS):
                    stop = min(begin + DECODE_KEYS, end)
                    host["decodes"][items] = number, at, 1, past, begin, stop, items, 0
                    items += 1
            else:
                place = np.arange(past, end)
                positions[at : at + new] = place
                slots[at : at + new] = table[place // page] * page + place % page
            host["last"][number] = at + new - 1
            at += new
        ids[at:size], positions[at:size], slots[at:size] = 0, 0, self.scratch
        parts[at:size, 2] = 0
        host["last"][len(rows) :] = 0
        host["counts"][:] = items, self._fill_chunks(rows[decodes:], decodes)
        return size, decodes != total

    def _fill_chunks(self, rows: list[Row], number: int) -> int:
        """Write the items of chunks. The first has this number among all rows, and so many tokens are before it."""
        items, parts, at, count = self.host["chunks"], self.host["parts"], number, 0
        tiles = sum(-(-row.new // TILE) for row in rows)
        for row in rows:
            for begin in range(0, row.new, TILE):
                tokens = min(TILE, row.new - begin)
                position = row.past + begin
                end = position + tokens
                ranges = 1 if tiles >= FEWEST_ITEMS else min(FEWEST_ITEMS // tiles, max(1, end // SHORTEST_RANGE))
                keys = -(-end // ranges // 64) * 64
                ranges = -(-end // keys)
                place = parts[at + begin : at + begin + tokens]
                place[:, 0] = self.decode_items + count * TILE + np.arange(tokens)
                place[:, 1], place[:, 2] = TILE, ranges
                for part in range(ranges):
                    result = self.decode_items + count * TILE
                    stop = min(end, (part + 1) * keys)
                    items[count] = number, at + begin, tokens, position, part * keys, stop, result, 0
                    count += 1
            number, at = number + 1, at + row.new
        return count

    def _step(self, size: int, mixed: bool) -> None:
        """Compute the step whose inputs are on the GPU."""
        weights, shape = self.weights, self.shape
        self.size, self.mixed = size, mixed
        residual = F.embedding(self.gpu["ids"][:size], weights.embedding)
        x = None
        for layer in range(shape.layers):
            qkv = F.linear(self._norm(x, residual), weights.qkv[layer])
            kernels.rotate_and_store[(size,)](
                qkv, self.cos, self.sin, self.gpu["positions"], self.gpu["slots"], self.keys[layer],
                self.values[layer], qkv.stride(0), HEADS=shape.heads, KV_HEADS=shape.kv_heads, HEAD=shape.head,
            )  # fmt: skip
            x = F.linear(self._attend(layer, qkv), weights.out[layer])
            both = F.linear(self._norm(x, residual), weights.up[layer])
            inner = torch.empty(size, shape.inner, device=self.device, dtype=both.dtype)
            kernels.activate[(size, triton.cdiv(shape.inner, 1024))](both, inner, shape.inner, BLOCK=1024)
            x = F.linear(inner, weights.down[layer])
        rows = self.most_rows if mixed else size
        last = self._norm(x, residual).index_select(0, self.gpu["last"][:rows])
        torch.argmax(F.linear(last, weights.logits), -1, out=self.results[:rows])

    def _norm(self, x: Any, residual: Any) -> Any:
        out, width = torch.empty_like(residual), self.shape.hidden
        kernels.add_norm[(residual.shape[0],)](
            residual if x is None else x, residual, self.weights.scale, out, width, EPSILON,
            ADD=x is not None, BLOCK=triton.next_power_of_2(width), num_warps=8,
        )  # fmt: skip
        return out

    def _attend(self, layer: int, qkv: Any) -> Any:
        shape = self.shape
        out = torch.empty(self.size, shape.heads * shape.head, device=self.device, dtype=qkv.dtype)
        partial = self.part_sums, self.part_peaks, self.part_weights
        common = {"GROUP": shape.group, "KV_HEADS": shape.kv_heads, "HEAD": shape.head, "PAGE": self.page}
        for kind, rows, keys, programs, warps in (
            ("decodes", 16, 64, 132 * 6, 4),
            ("chunks", TILE * shape.group, 64, 132 * 2, 8),
        ):
            if kind == "chunks" and not self.mixed:
                continue
            number = 0 if kind == "decodes" else 1
            kernels.attend[(programs if self.device != "cpu" else 2,)](
                qkv, self.keys[layer], self.values[layer], self.gpu["tables"], self.gpu[kind],
                self.gpu["counts"][number:], *partial, qkv.stride(0), self.table_width,
                LOG2_E / math.sqrt(shape.head), ROWS=rows, KEYS=keys, PRECISION=self.precision, num_warps=warps,
                **common,
            )  # fmt: skip
        kernels.combine[(self.size,)](*partial, self.gpu["parts"], out, HEADS=shape.heads, HEAD=shape.head, num_warps=4)
        return out

    def _capture_all(self) -> None:
        """Capture the graphs, the largest first, so that the smaller ones use its memory."""
        self.packed.zero_()
        self.host["slots"][:] = self.scratch
        self.inputs.copy_(self.packed)
        stream, pool = torch.cuda.Stream(), torch.cuda.graph_pool_handle()
        kinds = [(size, True) for size in self.mixed_sizes] + [(size, False) for size in self.decode_sizes]
        for size, mixed in sorted(kinds, reverse=True):
            with torch.cuda.stream(stream):
                self._step(size, mixed)  # compiles kernels, and lets cuBLAS choose its own
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, stream=stream):
                self._step(size, mixed)
            self.graphs[size, mixed] = graph
        torch.cuda.synchronize()
