"""`aiconfigurator`: a step as the sum of its kernels, each measured alone, from the package of that name."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any, ClassVar, Final

from msgspec import Struct

from headway.config import section
from headway.config.units import duration_ps
from headway.errors import HeadwayError
from headway.latency.base import FOREVER, Chunk, Run, times
from headway.latency.gpus import Gpu
from headway.latency.kernel_data import Kernels, Source, find_source, with_kernels
from headway.latency.profiles import read_profile
from headway.latency.scattered import Points, evened, through
from headway.latency.shapes import ModelShape
from headway.latency.surface import Surface

PS_PER_MS: Final = 10**9
LONGEST: Final = 1 << 17  # tokens of a sequence up to which kernels are asked for
CROWD: Final = 2048  # decodes
MEASURED: Final = 16_384  # tokens of a chunk


def _counts(most: int, parts: int, least: int = 1) -> list[int]:
    """So many to a doubling."""
    found, octave = [], least
    while octave < most:
        found += [octave + octave * part // parts for part in range(parts)]
        octave *= 2
    return sorted({*found, most})


# A kernel works in tiles, so that one token more than a multiple may cost a whole tile more.
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

    system: Any = "auto"  # the GPU by the package's name; auto: that of the cluster's GPU
    backend: Any = "vllm"  # whose kernels: vllm, sglang or trtllm
    version: Any = "auto"  # of the backend; auto: the one that the package calls current
    host: Any = "auto"  # a step's time beside its kernels; auto: that of the GPU's hardware profile


class KernelSurfaces(Struct, frozen=True):
    tokens: Surface  # what the tokens of a step that only decodes go through, and of one with chunks
    mixed_tokens: Surface
    logits: Surface  # by sequences
    decodes: Surface  # attention, by decodes and the context of all
    chunks: Surface  # attention, by tokens and past

    def scaled(self, factor: Fraction) -> KernelSurfaces:
        return KernelSurfaces(*(getattr(self, name).scaled(factor) for name in self.__struct_fields__))


class Aiconfigurator:
    """Each of the parts never falls, so neither does their sum; along a run each is affine until its next node."""

    keys: ClassVar = AiconfiguratorParameters
    __slots__ = ("host_ps", "parts", "source")

    def __init__(self, source: Source, parts: KernelSurfaces, host_ps: int) -> None:
        self.source, self.parts, self.host_ps = source, parts, host_ps

    @classmethod
    def read(cls, data: dict[str, Any], where: str, model: ModelShape, gpu: Gpu, tp: int) -> Aiconfigurator:
        given = section.read(AiconfiguratorParameters, data, where)
        source = find_source(given.system, given.backend, given.version, gpu, where)
        if given.host == "auto":
            host = read_profile(gpu.name, gpu, f"{where}.host").host_ps
        else:
            host = duration_ps(given.host, f"{where}.host")
        try:
            return cls(source, _surfaces(model, tp, source), host)
        except HeadwayError as error:
            raise HeadwayError(f"{where}: {error}") from None

    def scaled(self, factor: Fraction) -> Aiconfigurator:
        return Aiconfigurator(self.source, self.parts.scaled(factor), times(self.host_ps, factor))

    def doubts(self, tokens: int, sequences: int) -> str:
        """What to say of steps of so many tokens and sequences: some of them was reckoned, not measured."""
        said = (
            f"Steps are sums of kernels measured alone ({self.source.words()}); norms and what a past adds are reckoned"
        )
        if tokens <= MEASURED and sequences <= CROWD:
            return f"{said}."
        return f"{said}, and so are chunks of more than {MEASURED:,} tokens and more than {CROWD:,} decodes."

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


@lru_cache(maxsize=16)
def _surfaces(model: ModelShape, tp: int, source: Source) -> KernelSurfaces:
    """Asking the package takes a second or two, and every pool of a scenario asks several times."""
    return with_kernels(model, tp, source, _tabulated)


def _tabulated(kernels: Kernels) -> KernelSurfaces:
    alone = [kernels.tokens(count, False) for count in TOKENS]
    beside = [max(one, kernels.tokens(count, True)) for one, count in zip(alone, TOKENS, strict=True)]
    crowds = [count for count in TOKENS if count <= 2 * CROWD]
    return KernelSurfaces(
        _line(TOKENS, alone),
        _line(TOKENS, beside),
        _line(crowds, [kernels.logits(count) for count in crowds]),
        through(evened(_decodes(kernels)), False),
        through(evened(_chunks(kernels)), True),
    )


def _line(counts: Sequence[int], found: Sequence[float]) -> Surface:
    """A function of one count alone."""
    points = evened({count: {0: _ps(value)} for count, value in zip(counts, found, strict=True)})
    return Surface(list(points), [0], [list(line.values()) for line in points.values()], [0] * len(points))


def _decodes(kernels: Kernels) -> Points:
    return {
        count: {
            context: _ps(kernels.decodes(count, context))
            for context in CONTEXTS
            if count <= context <= count * LONGEST or not context
        }
        for count in _counts(CROWD, 2)
    }


def _chunks(kernels: Kernels) -> Points:
    return {tokens: {past: _ps(kernels.chunk(tokens, past)) for past in PASTS} for tokens in _counts(LONGEST, 8)}


def _ps(milliseconds: float) -> int:
    return max(1, round(milliseconds * PS_PER_MS))
