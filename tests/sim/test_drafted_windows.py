"""Speculation of models whose layers have sliding windows or states."""

from __future__ import annotations

from typing import Any

import pytest

import headway
from headway.errors import HeadwayError
from headway.latency import build, kv_layout, read_gpu, read_model
from headway.latency.hardware_times import WindowedHardware
from headway.latency.verification import UNITS
from headway.scenario.cluster_spec import Cluster
from headway.scenario.speculation_spec import Draft, Speculation

Json = dict[str, Any]
TOY: Json = {"hidden": 64, "heads": 4, "kv_heads": 1, "params": 100_000, "name": "toy", "layers": 4}
COSTLESS = dict.fromkeys(("sequence", "prefill_token", "prefill_pair", "context_token"), "0s")
WINDOWS: Json = {"kind": "sliding", "layers": 3, "window": 32}
STATES: Json = {"kind": "state", "layers": 3, "state_bytes": 64}


def run(other: Json, speculation: Json | None, pages: int = 2000, kv: Json | None = None, **workload: Any) -> Any:
    own = {} if speculation is None else {"speculation": speculation}
    return headway.simulate(
        {
            "workload": {
                "requests": 8,
                "rate": "20/s",
                "arrival": "constant",
                "prompt_tokens": {"dist": "uniform", "min": 20, "max": 120},
                "output_tokens": {"dist": "uniform", "min": 1, "max": 90},
                "prefix": {"groups": 1, "tokens": 48},
                **workload,
            },
            "cluster": {
                "instances": 1,
                "model": {**TOY, "kv_groups": [{"kind": "full", "layers": 1}, other]},
                "max_batch_tokens": 64,
                "latency": {"model": "linear", "step": "3ms", **COSTLESS},
                "kv": {"block_tokens": 16, "gpu_blocks": pages, **(kv or {})},
                **own,
            },
            "warmup": 0,
        },
        progress=False,
    )


@pytest.mark.parametrize(
    ("other", "kv"), [(WINDOWS, {}), (STATES, {}), (STATES, {"states": "all"}), (STATES, {"states": "align"})]
)
def test_decodes_whose_drafts_always_fail_generate_a_token_per_step(other: Json, kv: Json) -> None:
    plain, drafted = run(other, None, kv=kv), run(other, {"tokens": 1, "acceptance": 0}, kv=kv)
    steps = [result.summary()["instances"][0]["steps"] for result in (plain, drafted)]
    assert drafted.summary()["speculation"]["tokens_per_step"] == 1
    assert steps[0] == steps[1]
    assert plain.requests["cached_tokens"] == drafted.requests["cached_tokens"]
    assert run(other, {"tokens": 1, "acceptance": 1}, kv=kv).summary()["instances"][0]["steps"] < steps[0]


def rejected(other: Json, drafts: int, pages: int, prompt: int, output: int, **kv: Any) -> bool:
    speculation = {"tokens": drafts, "acceptance": 0.5} if drafts else None
    result = run(other, speculation, pages, kv, requests=1, prompt_tokens=prompt, output_tokens=output, prefix=None)
    return bool(result.requests["outcome"][0] == "rejected")


@pytest.mark.parametrize("drafts", [0, 1, 3])
def test_each_draft_needs_a_state_of_its_own_in_each_group(drafts: int) -> None:
    """A request of 10 tokens has one block in the full group, and its state and one for each draft in 3 groups."""
    pages = 1 + 3 * (1 + drafts)
    assert not rejected(STATES, drafts, pages, 10, 1)
    if drafts:  # fewer pages than groups are refused
        assert rejected(STATES, drafts, pages - 1, 10, 1)


def test_windows_release_blocks_while_drafts_are_verified() -> None:
    """A request of 20 and 400 tokens has up to 27 blocks in the full group, and two groups of windows a few each."""
    window = {**WINDOWS, "layers": 2}
    result = run(
        window,
        {"tokens": 3, "acceptance": 0.8},
        27 + 2 * 8,
        requests=2,
        prompt_tokens=20,
        output_tokens=400,
        rate="1/s",
    )
    assert result.requests["outcome"].count("completed") == 2
    assert result.summary()["preemptions"] == 0


def test_a_decode_of_one_token_costs_as_much_as_without_drafts() -> None:
    card, shape = read_gpu("h200", "gpu"), read_model("gpt-oss-20b", "model")
    model = build({"model": "hardware"}, shape, card, 1, "latency")
    assert isinstance(model, WindowedHardware)
    contexts = [40, 100, 3000, 9000]
    near = sum(min(context, model.window) for context in contexts)
    for chunks in ((), ((500, 1000),)):
        plain = model.run_windows(4, sum(contexts), near, 0, chunks)[0]
        drafted = model.verify(1).run(4, sum(contexts) * UNITS, 4 * UNITS, chunks, near * UNITS)[0]
        assert drafted == pytest.approx(plain, rel=1e-4)
        assert model.verify(3).run(4, sum(contexts) * UNITS, 12 * UNITS, chunks, near * UNITS)[0] > drafted


def test_a_draft_head_has_as_many_layers_as_it_says() -> None:
    heads = {name: Draft(layers=1).shape(read_model(name, "model"), "draft") for name in ("deepseek-v3", "gpt-oss-20b")}
    assert [(kind.kind, kind.layers) for kind in heads["deepseek-v3"].kv_groups] == [("latent", 1)]
    assert heads["gpt-oss-20b"].kv_groups == () and heads["gpt-oss-20b"].layers == 1


def test_the_layers_of_a_draft_head_are_in_a_group_of_the_cache() -> None:
    """Qwen3-Next has 12 full layers and 36 with states: with a head of one layer, 13 layers share a page."""
    shape = read_model("qwen-3-next-80b-a3b", "model")
    loaded = Speculation(tokens=1, acceptance=0.5, draft={"layers": 1}).loaded(shape, "speculation")
    plain, drafted = (kv_layout(each, 1, 1088) for each in (shape, loaded))
    assert (drafted.full, drafted.states) == (plain.full, plain.states) == (1, 3)
    assert drafted.page_bytes * 12 == plain.page_bytes * 13


def test_a_draft_model_beside_windows_is_refused() -> None:
    speculation = {"tokens": 2, "acceptance": 0.5, "draft": {"model": "qwen-3-4b"}}
    with pytest.raises(HeadwayError, match=r"^cluster\.speculation\.draft: .* gpt-oss-20b; use \{layers: 1\} or .*\.$"):
        Cluster.read({"model": "gpt-oss-20b", "gpu": "h200", "speculation": speculation})
