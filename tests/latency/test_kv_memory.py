"""How KV memory is divided between groups of layers, against what vLLM's logs say."""

from __future__ import annotations

from typing import Any

import pytest

from headway.errors import HeadwayError
from headway.latency import kv_layout, read_model

GIB = 2**30
# Shapes of models whose logs are public; only what decides the layout of the cache.
NEMOTRON_3_NANO = {
    "layers": 52, "hidden": 2688, "heads": 32, "kv_heads": 2, "head_dim": 128, "params": 31_577_940_288,
    # 64 heads of 64, a state of 128 in FP32, and a convolution of 4 over 6144 channels in BF16
    "kv_groups": [
        {"kind": "full", "layers": 6},
        {"kind": "state", "layers": 23, "state_bytes": 64 * 64 * 128 * 4 + 6144 * 3 * 2},
    ],
}  # fmt: skip
QWEN_3_5_27B = {
    "layers": 64, "hidden": 5120, "heads": 24, "kv_heads": 4, "head_dim": 256, "params": 27_000_000_000,
    # 48 value heads and 16 key heads of 128, a state in FP32, and a convolution of 4 over 10240 channels in BF16
    "kv_groups": [
        {"kind": "full", "layers": 16},
        {"kind": "state", "layers": 48, "state_bytes": 48 * 128 * 128 * 4 + 10240 * 3 * 2},
    ],
}  # fmt: skip


def groups(model: Any, tp: int = 1, block: int = 16) -> tuple[int, int, int]:
    layout = kv_layout(read_model(model, "model"), tp, block)
    return layout.full, layout.windows, layout.states


def test_groups_have_the_layers_of_the_rarest_kind() -> None:
    assert groups("gpt-oss-120b") == (1, 1, 0)
    assert groups("gemma-3-27b") == (1, 6, 0)  # 10 full layers, and 52 with windows in groups of 10
    assert groups("qwen-3-next-80b-a3b", block=544) == (1, 0, 3)


def test_a_page_of_latent_layers_does_not_shrink_with_more_gpus() -> None:
    shape = read_model("deepseek-v3", "model")
    assert [kv_layout(shape, tp, 64).page_bytes for tp in (1, 8)] == [61 * 576 * 2 * 64] * 2
    assert kv_layout(read_model("gpt-oss-120b", "model"), 4, 16).page_bytes == 18 * 2 * 2 * 64 * 2 * 16


@pytest.mark.parametrize(
    ("model", "tp", "block"),
    [
        # "Setting attention block size to 784 tokens", vLLM 0.19.1, with 0.13 % of padding: log of
        # kaitchup/Qwen3.5-27B-autoround-W4A16 of 2026-04-25
        (QWEN_3_5_27B, 1, 784),
        # "Setting attention block size to 544 tokens" for Qwen3-Next is what vLLM's rule gives for its config.json
        ("qwen-3-next-80b-a3b", 1, 544),
        ("qwen-3-next-80b-a3b", 4, 272),
    ],
)
def test_a_block_has_room_for_a_state(model: Any, tp: int, block: int) -> None:
    shape = read_model(model, "model")
    with pytest.raises(HeadwayError, match=f"set block_tokens: {block}"):
        kv_layout(shape, tp, block - 16)
    assert kv_layout(shape, tp, block).states == 3


def test_the_concurrency_of_a_hybrid_is_the_one_that_vllm_prints() -> None:
    """NVIDIA-Nemotron-3-Nano-30B-A3B-BF16 on a GB10, vLLM 0.20.2, 2026-05-18: 34.32 GiB of KV memory give "GPU KV cache
    size: 5,769,184 tokens" and "Maximum concurrency for 262,144 tokens per request: 22.01x"."""
    layout = kv_layout(read_model(NEMOTRON_3_NANO, "model"), 1, 2096)
    pages = int(34.32 * GIB) // layout.page_bytes
    for_one = -(-262_144 // 2096) * layout.full + layout.states
    assert pages / for_one == pytest.approx(22.01, abs=0.005)
    assert pages / for_one * 262_144 == pytest.approx(5_769_184, rel=0.001)


def test_layers_with_windows_may_keep_every_token() -> None:
    layout = kv_layout(read_model("gpt-oss-20b", "model"), 1, 16, hybrid=False)
    assert (layout.full, layout.windows, layout.page_bytes) == (1, 0, 24 * 2 * 8 * 64 * 2 * 16)
