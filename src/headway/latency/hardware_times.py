"""The step times of `hardware`: of a model on the GPUs of one instance, of a model with sliding windows, and of steps
that verify drafts. `step_cost` has the formulas."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Final

from headway.config.wording import join_words
from headway.latency import step_cost
from headway.latency.all_reduce import AllReduce
from headway.latency.base import FOREVER, UNITS, Chunk, Run, times
from headway.latency.graphs import padded
from headway.latency.profiles import Profile
from headway.latency.shards import Shard, window_shard

REDUCES_PER_LAYER: Final = 2  # one after attention, and one after the feed-forward layer or the experts
MAX_ENTRIES: Final = 1 << 16  # maximum number of cached costs, because a policy's estimator may ask for many counts


class Hardware:
    """The constant part of a step time is a sum of table entries, each rounded once to whole picoseconds. A token of
    context or past costs a whole number of picoseconds, so the step time grows by exactly the same amount at each step
    of a run.

    If any chunk of a step has a past, a constant is added to the step time. In a run of steps that starts without a
    past, the chunks of the second step would have a past and add this constant. Such a run is therefore one step long.
    """

    def __init__(
        self,
        profile: Profile,
        part: Shard,
        host: tuple[int, int],  # picoseconds per step, and per sequence of the step
        reduce: AllReduce | None = None,  # None for a single GPU
        factor: Fraction = Fraction(1),
        exposed_ps: int = 0,  # the part of `host` that asynchronous scheduling does not hide
        graph_sizes: tuple[int, ...] = (),
    ) -> None:
        self.profile, self.part, self.host, self.reduce = profile, part, host, reduce
        self.exposed_ps, self.graph_sizes = exposed_ps, graph_sizes
        self._factor, self._unscaled = factor, factor == 1
        gpu = profile.constants
        self._host = times(host[0], factor)
        self._kv = self._ps(step_cost.context_us(gpu, part))
        self._past_tokens = step_cost.PastTokens(gpu, part)
        self._token_times = step_cost.TokenTimes(gpu, part)
        self._mixed_kv = self._ps(step_cost.mixed_context_us(gpu, part))
        # Time of a decode in a step with chunks, and its increase per token of the longest chunk.
        self._beside = self._ps(step_cost.beside_us(gpu, part, 0))
        self._beside_row = self._ps(step_cost.beside_us(gpu, part, 1)) - self._beside
        # Constants of a step with chunks.
        # The first index is whether the step has decodes, and the second is whether any chunk has a past.
        self._mixed = [
            [self._ps(step_cost.attention_us(gpu, part, decoding, past)) for past in (False, True)]
            for decoding in (False, True)
        ]
        # For steps without chunks: (time without context, increase per step). The index is the number of decodes.
        self._decode: list[tuple[int, int]] = []
        self._decodes: list[int] = []  # by number of decodes: attention time that does not depend on context
        self._sequences: list[int] = []
        self._beside_chunk: list[tuple[int, int]] = []  # by number of decodes: `_constants`
        self._tokens: dict[int, int] = {}
        # Length of a chunk -> (time without past, time per past token, increase per step).
        self._chunks: dict[int, tuple[int, int, int]] = {}

    def scale(self, factor: Fraction) -> Hardware:
        return self._with(self.host, self._factor * factor)

    def without_host(self) -> Hardware:
        return self._with((0, 0), self._factor)

    def split_host(self) -> tuple[Hardware, int, int]:
        step, sequence = self.host
        return self._with((self.exposed_ps, 0), self._factor), step - self.exposed_ps, sequence

    def _with(self, host: tuple[int, int], factor: Fraction) -> Hardware:
        return type(self)(self.profile, self.part, host, self.reduce, factor, self.exposed_ps, self.graph_sizes)

    def doubts(self, tokens: int, sequences: int = 0) -> str | None:
        outside = self.profile.outside(tokens, 0)
        if outside:
            return outside
        matmuls, covered = self.part.matmuls, self.profile.covers
        kinds = {
            "mixtures of experts": self.part.sparse_layers and "experts" not in covered,
            "mixtures of experts in 8 bits": "experts" in covered
            and any(matmul.experts > 1 and matmul.bytes_a_weight == 1 for matmul in matmuls),
            "weights of 8 bits": any(matmul.bytes_a_weight == 1 for matmul in matmuls) and "fp8" not in covered,
            "weights below 8 bits": any(matmul.bytes_a_weight < 1 for matmul in matmuls) and "packed" not in covered,
            "all-reduces between its GPUs": self.reduce is not None and not self.reduce.measured,
        }
        present = [kind for kind, here in kinds.items() if here]
        return (
            f"{self.profile.name} was not measured with {join_words(present)}: times are computed." if present else None
        )

    def verify(self, width: int) -> HardwareVerifier:
        return HardwareVerifier(self, width)

    def run(self, decodes: int, context: int, chunks: Sequence[Chunk]) -> Run:
        if not chunks:
            try:
                base, rise = self._decode[decodes]
            except IndexError:
                base, rise = self._extend(decodes)
            return base + self._kv * context, rise, FOREVER
        sequences = decodes + len(chunks)
        if sequences >= len(self._decode):
            self._extend(sequences)
        known, costs = self._chunks, self._tokens
        if len(chunks) == 1:  # the usual case: the same as below, but faster
            ((longest, past),) = chunks
            base, slope, increment = known[longest] if longest in known else self._chunk(longest)
            tokens = decodes + longest
            first = base + self._beside_chunk[decodes][past > 0]
            first += costs[tokens] if tokens in costs else self.token_ps(tokens)
            if past:
                first += slope * past
            if decodes:
                first += decodes * longest * self._beside_row + self._mixed_kv * context
                increment += self._mixed_kv * decodes
            return first, increment, FOREVER if past else 1
        first = increment = past = longest = 0
        tokens = decodes
        for length, before in chunks:
            base, slope, rise = known[length] if length in known else self._chunk(length)
            first += base + slope * before
            increment += rise
            tokens += length
            past |= before
            if length > longest:
                longest = length
        first += costs[tokens] if tokens in costs else self.token_ps(tokens)
        first += self._sequences[sequences] + self._mixed[decodes > 0][past > 0]
        if decodes:
            first += self._decodes[decodes] + self._mixed_kv * context
            first += decodes * (self._beside + self._beside_row * longest)
            increment += self._mixed_kv * decodes
        return first, increment, FOREVER if past else 1

    def _ps(self, microseconds: float) -> int:
        whole = round(microseconds * 1e6)
        return whole if self._unscaled else times(whole, self._factor)

    def _extend(self, most: int) -> tuple[int, int]:
        gpu, part = self.profile.constants, self.part
        for count in range(len(self._decode), most + 1):
            self._decodes.append(self._ps(step_cost.decodes_us(gpu, part, count)))
            self._sequences.append(self._host_of(count) + self._ps(step_cost.sequences_us(gpu, part, count)))
            base = self._decodes[count] + self._sequences[count] + self.token_ps(count)
            self._decode.append((base, self._kv * count))
            if count:
                self._beside_chunk.append(self._constants(count - 1))
        return self._decode[most]

    def _constants(self, decodes: int) -> tuple[int, int]:
        """Return the constants of a step with these decodes and one chunk: without and with a past."""
        constant = self._sequences[decodes + 1]
        if decodes:
            constant += self._decodes[decodes] + decodes * self._beside
        without, behind = self._mixed[decodes > 0]
        return constant + without, constant + behind

    def _host_of(self, sequences: int) -> int:
        return times(self.host[1] * sequences, self._factor)

    def token_ps(self, tokens: int) -> int:
        """Return the host time of a step plus the time of the work that depends only on the number of tokens."""
        computed = padded(tokens, self.graph_sizes) if self.graph_sizes else tokens
        us = self._token_times.us(computed, computed - tokens)
        if self.reduce is not None:
            single = self.reduce.time_us(computed * self.part.reduced_bytes)
            us += REDUCES_PER_LAYER * self.part.layers * single * self.profile.all_reduce_times
        cost = max(1, self._host + self._ps(us))
        if len(self._tokens) < MAX_ENTRIES:
            self._tokens[tokens] = cost
        return cost

    def _chunk(self, tokens: int) -> tuple[int, int, int]:
        past = self._past_tokens
        slope = self._ps(past.us(tokens))
        base = self._ps(step_cost.chunk_us(self.profile.constants, self.part, tokens, past.pair))
        costs = base, slope, slope * tokens
        if len(self._chunks) < MAX_ENTRIES:
            self._chunks[tokens] = costs
        return costs


class WindowedHardware(Hardware):
    """The step times of a model some of whose layers have sliding windows. In these layers, a decode reads at most the
    window, and a token of a chunk attends to at most the window. `run_windows` is told the sum of the contexts that
    decodes have in such layers; `run` assumes that all decodes have the same context."""

    def __init__(self, profile: Profile, part: Shard, host: tuple[int, int], *further: Any, **named: Any) -> None:
        super().__init__(profile, part, host, *further, **named)
        gpu, near = profile.constants, window_shard(part)
        self.window = part.window
        self._near = self._ps(step_cost.context_us(gpu, near))
        self._mixed_near = self._ps(step_cost.mixed_context_us(gpu, near))
        self.pair_ps = step_cost.pair_us(gpu, near)
        self.near_part = near
        self._near_past: dict[int, int] = {}

    def run(self, decodes: int, context: int, chunks: Sequence[Chunk]) -> Run:
        near = min(context, decodes * self.window)
        return self.run_windows(decodes, context, near, 0, chunks)[0], 0, 1

    def run_windows(self, decodes: int, context: int, near: int, growing: int, chunks: Sequence[Chunk]) -> Run:
        """Return the times of a run as `run` does. `near` is the sum of min(context, window) over the decodes, and
        `growing` is the number of decodes whose context is shorter than the window."""
        first, increment, steps = super().run(decodes, context, chunks)
        if not chunks:
            return first + self._near * near, increment + self._near * growing, steps
        first += self._mixed_near * near
        for length, before in chunks:
            first += self.chunk_near(length, before)
        return first, 0, 1

    def verify(self, width: int) -> WindowedVerifier:
        return WindowedVerifier(self, width)

    def chunk_near(self, length: int, before: int) -> int:
        """Return the attention time of a chunk in the layers with windows."""
        full = max(0, min(length, self.window - before))  # tokens whose window reaches back to the first token
        pairs = full * before + full * (full + 1) // 2 + (length - full) * self.window
        behind = min(before, self.window - 1)  # past tokens that the chunk reads
        past = self._near_past.get(length)
        if past is None:
            tokens = step_cost.PastTokens(self.profile.constants, self.near_part)
            past = self._ps(tokens.us(length) - tokens.pair * length)
            if len(self._near_past) < MAX_ENTRIES:
                self._near_past[length] = past
        return self._ps(self.pair_ps * pairs) + max(0, past) * behind


class HardwareVerifier:
    """The times of steps whose decodes compute `width` tokens each. All work on tokens, and the logits, count every
    token. A decode reads its context once for all its tokens, unless it takes longer to compute their attention. Host
    time and the constants of attention count each decode once."""

    def __init__(self, hardware: Hardware, width: int) -> None:
        self.hardware, self.width = hardware, width
        gpu, part = hardware.profile.constants, hardware.part
        computing = width * step_cost.pair_us(gpu, part)
        self._kv = hardware._ps(max(step_cost.context_us(gpu, part), computing) / UNITS)
        self._mixed_kv = hardware._ps(max(step_cost.mixed_context_us(gpu, part), computing) / UNITS)

    def run(self, decodes: int, context: int, growth: int, chunks: Sequence[Chunk], near: int | None = None) -> Run:
        hardware = self.hardware
        tokens = decodes * self.width
        rows, sequences = tokens + len(chunks), decodes + len(chunks)
        if rows >= len(hardware._decode):
            hardware._extend(rows)
        increment = past = longest = 0
        first = hardware._decodes[decodes] + hardware._sequences[rows]
        first -= hardware._host_of(rows) - hardware._host_of(sequences)
        for length, before in chunks:
            base, slope, rise = hardware._chunks.get(length) or hardware._chunk(length)
            first += base + slope * before
            increment += rise
            tokens += length
            past |= before
            longest = max(longest, length)
        first += hardware._tokens.get(tokens) or hardware.token_ps(tokens)
        kv = self._kv
        if chunks:
            kv = self._mixed_kv
            first += hardware._mixed[decodes > 0][past > 0]
            first += decodes * (hardware._beside + hardware._beside_row * longest)
        return first + kv * context, increment + kv * growth, FOREVER if past or not chunks else 1


class WindowedVerifier(HardwareVerifier):
    """The same for a model some of whose layers have sliding windows. Each run is one step long."""

    def __init__(self, hardware: WindowedHardware, width: int) -> None:
        super().__init__(hardware, width)
        gpu, part = hardware.profile.constants, hardware.near_part
        computing = width * hardware.pair_ps
        self.window, self._chunk_near = hardware.window * UNITS, hardware.chunk_near
        self._near = hardware._ps(max(step_cost.context_us(gpu, part), computing) / UNITS)
        self._mixed_near = hardware._ps(max(step_cost.mixed_context_us(gpu, part), computing) / UNITS)

    def run(self, decodes: int, context: int, growth: int, chunks: Sequence[Chunk], near: int | None = None) -> Run:
        first = super().run(decodes, context, growth, chunks)[0]
        if near is None:
            near = min(context, decodes * self.window)
        first += (self._mixed_near if chunks else self._near) * near
        for length, before in chunks:
            first += self._chunk_near(length, before)
        return first, 0, 1
