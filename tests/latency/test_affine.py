"""The contract of every latency model: along a run the step time is exactly affine, for as long as the model says."""

from __future__ import annotations

from fractions import Fraction
from importlib.util import find_spec

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drawing import draws
from headway.latency import MODELS, Gpu, ModelShape, build, read_gpu, read_model
from headway.latency.base import FOREVER, Chunk, LatencyModel
from headway.latency.step_models.fixed import Fixed
from headway.latency.step_models.linear import Linear
from headway.latency.step_models.piecewise import Piecewise
from headway.latency.step_models.roofline import Roofline, RooflineParameters

EIGHT_B = read_model("llama-3.1-8b", "model")
H100 = read_gpu("h100", "gpu")

fixed = st.builds(Fixed, st.integers(1, 10**12), st.integers(1, 10**12))
linear = st.builds(
    Linear,
    st.integers(1, 10**11),
    st.integers(0, 10**9),
    st.fractions(0, 5000, max_denominator=1000),
    st.integers(0, 10**9),
    st.integers(0, 10**6),
)
piecewise = st.builds(
    Piecewise,
    st.integers(1, 10**9),
    st.fractions(Fraction(1, 10), 10**6, max_denominator=100),
    st.integers(2, 200),
    st.fractions(Fraction(1, 10), 10**6, max_denominator=100),
)


@st.composite
def rooflines(draw: st.DrawFn) -> Roofline:
    """Shapes and cards far from any real one, so that either side wins."""
    params, layers, heads = draw(st.integers(1, 10**11)), draw(st.integers(1, 100)), draw(st.integers(1, 128))
    flop_per_byte = draw(st.sampled_from((1, 10, 100, 300, 1000, 10_000)))
    flops = draw(st.integers(10**10, 10**16))
    shape = ModelShape(
        "any",
        layers=layers,
        heads=heads,
        head_dim=128,
        active_params=draw(st.integers(1, params)),
        weight_bytes=draw(st.integers(1, 1000 * params)),
        kv_bytes_per_token=draw(st.integers(1, 600 * layers * heads)),
    )
    gpu = Gpu(10**11, flops // flop_per_byte, Fraction(flops), 1.0)
    mfu, mbu = (draw(st.fractions(Fraction(1, 100), 1, max_denominator=100)) for _ in range(2))
    keys = RooflineParameters(mfu, mbu, draw(st.integers(0, 10**10)))
    return Roofline(keys, "latency", shape, gpu, draw(st.sampled_from((1, 2, 8))))


STEPS = [
    *(
        {"decodes": n, "context": n * c, "time": f"{5000 + n * (40 + c // 20)}us"}
        for n in (1, 9, 256)
        for c in (9, 4000)
    ),
    *({"prefill": n, "past": p, "time": f"{6000 + n * (20 + p // 900)}us"} for n in (1, 512, 8192) for p in (0, 9000)),
]


def usual(name: str) -> LatencyModel:
    """A model with its defaults; a table has none."""
    return build({"model": name, **({"rows": STEPS} if name == "table" else {})}, EIGHT_B, H100, 1)


HERE = [name for name in MODELS if name != "aiconfigurator" or find_spec("aiconfigurator_core")]
defaults = st.deferred(lambda: st.sampled_from([usual(name) for name in HERE]))
models = st.one_of(defaults, fixed, linear, piecewise, rooflines())
chunk = st.tuples(st.integers(1, 8192), st.integers(0, 200_000))


@st.composite
def steps(draw: st.DrawFn) -> tuple[int, int, list[Chunk]]:
    """Decodes only, a chunk only, or both."""
    chunks = draw(st.lists(chunk, max_size=1))
    decodes = draw(st.integers(0 if chunks else 1, 600))
    context = draw(st.integers(decodes, decodes * 100_000)) if decodes else 0
    return decodes, context, chunks


def at(model: LatencyModel, decodes: int, context: int, chunks: list[Chunk], step: int) -> int:
    return model.run(decodes, context + step * decodes, [(tokens, past + step * tokens) for tokens, past in chunks])[0]


@pytest.mark.full
@draws(40)
@given(models, steps(), st.data())
def test_every_step_of_a_run_lasts_first_plus_increments(
    model: LatencyModel, step: tuple[int, int, list[Chunk]], data: st.DataObject
) -> None:
    first, increment, k_max = model.run(*step)
    assert all(type(value) is int for value in (first, increment, k_max))
    assert first >= 1 and increment >= 0 and k_max >= 1
    assert at(model, *step, 0) == first
    last = min(k_max, 10**6) - 1
    for j in {0, 1, 2, last - 1, last, data.draw(st.integers(0, last))}:
        if 0 <= j <= last:
            assert at(model, *step, j) == first + j * increment


@st.composite
def crossings(draw: st.DrawFn) -> tuple[Roofline, tuple[int, int, list[Chunk]]]:
    """A roofline and a step whose slower side is overtaken later. A FLOP and a byte take a picosecond each."""
    decodes, context, chunks = step = draw(steps())
    tokens = decodes + sum(length for length, _ in chunks)
    reads = context + sum(length + past for length, past in chunks)
    pairs = context + sum(length * past + length * (length + 1) // 2 for length, past in chunks)
    gap = draw(st.integers(0, 10**14))
    heads = draw(st.integers(1, 4))
    if draw(st.booleans()):  # compute overtakes: attention grows by 128 FLOPs and more a token, reading by one byte
        active, kv = 1, 1
        weights = 2 * tokens + 128 * heads * pairs + gap
    else:  # memory overtakes: no chunk is long enough for its attention to keep pace
        kv, weights = draw(st.integers(5 * 10**6, 10**7)), 1
        active = (kv * reads + gap) // (2 * tokens) + 1
    shape = ModelShape("any", 1, heads, 32, active, weights, kv)
    gpu = Gpu(10**11, 10**12, Fraction(10**12), 1.0)
    keys = RooflineParameters(Fraction(1), Fraction(1), draw(st.integers(0, 10**10)))
    return Roofline(keys, "latency", shape, gpu, 1), step


@draws(40)
@given(crossings(), st.data())
def test_a_roofline_gives_its_run_up_exactly_where_the_other_side_overtakes(
    crossing: tuple[Roofline, tuple[int, int, list[Chunk]]], data: st.DataObject
) -> None:
    model, step = crossing
    first, increment, k_max = model.run(*step)
    assert k_max < FOREVER
    for j in (0, k_max - 1, data.draw(st.integers(0, k_max - 1))):
        assert at(model, *step, j) == first + j * increment
    beyond = at(model, *step, k_max)
    assert beyond > first + k_max * increment


@draws(6)
@given(models, steps(), st.lists(chunk, min_size=1, max_size=4))
def test_a_step_with_several_chunks_costs_at_least_each_of_them_alone(
    model: LatencyModel, step: tuple[int, int, list[Chunk]], more: list[Chunk]
) -> None:
    decodes, context, chunks = step
    together = model.run(decodes, context, [*chunks, *more])[0]
    assert together >= model.run(*step)[0]
    assert all(together >= model.run(0, 0, [one])[0] for one in more)
    assert together == model.run(decodes, context, [*reversed(more), *chunks])[0]


def test_small_chunks_of_a_long_prompt_turn_from_memory_bound_to_compute_bound() -> None:
    # 128 tokens of an 8B model on an H100 compute for 3.5 ms beside 6 ms of weights, but each past token adds
    # 113 ns of attention and only 49 ns of reading.
    model, chunks = build({"model": "roofline"}, EIGHT_B, H100, 1), [(128, 0)]
    first, increment, k_max = model.run(0, 0, chunks)
    assert 300 < k_max < 320
    assert at(model, 0, 0, chunks, k_max - 1) == first + (k_max - 1) * increment
    assert at(model, 0, 0, chunks, k_max) > first + k_max * increment
    assert model.run(0, 0, [(128, k_max * 128)])[2] == FOREVER


@pytest.mark.parametrize("name", HERE)
def test_asking_twice_in_any_order_gives_the_same(name: str) -> None:
    asked = [(1, 10, ()), (300, 90_000, ()), (2, 50, [(7, 3)]), (0, 0, [(8192, 100_000)])]
    one, other = usual(name), usual(name)
    forwards = [one.run(*step) for step in asked]
    backwards = [other.run(*step) for step in reversed(asked)]
    assert forwards == backwards[::-1] == [one.run(*step) for step in asked]
