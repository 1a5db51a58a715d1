"""Every mistake in a latency section, a GPU or a model is one sentence that says where."""

from __future__ import annotations

from typing import Any

import pytest

from headway.errors import HeadwayError
from headway.latency import build, read_gpu, read_model

EIGHT_B = read_model("llama-3.1-8b", "model")
H100 = read_gpu("h100", "gpu")
GPU = {"memory": "80GB", "bandwidth": "3TB/s", "tflops": 900, "usd_per_hour": 1}
MODEL = {"layers": 32, "hidden": 4096, "heads": 32, "params": "8B"}


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ("roofline", "cluster.latency: expected a mapping such as {model: hardware}"),
        ({"model": "rofline"}, "cluster.latency.model: no latency model is called 'rofline'. Did you mean 'roofline'?"),
        ({"model": "magic"}, "Known: aiconfigurator, fixed, hardware, linear, piecewise, roofline, table."),
        (
            {"model": "roofline", "overhed": 1},
            "cluster.latency.overhed: there is no such key. Did you mean 'overhead'?",
        ),
        ({"model": "roofline", "mfu": 60}, "cluster.latency.mfu: must be above 0 and at most 1, got 60."),
        (
            {"model": "roofline", "mfu": "1e999999999"},
            "mfu: '1e999999999' is too large, too small or has too many digits.",
        ),
        ({"model": "fixed", "decode_tokens_per_s": "1e-20"}, "must be at least one token in 100 days"),
        ({"model": "roofline", "mbu": 0}, "cluster.latency.mbu: must be above 0 and at most 1, got 0."),
        ({"model": "roofline", "overhead": 1}, "cluster.latency.overhead: 1 is not a duration"),
        ({"model": "fixed", "decode_tokens_per_s": -1}, "decode_tokens_per_s: must be a number above zero, got -1."),
        ({"model": "fixed", "decode_tokens_per_s": True}, "must be a number above zero, got True."),
        ({"model": "fixed", "decode_tokens_per_s": float("nan")}, "must be a number above zero, got nan."),
        ({"model": "fixed", "prefill_tokens_per_s": 10**13}, "must be at most 10^12 tokens a second"),
        ({"model": "fixed", "step": "4ms"}, "cluster.latency.step: there is no such key."),
        ({"model": "linear", "step": "4"}, "cluster.latency.step: '4' is not a duration"),
        ({"model": "linear", "step": "0ms"}, "cluster.latency.step: must be at least 1ps"),
        ({"model": "linear", "prefill_pair": "1.2.3ps"}, "cluster.latency.prefill_pair: '1.2.3ps' is not a duration"),
        ({"model": "linear", "sequence": "-1us"}, "cluster.latency.sequence: '-1us' is not a duration"),
        ({"model": "piecewise", "saturation_batch": 1}, "cluster.latency.saturation_batch: must be at least 2, got 1."),
        ({"model": "piecewise", "saturation_batch": 2.5}, "must be a whole number above zero, got 2.5."),
        ({"model": "piecewise", "saturated_tokens_per_s": 0}, "must be a number above zero, got 0."),
    ],
)
def test_a_wrong_latency_section_is_told(data: Any, sentence: str) -> None:
    with pytest.raises(HeadwayError) as error:
        build(data, EIGHT_B, H100, 1)
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (
            "h10",
            "cluster.gpu: no GPU in the table is called 'h10'; give a mapping of its keys instead. Did you mean",
        ),
        (
            "abacus",
            "Known: a100-40gb, a100-80gb, a10g, b200, h100, h100-nvl, h100-pcie, h200, l4, l40s, mi300x, rtx-4090",
        ),
        (7, "cluster.gpu: expected the name of a GPU or a mapping of its keys, got 7."),
        ({**GPU, "memry": 1}, "cluster.gpu.memry: there is no such key. Did you mean 'memory'?"),
        ({"memory": "80GB"}, "cluster.gpu: 'bandwidth', 'tflops' and 'usd_per_hour' are missing."),
        ({**GPU, "memory": 80}, "cluster.gpu.memory: 80 is not a size"),
        ({**GPU, "memory": "1e999999999GB"}, "cluster.gpu.memory: '1e999999999GB' is not a size"),
        ({**GPU, "usd_per_hour": "1e400"}, "cluster.gpu.usd_per_hour: '1e400' is too large"),
        ({**GPU, "idle_watts": "1e400"}, "cluster.gpu.idle_watts: '1e400' is too large"),
        ({**GPU, "memory": "0GB"}, "cluster.gpu.memory: must be at least 1 bytes, got '0GB'."),
        ({**GPU, "bandwidth": "3TB"}, "cluster.gpu.bandwidth: '3TB' is not a bandwidth"),
        ({**GPU, "tflops": 0}, "cluster.gpu.tflops: must be a number above zero, got 0."),
        ({**GPU, "usd_per_hour": -1}, "cluster.gpu.usd_per_hour: must be a number, zero or more, got -1."),
        ({**GPU, "visible": "0MiB"}, "cluster.gpu.visible: must be at least 1 bytes, got '0MiB'."),
        (
            {**GPU, "link": "pcie6"},
            "cluster.gpu.link: no link between GPUs in the table is called 'pcie6'; use one of the table. "
            "Did you mean 'pcie5'? Known: infinity-fabric,",
        ),
        ({**GPU, "idle_watts": 9}, "cluster.gpu.busy_watts: must be at least idle_watts (9), got 0."),
    ],
)
def test_a_wrong_gpu_is_told(data: Any, sentence: str) -> None:
    with pytest.raises(HeadwayError) as error:
        read_gpu(data, "cluster.gpu")
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (
            "llama-3.1-8",
            "cluster.model: no model in the table is called 'llama-3.1-8'; give a mapping of its keys instead. Did",
        ),
        (None, "cluster.model: expected the name of a model or a mapping of its keys, got None."),
        ({**MODEL, "expert": 8}, "cluster.model.expert: there is no such key. Did you mean 'experts'?"),
        ({**MODEL, "experts": 8}, "cluster.model: 'experts_per_token' is missing. A mixture of experts needs"),
        (
            {**MODEL, "experts": 0, "experts_per_token": 2, "expert_intermediate": 64},
            "cluster.model.experts_per_token: must be at most experts (0), got 2.",
        ),
        ({**MODEL, "like": "llama"}, "cluster.model.like: no model in the table is called 'llama'"),
        ("no/config.json", "cluster.model: cannot read 'no/config.json': No such file or directory."),
        ({**MODEL, "layers": "1e400"}, "cluster.model.layers: '1e400' is too large"),
        ({**MODEL, "layers": 10**400}, "cluster.model.layers: 1000000"),
        ({**MODEL, "layers": 10**7}, "cluster.model.layers: must be at most 1,000,000, got 10000000."),
        ({**MODEL, "params": "1e400B"}, "cluster.model.params: '1e400' is too large"),
        ({**MODEL, "dtype_bytes": "1e-30"}, "cluster.model.dtype_bytes: must lie between 0.1 and 16, got '1e-30'."),
        ({**MODEL, "layers": 0}, "cluster.model.layers: must be a whole number above zero, got 0."),
        ({**MODEL, "params": "many"}, "cluster.model.params: must be a whole number above zero, got 'many'."),
        ({**MODEL, "kv_heads": 5}, "cluster.model.kv_heads: must divide heads (32), got 5."),
        (
            {**MODEL, "active_params": "9B"},
            "cluster.model.active_params: must be at most params (8000000000), got 9000000000.",
        ),
        (
            {**MODEL, "hidden": 4097},
            "cluster.model: set 'head_dim', since hidden (4097) is not a multiple of heads (32).",
        ),
        ({"hidden": 1, "heads": 1, "params": 1}, "cluster.model: 'layers' is missing."),
    ],
)
def test_a_wrong_model_is_told(data: Any, sentence: str) -> None:
    with pytest.raises(HeadwayError) as error:
        read_model(data, "cluster.model")
    assert sentence in str(error.value)
