"""Read the shape of a model from the `config.json` that is published with its weights on Hugging Face."""

import json
from pathlib import Path
from typing import Any, Final

from headway.config.wording import join_words, shown
from headway.errors import HeadwayError

NEEDED: Final = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")
EXPERTS: Final = ("num_local_experts", "num_experts", "n_routed_experts")
SIZES: Final = {"float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1}


def read_config(path: str, where: str) -> dict[str, Any]:
    """Return the keys of a model from its `config.json`. The number of parameters is computed from the shape."""
    try:
        config = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise HeadwayError(f"{where}: cannot read {shown(path)}: {error.strerror}.") from None
    except (ValueError, RecursionError):
        raise HeadwayError(f"{where}: {shown(path)} is not a JSON file.") from None
    if not isinstance(config, dict):
        raise HeadwayError(f"{where}: {shown(path)} is not the config.json of a model: it is not a JSON object.")
    config = config.get("text_config", config)  # the language part of a multimodal model
    missing = [repr(key) for key in NEEDED if not isinstance(config.get(key), int)]
    if missing:
        raise HeadwayError(
            f"{where}: {shown(path)} has no {join_words(missing)}. Use the config.json published with the weights."
        )
    if "kv_lora_rank" in config:
        raise HeadwayError(
            f"{where}: {shown(path)} has latent attention (kv_lora_rank), which no latency model supports."
        )
    figures = _shape_keys(config)
    figures["params"], figures["active_params"] = _params(figures, bool(config.get("tie_word_embeddings")))
    return {"name": str(config.get("_name_or_path") or Path(path).parent.name or "custom"), **figures}


def _shape_keys(config: dict[str, Any]) -> dict[str, Any]:
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    figures = {
        "layers": config["num_hidden_layers"],
        "hidden": hidden,
        "heads": heads,
        "kv_heads": config.get("num_key_value_heads") or heads,
        "head_dim": config.get("head_dim") or hidden // heads,
        "vocab": config["vocab_size"],
        "dtype_bytes": _weight_size(config),
        "kv_dtype_bytes": 2,
    }
    experts = next((config[key] for key in EXPERTS if config.get(key)), 0)
    width = config.get("intermediate_size") or 0
    if not experts:
        return figures | {"intermediate": width}
    own = config.get("moe_intermediate_size") or width
    shared = config.get("shared_expert_intermediate_size") or own * (config.get("n_shared_experts") or 0)
    figures |= {
        "experts": experts,
        "experts_per_token": config.get("num_experts_per_tok") or 1,
        "expert_intermediate": own,
        "shared_intermediate": shared,
        "dense_layers": config.get("first_k_dense_replace") or 0,
    }
    return figures | ({"intermediate": width} if figures["dense_layers"] else {})


def _weight_size(config: dict[str, Any]) -> float:
    quantised = config.get("quantization_config") or {}
    bits = quantised.get("bits") or quantised.get("w_bit")
    if bits:
        return int(bits) / 8
    if "8" in str(quantised.get("quant_method") or ""):
        return 1
    return SIZES.get(str(config.get("torch_dtype") or config.get("dtype") or "bfloat16"), 2)


def _params(figures: dict[str, Any], tied: bool) -> tuple[int, int]:
    """Return the total number of parameters, and the number of parameters that one token uses."""
    hidden, layers = figures["hidden"], figures["layers"]
    outside = figures["vocab"] * hidden * (1 if tied else 2)
    attention = 2 * (figures["heads"] + figures["kv_heads"]) * figures["head_dim"] * hidden
    sparse = layers - figures["dense_layers"] if "experts" in figures else 0
    common = outside + layers * attention + (layers - sparse) * 3 * hidden * figures.get("intermediate", 0)
    if not sparse:
        return common, common
    common += sparse * hidden * (3 * figures["shared_intermediate"] + figures["experts"])
    expert = sparse * 3 * hidden * figures["expert_intermediate"]
    return common + expert * figures["experts"], common + expert * figures["experts_per_token"]
