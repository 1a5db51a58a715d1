"""Step times by hand."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from headway.latency import build, explicit, read_gpu, read_model
from headway.latency.base import FOREVER, Estimator, LatencyModel
from headway.latency.hardware_times import Hardware
from headway.latency.step_models.piecewise import Piecewise
from headway.views.instance import InstanceView

MS = 10**9
EIGHT_B = read_model("llama-3.1-8b", "model")
H100 = read_gpu("h100", "gpu")


def made(data: dict[str, Any], tp: int = 1) -> LatencyModel:
    return build(data, EIGHT_B, H100, tp, "latency")


def test_fixed_charges_prefill_tokens_and_one_decode_time_whatever_the_batch() -> None:
    model = made({"model": "fixed"})
    assert model.run(0, 0, [(100, 0)]) == (100 * 10**8, 0, FOREVER)
    assert model.run(1, 5, ()) == model.run(200, 99_999, ()) == (10 * MS, 0, FOREVER)
    assert model.run(3, 30, [(100, 7), (50, 0)]) == (150 * 10**8 + 10 * MS, 0, FOREVER)


def test_fixed_rounds_each_rate_to_whole_picoseconds() -> None:
    model = made({"model": "fixed", "prefill_tokens_per_s": 3, "decode_tokens_per_s": 0.7})
    assert model.run(0, 0, [(3, 0)])[0] == 3 * 333_333_333_333
    assert model.run(1, 1, ())[0] == round(Fraction(10**13, 7))


def test_linear_adds_its_five_terms() -> None:
    given = {"step": "4ms", "prefill_token": "25us", "prefill_pair": "2ps", "sequence": "1us", "context_token": "3ns"}
    model = made({"model": "linear", **given})
    assert model.run(4, 1000, ())[:2] == (4 * MS + 4 * 10**6 + 1000 * 3000, 4 * 3000)
    pairs = 10 * 70 + 55
    first, increment, _ = model.run(4, 1000, [(10, 70)])
    assert first == 4 * MS + 5 * 10**6 + 1000 * 3000 + 10 * 25 * 10**6 + pairs * 2
    assert increment == 4 * 3000 + 10 * 10 * 2


def test_a_pair_may_cost_a_fraction_of_a_picosecond_and_is_rounded_once_a_value() -> None:
    model = made(
        {"model": "linear", "step": "1ps", "prefill_token": "0ps", "prefill_pair": "0.05ps", "sequence": "0ps"}
    )
    # 512·513/2 pairs of 0.05 ps, and 25.6 -> 26 ps for each past token
    assert model.run(0, 0, [(512, 0)]) == (1 + 6566, 26 * 512, FOREVER)
    assert model.run(0, 0, [(512, 1000)])[0] == 1 + 6566 + 26_000


def test_piecewise_has_the_throughput_curve_of_its_defaults() -> None:
    model = made({"model": "piecewise"})
    assert isinstance(model, Piecewise)
    assert [model.throughput(batch) for batch in (1, 64, 65, 500)] == [80, 3200, 3200, 3200]
    assert model.throughput(32) == 80 + Fraction(31, 63) * 3120
    assert model.run(1, 10, ()) == (12_500_000_000, 0, FOREVER)
    assert model.run(64, 10, ())[0] == 20 * MS
    assert model.run(128, 10, ())[0] == 40 * MS
    assert model.run(32, 10, ())[0] == round(10**12 * 32 / (80 + Fraction(31, 63) * 3120))
    assert model.run(0, 0, [(512, 0)])[0] == 10_240_000_000
    assert model.run(64, 10, [(512, 0), (500, 9)])[0] == 20 * MS + 1012 * 20_000_000


def test_an_8b_model_on_an_h100_decodes_alone_in_the_time_it_takes_to_read_the_weights() -> None:
    model = made({"model": "roofline", "mfu": 0.6, "mbu": 0.8, "overhead": "1ms"})
    weights = Fraction(2 * 8_030_261_248 * 10**12, 2_680_000_000_000)  # 80 % of 3.35 TB/s
    kv = round(Fraction(131_072 * 10**12, 2_680_000_000_000))
    assert kv == 48_907
    assert model.run(1, 1000, ()) == (MS + round(weights) + 1000 * kv, kv, FOREVER)
    assert model.run(1, 1000, ())[0] / MS == pytest.approx(7.0416, abs=1e-4)


def test_a_long_prefill_on_an_h100_is_bound_by_its_flops() -> None:
    model = made({"model": "roofline", "mfu": 0.6, "mbu": 0.8, "overhead": "1ms"})
    flops = Fraction(989 * 10**12 * 6, 10)
    pair = Fraction(4 * 32 * 128 * 32 * 10**12) / flops
    token = round(Fraction(2 * 8_030_261_248 * 10**12) / flops)
    expected = MS + 2048 * token + round(pair * 2048 * 2049 / 2) + round(pair * 2048) * 4096
    assert model.run(0, 0, [(2048, 4096)]) == (expected, round(pair * 2048) * 2048, FOREVER)
    assert model.run(8, 80, [(2048, 4096)])[0] == expected + 8 * token + 80 * round(pair)


def test_tensor_parallelism_divides_both_sides_of_a_roofline() -> None:
    one, two = (made({"model": "roofline", "overhead": "0ms"}, tp=tp) for tp in (1, 2))
    for step in ((1, 1000, ()), (0, 0, [(2048, 0)])):
        assert one.run(*step)[0] == pytest.approx(2 * two.run(*step)[0], rel=1e-4)


def test_names_of_models_may_be_written_in_any_case() -> None:
    assert type(made({"model": "Roofline"})) is type(made({"model": "roofline"}))


def test_a_section_without_a_model_is_hardware() -> None:
    assert type(made({})) is type(made({"host": "1ms"})) is Hardware
    assert explicit({}) == {"model": "hardware", "profile": "auto", "host": "auto"}


def test_the_estimator_gives_one_step_in_seconds() -> None:
    model = made({"model": "fixed"})
    estimator = Estimator([model])
    view = InstanceView(0, "i0")
    assert estimator.step_seconds(view, 100, 0, 0) == 0.01
    assert estimator.step_seconds(view, 0, 4, 400) == 0.01
    assert estimator.step_seconds(view, 100, 4, 400) == 0.02
    assert estimator.step_seconds(view, 0, 0, 0) == 0.0
