"""Experts, FP8 and all-reduces: close to measured steps that the dense models do not show."""

from __future__ import annotations

import csv
import importlib.util
import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headway
from drawing import draws
from headway.errors import HeadwayError
from headway.latency import build, read_gpu, read_model
from headway.latency.all_reduce import all_reduce
from headway.latency.engines import engines
from headway.latency.experts import experts_read, visit_shares
from headway.latency.gpus import gpus, interconnect, interconnects
from headway.latency.hardware_times import Hardware
from headway.latency.profiles import read_profile
from headway.latency.shards import shard

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("HEADWAY_SHARED", ROOT.parent / "shared")) / "calibration" / "h200"
SILICON = DATA.parents[1] / "validation" / "silicon"
measured = pytest.mark.skipif(not DATA.exists(), reason="the measured steps are not here")
H200 = read_gpu("h200", "gpu")
H100 = read_gpu("h100", "gpu")
FP8 = {"like": "llama-3.1-70b", "dtype_bytes": 1, "kv_dtype_bytes": 1}


def benchmark(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check_errors(errors: list[float], median: float, p90: float) -> None:
    errors.sort()
    assert errors[len(errors) // 2] < median
    assert errors[len(errors) * 9 // 10] < p90


# --- accuracy ---------------------------------------------------------------------------------------------------------


@measured
@pytest.mark.parametrize(
    ("file", "kind", "median", "p90"),
    [
        ("steps_moe.csv", lambda name: "zipf" not in name, 0.02, 0.07),
        ("steps_moe.csv", lambda name: "zipf" in name, 0.04, 0.10),
        pytest.param("steps_fp8.csv", lambda name: "kv8" not in name, 0.03, 0.06, marks=pytest.mark.full),
        ("steps_fp8.csv", lambda name: "kv8" in name, 0.04, 0.08),
    ],
)
def test_the_shipped_constants_fit_experts_and_fp8(
    file: str, kind: Callable[[str], bool], median: float, p90: float
) -> None:
    constants = read_profile("h200", H200, "gpu").constants
    steps = [step for name, step in benchmark("fit_hardware").read(DATA / file) if kind(name)]
    assert len(steps) > 25
    check_errors([abs(step.error(constants)) for step in steps], median, p90)


@pytest.mark.full
@measured
@pytest.mark.parametrize(("file", "free"), [("steps_moe.csv", "EXPERTS"), ("steps_fp8.csv", "FP8")])
def test_experts_and_fp8_that_are_held_out_of_the_fit_are_predicted(file: str, free: str) -> None:
    script = benchmark("fit_hardware")
    steps = [step for _, step in script.read(DATA / file)]
    start = read_profile("h200", H200, "gpu").constants
    constants = script.fit([step for at, step in enumerate(steps) if at % 3], start, getattr(script, free))
    check_errors([abs(step.error(constants)) for at, step in enumerate(steps) if not at % 3], 0.03, 0.08)


@measured
def test_the_experts_that_skewed_tokens_visit_are_those_that_were_counted() -> None:
    with (DATA / "steps_moe.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["routing"] == "zipf1.0"]
    assert len(rows) > 20
    for row in rows:
        count = experts_read(int(row["experts"]), int(row["topk"]), 1.0, int(row["total_tokens"]))
        assert count == pytest.approx(float(row["experts_hit"]), rel=0.02)


@pytest.mark.skipif(not SILICON.exists(), reason="the benchmarks of real engines are not here")
@pytest.mark.parametrize(
    ("file", "model", "users"),
    [
        ("h200_llama-3.1-70b_fp8_vllm.csv", FP8, "8"),
        pytest.param("h200_llama-3.1-70b_fp8_vllm.csv", FP8, "32", marks=pytest.mark.full),
        pytest.param("h200_gpt-oss-120b_mxfp4_vllm.csv", "gpt-oss-120b", "16", marks=pytest.mark.full),
    ],
)
def test_no_tensor_parallel_size_is_biased_against_a_real_engine(file: str, model: Any, users: str) -> None:
    """The scenario names no engine. The times of the default engine were fitted to these points, so this shows the
    trend over TP, not the level."""
    script = benchmark("silicon")
    with (SILICON / file).open(encoding="utf-8") as lines:
        rows = [row for row in csv.DictReader(lines) if row["batch_size"] == users and row["isl"] == "1024"]
    errors = {}
    for row in rows:
        tpot = script.simulate(row, "h200", model, {"model": "hardware"})[1]
        errors[row["tp_size"], row["osl"]] = tpot / float(row["silicon_tpot_ms"]) - 1
    assert len(errors) >= 6
    assert max(map(abs, errors.values())) < 0.07


def test_a_card_without_fp8_gains_from_fp8_weights_only_where_it_reads() -> None:
    def gain(gpu: str, **step: Any) -> float:
        full, small = (
            headway.latency(gpu, {"like": "llama-3.1-8b", "dtype_bytes": size, "kv_dtype_bytes": 2}) for size in (2, 1)
        )
        return full.step_ms(**step) / small.step_ms(**step)

    for gpu in ("a100-80gb", "a10g"):
        assert gain(gpu, prefill=[(8192, 0)]) == pytest.approx(1, abs=0.01)
        assert gain(gpu, decode=[1000]) > 1.5
    assert gain("l40s", prefill=[(8192, 0)]) > 1.4


# --- experts ----------------------------------------------------------------------------------------------------------


@given(st.integers(2, 256), st.data(), st.floats(0.05, 4))
@draws(30)
def test_shares_of_experts_sum_to_the_visits_of_a_token(experts: int, data: st.DataObject, skew: float) -> None:
    visits = data.draw(st.integers(1, experts))
    shares = visit_shares(experts, visits, skew)
    assert sum(shares) == pytest.approx(visits, rel=1e-6)
    assert all(0 < later <= earlier <= 1 for earlier, later in pairwise(shares))
    assert experts_read(experts, visits, skew, 1) == pytest.approx(visits, rel=1e-6)


def test_skewed_tokens_visit_fewer_experts() -> None:
    counts = [experts_read(128, 8, skew, 16) for skew in (0.0, 0.5, 1.0, 2.0)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == pytest.approx(128 * (1 - (1 - 8 / 128) ** 16))
    assert experts_read(128, 8, 1e-9, 16) == pytest.approx(counts[0], rel=0.02)


def test_a_skew_makes_small_batches_of_a_mixture_faster() -> None:
    model = read_model("qwen-3-30b-a3b", "model")
    even, skewed = (build({"model": "hardware", "expert_skew": skew}, model, H200, 1) for skew in (0, 1))
    assert skewed.run(16, 16_000, ())[0] < 0.9 * even.run(16, 16_000, ())[0]
    assert skewed.run(1, 1000, ())[0] == pytest.approx(even.run(1, 1000, ())[0], rel=1e-3)
    with pytest.raises(HeadwayError, match=r"cluster\.latency\.expert_skew: must be at most 4, got 5"):
        build({"model": "hardware", "expert_skew": 5}, model, H200, 1)


# --- all-reduces ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", interconnects().names)
@pytest.mark.parametrize("tp", [2, 3, 4, 8, 16])
def test_a_larger_all_reduce_never_takes_less_time(name: str, tp: int) -> None:
    reduce = all_reduce(interconnects().entries[name], tp)
    times = [reduce.time_us(size) for size in (1, 1000, 8192, 8193, 10**5, 10**6, 10**7, 10**8, 3 * 10**8, 10**9)]
    assert times == sorted(times)
    assert times[0] > 1


def test_an_all_reduce_takes_the_measured_time_at_a_measured_size() -> None:
    reduce = all_reduce(interconnect(H200), 8)
    assert reduce.measured
    assert reduce.time_us(8192) == 4.987
    assert reduce.time_us(1 << 20) == 14.05
    assert reduce.time_us(3 << 19) == pytest.approx((14.05 + 18.32) / 2)


def test_an_older_engine_takes_longer_for_large_messages_between_eight_gpus() -> None:
    for gpu in ("h100", "h200"):
        link = interconnect(gpus().entries[gpu], 8)
        recent, older, middle = (all_reduce(link, 8, engine) for engine in ("vllm-0.18", "vllm-2025", "vllm-0.14"))
        assert older == middle
        assert older.time_us(1 << 18) > 1.3 * recent.time_us(1 << 18)
        assert older.time_us(1 << 17) == pytest.approx(recent.time_us(1 << 17), rel=0.04)
        assert all_reduce(link, 4, "vllm-2025") == all_reduce(link, 4)


def test_the_engine_of_a_scenario_decides_its_all_reduces() -> None:
    def step_ms(tp: int, engine: str) -> float:
        latency = build({"model": "hardware", "engine": engine}, read_model("llama-3.1-70b", "model"), H100, tp)
        return latency.run(16, 16_000, ())[0] / 10**9

    # 16 sequences send 256 KiB in each of 160 all-reduces.
    assert step_ms(8, "vllm-2025") - step_ms(8, "vllm-0.18") == pytest.approx(160 * (14.71 - 10.7) / 1000, rel=1e-3)
    assert step_ms(4, "vllm-2025") == step_ms(4, "vllm-0.18")


def test_weights_are_read_at_the_share_of_the_bandwidth_that_the_card_reaches() -> None:
    """Of vllm-0.14, for cards without a profile: of their BF16 weights, not of their KV cache."""

    def reading(gpu: str, engine: str) -> tuple[float, float]:
        latency = build(
            {"model": "hardware", "engine": engine}, read_model("llama-3.1-8b", "model"), read_gpu(gpu, "gpu"), 1
        )
        return latency.profile.constants.weights_tb_s, latency.profile.constants.kv_tb_s

    for gpu, share in {"h100": 1.04, "a100-80gb": 0.93, "l40s": 0.94, "b200": 0.98, "h200": 1, "mi300x": 1}.items():
        (weights, kv), (usual, usual_kv) = reading(gpu, "vllm-0.14"), reading(gpu, "vllm-0.19")
        assert weights == pytest.approx(usual * share)
        assert kv == usual_kv


def test_a_number_of_gpus_that_was_not_measured_takes_the_time_of_the_next_larger() -> None:
    link = interconnect(H200)
    six, eight, sixteen = (all_reduce(link, tp) for tp in (6, 8, 16))
    assert six.us == eight.us == sixteen.us
    assert (six.measured, eight.measured, sixteen.measured) == (False, True, False)


def test_cards_on_pcie_pay_more_for_all_reduces() -> None:
    def share(gpu: str) -> float:
        alone, split = (headway.latency(gpu, "llama-3.1-8b", tp) for tp in (1, 4))
        return split.step_ms(prefill=[(2048, 0)]) / alone.step_ms(prefill=[(2048, 0)])

    assert share("h100") < 0.5 < 1 < share("rtx-pro-6000") < share("l40s") < share("rtx-4090")


def test_every_link_of_a_card_has_times() -> None:
    for gpu in gpus().entries.values():
        for tp in (2, 4, 8):
            assert all_reduce(interconnect(gpu, tp), tp).time_us(65536) > 0


# --- the host ---------------------------------------------------------------------------------------------------------


def test_an_engine_adds_a_constant_and_a_part_for_each_sequence() -> None:
    model = read_model("llama-3.1-8b", "model")
    host = engines().entries["vllm-0.18"]
    plain = build({"model": "hardware", "host": "0ms"}, model, H200, 1)
    served = build({"model": "hardware", "engine": "vllm-0.18"}, model, H200, 1)
    for decodes, chunks in ((1, ()), (64, ()), (7, ((512, 0), (100, 5)))):
        extra = served.run(decodes, 1000, chunks)[0] - plain.run(decodes, 1000, chunks)[0]
        assert extra == host.step_ps + (decodes + len(chunks)) * host.sequence_ps
    own = build({"model": "hardware", "engine": "vllm-0.18", "host": "1ms", "host_sequence": "1us"}, model, H200, 1)
    assert own.run(5, 1000, ())[0] - plain.run(5, 1000, ())[0] == 10**9 + 5 * 10**6


def gpu_ps(gpu: str, model: Any, decodes: int, context: int, **keys: Any) -> int:
    return gpu_times(gpu, model, **keys).run(decodes, context, ())[0]


def gpu_times(gpu: str, model: Any, **keys: Any) -> Any:
    latency = {"model": "hardware", "host": "0s", "host_sequence": "0s", **keys}
    return build(latency, read_model(model, "model"), read_gpu(gpu, "gpu"), 1)


@pytest.mark.parametrize(("name", "layers", "hidden"), [("llama-3.1-8b", 32, 4096), ("llama-3.1-70b", 80, 8192)])
def test_an_engine_rounds_activations_at_a_time_for_each_layer_and_hidden_size(
    name: str, layers: int, hidden: int
) -> None:
    own = read_profile("h200", H200, "gpu").constants.fp8_us
    rounding = engines().entries["vllm-0.18"].quantise_ps / 1e6 * hidden / 1024
    model = {"like": name, "dtype_bytes": 1, "kv_dtype_bytes": 2}
    extra = gpu_ps("h200", model, 3, 1000, engine="vllm-0.18") - gpu_ps("h200", model, 3, 1000)
    assert extra / 1e6 == pytest.approx(layers * (rounding - own), rel=1e-4)
    assert gpu_ps("h200", name, 3, 1000, engine="vllm-0.18") == gpu_ps("h200", name, 3, 1000)


@pytest.mark.parametrize(("gpu", "tb_s"), [("h200", 4.291), ("h100", 4.291 * 3.35 / 4.8)])
def test_above_16_tokens_the_kernel_of_an_engine_limits_the_rate_of_weights_of_8_bits_too(
    gpu: str, tb_s: float
) -> None:
    model = {"like": "llama-3.1-70b", "dtype_bytes": 1, "kv_dtype_bytes": 2}
    step = {count: gpu_ps(gpu, model, count, 0, engine="vllm-0.18") for count in (16, 17)}
    plain = {count: gpu_ps(gpu, model, count, 0) for count in (16, 17)}
    weights = sum(matmul.weights for matmul in shard(read_model(model, "model"), 1).matmuls)
    kernel = engines().entries["vllm-0.18"].fp8_many_tb_s
    slower = weights * ((tb_s**-3 + kernel**-3) ** (1 / 3) - 1 / tb_s)
    # The share of computing is small at 17 tokens, but counts less beside slower reading.
    assert (step[17] - step[16]) - (plain[17] - plain[16]) == pytest.approx(slower, rel=0.03)


def test_an_engine_computes_in_8_bits_at_the_share_of_a_card_that_was_measured() -> None:
    model = {"like": "llama-3.1-70b", "dtype_bytes": 1, "kv_dtype_bytes": 2}
    shared = engines().entries["vllm-0.18"].fp8_share
    assert list(shared) == ["h100"]
    for gpu in ("h200", "h100"):
        plain, own = (
            build({"model": "hardware", "engine": engine}, read_model(model, "model"), read_gpu(gpu, "gpu"), 1)
            for engine in ("auto", "vllm-0.18")
        )
        assert isinstance(plain, Hardware) and isinstance(own, Hardware)
        before, after = plain.profile.constants.fp8_speedup, own.profile.constants.fp8_speedup
        assert after == pytest.approx(before * shared.get(gpu, 1.0))


def test_a_profile_that_names_an_engine_has_its_kernels_and_host_times_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "fitted.yaml"
    text = (ROOT / "src/headway/presets/profiles/h200.yaml").read_text(encoding="utf-8")
    file.write_text(f"{text}\nengine: vllm-0.18\n", encoding="utf-8")
    own = gpu_ps("h200", FP8, 32, 32_000, profile=str(file))
    assert own == gpu_ps("h200", FP8, 32, 32_000, engine="vllm-0.18") > gpu_ps("h200", FP8, 32, 32_000)
    assert own == gpu_ps("h200", FP8, 32, 32_000, profile=str(file), engine="vllm-0.18")
    model = build({"model": "hardware", "profile": str(file)}, read_model("llama-3.1-8b", "model"), H200, 1)
    assert isinstance(model, Hardware) and model.host == (500_000_000, 0)


def test_an_engine_has_kernels_of_its_own_for_weights_below_8_bits() -> None:
    """A profile's rates stay, so that results without an engine do not change."""
    engine, shape = engines().entries["vllm-0.18"], read_model("gpt-oss-120b", "model")
    for gpu, most in (("h200", 9.9), ("h100", 4.603 * 3.35 / 4.8)):  # at most as fast as experts of 16 bits
        card = read_gpu(gpu, "gpu")
        own = build({"model": "hardware", "engine": "vllm-0.18"}, shape, card, 2)
        plain = build({"model": "hardware"}, shape, card, 2)
        assert isinstance(own, Hardware) and isinstance(plain, Hardware)
        assert own.profile.constants.packed_tb_s == pytest.approx(min(engine.packed_tb_s, most))
        assert own.profile.constants.packed_tflops == pytest.approx(engine.packed_tflops)
        assert plain.profile.constants == read_profile(gpu, card, "gpu").constants


def test_a_larger_step_never_takes_less_time_with_an_engine() -> None:
    for gpu in ("h200", "h100", "l40s"):
        latency = gpu_times(gpu, FP8, engine="vllm-0.18")
        times = [latency.run(count, 0, ())[0] for count in range(1, 600)]
        assert times == sorted(times)


def test_an_engine_reads_a_cache_of_8_bits_at_a_rate_that_the_card_limits_too() -> None:
    def tb_s(gpu: str, **keys: Any) -> float:
        ps = gpu_ps(gpu, FP8, 1, 10**6 + 1, **keys) - gpu_ps(gpu, FP8, 1, 1, **keys)
        return read_model(FP8, "model").kv_bytes_per_token * 10**6 / ps

    assert tb_s("h200") == pytest.approx(3.675, rel=1e-3)
    assert tb_s("h200", engine="vllm-0.18") == pytest.approx((3.675**-3 + 2.64**-3) ** (-1 / 3), rel=1e-3)
    of_h100 = 3.675 * 3.35 / 4.8
    assert tb_s("h100", engine="vllm-0.18") == pytest.approx((of_h100**-3 + 2.64**-3) ** (-1 / 3), rel=1e-3)


def test_an_unknown_engine_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(HeadwayError, match=r"latency\.engine: no engine in the table is called 'vllm-9'.*'host'"):
        build({"model": "hardware", "engine": "vllm-9"}, read_model("llama-3.1-8b", "model"), H200, 1)
