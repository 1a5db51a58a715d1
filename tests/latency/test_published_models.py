"""Models in the table, against the numbers that their authors published."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

import headway
from headway.latency import read_model
from headway.latency.kv_layers import attention_weights
from headway.latency.shapes import models

GIB = 2**30
# Parameters in the weight files, as the model pages on Hugging Face show them (the "safetensors" box).
IN_FILES = {
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "qwen-2.5-7b": 7_615_616_512,
    "qwen-2.5-14b": 14_770_033_664,
    "qwen-2.5-32b": 32_763_876_352,
    "qwen-2.5-72b": 72_706_203_648,
    "qwen-3-4b": 4_022_468_096,
    "qwen-3-8b": 8_190_735_360,
    "qwen-3-14b": 14_768_307_200,
    "qwen-3-32b": 32_762_123_264,
    "qwen-3-30b-a3b": 30_532_122_624,
    "qwen-3-235b-a22b": 235_093_634_560,
    "qwen-3-coder-480b-a35b": 480_154_875_392,
    "mistral-7b": 7_248_023_552,
    "mistral-small-24b": 23_572_403_200,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_630_071_296,
    "phi-4": 14_659_507_200,
    "yi-34b": 34_388_917_248,
    "olmo-2-32b": 32_234_279_936,
    "glm-4.5-air": 110_468_824_832,
    # The model card of gpt-oss (August 2025) counts 116.83B and 20.91B parameters.
    "gpt-oss-120b": 116_830_000_000,
    "gpt-oss-20b": 20_910_000_000,
}
# Models whose files hold more than the language model: what their authors say of the language model, rounded. The
# vision tower of Gemma 3 has 0.42B parameters of the 4.30B, 12.19B and 27.43B in the files.
ANNOUNCED = {
    "gemma-3-4b": 3.88e9,
    "gemma-3-12b": 11.77e9,
    "gemma-3-27b": 27.01e9,
    "deepseek-v3": 671e9,
    "deepseek-v2-lite": 15.7e9,
    "kimi-k2": 1.026e12,
    "qwen-3-next-80b-a3b": 80e9,
    "nemotron-nano-9b-v2": 8.89e9,
}
# Parameters that one token uses, as published, with the parts that ours has and the published number has not.
ACTIVE = {
    "qwen-3-30b-a3b": 3.3e9,
    "qwen-3-235b-a22b": 22e9,
    "qwen-3-coder-480b-a35b": 35e9,
    "mixtral-8x7b": 12.9e9,
    "mixtral-8x22b": 39e9,
    "gpt-oss-120b": 5.13e9 + 201088 * 2880,  # the card leaves the embeddings out
    "gpt-oss-20b": 3.61e9 + 201088 * 2880,
}
SHARD = "llama-70b-tp4-shard"  # a part of a model


def params(name: str) -> int:
    file = Path(headway.__file__).parent / "presets" / "models.yaml"
    return int(yaml.safe_load(file.read_text(encoding="utf-8"))["models"][name]["params"])


def from_shape(name: str) -> int:
    """The number of parameters in the matrices of a model."""
    shape = read_model(name, "model")
    sparse = shape.layers - shape.dense_layers if shape.experts else 0
    attended = 2 * (shape.heads + shape.kv_heads) * shape.head_dim
    attention = attention_weights(shape.kv_groups, shape.layers, shape.hidden, shape.heads, attended)
    experts = sparse * (3 * (shape.experts * shape.expert_intermediate + shape.shared_intermediate) + shape.experts)
    dense = (shape.layers - sparse) * 3 * shape.intermediate
    tied = name in ("llama-3.2-1b", "llama-3.2-3b", "qwen-3-4b", "gemma-3-4b", "gemma-3-12b", "gemma-3-27b")
    return attention + (experts + dense + (1 if tied else 2) * shape.vocab) * shape.hidden


def prediction_layer() -> int:
    """The parameters of the layer in GLM-4.5-Air's files that predicts a further token. It has embeddings, an output
    matrix and a projection of its own."""
    hidden, experts = 4096, 129 * 3 * 4096 * 1408
    return 2 * 151552 * hidden + 2 * hidden * hidden + experts + hidden * 128 + 2 * (96 + 8) * 128 * hidden


def test_every_model_of_the_table_is_compared_with_its_published_numbers() -> None:
    assert {*models().entries} - {SHARD} == {*IN_FILES, *ANNOUNCED}


@pytest.mark.parametrize("name", IN_FILES)
def test_the_parameters_are_those_of_the_weight_files(name: str) -> None:
    further = prediction_layer() if name == "glm-4.5-air" else 0
    assert params(name) + further == pytest.approx(IN_FILES[name], rel=0.0003)


@pytest.mark.parametrize("name", ANNOUNCED)
def test_the_parameters_are_those_that_the_authors_announce(name: str) -> None:
    assert params(name) == pytest.approx(ANNOUNCED[name], rel=0.005)


@pytest.mark.parametrize("name", [*IN_FILES, *ANNOUNCED])
def test_the_shape_gives_the_published_number_of_parameters(name: str) -> None:
    assert from_shape(name) == pytest.approx(params(name), rel=0.005)


@pytest.mark.parametrize("name", ACTIVE)
def test_the_active_parameters_are_the_published_ones(name: str) -> None:
    assert read_model(name, "model").active_params == pytest.approx(ACTIVE[name], rel=0.02)


@pytest.mark.parametrize(("name", "gib"), [("gpt-oss-120b", 60.8), ("gpt-oss-20b", 12.8)])
def test_gpt_oss_weighs_what_its_model_card_says(name: str, gib: float) -> None:
    """The card's table gives the size of the checkpoints: 60.8 GiB (65.3 GB) and 12.8 GiB, with the experts in MXFP4
    at 4.25 bits per weight."""
    assert read_model(name, "model").weight_bytes / GIB == pytest.approx(gib, abs=0.06)


@pytest.mark.parametrize(
    ("name", "bytes_a_token"),
    [
        ("gpt-oss-120b", 36 * 2 * 8 * 64 * 2),
        ("gemma-3-27b", 62 * 2 * 16 * 128 * 2),
        ("deepseek-v3", 61 * 576 * 2),  # one compressed vector of 512 numbers and a rotary key of 64
        ("qwen-3-next-80b-a3b", 12 * 2 * 2 * 256 * 2),  # the other layers keep a state for each sequence
    ],
)
def test_a_token_takes_the_bytes_of_the_layers_that_keep_it(name: str, bytes_a_token: int) -> None:
    assert read_model(name, "model").kv_bytes_per_token == bytes_a_token


def test_a_model_that_extends_another_keeps_its_layers_and_may_have_a_note() -> None:
    assert read_model({"like": "gpt-oss-20b", "kv_dtype_bytes": 1}, "model").kv_groups
    assert read_model({"like": "gpt-oss-20b", "note": "mine"}, "model").note == "mine"
    assert read_model("llama-3.1-8b", "model").note == ""


def test_llama_3_3_has_the_shape_of_llama_3_1() -> None:
    assert read_model("llama-3.3-70b", "model") == read_model("llama-3.1-70b", "model")
