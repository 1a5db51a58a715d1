"""The `hardware` model: accurate on steps that it has not seen, never cheaper for more, never above the limits."""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import headway
from drawing import draws
from headway.cli import status
from headway.errors import HeadwayError
from headway.experiment.notes import note_unmeasured
from headway.latency import build, read_gpu, read_model
from headway.latency.all_reduce import all_reduce
from headway.latency.base import FOREVER, Chunk, scale_model
from headway.latency.fit import Step, fit
from headway.latency.gpus import gpus, interconnect
from headway.latency.hardware_times import Hardware
from headway.latency.profiles import measured_profiles
from headway.latency.shapes import models
from headway.latency.shards import shard
from headway.latency.step_cost import cube_root
from headway.latency.step_models.hardware import StepTimes

DATA = Path(os.environ.get("HEADWAY_SHARED", Path(__file__).parents[3] / "shared")) / "calibration" / "h200"
measured = pytest.mark.skipif(not DATA.exists(), reason="the measured steps are not here")
SHAPES = ("llama-3.1-8b", "llama-3.2-1b", "llama-70b-tp4-shard", "qwen2.5-7b")
H200 = read_gpu("h200", "gpu")


@cache
def times(gpu: str, model: str, tp: int = 1) -> StepTimes:
    return headway.latency(gpu, model, tp)


@cache
def steps() -> tuple[tuple[str, Step], ...]:
    """Steps launched as one graph: the shape's name, and what was measured."""
    with (DATA / "steps.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["mode"] == "graph"]
    return tuple((row["shape"], _step(row)) for row in rows)


def _step(row: dict[str, str]) -> Step:
    chunks = tuple((new, past) for new, past in json.loads(row["composition"])["prefill"])
    part = shard(read_model(row["shape"], "model"), 1)
    return Step(part, int(row["batch"]), int(row["decode_kv_tokens"]), chunks, float(row["median_ms"]) * 1000)


def quantiles(errors: Sequence[float]) -> tuple[float, float]:
    """Median and 90th percentile."""
    ordered = sorted(errors)
    return ordered[len(ordered) // 2], ordered[len(ordered) * 9 // 10]


# --- accuracy ---------------------------------------------------------------------------------------------------------


@measured
@pytest.mark.parametrize("shape", SHAPES)
def test_the_shipped_constants_fit_the_measured_steps(shape: str) -> None:
    model = times("h200", shape).hardware
    errors = [
        abs(model.run(step.decodes, step.context, step.chunks)[0] / 1e6 / step.us - 1)
        for name, step in steps()
        if name == shape
    ]
    median, p90 = quantiles(errors)
    assert median < (0.03 if "1b" in shape else 0.025)
    assert p90 < (0.08 if "1b" in shape else 0.06)


@pytest.mark.full
@measured
def test_steps_held_out_of_a_fit_are_predicted() -> None:
    train = [step for index, (_, step) in enumerate(steps()) if index % 4 == 0]
    constants = fit(train, 4.36, 785.0)
    for shape in SHAPES:
        held = [step for index, (name, step) in enumerate(steps()) if index % 4 and name == shape]
        median, p90 = quantiles([abs(step.error(constants)) for step in held])
        assert median < (0.03 if "1b" in shape else 0.025), shape
        assert p90 < (0.08 if "1b" in shape else 0.06), shape


@pytest.mark.full
@measured
@pytest.mark.parametrize("shape", SHAPES)
def test_a_shape_left_out_of_the_fit_is_predicted(shape: str) -> None:
    constants = fit([step for name, step in steps() if name != shape][::3], 4.36, 785.0)
    median, p90 = quantiles([abs(step.error(constants)) for name, step in steps() if name == shape])
    assert median < 0.03
    assert p90 < 0.07


def test_the_cube_root_is_one() -> None:
    for value in (0.0, 1e-30, 0.5, 1.0, 27.0, 1e18, 123456.789, 4e300):
        assert cube_root(value) ** 3 == pytest.approx(value, rel=1e-14)


# --- the contract -----------------------------------------------------------------------------------------------------

PAIRS = [(gpu, model, tp) for gpu, model in (("h200", "llama-3.1-8b"), ("h200", "qwen-3-30b-a3b")) for tp in (1, 2)]
PAIRS += [("h200", "llama-3.2-1b", 1), ("h200", "mixtral-8x7b", 1), ("h100", "qwen-3-32b", 4)]
PAIRS += [(name, "llama-3.1-8b", 1) for name in measured_profiles()]
pairs = st.sampled_from(PAIRS)
contexts = st.lists(st.integers(0, 200_000), max_size=40)
chunks = st.lists(st.tuples(st.integers(1, 8192), st.integers(0, 200_000)), max_size=4)


def ps(pair: tuple[str, str, int], decode: Sequence[int], prefill: Sequence[Chunk]) -> int:
    return times(*pair).hardware.run(len(decode), sum(decode), prefill)[0]


@given(pairs, contexts, chunks, st.data())
@draws(60)
def test_more_work_never_costs_less(pair: Any, decode: list[int], prefill: list[Chunk], data: st.DataObject) -> None:
    assume(decode or prefill)
    cost = ps(pair, decode, prefill)
    assert cost >= 1
    assert ps(pair, [*decode, data.draw(st.integers(0, 10_000))], prefill) >= cost  # one more sequence
    assert ps(pair, decode, [*prefill, data.draw(st.tuples(st.integers(1, 600), st.integers(0, 9000)))]) >= cost
    more = data.draw(st.integers(1, 5000))
    if decode:
        assert ps(pair, [decode[0] + more, *decode[1:]], prefill) >= cost
    if prefill:
        (new, past), *rest = prefill
        assert ps(pair, decode, [(new + more, past), *rest]) >= cost
        assert ps(pair, decode, [(new, past + more), *rest]) >= cost
        # A prompt that is partly cached costs no more than one that is not.
        if new > more:
            assert ps(pair, decode, [(new - more, past + more), *rest]) <= ps(pair, decode, [(new, past + more), *rest])


@given(pairs, contexts, chunks, st.integers(1, 50), st.sampled_from((1, Fraction(3, 2), Fraction(7, 5))))
@draws(60)
def test_a_run_is_the_sum_of_its_steps(
    pair: Any, decode: list[int], prefill: list[Chunk], length: int, factor: Fraction
) -> None:
    assume(decode or prefill)
    model = scale_model(times(*pair).hardware, Fraction(factor))
    first, increment, most = model.run(len(decode), sum(decode), prefill)
    for index in range(min(length, most)):
        moved = [(new, past + index * new) for new, past in prefill]
        step, rise, _ = model.run(len(decode), sum(decode) + index * len(decode), moved)
        assert (step, rise) == (first + index * increment, increment)


@given(pairs, st.integers(1, 300), st.integers(0, 10**7))
def test_for_a_fixed_batch_a_decode_step_is_affine_in_the_context(pair: Any, decodes: int, context: int) -> None:
    model = times(*pair).hardware
    costs = [model.run(decodes, context + delta, ())[0] for delta in (0, 1, 1000)]
    assert costs[2] - costs[0] == 1000 * (costs[1] - costs[0])
    assert model.run(decodes, context, ())[2] == FOREVER


@given(st.sampled_from(sorted(gpus().entries)), st.sampled_from(sorted(models().entries)), contexts, chunks)
@draws(60)
def test_nothing_is_faster_than_the_card(gpu: str, name: str, decode: list[int], prefill: list[Chunk]) -> None:
    assume(decode or prefill)
    card, model = read_gpu(gpu, "gpu"), read_model(name, "model")
    took = ps((gpu, name, 1), decode, prefill) / 1e12
    tokens = len(decode) + sum(new for new, _ in prefill)
    pairs = sum(new * past + new * (new + 1) // 2 for new, past in prefill)
    outside = 2 * model.vocab * model.hidden  # embeddings are looked up, and the head sees one token a sequence
    per_token = 2 * (model.active_params - outside) + 0
    attention = 4 * model.heads * model.head_dim * model.layers * pairs
    kv_bytes = model.kv_bytes_per_token
    if model.kv_groups:  # of these layers, the test counts those that keep every token
        kind = next(kind for kind in model.kv_groups if kind.kind in ("full", "latent"))
        width = kind.nope + kind.rope + kind.value or 2 * model.head_dim
        attention = 2 * model.heads * width * kind.layers * pairs
        kept = sum(kind.layers for kind in model.kv_groups if kind.kind != "state")
        kv_bytes = kv_bytes * kind.layers // kept
    assert took > (per_token * tokens + attention) / float(card.flops)
    reads = sum(decode) + sum(past for _, past in prefill)
    smallest = float(min(model.weight_size, model.attention_size, model.expert_size))
    weights = smallest * (model.active_params - outside)
    assert took > (weights + kv_bytes * reads) / card.bandwidth


@measured
def test_no_step_beats_what_the_h200_was_seen_to_do() -> None:
    with (DATA / "ceilings.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    read = max(float(row["value"]) for row in rows if row["what"].startswith("read"))
    matmul = max(float(row["value"]) for row in rows if "matmul" in row["what"])
    constants = times("h200", "llama-3.1-8b").profile.constants
    for name in ("weights_tb_s", "kv_tb_s", "elementwise_tb_s", "logits_tb_s"):
        assert getattr(constants, name) <= read
    for name in ("matmul_tflops", "prefill_tflops"):
        assert getattr(constants, name) <= matmul


def calls(model: str) -> float:
    """Of functions in one simulation, a request. Chunks and decodes, prompts short and long."""
    lengths = {"dist": "lognormal", "mean": 1200, "std": 1500, "max": 16_000}
    scenario = headway.Scenario.load(
        {
            "workload": {"requests": 3000, "rate": "40/s", "prompt_tokens": lengths},
            "cluster": {"instances": 8, "latency": {"model": model}},
        }
    )
    counted = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal counted
        counted += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        headway.simulate(scenario)
    finally:
        sys.setprofile(before)
    return counted / 3000


@pytest.mark.full
def test_it_costs_at_most_a_fifth_more_to_simulate_than_linear() -> None:
    """In calls of functions, which no other process disturbs; by CPU time it is 1.05 times."""
    assert calls("hardware") <= 1.2 * calls("linear")


# --- the question in Python -------------------------------------------------------------------------------------------


def test_a_step_can_be_asked_for() -> None:
    asked = headway.latency("H200", "llama-3.1-8b")
    both = asked.step_ms(decode=[1024, 512], prefill=[(2048, 0), (512, 4096)])
    assert asked.step_ms(decode=[1024, 512]) < asked.step_ms(prefill=[(2048, 0)]) < both < 100
    assert asked.step_ms() == 0
    assert asked.host_ms == 0.5
    assert headway.latency("h200", "llama-3.1-8b", host="2ms").host_ms == 2
    assert headway.latency("h200", "llama-3.1-8b", host="2ms").step_ms([5]) == asked.step_ms([5])


def test_the_host_is_part_of_a_simulated_step() -> None:
    shape = read_model("llama-3.1-8b", "model")
    with_host = build({"model": "hardware", "host": "3ms"}, shape, H200, 1)
    without = build({"model": "hardware", "host": "0ms"}, shape, H200, 1)
    for step in ((4, 4000, []), (0, 0, [(512, 0)]), (4, 4000, [(512, 100)])):
        assert with_host.run(*step)[0] - without.run(*step)[0] == 3 * 10**9


def test_splitting_a_model_is_faster_but_not_as_many_times_as_it_has_gpus() -> None:
    for load in ([1024], [1024] * 64):
        one, two, eight = (headway.latency("h200", "llama-3.1-70b", tp).step_ms(load) for tp in (1, 2, 8))
        assert one > two > eight > one / 8


def test_a_shard_is_the_split_model_without_its_communication() -> None:
    alone = headway.latency("h200", "llama-70b-tp4-shard").step_ms([1024] * 8, [(512, 0)])
    split = headway.latency("h200", "llama-3.1-70b", 4)
    assert alone < split.step_ms([1024] * 8, [(512, 0)])
    talk_ms = 2 * 80 * all_reduce(interconnect(H200, 4), 4).time_us(520 * 8192 * 2) / 1000
    assert split.step_ms([1024] * 8, [(512, 0)]) == pytest.approx(alone + talk_ms, rel=1e-6)


def test_smaller_weights_are_read_faster() -> None:
    full, eight, four = (
        headway.latency("h200", {"like": "llama-3.1-8b", "dtype_bytes": size, "kv_dtype_bytes": 2}).step_ms([1024])
        for size in (2, 1, 0.5)
    )
    assert full > 1.5 * eight > 1.5 * four


def test_a_mixture_reads_the_experts_that_are_visited() -> None:
    few, many = (headway.latency("h200", "mixtral-8x7b").step_ms([128] * n) for n in (1, 64))
    everything = read_model("mixtral-8x7b", "model").weight_bytes / 4.8e9
    assert few < everything / 2 < everything < many


def test_a_published_config_is_a_model(tmp_path: Path) -> None:
    config = {
        "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
        "intermediate_size": 14336, "vocab_size": 128256, "torch_dtype": "bfloat16",
    }  # fmt: skip
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    ours, known = headway.latency("h200", str(file)), headway.latency("h200", "llama-3.1-8b")
    assert ours.step_ms([1000] * 9, [(700, 5)]) == known.step_ms([1000] * 9, [(700, 5)])
    assert ours.model.weight_bytes == pytest.approx(known.model.weight_bytes, rel=1e-4)
    mixture = config | {"num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32000}
    file.write_text(json.dumps(mixture))
    assert headway.latency("h200", str(file)).step_ms([9]) == headway.latency("h200", "mixtral-8x7b").step_ms([9])
    file.write_text(json.dumps(config | {"quantization_config": {"quant_method": "fp8"}}))
    assert headway.latency("h200", str(file)).step_ms([9]) < known.step_ms([9]) / 1.5


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (lambda: headway.latency("h900", "llama-3.1-8b"), "gpu: no GPU in the table is called 'h900'"),
        (lambda: headway.latency("h200", "llama-3.1-8b", 0), "tp: must be a whole number between 1 and 64, got 0."),
        (
            lambda: headway.latency("h200", "llama-3.1-8b").step_ms([-1]),
            "decode: expected whole numbers of tokens",
        ),
        (lambda: headway.latency("h200", "llama-3.1-8b").step_ms([], [(0, 4)]), "prefill: expected whole numbers of"),
        (lambda: headway.latency("none.yaml", "llama-3.1-8b"), "latency.profile: cannot read 'none.yaml'"),
        (
            lambda: build({"model": "hardware", "profile": "h20"}, read_model("llama-3.1-8b", "m"), H200, 1),
            "cluster.latency.profile: no hardware profile is called 'h20'",
        ),
        (
            lambda: build({"model": "hardware", "profile": 3}, read_model("llama-3.1-8b", "m"), H200, 1),
            "cluster.latency.profile: expected the name or the file of a profile, got 3.",
        ),
    ],
)
def test_a_wrong_question_is_told(ask: Callable[[], object], sentence: str) -> None:
    with pytest.raises(HeadwayError) as caught:
        ask()
    assert sentence in str(caught.value)


# --- profiles ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", measured_profiles())
def test_a_measured_profile_says_where_it_is_from(name: str) -> None:
    profile = headway.latency(name, "llama-3.1-8b").profile
    assert profile.calibrated
    assert profile.source and profile.measured and profile.error and profile.shapes
    assert profile.outside(profile.tokens[1], profile.context[1]) == ""
    assert "is outside that range." in profile.outside(profile.tokens[1] + 1, 1)


@pytest.mark.parametrize("name", [name for name in gpus().entries if name not in measured_profiles()])
def test_a_card_that_was_not_measured_says_so(name: str) -> None:
    profile = headway.latency(name, "llama-3.1-8b").profile
    assert not profile.calibrated
    assert "not calibrated" in profile.outside(1, 1)


@pytest.mark.parametrize(
    ("cluster", "sentence"),
    [
        ({"gpu": "h200"}, None),
        ({"gpu": "b200"}, "b200 is not calibrated: its times are scaled from a spec sheet."),
        (
            {"gpu": "rtx-4090", "max_batch_tokens": 8192},
            "rtx-4090 was measured up to 2,048 tokens in a step; 8,192 is outside that range.",
        ),
        (
            {"gpu": "h200", "model": {"like": "mixtral-8x7b", "dtype_bytes": 1}, "tp": 2},
            "h200 was not measured with mixtures of experts in 8 bits: times are computed.",
        ),
        ({"gpu": "b200", "latency": {"model": "linear"}}, None),
    ],
)
def test_times_that_were_never_measured_are_said_to_be_so(cluster: dict[str, Any], sentence: str | None) -> None:
    scenario = headway.Scenario.load(
        {"workload": {"rate": "1/s", "requests": 1}, "cluster": {"latency": {"model": "hardware"}, **cluster}}
    )
    said = note_unmeasured(scenario)
    assert said is None if sentence is None else said is not None and sentence in said


@pytest.mark.parametrize(("gpu", "told"), [("h100", ["h100 is not calibrated"]), ("h200", [])])
def test_a_plan_and_the_controls_tell_what_was_never_measured(gpu: str, told: list[str], capsys: Any) -> None:
    data = {"workload": {"rate": "5/s", "requests": 10}, "cluster": {"instances": 2, "gpu": gpu}}
    notes = headway.plan(data, "ttft_p99<=1s", seeds=1, points=0, workers=1).notes
    assert [note.partition(":")[0] for note in notes if "calibrated" in note] == told
    words = ["--set", "workload.requests=10", "--set", f"cluster.gpu={gpu}"]
    assert status(["controls", *words]) == 0
    assert [line.partition(": ")[2].partition(":")[0] for line in capsys.readouterr().err.splitlines()] == told


def test_a_model_in_a_scenario_is_a_hardware_model() -> None:
    assert isinstance(build({"model": "hardware"}, read_model("llama-3.1-8b", "model"), H200, 1), Hardware)
