"""Steps put together from kernel times: operators by tokens, sequences and attention, as LLMServingSim has them."""

from __future__ import annotations

import csv
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from headway.latency import read_model
from headway.latency.fit import Step
from headway.latency.shards import shard

A_LAYER = {"layernorm": 2, "qkv_proj": 1, "qk_norm": 1, "rotary_emb": 1, "o_proj": 1, "gate_up_proj": 1, "act_fn": 1}
A_LAYER |= {"down_proj": 1}
ONCE = ("embedding", "final_layernorm")
UNEVEN = Path(__file__).parent / "recorded_runs" / "uneven-attention.csv"


class Curve:
    """Straight lines between measured points."""

    def __init__(self, points: dict[int, float]) -> None:
        self.at = sorted(points)
        self.us = [points[at] for at in self.at]

    def __call__(self, at: int) -> float:
        place = min(max(1, bisect_left(self.at, at)), len(self.at) - 1)
        low, high = self.at[place - 1], self.at[place]
        return self.us[place - 1] + (self.us[place] - self.us[place - 1]) * (at - low) / (high - low)


def curves(file: Path, key: str) -> dict[str, Curve]:
    points: dict[str, dict[int, float]] = {}
    with file.open(encoding="utf-8") as rows:
        for row in csv.DictReader(rows):
            points.setdefault(row["layer"], {})[int(row[key])] = float(row["time_us"])
    return {name: Curve(found) for name, found in points.items()}


def attention_rows(folder: Path, uneven: bool) -> Iterator[dict[str, str]]:
    """Rows of attention. With `uneven`, those of several decodes have decodes of different contexts, and `kv_decode` is
    their mean."""
    with (folder / "attention.csv").open(encoding="utf-8") as rows:
        yield from (row for row in csv.DictReader(rows) if not uneven or int(row["n_decode"]) < 2)
    if uneven:
        with UNEVEN.open(encoding="utf-8") as rows:
            profile = "/".join(folder.parts[-3:])
            yield from (row for row in csv.DictReader(rows) if row["profile"] == profile)


def steps(folder: Path, model: str, tp: int, room: int, uneven: bool = True) -> Iterator[tuple[str, Step, float]]:
    """(decode, prefill or mixed; step; its attention in µs) for each row of attention that is a sensible step of an
    engine whose KV cache has room for so many tokens."""
    dense, ends = curves(folder / "dense.csv", "tokens"), curves(folder / "per_sequence.csv", "sequences")
    part = replace(shard(read_model(model, "model"), tp), tp=1)  # there is no communication in these times
    for row in attention_rows(folder, uneven):
        chunk, past, decodes, context = (
            int(row[key]) for key in ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
        )
        tokens, sequences = chunk + decodes, decodes + (chunk > 0)
        if tokens > 2048 or decodes * context + chunk + past > room or max(past, context) > 8192:
            continue
        if (decodes and context < 128) or 0 < past < chunk:
            continue
        if chunk and decodes and (context > 2048 or past > 4096 or decodes * context > 140_000):
            continue
        attention_us = part.layers * float(row["time_us"])
        us = attention_us + ends["lm_head"](sequences) + ends["sampler"](sequences)
        for name, times in A_LAYER.items():
            if name in dense:
                us += part.layers * times * dense[name](tokens)
        for name in ONCE:
            us += dense[name](tokens)
        phase = ("mixed" if decodes else "prefill") if chunk else "decode"
        yield phase, Step(part, decodes, decodes * context, ((chunk, past),) if chunk else (), us), attention_us
