"""GPUs, models, and what fits where."""

from __future__ import annotations

import csv
import re
from statistics import fmean, median

import pytest

import headway
from conftest import ROOT
from headway.errors import HeadwayError
from headway.experiment.engines import engines
from headway.latency import kv_blocks, read_gpu, read_model
from headway.latency.gpus import gpus
from headway.latency.shapes import models
from headway.latency.shards import capacity_score
from headway.scenario.scenario import Scenario

POWER = ROOT.parent / "shared" / "calibration" / "h200" / "power.csv"


@pytest.mark.parametrize(
    ("name", "memory", "bandwidth", "tflops", "usd"),
    [("h100", 80, 3350, 989, 3.5), ("a100-80gb", 80, 2000, 312, 2.0), ("l40s", 48, 864, 362, 1.0)],
)
def test_the_three_profiles_have_routesims_figures(
    name: str, memory: int, bandwidth: int, tflops: int, usd: float
) -> None:
    gpu = read_gpu(name, "gpu")
    assert (gpu.memory, gpu.bandwidth) == (memory * 10**9, bandwidth * 10**9)
    assert gpu.flops == tflops * 10**12
    assert gpu.usd_per_hour == usd and "usd_per_hour" not in gpu.approximate


def test_the_tables_are_dated_and_complete() -> None:
    assert re.fullmatch(r"20\d\d-\d\d", gpus().as_of) and re.fullmatch(r"20\d\d-\d\d", models().as_of)
    cards = {
        "h100",
        "h100-pcie",
        "h100-nvl",
        "h200",
        "b200",
        "a100-80gb",
        "a100-40gb",
        "l40s",
        "a10g",
        "l4",
        "rtx-4090",
    }
    assert cards | {"rtx-pro-6000", "mi300x"} == {*gpus().entries}
    assert {"llama-3.1-8b", "llama-3.1-70b", "llama-3.2-1b", "llama-3.2-3b"} <= {*models().entries}
    assert {"qwen-2.5-7b", "qwen-3-32b", "mistral-7b", "mixtral-8x7b"} <= {*models().entries}
    for gpu in gpus().entries.values():
        assert 0 < gpu.idle_watts < gpu.busy_watts and gpu.usd_per_hour > 0
    for table in (gpus(), models()):
        assert not {*table.entries} & {*table.aliases}


def test_the_watts_of_the_h200_are_those_that_were_measured() -> None:
    if not POWER.is_file():
        pytest.skip("the measurements are not beside this checkout (../shared/calibration)")
    with POWER.open(encoding="utf-8") as file:
        watts = [(row["point"], float(row["watts_mean"])) for row in csv.DictReader(file)]
    idle = [drawn for point, drawn in watts if point == "idle, context open"]
    busy = [drawn for point, drawn in watts if not point.startswith("idle")]
    assert (len(idle), len(busy)) == (3, 24)
    card = read_gpu("h200", "gpu")
    assert (card.idle_watts, card.busy_watts) == (round(fmean(idle)), round(median(busy)))


def test_engines_draw_the_watts_of_their_cards_and_energy_is_counted_with_them() -> None:
    step = {"model": "linear", "step": "10ms"}
    cluster = {"gpu": "h200", "tp": 2, "instances": 1, "latency": step}
    scenario = {"workload": {"requests": 40, "rate": "4/s", "output_tokens": 50}, "cluster": cluster}
    (engine,) = engines(Scenario.load(scenario).cluster)
    assert (engine.idle_watts, engine.busy_watts) == (2 * 123, 2 * 692)
    summary = headway.simulate(scenario).summary()
    busy = summary["instances"][0]["busy_s"]
    drawn = 2 * (692 * busy + 123 * (summary["duration_s"] - busy))
    assert 0 < busy < summary["duration_s"]
    assert summary["energy"]["kwh"] == pytest.approx(drawn / 3600 / 1000)


def test_case_and_separators_do_not_matter_in_names() -> None:
    assert read_gpu("A100_80GB", "gpu") == read_gpu("a100", "gpu") == read_gpu(" a100-80gb ", "gpu")
    assert read_gpu("RTX 4090", "gpu") == read_gpu("rtx4090", "gpu")
    assert read_model("Llama_3.1_8B", "model") == read_model("llama-3.1-8b", "model")


@pytest.mark.parametrize(
    ("name", "kv_bytes", "weights_gb"),
    [
        ("llama-3.1-8b", 131_072, 16.06),
        ("llama-3.1-70b", 327_680, 141.1),
        ("llama-3.2-1b", 32_768, 2.47),
        ("qwen-2.5-7b", 57_344, 15.23),
        ("qwen-3-32b", 262_144, 65.5),
        ("mixtral-8x7b", 131_072, 93.4),
    ],
)
def test_kv_and_weight_bytes_follow_from_the_shape(name: str, kv_bytes: int, weights_gb: float) -> None:
    shape = read_model(name, "model")
    assert shape.kv_bytes_per_token == kv_bytes
    assert shape.weight_bytes / 1e9 == pytest.approx(weights_gb, rel=1e-3)


def test_a_mixture_uses_two_of_eight_experts_for_a_token() -> None:
    shape = read_model("mixtral-8x7b", "model")
    expert = 3 * 4096 * 14336 * 32
    assert shape.weight_bytes // 2 - shape.active_params == 6 * expert


def test_a_mapping_of_the_same_figures_is_the_same_gpu_and_model() -> None:
    figures = {"name": "h100", "memory": "80GB", "bandwidth": "3.35TB/s", "tflops": 989, "usd_per_hour": 3.5}
    figures |= {"visible": "81559MiB", "link": "nvlink4-nvswitch-h100", "idle_watts": 110, "busy_watts": 700}
    given = read_gpu({**figures, "approximate": ["idle_watts"]}, "gpu")
    assert given == read_gpu("h100", "gpu")
    shape = {"name": "llama-3.1-8b", "layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "params": "8.030261248B"}
    shape |= {"intermediate": 14336, "vocab": 128256}
    assert read_model(shape, "model") == read_model("llama-3.1-8b", "model")
    assert read_model({**shape, "dtype_bytes": 1}, "model").weight_bytes == 8_030_261_248


def test_parts_of_a_model_may_have_different_numbers_of_bytes_per_weight() -> None:
    attention, matrix = 32 * 2 * 40 * 128 * 4096, 128256 * 4096
    layers, norms = 32 * 3 * 4096 * 14336, 65 * 4096

    def size(**keys: float) -> int:
        return read_model({"like": "llama-3.1-8b", **keys}, "model").weight_bytes

    assert size(dtype_bytes=1, head_dtype_bytes=2) == attention + layers + 2 * (2 * matrix + norms)
    assert size(dtype_bytes=0.5, attention_dtype_bytes=2) == layers / 2 + 2 * (attention + 2 * matrix + norms)
    assert size(head_dtype_bytes=2) == size() == 2 * 8_030_261_248
    assert size(dtype_bytes=1) == 8_030_261_248  # without a key of a part, every parameter counts the same


def test_embeddings_that_are_also_the_output_matrix_count_once() -> None:
    shape = read_model({"like": "llama-3.2-1b", "dtype_bytes": 1, "head_dtype_bytes": 4}, "model")
    matrix, norms = 128256 * 2048, 33 * 2048
    assert shape.weight_bytes == 1_235_814_400 - matrix - norms + 4 * matrix + 2 * norms


def test_experts_have_their_own_number_of_bytes_per_weight() -> None:
    whole = read_model("mixtral-8x7b", "model").weight_bytes
    experts = 32 * 8 * 3 * 4096 * 14336
    assert read_model({"like": "mixtral-8x7b", "expert_dtype_bytes": 0.5}, "model").weight_bytes == (
        whole - 2 * experts + experts // 2
    )


def test_matmuls_of_one_byte_weights_compute_with_one_byte_unless_told_otherwise() -> None:
    def activation(**keys: float) -> float:
        return float(read_model({"like": "llama-3.1-8b", **keys}, "model").activation_size)

    assert [activation(), activation(dtype_bytes=1), activation(dtype_bytes=0.5)] == [2, 1, 2]
    assert activation(dtype_bytes=1, activation_bytes=2) == 2


def test_kv_blocks_fill_what_the_weights_leave() -> None:
    shape, gpu = read_model("llama-3.1-8b", "model"), read_gpu("h100", "gpu")
    assert kv_blocks(shape, gpu, 1, 16) == (72_000_000_000 - 16_060_522_496) // (131_072 * 16) == 26_674
    assert kv_blocks(shape, gpu, 2, 16) == (144_000_000_000 - 16_060_522_496) // (131_072 * 16)
    assert kv_blocks(shape, gpu, 1, 32, 0.5) == (40_000_000_000 - 16_060_522_496) // (131_072 * 32)


def test_weights_that_do_not_fit_are_told_in_one_sentence() -> None:
    with pytest.raises(HeadwayError) as error:
        kv_blocks(read_model("llama-3.1-70b", "model"), read_gpu("l40s", "gpu"), 1, 16)
    assert str(error.value) == (
        "cluster: llama-3.1-70b needs 141 GB of weights but 1 × l40s offers 43 GB at 90 % utilisation; "
        "raise tp or choose a larger GPU."
    )


def test_memory_that_holds_the_weights_but_no_block_is_an_error_too() -> None:
    shape = read_model({"layers": 32, "hidden": 4096, "heads": 32, "params": 35_999_900_000}, "model")
    with pytest.raises(HeadwayError, match=r"72\.01 GB for its weights and one KV block but 1 × h100 offers 72\.00 GB"):
        kv_blocks(shape, read_gpu("h100", "gpu"), 1, 16)


def test_the_capacity_figure_grows_with_memory_and_parallelism_and_stays_below_one() -> None:
    shape = read_model("llama-3.1-8b", "model")
    by_memory = sorted(gpus().entries.values(), key=lambda gpu: gpu.memory)
    scores = [capacity_score(shape, gpu, 1) for gpu in by_memory]
    assert scores == sorted(scores) and 0 < scores[0] < scores[-1] < 1
    by_tp = [capacity_score(shape, by_memory[0], tp) for tp in (1, 2, 4, 8, 1000)]
    assert by_tp == sorted(by_tp) and by_tp[-1] < 1
    assert capacity_score(read_model("llama-3.1-70b", "model"), read_gpu("h100", "gpu"), 1) == 0
