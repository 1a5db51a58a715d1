"""Read from a published `config.json` what each layer keeps in the KV cache, in the form of the key `kv_groups`. Refuse
models whose layers Headway does not know, because no latency model counts them right."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from headway.config.wording import shown
from headway.errors import HeadwayError

REMEDY: Final = "write a model mapping, which counts every token in every layer, if that is close enough"
# Keys of models with state-space or linear layers, or with other caches. Null, 0, false and empty lists do not count.
HYBRID: Final = (
    "attn_layer_period",
    "attn_layer_indices",
    "hybrid_override_pattern",
    "hybrid_layer_pattern",
    "layers_block_type",
    "block_types",
    "mamba_d_state",
    "mamba_d_ssm",
    "mamba_num_heads",
    "ssm_state_size",
    "state_size",
    "linear_attn_config",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "num_kv_shared_layers",
    "block_configs",
    "cross_attention_layers",
    "index_topk",
)
KNOWN: Final = {
    "full_attention": "full",
    "attention": "full",
    "full": "full",
    "sliding_attention": "sliding",
    "linear_attention": "state",
}
LAYER_NAMES: Final = {"chunked_attention": "chunked attention"}
LATENT: Final = ("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
DELTA: Final = (  # Qwen3-Next: gated delta networks
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
)
MAMBA: Final = ("mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups", "conv_kernel")  # Nemotron-H
PRECISION: Final = ("mamba_ssm_dtype", "mamba_ssm_cache_dtype")  # of the states alone; other numbers have 16 bits
PATTERNS: Final = {"gemma3": 6, "gemma3_text": 6, "gemma2": 2}  # each layer of this number has full attention


def read_kinds(config: Mapping[str, Any], place: str) -> list[dict[str, Any]] | None:
    """Return the kinds of layers. If every layer keeps every token, return None."""
    reason = _reason(config)
    if reason is not None:
        raise HeadwayError(f"{place} has {reason}, which Headway does not model; {REMEDY}.")
    counts = _counts(config)
    if counts.total() != config["num_hidden_layers"]:
        raise HeadwayError(
            f"{place} names the kinds of {counts.total()} layers, but num_hidden_layers is "
            f"{config['num_hidden_layers']}. Use the config.json published with the weights."
        )
    kinds: list[dict[str, Any]] = []
    for kind in ("full", "sliding", "state"):
        if counts[kind]:
            kinds.append({"kind": kind, "layers": counts[kind]})
        if kind == "full" and config.get("kv_lora_rank"):
            kinds = [_latent(config, counts[kind], place)]
        elif kind == "sliding" and counts[kind]:
            kinds[-1]["window"] = config["sliding_window"]
        elif kind == "state" and counts[kind]:
            kinds[-1] |= _state(config)
    return None if [kind["kind"] for kind in kinds] == ["full"] and counts["none"] == 0 else kinds


def _latent(config: Mapping[str, Any], layers: int, place: str) -> dict[str, Any]:
    missing = next((key for key in LATENT if not _count(config.get(key))), None)
    if missing is not None:
        raise HeadwayError(f"{place} has latent attention but no whole number {missing!r}; {REMEDY}.")
    latent = {
        "kind": "latent",
        "layers": layers,
        "rank": config["kv_lora_rank"],
        "rope": config["qk_rope_head_dim"],
        "nope": config["qk_nope_head_dim"],
        "value": config["v_head_dim"],
    }
    return latent | ({"query_rank": config["q_lora_rank"]} if config.get("q_lora_rank") else {})


def _state(config: Mapping[str, Any]) -> dict[str, int]:
    """Return the bytes of a state and the weights of a layer that keeps one."""
    hidden = config["hidden_size"]
    if _count(config.get(DELTA[0])):
        keys, values, key_dim, value_dim, kernel = (config[key] for key in DELTA)
        mixed = 2 * keys * key_dim + values * value_dim  # width of the convolution
        numbers = values * key_dim * value_dim
        weights = hidden * (mixed + 2 * values * value_dim + 2 * values) + mixed * kernel
    else:
        heads, head_dim, size, groups, kernel = (config[key] for key in MAMBA)
        inner = heads * head_dim
        mixed = inner + 2 * groups * size
        numbers = inner * size
        weights = hidden * (inner + mixed + heads + inner) + mixed * kernel
    each = 4 if any(config.get(key) == "float32" for key in PRECISION) else 2
    return {"state_bytes": each * numbers + 2 * mixed * (kernel - 1), "weights": weights}


def _counts(config: Mapping[str, Any]) -> Counter[str]:
    """Return the number of layers by kind; `none` counts the layers that keep nothing."""
    layers, kinds = config["num_hidden_layers"], config.get("layer_types")
    pattern, interval = config.get("hybrid_override_pattern"), config.get("full_attention_interval")
    if isinstance(pattern, str) and pattern:
        return Counter({"*": "full", "M": "state"}.get(mark, "none") for mark in pattern)
    if isinstance(kinds, list) and kinds:
        return Counter(KNOWN[str(kind)] for kind in kinds)
    if isinstance(interval, int) and interval > 1:
        return Counter("state" if (layer + 1) % interval else "full" for layer in range(layers))
    if not _slides(config):
        return Counter({"full": layers})
    first, every = config.get("max_window_layers"), config.get("sliding_window_pattern")
    if config.get("use_sliding_window") is True and isinstance(first, int):
        return Counter("full" if layer < first else "sliding" for layer in range(layers))
    every = every if _count(every) else PATTERNS.get(str(config.get("model_type")))
    if every is None:
        return Counter({"sliding": layers})
    return Counter("sliding" if (layer + 1) % every else "full" for layer in range(layers))


def _reason(config: Mapping[str, Any]) -> str | None:
    """Return what a model has that Headway does not know."""
    if config.get("is_encoder_decoder"):
        return "an encoder (is_encoder_decoder)"
    kinds = config.get("layer_types")
    listed = isinstance(kinds, list) and bool(kinds)
    if isinstance(kinds, list):
        other = next((str(kind) for kind in kinds if str(kind) not in KNOWN), None)
        if other is not None:
            return f"{LAYER_NAMES.get(other, 'a mixture of layers')} (layer_types: {other})"
        if "sliding_attention" in kinds and not _count(config.get("sliding_window")):
            return "sliding windows of unknown length (layer_types: sliding_attention)"
    chunk = config.get("attention_chunk_size")
    if _shorter(chunk, config) and not listed:
        return f"chunked attention (attention_chunk_size: {chunk})"
    attention = config.get("attn_type_list")
    if isinstance(attention, list) and any(kind != 1 for kind in attention):
        return "a mixture of layers (attn_type_list)"
    delta = all(_count(config.get(key)) for key in DELTA)
    pattern = config.get("hybrid_override_pattern")
    mamba = all(_count(config.get(key)) for key in MAMBA) and isinstance(pattern, str) and not set(pattern) - {*"M*-"}
    if mamba and len(str(pattern)) != config["num_hidden_layers"]:
        mamba = False
    interval = config.get("full_attention_interval")
    if not delta:
        if listed and "linear_attention" in kinds:  # type: ignore[operator]
            return "a mixture of layers (layer_types: linear_attention)"
        if isinstance(interval, int) and interval > 1:
            return f"a mixture of layers (full_attention_interval: {interval})"
    known = (DELTA if delta else ()) + (("hybrid_override_pattern", *MAMBA) if mamba else ())
    key = next((key for key in HYBRID if config.get(key) and key not in known), None)
    return None if key is None else f"a mixture of layers ({key}: {shown(config[key])})"


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _slides(config: Mapping[str, Any]) -> bool:
    """Return whether a sliding window is in use. Many models have a window that is switched off, that no layer uses,
    or that is as long as the longest context."""
    if config.get("use_sliding_window") is False:
        return False
    first = config.get("max_window_layers")  # the first layers have full attention, up to this one
    if config.get("use_sliding_window") is True and isinstance(first, int) and first >= config["num_hidden_layers"]:
        return False
    return _shorter(config.get("sliding_window"), config)


def _shorter(window: Any, config: Mapping[str, Any]) -> bool:
    longest = config.get("max_position_embeddings")
    return isinstance(window, int) and window > 0 and not (isinstance(longest, int) and window >= longest)
