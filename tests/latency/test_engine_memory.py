"""`gpu_blocks: auto` against the capacity that vLLM prints at its start.

What an engine takes beside weights and cache has three constants. For vLLM up to 0.18 they come from the first table
alone; the second table was not used. For vLLM 0.19, the bytes of a logit come from the third table.
"""

from __future__ import annotations

from typing import Any

import pytest

from headway.latency import ModelShape, kv_blocks, kv_layout, read_gpu, read_model
from headway.latency.engine_memory import as_loaded
from headway.latency.engines import engine_load
from headway.scenario.cluster_spec import Cluster

GIB = 2**30
LLAMA_2_7B = {"layers": 32, "hidden": 4096, "heads": 32, "intermediate": 11008, "vocab": 32000, "params": 6738415616}
LLAMA_2_70B = {
    "layers": 80, "hidden": 8192, "heads": 64, "kv_heads": 8, "intermediate": 28672, "vocab": 32000,
    "params": 68976648192,
}  # fmt: skip
CODE_LLAMA_34B = {**LLAMA_2_70B, "layers": 48, "intermediate": 22016, "params": 33743970304}
MISTRAL_NEMO = {
    "layers": 40, "hidden": 5120, "heads": 32, "kv_heads": 8, "head_dim": 128, "intermediate": 14336, "vocab": 131072,
    "params": 12247782400,
}  # fmt: skip
QWEN_3_06B = {
    "layers": 28, "hidden": 1024, "heads": 16, "kv_heads": 8, "head_dim": 128, "intermediate": 3072, "vocab": 151936,
    "params": 596049920,
}  # fmt: skip
FP8_70B = {"like": "llama-3.1-70b", "dtype_bytes": 1, "kv_dtype_bytes": 2, "head_dtype_bytes": 2}
FP8_235B = {"like": "qwen-3-235b-a22b", "dtype_bytes": 1, "kv_dtype_bytes": 2}

# "Available KV cache memory" in GiB of vLLM 0.11 on an H100 with its defaults (8,192 tokens and 1,024 sequences a
# step): "vLLM Empirical Memory Profiling Results" of llm-d-benchmark. Its table says 0.9 for gpt-oss-120b as well, but
# the parts that it lists add up to 0.95 of the card.
VLLM_0_11: list[tuple[Any, int, float, float]] = [
    ("llama-3.1-8b", 1, 0.9, 51.38),
    (QWEN_3_06B, 1, 0.9, 64.45),
    ("qwen-3-32b", 1, 0.9, 4.45),
    ("qwen-3-32b", 2, 0.9, 34.49),
    (FP8_70B, 2, 0.9, 32.00),
    ("gpt-oss-20b", 1, 0.9, 50.28),
]
# Blocks of 16 tokens, from "GPU KV cache size" in the logs of vLLM 0.15.1 on H100 with 128 sequences a step:
# testdata/trained_physics_iter29.json of inference-sim/inference-sim, and for Llama 2 70B, CodeLlama and Mixtral
# docs/plans/2026-03-04-sim-to-real-accuracy-validation-design.md of inference-sim/sim-to-real-accuracy-validation.
VLLM_0_15: list[tuple[Any, int, int, int]] = [
    (LLAMA_2_7B, 1, 2048, 7463),
    (LLAMA_2_70B, 4, 2048, 31357),
    (CODE_LLAMA_34B, 2, 2048, 26603),
    ("mixtral-8x7b", 2, 2048, 27511),
    ("llama-3.1-70b", 4, 2048, 30425),
    ("llama-3.1-70b", 4, 8192, 30251),
    (MISTRAL_NEMO, 1, 2048, 19251),
    (MISTRAL_NEMO, 2, 1024, 48009),
    ("qwen-2.5-7b", 1, 2048, 65352),
    ("qwen-2.5-7b", 1, 1024, 65368),
    ("yi-34b", 2, 2048, 20793),
]


def blocks(model: ModelShape, gpu: str, tp: int, size: int, share: float, engine: str, step: tuple[int, int]) -> int:
    return kv_blocks(model, read_gpu(gpu, "gpu"), tp, size, share, "kv", engine=engine_load(engine, *step))


def cache_bytes(model: ModelShape, tp: int, count: int, size: int) -> float:
    """Return the bytes of `count` blocks on one GPU."""
    page = kv_layout(model, tp, size).page_bytes if model.kv_groups else model.kv_bytes_per_token * size / tp
    return count * page


@pytest.mark.parametrize(("name", "tp", "share", "printed"), VLLM_0_11)
def test_the_cache_is_the_one_that_vllm_0_11_prints(name: Any, tp: int, share: float, printed: float) -> None:
    model = read_model(name, "model")
    count = blocks(model, "h100", tp, 128, share, "vllm-2025", (8192, 1024))
    assert cache_bytes(model, tp, count, 128) / GIB == pytest.approx(printed, rel=0.005)


@pytest.mark.parametrize(("name", "tp", "tokens", "printed"), VLLM_0_15)
def test_held_out_logs_of_vllm_0_15_confirm_the_constants(name: Any, tp: int, tokens: int, printed: int) -> None:
    count = blocks(read_model(name, "model"), "h100", tp, 16, 0.9, "vllm-0.18", (tokens, 128))
    assert count == pytest.approx(printed, rel=0.015) and count > printed


def test_two_logs_of_vllm_0_19() -> None:
    """An RTX 4090 with "num_gpu_blocks": 2588 (casys-kaist/LLMServingSim), and an A100 at 0.65 of its memory with
    "Available KV cache memory: 36.56 GiB" (myoceane.fr, 2026-04-18)."""
    assert blocks(
        read_model("llama-3.1-8b", "model"), "rtx-4090", 1, 16, 0.9, "vllm-0.19", (2048, 256)
    ) == pytest.approx(2588, rel=0.01)
    small = read_model("gpt-oss-20b", "model")
    count = blocks(small, "a100-80gb", 1, 16, 0.65, "vllm-0.19", (2048, 256))
    assert cache_bytes(small, 1, count, 16) / GIB == pytest.approx(36.56, rel=0.005)


def test_what_the_rule_misses() -> None:
    """If weights fill the card, an error of 0.3 % of its memory is 5 % of the cache. An engine that reserves memory for
    images takes other amounts: mistral-small-3.2 at 0.95. The logs of Qwen3-235B FP8 (vLLM issue 21348) name no
    version."""
    large, vision = read_model("gpt-oss-120b", "model"), read_model("mistral-small-24b", "model")
    count = blocks(large, "h100", 1, 128, 0.95, "vllm-2025", (8192, 1024))
    assert cache_bytes(large, 1, count, 128) / GIB == pytest.approx(3.33 * 0.949, rel=0.01)
    count = blocks(vision, "h100", 1, 128, 0.95, "vllm-2025", (8192, 1024))
    assert cache_bytes(vision, 1, count, 128) / GIB == pytest.approx(28.20 * 0.932, rel=0.01)
    count = blocks(read_model(FP8_235B, "model"), "h100", 4, 16, 0.9, "vllm-2025", (8192, 1024))
    assert count * 16 == pytest.approx(178_880 * 1.292, rel=0.01)


@pytest.mark.parametrize(("name", "loaded"), [("gpt-oss-20b", 13.47), ("gpt-oss-120b", 64.38)])
def test_experts_in_mxfp4_are_padded(name: str, loaded: float) -> None:
    """vLLM prints "Model loading took 64.38 GiB" (issue 33155), where the files of gpt-oss-120b have 60.8 GiB."""
    model = read_model(name, "model")
    assert as_loaded(model).weight_bytes / GIB == pytest.approx(loaded, rel=0.003)
    assert model.weight_bytes / GIB < 0.96 * loaded


def test_a_scenario_names_the_engine() -> None:
    section = {"model": "llama-3.1-8b", "gpu": "h100", "max_batch_size": 1024, "max_batch_tokens": 8192}
    named = {**section, "latency": {"model": "hardware", "engine": "vllm-2025"}}
    plain, engine = (Cluster.read(cluster).kv_blocks() for cluster in (section, named))
    assert plain == 26_674
    assert engine == blocks(read_model("llama-3.1-8b", "model"), "h100", 1, 16, 0.9, "vllm-2025", (8192, 1024))


def test_gpus_without_a_kv_head_of_their_own_have_copies() -> None:
    model, gpu = read_model("qwen-3-30b-a3b", "model"), read_gpu("h100", "gpu")
    four, eight = (kv_blocks(model, gpu, tp, 16) for tp in (4, 8))
    weights, block = model.weight_bytes, model.kv_bytes_per_token * 16
    assert four == (int(gpu.memory * 4 * 0.9) - weights) // block
    assert eight == (int(gpu.memory * 8 * 0.9) - weights) // (2 * block)
