"""Read a model from the `config.json` that is published with its weights on Hugging Face, and from the files beside
it."""

import json
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from headway.config.wording import join_words, shown
from headway.errors import HeadwayError
from headway.latency.attention_kinds import read_kinds
from headway.latency.kv_layers import KvLayers, attention_weights, read_layers
from headway.latency.quantization import FULL, Format, Scheme, read_scheme, refuse

NEEDED: Final = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")
OPTIONAL: Final = ("num_key_value_heads", "head_dim", "intermediate_size", "moe_intermediate_size")
OF_EXPERTS: Final = ("first_k_dense_replace", "decoder_sparse_step", "n_shared_experts")
SHARED: Final = ("shared_expert_intermediate_size", "shared_intermediate_size")
LANGUAGE: Final = ("text_config", "llm_config", "language_config")  # the language part of a multimodal model
EXPERTS: Final = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
VISITED: Final = ("num_experts_per_tok", "experts_per_token", "num_experts_per_token", "moe_k", "moe_topk")
# Bytes per weight in an engine. Engines convert FP32 to 16 bits.
SIZES: Final = {"float32": FULL, "float16": FULL, "bfloat16": FULL, "float8_e4m3fn": Fraction(1)}
# Feed-forward layers of two matrices instead of three.
UNGATED: Final = ("bloom", "codegen", "falcon", "gpt2", "gpt_bigcode", "gpt_neox", "gptj", "mpt", "nemotron", "opt")
UNGATED_TOO: Final = ("phi", "persimmon", "starcoder2")
SIDE_FILES: Final = (
    ("hf_quant_config.json", "modelopt"),
    ("quantize_config.json", "gptq"),
    ("quant_config.json", "awq"),
)
# Usual names of the attention matrices in layers of other kinds.
SPECIAL: Final = {
    "latent": [f"self_attn.{name}_proj" for name in ("q", "q_a", "q_b", "kv_b", "o")],
    "state": [f"{folder}.{name}" for folder in ("mixer", "linear_attn") for name in ("in_proj", "out_proj")],
}
INDEX: Final = "model.safetensors.index.json"
TOLERANCE: Final = 0.05  # largest relative difference between the computed and the published size of the weights


class Published(Struct, frozen=True):
    """A published model: the keys of its mapping, and the size of its weight files, if the index names it."""

    keys: dict[str, Any]
    place: str
    total_bytes: int | None = None
    whole: bool = True  # whether the weight files hold nothing but the language model

    def check(self, weight_bytes: int) -> None:
        """Raise an error if the size that Headway computed is not that of the weight files."""
        total = self.total_bytes
        if total is None:
            return
        if weight_bytes > total * (1 + TOLERANCE) or (self.whole and weight_bytes < total * (1 - TOLERANCE)):
            refuse(
                self.place,
                f"the weights take {weight_bytes / 1e9:.1f} GB by this file, but {total / 1e9:.1f} GB by {INDEX}",
            )


def read_config(path: str, where: str) -> Published:
    """Return a model from its `config.json`. The number of parameters is computed from the shape."""
    whole, place = _read_json(Path(path), where), f"{where}: {shown(path)}"
    config: dict[str, Any] = next((whole[key] for key in LANGUAGE if isinstance(whole.get(key), dict)), whole)
    # Multimodal models have these keys beside the language part or inside it.
    for key in ("quantization_config", "compression_config", "tie_word_embeddings", "torch_dtype", "dtype"):
        if config.get(key) is None and key in whole:
            config = {**config, key: whole[key]}
    missing = [repr(key) for key in NEEDED if not _is_count(config.get(key))]
    if missing:
        raise HeadwayError(f"{place} has no {join_words(missing)}. Use the config.json published with the weights.")
    for key in (*OPTIONAL, *EXPERTS, *VISITED, *OF_EXPERTS, *SHARED):
        if config.get(key) and not _is_count(config[key]):
            raise HeadwayError(
                f"{place}: {key} is {shown(config[key])}, but Headway needs one whole number for all layers; "
                "write a model mapping instead."
            )
    if config.get("model_type") in (*UNGATED, *UNGATED_TOO):
        raise HeadwayError(
            f"{place} has feed-forward layers without a gate (model_type: {config['model_type']}), which Headway does "
            "not count; write a model mapping with 'params' and without 'intermediate' instead."
        )
    kinds = read_kinds(config, place)
    sparse = _sparse_layers(config, place)
    keys = _shape_keys(config, sparse)
    if kinds is not None:
        keys["kv_groups"] = kinds
        _adapt(keys, config)
    keys["params"], keys["active_params"] = _params(keys, bool(config.get("tie_word_embeddings")))
    base, scheme = _base_size(config, place), _scheme(config, Path(path).parent, where, place)
    name = str(config.get("_name_or_path") or whole.get("_name_or_path") or Path(path).parent.name or "custom")
    keys = {"name": name, **keys, **_size_keys(keys, sparse, base, scheme, place)}
    return Published(keys, place, _total_bytes(config, Path(path).parent, where), _only_language(whole, config))


def _read_json(path: Path, where: str) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise HeadwayError(f"{where}: cannot read {shown(str(path))}: {error.strerror}.") from None
    except (ValueError, RecursionError):
        raise HeadwayError(f"{where}: {shown(str(path))} is not a JSON file.") from None
    if not isinstance(data, dict):
        raise HeadwayError(f"{where}: {shown(str(path))} is not the config.json of a model: it is not a JSON object.")
    return data


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


# The shape.


def _sparse_layers(config: dict[str, Any], place: str) -> list[bool]:
    """Return for each layer whether it has experts."""
    layers = config["num_hidden_layers"]
    if not next((config[key] for key in EXPERTS if config.get(key)), 0):
        unknown = [key for key, value in config.items() if ("expert" in key or "moe" in key) and _is_count(value)]
        if unknown:
            raise HeadwayError(
                f"{place} has experts (such as {unknown[0]}) but none of {join_words(list(EXPERTS))}; "
                "write a model mapping with 'experts' instead."
            )
        return [False] * layers
    if not any(config.get(key) for key in VISITED):
        raise HeadwayError(
            f"{place} does not say how many experts a token visits ({VISITED[0]}); write a model mapping with "
            "'experts_per_token' instead."
        )
    listed = config.get("mlp_only_layers") or []
    every = config.get("decoder_sparse_step") or config.get("moe_layer_freq") or 1
    if isinstance(every, list) and len(every) == layers:
        return [bool(kind) for kind in every]
    if not isinstance(listed, list) or not all(isinstance(layer, int) for layer in listed) or not _is_count(every):
        raise HeadwayError(
            f"{place}: the layers without experts are {shown(listed or every)}, which Headway does not read; "
            "write a model mapping with 'dense_layers' instead."
        )
    dense = {*range(config.get("first_k_dense_replace") or 0), *listed}
    return [layer not in dense and (layer + 1) % every == 0 for layer in range(layers)]


def _shape_keys(config: dict[str, Any], sparse: Sequence[bool]) -> dict[str, Any]:
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    keys = {
        "layers": config["num_hidden_layers"],
        "hidden": hidden,
        "heads": heads,
        "kv_heads": config.get("num_key_value_heads") or heads,
        "head_dim": config.get("head_dim") or hidden // heads,
        "vocab": config["vocab_size"],
    }
    width = config.get("intermediate_size") or 0
    if not any(sparse):
        return keys | {"intermediate": width}
    own = config.get("moe_intermediate_size") or width
    shared = next((config[key] for key in SHARED if config.get(key)), 0)
    keys |= {
        "experts": next(config[key] for key in EXPERTS if config.get(key)),
        "experts_per_token": next(config[key] for key in VISITED if config.get(key)),
        "expert_intermediate": own,
        "shared_intermediate": shared or own * (config.get("n_shared_experts") or 0),
        "dense_layers": len(sparse) - sum(sparse),
    }
    return keys | ({"intermediate": width} if keys["dense_layers"] else {})


def _adapt(keys: dict[str, Any], config: dict[str, Any]) -> None:
    """Adapt the keys of a model whose layers differ in what they keep."""
    latent = keys["kv_groups"][0]
    if latent["kind"] == "latent":
        keys["kv_heads"], keys["head_dim"] = keys["heads"], latent["nope"] + latent["rope"]
    pattern = config.get("hybrid_override_pattern")
    if isinstance(pattern, str) and "intermediate" in keys:
        # Only some layers have a feed-forward part, of two matrices instead of three: the mean width over all layers.
        keys["intermediate"] = round(keys["intermediate"] * 2 * pattern.count("-") / (3 * len(pattern)))


def _kinds(keys: dict[str, Any]) -> tuple[KvLayers, ...]:
    return read_layers(keys["kv_groups"], keys["layers"], "kv_groups") if "kv_groups" in keys else ()


def _params(keys: dict[str, Any], tied: bool) -> tuple[int, int]:
    """Return the total number of parameters, and the number of parameters that one token uses."""
    hidden, layers = keys["hidden"], keys["layers"]
    outside = keys["vocab"] * hidden * (1 if tied else 2)
    attended = 2 * (keys["heads"] + keys["kv_heads"]) * keys["head_dim"]
    attention = attention_weights(_kinds(keys), layers, hidden, keys["heads"], attended)
    sparse = layers - keys["dense_layers"] if "experts" in keys else 0
    common = outside + attention + (layers - sparse) * 3 * hidden * keys.get("intermediate", 0)
    if not sparse:
        return common, common
    common += sparse * hidden * (3 * keys["shared_intermediate"] + keys["experts"])
    expert = sparse * 3 * hidden * keys["expert_intermediate"]
    return common + expert * keys["experts"], common + expert * keys["experts_per_token"]


# The bytes per weight.


def _base_size(config: dict[str, Any], place: str) -> Fraction:
    name = str(config.get("torch_dtype") or config.get("dtype") or "bfloat16").removeprefix("torch.")
    if name not in SIZES:
        refuse(place, f"torch_dtype is {shown(name)}, and Headway reads {', '.join(SIZES)}")
    return SIZES[name]


def _scheme(config: dict[str, Any], folder: Path, where: str, place: str) -> Scheme | None:
    """Return the quantisation, from `config.json` or a file beside it. If the weights are not quantised, return
    None."""
    data = config.get("quantization_config") or config.get("compression_config")
    if data is not None and not isinstance(data, dict):
        refuse(place, f"quantization_config: expected a mapping, got {shown(data)}")
    if data:
        data = {"quant_method": "compressed-tensors", **data} if "config_groups" in data else data
        if str(data.get("quant_method")).startswith("modelopt") and "quant_algo" not in data:
            side = folder / SIDE_FILES[0][0]
            data = {**_read_json(side, where), **data} if side.is_file() else data
        return read_scheme(data, f"{place}: quantization_config")
    for name, method in SIDE_FILES:
        side = folder / name
        if side.is_file():
            return read_scheme({"quant_method": method, **_read_json(side, where)}, f"{where}: {shown(str(side))}")
    return None


def _size_keys(
    keys: dict[str, Any], sparse: Sequence[bool], base: Fraction, scheme: Scheme | None, place: str
) -> dict[str, Fraction]:
    if scheme is None:
        return {"dtype_bytes": base, "kv_dtype_bytes": FULL}
    if not scheme.rules:
        return {"dtype_bytes": base, "kv_dtype_bytes": scheme.kv}
    parts, computed = _part_sizes(keys, sparse, base, scheme)
    if not computed:
        refuse(place, "no part of the model matches the modules that quantization_config names")
    return {
        "dtype_bytes": parts.get("layers", base),
        "attention_dtype_bytes": parts.get("attention", base),
        **({"expert_dtype_bytes": parts["experts"]} if "experts" in parts else {}),
        # Embeddings keep their 16 bits where the matrix to the vocabulary is quantised.
        "head_dtype_bytes": base if scheme.head is None else (base + scheme.head.weight) / 2,
        "activation_bytes": max(computed, key=lambda form: computed[form]).activation,
        "kv_dtype_bytes": scheme.kv,
    }


def _part_sizes(
    keys: dict[str, Any], sparse: Sequence[bool], base: Fraction, scheme: Scheme
) -> tuple[dict[str, Fraction], dict[Format, int]]:
    """Return the mean bytes per weight of each part, and the number of weights in each format. Layers may differ,
    because quantisers leave out single layers."""
    stored: dict[str, Fraction] = {}
    weights: dict[str, int] = {}
    formats: dict[Format, int] = {}
    layers = Counter(sparse).items() if not scheme.numbered else [(experts, 1) for experts in sparse]
    for layer, (experts, times) in enumerate(layers):
        for part, count, names in _modules_of(keys, experts):
            form = scheme.format_of([f"model.layers.{layer}.{name}" for name in names])
            count *= times
            stored[part] = stored.get(part, Fraction(0)) + count * (base if form is None else form.weight)
            weights[part] = weights.get(part, 0) + count
            if form is not None:
                formats[form] = formats.get(form, 0) + count
    return {part: stored[part] / count for part, count in weights.items() if count}, formats


PROJECTIONS: Final = (("gate_proj", "gate_up_proj", "w1"), ("up_proj", "gate_up_proj", "w3"), ("down_proj", "w2"))


def _modules_of(keys: dict[str, Any], experts: bool) -> list[tuple[str, int, list[str]]]:
    """Return the part, the number of weights and the usual names of each matrix of a layer. One expert stands for
    all."""
    hidden, head_dim = keys["hidden"], keys["head_dim"]
    special = [kind for kind in _kinds(keys) if kind.kind in SPECIAL]
    heads = {"q_proj": keys["heads"], "k_proj": keys["kv_heads"], "v_proj": keys["kv_heads"], "o_proj": keys["heads"]}
    found = [
        (
            "attention",
            count * head_dim * hidden,
            [f"self_attn.{name}", *(["self_attn.qkv_proj"] if name != "o_proj" else [])],
        )
        for name, count in heads.items()
    ]
    if special:  # one layer stands for all: its matrices have the mean size over the kinds of layers
        attended = 2 * (keys["heads"] + keys["kv_heads"]) * head_dim
        plain = sum(kind.layers for kind in _kinds(keys) if kind.kind not in SPECIAL)
        found = [(part, count * plain // keys["layers"], names) for part, count, names in found if plain]
        for kind in special:
            total = attention_weights((kind,), kind.layers, hidden, keys["heads"], attended)
            found.append(("attention", total // keys["layers"], SPECIAL[kind.kind]))
    for names in PROJECTIONS:
        if not experts:
            inside = [f"{folder}.{name}" for folder in ("mlp", "feed_forward") for name in names]
            found.append(("layers", hidden * keys["intermediate"], inside))
            continue
        folders = [
            f"{folder}.experts{one}" for folder in ("mlp", "block_sparse_moe", "feed_forward") for one in ("", ".0")
        ]
        inside = [f"{folder}.{name}" for folder in folders for name in names]
        found.append(("experts", hidden * keys["expert_intermediate"] * keys["experts"], inside))
        if keys["shared_intermediate"]:
            inside = [f"mlp.{folder}.{name}" for folder in ("shared_experts", "shared_expert") for name in names]
            found.append(("layers", hidden * keys["shared_intermediate"], inside))
    return found


# The check against the weight files.


def _total_bytes(config: dict[str, Any], folder: Path, where: str) -> int | None:
    """Return the size of the weight files as an engine loads them. If there is no index beside the config.json, return
    None."""
    index = folder / INDEX
    if not index.is_file():
        return None
    metadata = _read_json(index, where).get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    if isinstance(total, bool) or not isinstance(total, int | float) or total <= 0:
        return None
    halved = "float32" in str(config.get("torch_dtype") or config.get("dtype"))
    return int(total) // (2 if halved else 1)


def _only_language(whole: dict[str, Any], config: dict[str, Any]) -> bool:
    """Return whether the weight files hold nothing beside the layers that Headway counts, such as an encoder of images
    or layers that predict further tokens."""
    more = [key for key in whole if key.endswith("_config") and isinstance(whole[key], dict) and key not in LANGUAGE]
    more = [key for key in more if key not in ("quantization_config", "compression_config")]
    ahead = config.get("num_nextn_predict_layers") or config.get("num_mtp_modules")
    return not more and not ahead
