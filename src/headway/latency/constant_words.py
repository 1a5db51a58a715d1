"""The constants of a profile in words: the unit of each and what it is of."""

from __future__ import annotations

from typing import Final

# In the order of `step_cost.Constants`.
WORDS: Final[dict[str, tuple[str, str]]] = {
    "weights_tb_s": ("TB/s", "reading weights in a matmul"),
    "matmul_tflops": ("TFLOP/s", "computing in a matmul"),
    "tile_share": ("share", "of the last tile's padding, how much is paid for"),
    "elementwise_tb_s": ("TB/s", "norms, rotary embedding, activation"),
    "logits_tb_s": ("TB/s", "work over a sequence's logits"),
    "step_us": ("µs", "a step"),
    "layer_us": ("µs", "a layer"),
    "kv_tb_s": ("TB/s", "reading the KV of decodes"),
    "decode_us": ("µs", "attention of decodes, a layer"),
    "crowd_us": ("µs", "what it grows by with the batch"),
    "crowd_half": ("sequences", "the batch at half of that"),
    "mixed_kv": ("times", "KV of decodes beside chunks"),
    "mixed_us": ("µs", "decodes and chunks in one step, a layer"),
    "prefill_us": ("µs", "attention of chunks, a layer"),
    "past_us": ("µs", "the same with a past"),
    "prefill_tflops": ("TFLOP/s", "attention of chunks"),
    "narrow_heads": ("share", "more for heads of 64"),
    "short_read": ("times", "a short chunk reads its past's KV"),
    "short_pairs": ("times", "its pairs take as long"),
    "fill_rows": ("rows", "heads × tokens that fill the GPU"),
    "padded_rows": ("rows", "the least a decode beside chunks counts as"),
    "beside_us": ("µs", "a decode beside chunks, a layer"),
    "beside_row_us": ("µs", "and for a token of the longest chunk"),
    "tile": ("tokens", "of a tile"),
    "fp8_speedup": ("times", "matmuls in 8 bits are as fast"),
    "reduce_us": ("µs", "an all-reduce"),
    "reduce_tb_s": ("TB/s", "its bytes"),
}
