"""A model from the config.json that is published with its weights, and from the files beside it."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from headway.errors import HeadwayError
from headway.latency import ModelShape, read_model
from headway.latency.shapes import models

LLAMA = {
    "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
    "intermediate_size": 14336, "vocab_size": 128256, "torch_dtype": "bfloat16", "max_position_embeddings": 131072,
}  # fmt: skip
QWEN_MOE = {
    "num_hidden_layers": 48, "hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
    "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8,
    "vocab_size": 151936, "torch_dtype": "bfloat16", "decoder_sparse_step": 1, "mlp_only_layers": [],
    "sliding_window": None, "use_sliding_window": False,
}  # fmt: skip
GPT_OSS = {
    "num_hidden_layers": 36, "hidden_size": 2880, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
    "intermediate_size": 2880, "num_local_experts": 128, "experts_per_token": 4, "num_experts_per_tok": 4,
    "vocab_size": 201088, "model_type": "gpt_oss", "max_position_embeddings": 131072, "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
    "quantization_config": {
        "quant_method": "mxfp4",
        "modules_to_not_convert": [
            "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head",
        ],
    },
}  # fmt: skip
GLM_AIR = {
    "num_hidden_layers": 46, "hidden_size": 4096, "num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": 128,
    "intermediate_size": 10944, "moe_intermediate_size": 1408, "n_routed_experts": 128, "num_experts_per_tok": 8,
    "n_shared_experts": 1, "first_k_dense_replace": 1, "vocab_size": 151552, "num_nextn_predict_layers": 1,
    "torch_dtype": "bfloat16",
}  # fmt: skip
ATTENTION, LAYERS = 32 * 2 * 40 * 128 * 4096, 32 * 3 * 4096 * 14336
HEAD = 2 * 128256 * 4096
AWQ = Fraction(1, 2) + (2 + Fraction(1, 2)) / 128  # a scale of 2 bytes and a zero point of 4 bits for 128 weights
NVFP4, MXFP4 = Fraction(9, 16), Fraction(17, 32)


def write(folder: Path, config: dict[str, Any], **sides: Any) -> str:
    for name, content in sides.items():
        (folder / f"{name.replace('__', '.')}.json").write_text(json.dumps(content), encoding="utf-8")
    file = folder / "config.json"
    file.write_text(json.dumps(config), encoding="utf-8")
    return str(file)


def read(folder: Path, config: dict[str, Any], **sides: Any) -> ModelShape:
    return read_model(write(folder, config, **sides), "model")


def quantised(method: str, **keys: Any) -> dict[str, Any]:
    return {**LLAMA, "quantization_config": {"quant_method": method, **keys}}


def compressed(weights: dict[str, Any], **keys: Any) -> dict[str, Any]:
    inputs = keys.pop("inputs", None)
    groups = {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": inputs}}
    return quantised("compressed-tensors", **{"config_groups": groups, "ignore": ["lm_head"], **keys})


def sizes(shape: ModelShape) -> tuple[Fraction, ...]:
    return shape.attention_size, shape.weight_size, shape.head_size, shape.activation_size, shape.kv_size


# --- shapes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "name"), [(LLAMA, "llama-3.1-8b"), (QWEN_MOE, "qwen-3-30b-a3b"), (GLM_AIR, "glm-4.5-air")]
)
def test_a_config_has_the_shape_of_the_model_in_the_table(tmp_path: Path, config: dict[str, Any], name: str) -> None:
    ours, known = read(tmp_path, config), models().entries[name]
    for key in ("layers", "hidden", "heads", "kv_heads", "head_dim", "vocab", "intermediate", "dense_layers"):
        assert getattr(ours, key) == getattr(known, key), key
    for key in ("experts", "experts_per_token", "expert_intermediate", "shared_intermediate", "kv_bytes_per_token"):
        assert getattr(ours, key) == getattr(known, key), key
    assert ours.weight_bytes == pytest.approx(known.weight_bytes, rel=0.005)


def test_layers_without_experts_are_found_by_step_and_by_list(tmp_path: Path) -> None:
    by_step = read(tmp_path, {**QWEN_MOE, "decoder_sparse_step": 2})
    assert by_step.dense_layers == 24
    assert read(tmp_path, {**QWEN_MOE, "mlp_only_layers": [0, 7]}).dense_layers == 2


def test_the_language_part_of_a_multimodal_model_is_read_with_the_quantisation_beside_it(tmp_path: Path) -> None:
    inner = {key: value for key, value in LLAMA.items() if key != "torch_dtype"}
    outer = {"text_config": inner, "vision_config": {"hidden_size": 1024}, "torch_dtype": "bfloat16"}
    assert read(tmp_path, outer).weight_bytes == read(tmp_path, LLAMA).weight_bytes
    fp8 = read(tmp_path, {**outer, "quantization_config": {"quant_method": "fp8"}})
    assert fp8.weight_bytes == read(tmp_path, quantised("fp8")).weight_bytes


def test_engines_convert_weights_of_four_bytes_to_two(tmp_path: Path) -> None:
    index = {"metadata": {"total_size": 4 * 8_030_261_248}}
    shape = read(tmp_path, {**LLAMA, "torch_dtype": "float32"}, model__safetensors__index=index)
    assert shape.weight_bytes == pytest.approx(2 * 8_030_261_248, rel=0.001)


# --- quantisation -----------------------------------------------------------------------------------------------------


def test_gpt_oss_weighs_63_to_66_gb_and_not_234(tmp_path: Path) -> None:
    """The model card (August 2025) says 60.8 GiB, which is 65.3 GB. Headway leaves the biases of experts out."""
    shape = read(tmp_path, {**GPT_OSS, "layer_types": ["full_attention"] * 36})
    assert (shape.expert_size, shape.attention_size, shape.head_size) == (MXFP4, 2, 2)
    assert 64.8e9 < shape.weight_bytes < 65.4e9
    assert shape.activation_size == 2


@pytest.mark.parametrize(
    "keys",
    [
        {"activation_scheme": "static"},
        {"activation_scheme": "dynamic", "weight_block_size": [128, 128], "fmt": "e4m3"},
        {"modules_to_not_convert": ["lm_head", "model.layers.0.mlp.gate"]},
    ],
)
def test_fp8_has_one_byte_per_weight_and_16_bits_for_the_vocabulary(tmp_path: Path, keys: dict[str, Any]) -> None:
    shape = read(tmp_path, quantised("fp8", **keys))
    assert sizes(shape) == (1, 1, 2, 1, 2)
    assert shape.weight_bytes == ATTENTION + LAYERS + 2 * HEAD


def test_scales_of_small_blocks_are_counted(tmp_path: Path) -> None:
    shape = read(tmp_path, quantised("fp8", weight_block_size=[1, 32]))
    assert shape.weight_size == 1 + Fraction(4, 32)


@pytest.mark.parametrize(
    "kept",
    [
        ["model.layers.0.self_attn", "model.layers.31.self_attn"],
        ["model.layers.0.self_attn*", "model.layers.31.self_attn*"],
        ["re:.*layers\\.(0|31)\\.self_attn.*"],
        [f"model.layers.{layer}.self_attn.{name}_proj" for layer in (0, 31) for name in "qkvo"],
        [f"model.layers.{layer}.self_attn.{name}_proj" for layer in (0, 31) for name in ("qkv", "o")],
    ],
)
def test_single_layers_may_keep_their_16_bits(tmp_path: Path, kept: list[str]) -> None:
    shape = read(tmp_path, quantised("compressed-tensors", **compressed_fp8(kept)))
    assert shape.attention_size == Fraction(30 + 2 * 2, 32)
    assert shape.weight_size == 1


def compressed_fp8(kept: list[str]) -> dict[str, Any]:
    weights = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": {"num_bits": 8, "type": "float"}}
    return {"config_groups": {"group_0": group}, "ignore": ["lm_head", *kept], "format": "float-quantized"}


def test_a_router_that_keeps_16_bits_does_not_keep_the_projection_whose_name_begins_the_same(tmp_path: Path) -> None:
    shape = read(tmp_path, {**QWEN_MOE, "quantization_config": {"quant_method": "fp8", "ignored_layers": ["mlp.gate"]}})
    assert (shape.expert_size, shape.attention_size) == (1, 1)


@pytest.mark.parametrize(
    ("weights", "keys", "found"),
    [
        ({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True}, {},
         (Fraction(1, 2) + Fraction(2, 128), 2)),
        ({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": False}, {}, (AWQ, 2)),
        ({"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}, {"inputs": {"num_bits": 8}}, (1, 1)),
        ({"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]},
         {"inputs": {"num_bits": 8}}, (1, 1)),
        ({"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16},
         {"inputs": {"num_bits": 4}, "format": "nvfp4-pack-quantized"}, (NVFP4, Fraction(1, 2))),
        ({"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32},
         {"format": "mxfp4-pack-quantized"}, (MXFP4, 2)),
    ],
)  # fmt: skip
def test_compressed_tensors_are_read(
    tmp_path: Path, weights: dict[str, Any], keys: dict[str, Any], found: tuple[Fraction, Fraction]
) -> None:
    shape = read(tmp_path, compressed(weights, **keys))
    assert (shape.weight_size, shape.activation_size) == found
    assert shape.attention_size == shape.weight_size and shape.head_size == 2


def test_groups_of_compressed_tensors_may_target_parts_of_a_model(tmp_path: Path) -> None:
    eight = {"weights": {"num_bits": 8, "type": "float", "strategy": "channel"}, "input_activations": {"num_bits": 8}}
    four = {"weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True}}
    groups = {"a": {**eight, "targets": ["Linear"]}, "b": {**four, "targets": ["re:.*mlp\\.(gate|up|down)_proj$"]}}
    shape = read(tmp_path, quantised("compressed-tensors", config_groups=groups, ignore=["lm_head"]))
    assert (shape.attention_size, shape.weight_size) == (1, Fraction(1, 2) + Fraction(2, 128))


def test_experts_and_attention_have_their_own_sizes(tmp_path: Path) -> None:
    weights = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
    config = compressed(weights, ignore=["lm_head", "re:.*self_attn.*", "re:.*mlp\\.gate$"])
    shape = read(tmp_path, {**QWEN_MOE, "quantization_config": config["quantization_config"]})
    assert (shape.expert_size, shape.attention_size, shape.head_size) == (NVFP4, 2, 2)
    experts, attention = 48 * 128 * 3 * 2048 * 768, 48 * 2 * 36 * 128 * 2048
    rest = 2 * 151936 * 2048 + 48 * 2048 * 128
    assert shape.weight_bytes == experts * 9 // 16 + 2 * (attention + rest)


@pytest.mark.parametrize(
    ("keys", "size"),
    [
        ({"bits": 4, "group_size": 128, "zero_point": True}, AWQ),
        ({"w_bit": 4, "q_group_size": 64, "zero_point": True}, Fraction(1, 2) + Fraction(5, 2) / 64),
    ],
)
def test_awq_is_read(tmp_path: Path, keys: dict[str, Any], size: Fraction) -> None:
    assert sizes(read(tmp_path, quantised("awq", **keys))) == (size, size, 2, 2, 2)
    (tmp_path / "side").mkdir()
    assert sizes(read(tmp_path / "side", LLAMA, quant_config=keys)) == (size, size, 2, 2, 2)


def test_awq_of_llama_8b_weighs_what_its_file_weighs(tmp_path: Path) -> None:
    """hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4 has 5.73 GB of weights."""
    shape = read(tmp_path, quantised("awq", bits=4, group_size=128, zero_point=True))
    assert shape.weight_bytes / 1e9 == pytest.approx(5.73, abs=0.01)


def test_gptq_is_read_from_its_own_file_too(tmp_path: Path) -> None:
    keys = {"bits": 4, "group_size": 128, "sym": True, "desc_act": False}
    inside = read(tmp_path, quantised("gptq", **keys))
    assert inside.weight_size == AWQ
    beside = read(tmp_path, LLAMA, quantize_config=keys)
    assert sizes(beside) == sizes(inside) and beside.weight_bytes == inside.weight_bytes
    assert read(tmp_path, quantised("gptq", bits=8, group_size=-1)).weight_size == 1


def test_gptq_may_treat_modules_differently(tmp_path: Path) -> None:
    dynamic = {"-:.*self_attn.*": {}, "+:.*down_proj": {"bits": 8, "group_size": -1}}
    shape = read(tmp_path, quantised("gptq", bits=4, group_size=128, dynamic=dynamic, lm_head=True))
    assert shape.attention_size == 2
    assert shape.weight_size == (2 * AWQ + 1) / 3
    assert shape.head_size == (2 + AWQ) / 2  # embeddings are not quantised


@pytest.mark.parametrize(
    ("keys", "size", "activation"),
    [
        ({"load_in_4bit": True}, Fraction(9, 16), 2),
        ({"load_in_4bit": True, "bnb_4bit_use_double_quant": True}, Fraction(1, 2) + Fraction(65, 4096), 2),
        ({"load_in_8bit": True, "load_in_4bit": False}, Fraction(1), 1),
    ],
)
def test_bitsandbytes_is_read(tmp_path: Path, keys: dict[str, Any], size: Fraction, activation: int) -> None:
    shape = read(tmp_path, quantised("bitsandbytes", **keys, llm_int8_skip_modules=["lm_head"]))
    assert (shape.weight_size, shape.activation_size) == (size, activation)


@pytest.mark.parametrize(
    ("algorithm", "size", "activation"),
    [("FP8", Fraction(1), 1), ("NVFP4", NVFP4, Fraction(1, 2)), ("MXFP8", Fraction(33, 32), 1),
     ("W4A16_AWQ", Fraction(1, 2) + Fraction(2, 128), 2)],
)  # fmt: skip
def test_modelopt_is_read_from_its_file_and_from_the_config(
    tmp_path: Path, algorithm: str, size: Fraction, activation: Fraction
) -> None:
    keys = {"quant_algo": algorithm, "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    beside = read(tmp_path, LLAMA, hf_quant_config={"producer": {"name": "modelopt"}, "quantization": keys})
    assert sizes(beside) == (size, size, 2, activation, 1)
    assert beside.kv_bytes_per_token == 65_536
    (tmp_path / "inside").mkdir()
    assert sizes(read(tmp_path / "inside", quantised("modelopt", **keys))) == sizes(beside)
    (tmp_path / "both").mkdir()
    both = read(tmp_path / "both", quantised("modelopt"), hf_quant_config={"quantization": keys})
    assert sizes(both) == sizes(beside)


def test_modelopt_may_mix_precisions(tmp_path: Path) -> None:
    layers = {f"model.layers.{layer}.mlp": {"quant_algo": "NVFP4", "group_size": 16} for layer in range(32)}
    layers |= {f"model.layers.{layer}.self_attn": {"quant_algo": "FP8"} for layer in range(32)}
    keys = {"quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": None, "quantized_layers": layers}
    shape = read(tmp_path, LLAMA, hf_quant_config={"quantization": keys})
    assert sizes(shape) == (1, NVFP4, 2, Fraction(1, 2), 2)


@pytest.mark.parametrize(
    ("keys", "size"),
    [
        ({"kv_cache_scheme": {"num_bits": 8, "type": "float", "strategy": "tensor"}}, 1),
        ({"kv_cache_scheme": "static"}, 1),
        ({"kv_cache_scheme": None}, 2),
        ({}, 2),
    ],
)
def test_the_cache_has_its_own_size(tmp_path: Path, keys: dict[str, Any], size: int) -> None:
    assert read(tmp_path, quantised("fp8", **keys)).kv_size == size


def test_a_cache_may_be_quantised_where_weights_are_not(tmp_path: Path) -> None:
    side = {"quantization": {"quant_algo": None, "kv_cache_quant_algo": "FP8"}}
    shape = read(tmp_path, LLAMA, hf_quant_config=side)
    assert (shape.kv_size, shape.weight_size, shape.weight_bytes) == (
        1,
        2,
        read_model("llama-3.1-8b", "m").weight_bytes - 2 * 65 * 4096,
    )


# --- what Headway does not read ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (quantised("hqq", nbits=4), "the weights are quantised by 'hqq', and Headway reads awq, bitsandbytes,"),
        ({**LLAMA, "quantization_config": {"bits": 4, "group_size": 64}}, "'quant_method' is missing"),
        ({**LLAMA, "quantization_config": "fp8"}, "quantization_config: expected a mapping, got 'fp8'"),
        ({**LLAMA, "torch_dtype": "int8"}, "torch_dtype is 'int8', and Headway reads float32, float16, bfloat16"),
        (quantised("gptq", bits=5), "bits: expected one of 2, 3, 4, 8, got 5"),
        (quantised("gptq", bits=4, group_size="all"), "group_size: expected a whole number above 0, or -1"),
        (quantised("awq", bits=4, group_size=0), "group_size: expected a whole number above 0, or -1"),
        (quantised("bitsandbytes"), "neither load_in_4bit nor load_in_8bit is true"),
        (quantised("modelopt", quant_algo="FP6"), "quant_algo is 'FP6', and Headway reads FP8,"),
        (quantised("modelopt", quant_algo="FP8", kv_cache_quant_algo="FP6"), "kv_cache_quant_algo is 'FP6'"),
        (quantised("modelopt", quant_algo="MIXED_PRECISION"), "MIXED_PRECISION without 'quantized_layers'"),
        (quantised("fp8", weight_block_size=128), "weight_block_size: expected two whole numbers, got 128"),
        (quantised("fp8", kv_cache_scheme={"num_bits": 6}), "kv_cache_scheme.num_bits: expected 8 or 16, got 6"),
        (quantised("fp8", modules_to_not_convert="lm_head"), "modules_to_not_convert: expected a list of names"),
        (quantised("fp8", modules_to_not_convert=["re:("]), "one of the names is not a regular expression"),
        (quantised("mxfp4"), "no part of the model matches the modules that quantization_config names"),
        (compressed({"num_bits": 3, "type": "int"}), "weights of type 'int' with 3 bits in format '' are unknown"),
        (compressed({"num_bits": 4, "type": "float"}), "weights.group_size is missing"),
        (compressed({"num_bits": 8, "type": "int", "strategy": "x"}), "weights.strategy is 'x', and Headway reads"),
        (compressed({"num_bits": 8, "type": "int"}, inputs={"num_bits": 5}), "input_activations.num_bits: expected"),
        (compressed({"num_bits": 8, "type": "int"}, sparsity_config={"format": "sparse-24"}), "the weights are sparse"),
    ],
)  # fmt: skip
def test_a_quantisation_that_is_not_understood_is_told_with_what_to_write_instead(
    tmp_path: Path, config: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(HeadwayError) as caught:
        read(tmp_path, config)
    text = str(caught.value)
    assert text.startswith("model: ") and "config.json'" in text and sentence in text
    assert text.endswith("; write a model mapping with its bytes per weight (dtype_bytes) instead.")
    assert text.count(". ") == 0


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"kv_lora_rank": 512}, "latent attention but no whole number 'qk_rope_head_dim'"),
        ({"index_topk": 2048}, "a mixture of layers (index_topk: 2048)"),
        (
            {"layer_types": ["full_attention"] * 31 + ["sliding_attention"]},
            "sliding windows of unknown length (layer_t",
        ),
        ({"layer_types": ["full_attention", "linear_attention"] * 16}, "a mixture of layers (layer_types: linear_att"),
        ({"attention_chunk_size": 8192}, "chunked attention (attention_chunk_size: 8192)"),
        ({"full_attention_interval": 4}, "a mixture of layers (full_attention_interval: 4)"),
        ({"attn_type_list": [0, 1] * 16}, "a mixture of layers (attn_type_list)"),
        ({"attn_layer_period": 8}, "a mixture of layers (attn_layer_period: 8)"),
        ({"mamba_d_state": 16}, "a mixture of layers (mamba_d_state: 16)"),
        ({"hybrid_override_pattern": "M-M*"}, "a mixture of layers (hybrid_override_pattern: 'M-M*')"),
        ({"is_encoder_decoder": True}, "an encoder (is_encoder_decoder)"),
    ],
)
def test_a_model_without_full_attention_in_every_layer_is_refused(
    tmp_path: Path, keys: dict[str, Any], reason: str
) -> None:
    with pytest.raises(HeadwayError) as caught:
        read(tmp_path, {**LLAMA, **keys})
    text = str(caught.value)
    assert f"config.json' has {reason}" in text and text.endswith("if that is close enough.") and text.count(". ") == 0


@pytest.mark.parametrize(
    "keys",
    [
        {"sliding_window": None},
        {"sliding_window": 4096, "use_sliding_window": False},
        {"sliding_window": 131072, "max_window_layers": 28},
        {"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 32},
        {"sliding_window": 4096, "layer_types": ["full_attention"] * 32},
        {"kv_lora_rank": None, "attn_type_list": [1] * 32, "full_attention_interval": 1, "block_configs": []},
    ],
)
def test_windows_that_are_not_in_use_are_full_attention(tmp_path: Path, keys: dict[str, Any]) -> None:
    assert read(tmp_path, {**LLAMA, **keys}).weight_bytes == read(tmp_path, LLAMA).weight_bytes


# Keys of published models, as far as they decide what layers keep. Those of Gemma 3 are of its language part.
GEMMA = {
    "num_hidden_layers": 62, "hidden_size": 5376, "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128,
    "intermediate_size": 21504, "vocab_size": 262208, "sliding_window": 1024, "model_type": "gemma3_text",
    "tie_word_embeddings": True, "max_position_embeddings": 131072,
}  # fmt: skip
DEEPSEEK = {
    "num_hidden_layers": 61, "hidden_size": 7168, "num_attention_heads": 128, "num_key_value_heads": 128,
    "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 256, "num_experts_per_tok": 8,
    "n_shared_experts": 1, "first_k_dense_replace": 3, "vocab_size": 129280, "kv_lora_rank": 512, "q_lora_rank": 1536,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "moe_layer_freq": 1,
}  # fmt: skip
QWEN_NEXT = {
    "num_hidden_layers": 48, "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
    "intermediate_size": 5120, "moe_intermediate_size": 512, "num_experts": 512, "num_experts_per_tok": 10,
    "shared_expert_intermediate_size": 512, "vocab_size": 151936, "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
    "linear_value_head_dim": 128, "decoder_sparse_step": 1,
}  # fmt: skip
NEMOTRON = {
    "num_hidden_layers": 56, "hidden_size": 4480, "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128,
    "intermediate_size": 15680, "vocab_size": 131072, "mamba_num_heads": 128, "mamba_head_dim": 80, "n_groups": 8,
    "ssm_state_size": 128, "conv_kernel": 4, "model_type": "nemotron_h",
    "hybrid_override_pattern": "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-",
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({**GPT_OSS, "quantization_config": None}, "gpt-oss-120b"),
        (GEMMA, "gemma-3-27b"),
        (DEEPSEEK, "deepseek-v3"),
        (QWEN_NEXT, "qwen-3-next-80b-a3b"),
        (NEMOTRON, "nemotron-nano-9b-v2"),
    ],
)
def test_the_kinds_of_layers_are_those_of_the_model_in_the_table(
    tmp_path: Path, config: dict[str, Any], name: str
) -> None:
    ours, known = read(tmp_path, config), models().entries[name]
    assert ours.kv_groups == known.kv_groups
    assert ours.kv_bytes_per_token == known.kv_bytes_per_token
    assert ours.intermediate == known.intermediate and ours.head_dim == known.head_dim


def test_windows_follow_a_pattern_or_begin_at_a_layer(tmp_path: Path) -> None:
    half = read(tmp_path, {**LLAMA, "sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 28})
    assert [(kind.kind, kind.layers) for kind in half.kv_groups] == [("full", 28), ("sliding", 4)]
    every = read(tmp_path, {**LLAMA, "sliding_window": 512, "sliding_window_pattern": 4})
    assert [(kind.kind, kind.layers) for kind in every.kv_groups] == [("full", 8), ("sliding", 24)]
    assert [kind.kind for kind in read(tmp_path, {**LLAMA, "sliding_window": 4096}).kv_groups] == ["sliding"]


def test_deepseek_in_8_bits_weighs_what_its_files_weigh(tmp_path: Path) -> None:
    """The files have 688.6 GB, of which the layer that predicts further tokens has 14 GB."""
    scheme = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
    shape = read(tmp_path, {**DEEPSEEK, "quantization_config": scheme})
    assert shape.weight_bytes == pytest.approx(674e9, rel=0.01)


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"num_key_value_heads": [8] * 32}, "num_key_value_heads is [8, 8, 8"),
        ({"model_type": "starcoder2"}, "feed-forward layers without a gate (model_type: starcoder2)"),
        ({"moe_experts_count": 8}, "has experts (such as moe_experts_count) but none of"),
        ({"num_experts": 8}, "does not say how many experts a token visits (num_experts_per_tok)"),
        (
            {"num_experts": 8, "num_experts_per_tok": 2, "mlp_only_layers": "all"},
            "the layers without experts are 'all'",
        ),
        ({"vocab_size": None}, "has no 'vocab_size'"),
    ],
)
def test_a_shape_that_is_not_understood_is_told(tmp_path: Path, keys: dict[str, Any], sentence: str) -> None:
    with pytest.raises(HeadwayError) as caught:
        read(tmp_path, {**LLAMA, **keys})
    assert sentence in str(caught.value)


SAMPLES = [
    GPT_OSS,
    GLM_AIR,
    QWEN_MOE,
    quantised(
        "gptq", bits=4, group_size=128, dynamic={"-:.*mlp.*": {}}, modules_in_block_to_quantize=[["mlp.gate_proj"]]
    ),
    quantised("awq", bits=4, group_size=128, modules_to_not_convert=["lm_head"]),
    quantised("fp8", weight_block_size=[128, 128], kv_cache_scheme={"num_bits": 8, "type": "float"}),
    quantised("modelopt", quant_algo="NVFP4", group_size=16, exclude_modules=["lm_head"], quantized_layers=None),
    quantised("bitsandbytes", load_in_4bit=True, llm_int8_skip_modules=["lm_head"]),
    compressed({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True}, inputs={}),
]


def damaged(value: Any) -> list[Any]:
    """Copies of a JSON value in which one value inside is of a wrong type."""
    found: list[Any] = [5, -1, "x", "re:(", [], {}, [1], {"a": 1}, None, 0.5, True]
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in list(inside)[:20]:
        for wrong in damaged(part):
            copy = value.copy()
            copy[key] = wrong
            found.append(copy)
    return found


@pytest.mark.parametrize("sample", SAMPLES, ids=range(len(SAMPLES)))
def test_a_damaged_config_is_read_or_told_and_never_a_traceback(tmp_path: Path, sample: dict[str, Any]) -> None:
    for config in damaged(sample):
        try:
            read(tmp_path, config)
        except HeadwayError as error:
            assert str(error).startswith("model")


# --- the check against the weight files -------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [16_060_522_496, 15.5e9, "unknown", None])
def test_weight_files_of_the_computed_size_pass(tmp_path: Path, size: object) -> None:
    read(tmp_path, LLAMA, model__safetensors__index={"metadata": {"total_size": size}})


def test_weight_files_of_another_size_are_told(tmp_path: Path) -> None:
    index = {"metadata": {"total_size": 5_730_000_000}}
    with pytest.raises(HeadwayError) as caught:
        read(tmp_path, LLAMA, model__safetensors__index=index)
    assert "the weights take 16.1 GB by this file, but 5.7 GB by model.safetensors.index.json;" in str(caught.value)


def test_weight_files_may_hold_more_than_the_language_model(tmp_path: Path) -> None:
    index = {"model__safetensors__index": {"metadata": {"total_size": 2 * 110_468_824_832}}}
    assert read(tmp_path, GLM_AIR, **index).weight_bytes == pytest.approx(213.7e9, rel=0.005)
    with pytest.raises(HeadwayError, match=r"but 20\.0 GB"):
        read(tmp_path, LLAMA, model__safetensors__index={"metadata": {"total_size": 20_000_000_000}})


def test_a_side_file_that_is_not_json_is_told(tmp_path: Path) -> None:
    (tmp_path / "hf_quant_config.json").write_text("{", encoding="utf-8")
    with pytest.raises(HeadwayError, match=r"^model: '.*hf_quant_config\.json' is not a JSON file\.$"):
        read(tmp_path, LLAMA)
