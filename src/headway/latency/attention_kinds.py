"""Refuse models whose KV cache does not keep every token in every layer, because no latency model counts it right."""

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
)
FULL_LAYERS: Final = {"full_attention", "attention", "full"}
LAYER_NAMES: Final = {"sliding_attention": "sliding windows", "chunked_attention": "chunked attention"}


def check_attention(config: Mapping[str, Any], place: str) -> None:
    """Raise an error if any layer of the model keeps less than all tokens, or no keys and values, in its KV cache."""
    reason = _reason(config)
    if reason is not None:
        raise HeadwayError(f"{place} has {reason}, but Headway models only full attention in every layer; {REMEDY}.")


def _reason(config: Mapping[str, Any]) -> str | None:
    if config.get("is_encoder_decoder"):
        return "an encoder (is_encoder_decoder)"
    if config.get("kv_lora_rank"):
        return "latent attention (kv_lora_rank)"
    kinds = config.get("layer_types")
    if isinstance(kinds, list) and kinds:
        other = next((str(kind) for kind in kinds if str(kind) not in FULL_LAYERS), None)
        if other is not None:
            return f"{LAYER_NAMES.get(other, 'a mixture of layers')} (layer_types: {other})"
    elif _slides(config):
        return f"sliding windows (sliding_window: {config['sliding_window']})"
    chunk = config.get("attention_chunk_size")
    if _shorter(chunk, config) and not (isinstance(kinds, list) and kinds):
        return f"chunked attention (attention_chunk_size: {chunk})"
    interval = config.get("full_attention_interval")
    if isinstance(interval, int) and interval > 1:
        return f"a mixture of layers (full_attention_interval: {interval})"
    attention = config.get("attn_type_list")
    if isinstance(attention, list) and any(kind != 1 for kind in attention):
        return "a mixture of layers (attn_type_list)"
    key = next((key for key in HYBRID if config.get(key)), None)
    return None if key is None else f"a mixture of layers ({key}: {shown(config[key])})"


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
