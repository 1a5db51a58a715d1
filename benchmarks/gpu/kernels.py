"""Triton kernels of a step: norm, rotary embedding and KV write, paged attention over a work list, activation.

Attention reads its work list on the device, so that one CUDA graph serves all steps of a size. An item of the list is
a tile of query tokens of one sequence and a range of its keys. The ranges of a token are combined afterwards.
"""

import triton
import triton.language as tl


@triton.jit
def add_norm(x, residual, scale, out, width, epsilon, ADD: tl.constexpr, BLOCK: tl.constexpr):
    """Add x to the residual, and write the norm of the sum."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    total = tl.load(residual + row * width + at, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        total += tl.load(x + row * width + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(residual + row * width + at, total.to(residual.dtype.element_ty), mask=inside)
    power = tl.sum(total * total, axis=0) / width
    factor = tl.load(scale + at, mask=inside, other=0.0).to(tl.float32)
    result = total * tl.rsqrt(power + epsilon) * factor
    tl.store(out + row * width + at, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def rotate_and_store(
    qkv, cos, sin, positions, slots, keys, values, row_stride,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD: tl.constexpr,
):  # fmt: skip
    """Rotate the queries of a token in place, and write its rotated keys and its values to their slot."""
    token = tl.program_id(0)
    HALF: tl.constexpr = HEAD // 2
    position = tl.load(positions + token)
    slot = tl.load(slots + token).to(tl.int64)
    half = tl.arange(0, HALF)[None, :]
    c = tl.load(cos + position * HALF + half)
    s = tl.load(sin + position * HALF + half)
    start = qkv + token.to(tl.int64) * row_stride
    query = start + tl.arange(0, HEADS)[:, None] * HEAD + half
    left = tl.load(query).to(tl.float32)
    right = tl.load(query + HALF).to(tl.float32)
    tl.store(query, (left * c - right * s).to(qkv.dtype.element_ty))
    tl.store(query + HALF, (right * c + left * s).to(qkv.dtype.element_ty))
    place = tl.arange(0, KV_HEADS)[:, None] * HEAD + half
    key = start + HEADS * HEAD + place
    left = tl.load(key).to(tl.float32)
    right = tl.load(key + HALF).to(tl.float32)
    target = keys + slot * (KV_HEADS * HEAD) + place
    tl.store(target, (left * c - right * s).to(keys.dtype.element_ty))
    tl.store(target + HALF, (right * c + left * s).to(keys.dtype.element_ty))
    value = start + (HEADS + KV_HEADS) * HEAD + place
    target = values + slot * (KV_HEADS * HEAD) + place
    tl.store(target, tl.load(value))
    tl.store(target + HALF, tl.load(value + HALF))


@triton.jit
def activate(gate_up, out, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    gate = tl.load(gate_up + row * 2 * width + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + at, (gate / (1.0 + tl.exp(-gate)) * up).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _visit(
    sums, peak, weight, q, keys, values, table, at, end, last_seen, head, inner, scale,
    KV_HEADS: tl.constexpr, HEAD: tl.constexpr, PAGE: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Attend to the keys at positions `at`, and return the new running sums."""
    there = at < end
    block = tl.load(table + at // PAGE, mask=there, other=0).to(tl.int64)
    place = (block * PAGE + at % PAGE)[:, None] * (KV_HEADS * HEAD) + head * HEAD + inner[None, :]
    k = tl.load(keys + place, mask=there[:, None], other=0.0)
    v = tl.load(values + place, mask=there[:, None], other=0.0)
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
    if MASKED:
        scores = tl.where(there[None, :] & (at[None, :] <= last_seen[:, None]), scores, float("-inf"))
    higher = tl.maximum(peak, tl.max(scores, axis=1))
    base = tl.where(higher == float("-inf"), 0.0, higher)
    share = tl.exp2(scores - base[:, None])
    fade = tl.exp2(peak - base)
    weight = weight * fade + tl.sum(share, axis=1)
    sums = tl.dot(share.to(v.dtype), v, sums * fade[:, None], input_precision=PRECISION)
    return sums, higher, weight


@triton.jit
def attend(
    qkv, keys, values, tables, items, count, part_sums, part_peaks, part_weights, row_stride, table_stride, scale,
    GROUP: tl.constexpr, KV_HEADS: tl.constexpr, HEAD: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    PAGE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Each program takes every n-th pair of an item and a KV head. Row r of a tile is query head r % GROUP of token
    r // GROUP. An item has: sequence, first token, tokens, position of the first token, first key, end of the keys,
    first row of its partial results (in tokens), unused."""
    tile_row = tl.arange(0, ROWS)
    token = tile_row // GROUP
    inner = tl.arange(0, HEAD)
    for unit in range(tl.program_id(0), tl.load(count) * KV_HEADS, tl.num_programs(0)):
        head = unit % KV_HEADS
        item = items + (unit // KV_HEADS) * 8
        sequence = tl.load(item)
        first_token = tl.load(item + 1)
        tokens = tl.load(item + 2)
        position = tl.load(item + 3)
        begin = tl.load(item + 4)
        end = tl.load(item + 5)
        result = tl.load(item + 6)
        valid = token < tokens
        query_head = head * GROUP + tile_row % GROUP
        place = (first_token + token)[:, None].to(tl.int64) * row_stride + query_head[:, None] * HEAD + inner[None, :]
        q = tl.load(qkv + place, mask=valid[:, None], other=0.0)
        table = tables + sequence * table_stride
        last_seen = position + token
        peak = tl.full([ROWS], float("-inf"), tl.float32)
        weight = tl.zeros([ROWS], tl.float32)
        sums = tl.zeros([ROWS, HEAD], tl.float32)
        # All rows see the keys up to `position`, so only the keys after it need a mask.
        clear = begin + tl.maximum(tl.minimum(end, position + 1) - begin, 0) // KEYS * KEYS
        for start in range(begin, clear, KEYS):
            sums, peak, weight = _visit(
                sums, peak, weight, q, keys, values, table, start + tl.arange(0, KEYS), end, last_seen, head, inner,
                scale, KV_HEADS, HEAD, PAGE, False, PRECISION,
            )  # fmt: skip
        for start in range(clear, end, KEYS):
            sums, peak, weight = _visit(
                sums, peak, weight, q, keys, values, table, start + tl.arange(0, KEYS), end, last_seen, head, inner,
                scale, KV_HEADS, HEAD, PAGE, True, PRECISION,
            )  # fmt: skip
        row = (result + token).to(tl.int64) * (KV_HEADS * GROUP) + query_head
        tl.store(part_peaks + row, peak, mask=valid)
        tl.store(part_weights + row, weight, mask=valid)
        tl.store(part_sums + row[:, None] * HEAD + inner[None, :], sums, mask=valid[:, None])


@triton.jit
def combine(part_sums, part_peaks, part_weights, parts, out, HEADS: tl.constexpr, HEAD: tl.constexpr):
    """Combine the partial results of a token. `parts` has for each token: its first row, the distance of its rows, and
    their number, which is 0 for tokens that only fill up a graph."""
    token = tl.program_id(0)
    first = tl.load(parts + token * 3).to(tl.int64)
    distance = tl.load(parts + token * 3 + 1)
    count = tl.load(parts + token * 3 + 2)
    head = tl.arange(0, HEADS)
    inner = tl.arange(0, HEAD)
    peak = tl.full([HEADS], -1.0e30, tl.float32)
    weight = tl.zeros([HEADS], tl.float32)
    sums = tl.zeros([HEADS, HEAD], tl.float32)
    for number in range(count):
        row = (first + number * distance) * HEADS + head
        other = tl.load(part_peaks + row)
        higher = tl.maximum(peak, other)
        fade = tl.exp2(peak - higher)
        share = tl.exp2(other - higher)
        weight = weight * fade + tl.load(part_weights + row) * share
        sums = sums * fade[:, None] + tl.load(part_sums + row[:, None] * HEAD + inner[None, :]) * share[:, None]
        peak = higher
    result = sums / tl.where(weight > 0.0, weight, 1.0)[:, None]
    place = token.to(tl.int64) * (HEADS * HEAD) + head[:, None] * HEAD + inner[None, :]
    tl.store(out + place, result.to(out.dtype.element_ty))
