"""CUDA graphs: the tokens that a padded step computes, and what that costs."""

from __future__ import annotations

from typing import Any

import pytest

from headway.errors import HeadwayError
from headway.latency import Gpu, build, read_gpu, read_model
from headway.latency.base import LatencyModel
from headway.latency.graphs import VLLM, padded


def model(name: str = "llama-3.1-8b", tp: int = 1, **keys: Any) -> LatencyModel:
    gpu: Gpu = read_gpu("h200", "gpu")
    return build({"model": "hardware", **keys}, read_model(name, "model"), gpu, tp)


def test_a_step_is_padded_to_the_next_size_and_not_beyond_the_largest() -> None:
    assert [padded(tokens, (1, 4, 16)) for tokens in (1, 2, 4, 5, 16, 17, 900)] == [1, 4, 4, 16, 16, 17, 900]
    assert (VLLM[0], VLLM[-1], len(VLLM)) == (1, 512, 51)  # as a recorded run of vLLM 0.19 lists them


@pytest.mark.parametrize("tp", [1, 4])
def test_the_work_on_tokens_is_that_of_the_captured_size(tp: int) -> None:
    """Attention and logits are those of the real sequences, so a step of 9 of 16 takes less time than one of 16."""
    plain, graphs = model(tp=tp), model(tp=tp, graph_sizes=[1, 16, 64])
    assert graphs.run(16, 16_000, ()) == plain.run(16, 16_000, ())
    assert graphs.run(65, 65_000, ()) == plain.run(65, 65_000, ())
    assert plain.run(9, 9000, ())[0] < graphs.run(9, 9000, ())[0] < plain.run(16, 9000, ())[0]
    assert plain.run(4, 4000, ((20, 0),))[0] < graphs.run(4, 4000, ((20, 0),))[0]  # also with chunks
    assert graphs.run(9, 9000, ())[1] == plain.run(9, 9000, ())[1]  # a token of context costs the same


def test_padding_visits_no_expert() -> None:
    """The experts of a mixture are those of the real tokens, which would cost much more with padding."""
    plain, graphs = model("qwen3-30b-a3b"), model("qwen3-30b-a3b", graph_sizes=[16])
    assert 1 < graphs.run(9, 9000, ())[0] / plain.run(9, 9000, ())[0] < 1.01


def test_without_sizes_nothing_changes() -> None:
    for decodes in (1, 9, 300):
        expected = model().run(decodes, 1000 * decodes, ())
        assert model(graph_sizes="none").run(decodes, 1000 * decodes, ()) == expected
        assert model(graph_sizes="auto").run(decodes, 1000 * decodes, ()) == expected


@pytest.mark.parametrize(
    ("sizes", "sentence"),
    [
        ("vlm", r"graph_sizes: no list of sizes is called 'vlm'.*Did you mean 'vllm'"),
        ([2, 1], r"graph_sizes: the numbers must increase"),
        ([0], r"graph_sizes\[0\]: must be a whole number from 1"),
        ([1, "x"], r"graph_sizes\[1\]: must be a whole number"),
        (5, r"graph_sizes: expected a list"),
    ],
)
def test_what_is_no_list_of_sizes_is_refused(sizes: Any, sentence: str) -> None:
    with pytest.raises(HeadwayError, match=sentence):
        model(graph_sizes=sizes)
