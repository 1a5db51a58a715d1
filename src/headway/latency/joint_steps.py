"""The steps of data-parallel ranks that wait for each other, because each layer exchanges tokens between all of them.

A joint step takes as long as the step of the slowest rank. A model that can tell apart what a rank computes alone and
what all ranks compute together has a method `run_group(shapes)`. It has the step of each rank, in order, and returns
`first`, `increment` and `k_max` of the joint run, as `LatencyModel.run` does. With other models, the slowest rank
decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from functools import partial
from typing import Any, Final, Protocol

from msgspec.structs import replace

from headway.latency import step_cost
from headway.latency.all_reduce import AllReduce
from headway.latency.base import Chunk, LatencyModel, Run, StepShape, times
from headway.latency.graphs import padded
from headway.latency.hardware_times import Hardware

# The most tokens of a step that runs as a CUDA graph, vLLM's default. Ranks that all run graphs pad their steps to the
# number of tokens of the largest; if any step is larger, no rank pads.
GRAPH_TOKENS: Final = 512
MAX_ENTRIES: Final = 1 << 16  # maximum number of cached costs

# Prices the step of one rank: the arguments are the model of what the rank computes alone, and the rank's place.
Price = Callable[[LatencyModel, int], Run]


class RunGroup(Protocol):
    """Returns the joint run of the steps of all ranks, in order. Some ranks know more of their steps than the shapes
    say: then `price` is their own price. A decode computes `width` tokens."""

    def __call__(self, shapes: Sequence[StepShape], price: Price | None = None, width: int = 1) -> Run: ...


def run_group_of(model: LatencyModel) -> RunGroup:
    """Return the function that computes the joint runs of a model."""
    own: RunGroup | None = getattr(model, "run_group", None)
    return partial(_run_apart, model) if own is None else own


def run_group_after_pause(model: LatencyModel, shapes: Sequence[StepShape]) -> Run:
    """Return the joint run of ranks whose steps begin after a pause of the GPU. Only its first step is one."""
    own: RunGroup | None = getattr(model, "run_group_after_pause", None)
    return run_group_of(model)(shapes) if own is None else own(shapes)


def _run_apart(model: LatencyModel, shapes: Sequence[StepShape], price: Price | None = None, width: int = 1) -> Run:
    """Return the joint run if each rank's steps take as long as those of an engine of its own. An idle rank computes
    a dummy token, which never takes longest."""
    busy = [place for place, shape in enumerate(shapes) if shape[0] or shape[2]]
    return slowest([model.run(*shapes[place]) if price is None else price(model, place) for place in busy])


def slowest(runs: Iterable[Run]) -> Run:
    """Return the run of the rank that is slowest in the first step, up to the step in which another rank is slower."""
    each = list(runs)
    first, increment, _ = max(each)  # on a tie, the rank whose steps grow faster
    most = min(run[2] for run in each)
    for other, growth, _ in each:
        if growth > increment:  # at step j, the other rank is slower if other + j * growth > first + j * increment
            most = min(most, (first - other) // (growth - increment) + 1)
    return first, increment, most


class JointHardware:
    """The step times of the latency model `hardware` for an engine with data-parallel ranks and a mixture of experts.

    Each rank computes attention and dense layers for its own tokens. The experts of all GPUs compute the tokens of all
    ranks; the ranks exchange the tokens before and after. A layer ends on all ranks at once, so a step takes as long as
    the slowest rank's own part, plus the experts, plus the exchange.
    """

    def __init__(self, whole: Hardware, dp: int, exchange: AllReduce, factor: Fraction = Fraction(1)) -> None:
        """`whole` is the model of a rank including the experts."""
        self.whole, self.dp, self.exchange, self.factor = whole, dp, exchange, factor
        part = whole.part
        self.routed = next(matmul for matmul in part.matmuls if matmul.experts > 1)
        rest = tuple(matmul for matmul in part.matmuls if matmul.experts == 1)
        own: Any = type(whole)(
            whole.profile,
            replace(part, matmuls=rest),
            whole.host,
            whole.reduce,
            exposed_ps=whole.exposed_ps,
            graph_sizes=whole.graph_sizes,
        )
        self.own: Hardware = own if factor == 1 else own.scale(factor)
        self._shared: dict[tuple[int, int], int] = {}

    def scale(self, factor: Fraction) -> JointHardware:
        return JointHardware(self.whole, self.dp, self.exchange, self.factor * factor)

    def split_host(self) -> tuple[JointHardware, int, int]:
        whole, step, sequence = self.whole.split_host()
        return JointHardware(whole, self.dp, self.exchange, self.factor), step, sequence

    def doubts(self, tokens: int, sequences: int = 0) -> str | None:
        doubt = self.whole.doubts(tokens, sequences)
        if doubt is None and not self.exchange.measured:
            doubt = f"{self.whole.profile.name} was not measured with exchanges between its ranks: times are computed."
        return doubt

    def run(self, decodes: int, context: int, chunks: Sequence[Chunk]) -> Run:
        """Return the run of one rank while the others are idle. Policies estimate with it."""
        return self.run_group([(decodes, context, chunks), *[(0, 0, ())] * (self.dp - 1)])

    def run_group(self, shapes: Sequence[StepShape], price: Price | None = None, width: int = 1) -> Run:
        tokens = [decodes * width + sum(length for length, _ in chunks) for decodes, _, chunks in shapes]
        most, sizes = max(tokens), self.whole.graph_sizes
        pads = most <= (sizes[-1] if sizes else GRAPH_TOKENS)
        runs = []
        for place, count in enumerate(tokens):
            if count:
                first, increment, steps = self.own.run(*shapes[place]) if price is None else price(self.own, place)
                if pads and count < most:
                    first += self.own.token_ps(most) - self.own.token_ps(count)
                runs.append((first, increment, steps))
        # Padding tokens visit experts like others. An idle rank's tokens are all equal, so they visit the same experts.
        visiting = sum((most if pads else count) if count else 1 for count in tokens)
        gathered = self.dp * padded(most, sizes) if pads else sum(max(count, 1) for count in tokens)
        first, increment, steps = slowest(runs)
        return first + self.shared_ps(visiting, gathered), increment, steps

    def shared_ps(self, visiting: int, gathered: int) -> int:
        """Return the time of the experts for `visiting` tokens, and of the exchange of `gathered` hidden states."""
        cost = self._shared.get((visiting, gathered))
        if cost is None:
            profile, part = self.whole.profile, self.whole.part
            us = step_cost.sorting_us(profile.constants, part, self.routed, visiting)
            us += step_cost.matmul_us(profile.constants, self.routed, visiting)
            if self.routed.eight_bits and not self.own.part.eight_bits:
                us += step_cost.rounding_us(profile.constants, part, visiting)
            single = self.exchange.time_us(gathered * part.reduced_bytes)
            us += part.sparse_layers * single * profile.all_reduce_times
            cost = times(round(us * 1e6), self.factor)
            if len(self._shared) < MAX_ENTRIES:
                self._shared[visiting, gathered] = cost
        return cost
