"""`aiconfigurator`: a step time is the sum of kernel times. The package aiconfigurator-core contains the measurements
of single kernels."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Annotated, Any, Final

from msgspec import Struct

from headway.config.keys import Doc, Form
from headway.errors import HeadwayError
from headway.latency.base import FOREVER, Chunk, LatencyKind, Run, times
from headway.latency.exact_numbers import AutoDuration
from headway.latency.gpus import Gpu
from headway.latency.kernel_data import Kernels, Source, find_source, with_kernels
from headway.latency.profiles import read_profile
from headway.latency.scattered import smooth, through
from headway.latency.shapes import ModelShape
from headway.latency.surface import Surface

PS_PER_MS: Final = 10**9
LONGEST: Final = 1 << 17  # maximum tabulated number of tokens in a sequence
CROWD: Final = 2048  # maximum tabulated number of decodes
MEASURED: Final = 16_384  # maximum measured number of tokens in a chunk


def _counts(most: int, parts: int, least: int = 1) -> list[int]:
    """Return increasing counts from `least` to `most`. From a count c = `least` to 2c, there are `parts` evenly spaced
    counts, and likewise from 2c to 4c, and so on."""
    counts, octave = {most}, least
    while octave < most:
        counts.update(octave + octave * part // parts for part in range(parts))
        octave *= 2
    return sorted(counts)


# A kernel works in tiles, so one token above a multiple of the tile size may cost a whole additional tile.
# Each pair is (tile size, maximum number of tokens for which it is used).
TILES: Final = ((16, 256), (256, 4096), (1024, LONGEST))
TOKENS: Final = sorted(
    {
        *range(1, 17),
        LONGEST,
        *(size + more for tile, most in TILES for size in range(tile, most, tile) for more in (0, 1)),
    }
)
CONTEXTS: Final = [0, *_counts(CROWD * LONGEST, 2, 32)]
PASTS: Final = [0, *_counts(8 * LONGEST, 2, 128)]


class AiconfiguratorParameters(Struct):
    """Keys of `latency: {model: aiconfigurator}`."""

    system: Annotated[
        Any, Form.of(str), Doc("the package's name of the GPU; auto derives it from `gpu`", type="text")
    ] = "auto"
    backend: Annotated[Any, Form.of(str), Doc("engine whose kernels count: vllm, sglang or trtllm", type="text")] = (
        "vllm"
    )
    version: Annotated[
        Any, Form.of(str), Doc("version of the backend; auto is the package's current one", type="text")
    ] = "auto"
    host_ps: Annotated[AutoDuration, "added to each step for work on the host; auto uses the GPU's profile"] = "auto"


class KernelSurfaces(Struct, frozen=True):
    tokens: Surface  # time of the work that depends only on the number of tokens, in a step without chunks
    mixed_tokens: Surface  # time of the same work in a step with chunks
    logits: Surface  # time of the logits, by number of sequences
    decodes: Surface  # attention time of decodes, by number of decodes and sum of their contexts
    chunks: Surface  # attention time of a chunk, by number of tokens and number of past tokens

    def scale(self, factor: Fraction) -> KernelSurfaces:
        return KernelSurfaces(*(getattr(self, name).scale(factor) for name in self.__struct_fields__))


class Aiconfigurator(Struct, eq=False):
    """A step time is a sum of values from several surfaces, which never fall as the counts grow. Along a run of steps,
    each value grows linearly until the next node of its surface, where the run ends."""

    source: Source
    parts: KernelSurfaces
    host_ps: int

    def scale(self, factor: Fraction) -> Aiconfigurator:
        return Aiconfigurator(self.source, self.parts.scale(factor), times(self.host_ps, factor))

    def split_host(self) -> tuple[Aiconfigurator, int, int]:
        return Aiconfigurator(self.source, self.parts, 0), self.host_ps, 0

    def doubts(self, tokens: int, sequences: int) -> str:
        basis = f"Step times are sums of kernel times measured one by one ({self.source.words()})"
        computed = "norms and the attention of chunks to past tokens"
        if tokens > MEASURED or sequences > CROWD:
            computed = f"{computed}, chunks above {MEASURED:,} tokens and batches above {CROWD:,} decodes"
        return f"{basis}; not measured but computed: {computed}."

    def run(self, decodes: int, context: int, chunks: Sequence[Chunk]) -> Run:
        parts = self.parts
        first, increment, k_max = self.host_ps, 0, FOREVER
        tokens = decodes
        if decodes:
            value, slope, room = parts.decodes.curve(decodes).at(context)
            first += value
            increment = slope * decodes
            k_max = -(-room // decodes)
        for length, past in chunks:
            value, slope, room = parts.chunks.curve(length).at(past)
            first += value
            increment += slope * length
            k_max = min(k_max, -(-room // length))
            tokens += length
        first += (parts.mixed_tokens if chunks else parts.tokens).start(tokens)
        return first + parts.logits.start(decodes + len(chunks)), increment, k_max


def _build(keys: AiconfiguratorParameters, where: str, model: ModelShape, gpu: Gpu, tp: int) -> Aiconfigurator:
    source = find_source(keys.system, keys.backend, keys.version, gpu, where)
    host_ps = read_profile(gpu.name, gpu, f"{where}.host").host_ps if keys.host_ps == "auto" else keys.host_ps
    try:
        return Aiconfigurator(source, _surfaces(model, tp, source), host_ps)
    except HeadwayError as error:
        raise HeadwayError(f"{where}: {error}") from None


MODEL: Final = LatencyKind("aiconfigurator", AiconfiguratorParameters, _build)


@lru_cache(maxsize=16)
def _surfaces(model: ModelShape, tp: int, source: Source) -> KernelSurfaces:
    """Return the tables of kernel times. They are cached, because computing them takes seconds and every pool of a
    scenario needs them several times."""
    return with_kernels(model, tp, source, _tabulate)


def _tabulate(kernels: Kernels) -> KernelSurfaces:
    alone = [kernels.tokens(count, False) for count in TOKENS]
    beside = [max(least, kernels.tokens(count, True)) for least, count in zip(alone, TOKENS, strict=True)]
    crowds = [count for count in TOKENS if count <= 2 * CROWD]
    decodes = {
        count: {
            context: _ps(kernels.decodes(count, context))
            for context in CONTEXTS
            if count <= context <= count * LONGEST or not context
        }
        for count in _counts(CROWD, 2)
    }
    chunks = {tokens: {past: _ps(kernels.chunk(tokens, past)) for past in PASTS} for tokens in _counts(LONGEST, 8)}
    return KernelSurfaces(
        _line(TOKENS, alone),
        _line(TOKENS, beside),
        _line(crowds, [kernels.logits(count) for count in crowds]),
        through(smooth(decodes), False),
        through(smooth(chunks), True),
    )


def _line(counts: Sequence[int], milliseconds: Sequence[float]) -> Surface:
    points = smooth({count: {0: _ps(value)} for count, value in zip(counts, milliseconds, strict=True)})
    return Surface(list(points), [0], [list(line.values()) for line in points.values()], [0] * len(points))


def _ps(milliseconds: float) -> int:
    return max(1, round(milliseconds * PS_PER_MS))
