"""Speculative decoding: what a decode gains, what it costs, and what the summary says of it."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

import headway
from headway.errors import HeadwayError
from headway.latency.step_models.linear import Linear
from headway.latency.verification import UNITS, Verification
from headway.scenario.speculation_spec import Speculation

Json = dict[str, Any]
MS = 10**9


def alone(speculation: Json | None, outputs: int = 100, **cluster: Any) -> headway.Result:
    """One request at a time on an instance whose steps take 1 ms, and 1 ms for each prompt token."""
    even = {"model": "fixed", "prefill_tokens_per_s": 1000, "decode_tokens_per_s": 1000}
    own = {} if speculation is None else {"speculation": speculation}
    return headway.simulate(
        {
            "workload": {
                "requests": 3,
                "rate": "1/s",
                "arrival": "constant",
                "prompt_tokens": 10,
                "output_tokens": outputs,
            },
            "cluster": {"instances": 1, "latency": even, **cluster, **own},
            "warmup": 0,
        },
        progress=False,
    )


def rate(speculation: Json) -> Fraction:
    return Fraction(Speculation(**speculation).rates("speculation")["default"], UNITS)


@pytest.mark.parametrize(
    ("speculation", "gained"),
    [
        ({"tokens": 1, "acceptance": 0}, 1),
        ({"tokens": 3, "acceptance": 1}, 4),
        ({"tokens": 2, "acceptance": 0.5}, 1.75),
        ({"tokens": 3, "acceptance": [0.5, 1, 0.25]}, 1 + 0.5 + 0.5 + 0.125),
        ({"tokens": 3, "length": 2.5}, 2.5),
    ],
)
def test_a_decode_gains_what_is_accepted(speculation: Json, gained: float) -> None:
    """The first token comes with the prompt; the others come in whole steps, the last of which may bring too many."""
    assert rate(speculation) == gained
    result = alone(speculation)
    steps = -(-99 // Fraction(gained))
    first, last = result.requests["first_token_ps"], result.requests["finished_ps"]
    assert [end - begin for begin, end in zip(first, last, strict=True)] == [steps * MS] * 3
    assert result.requests["output_tokens"] == [100] * 3
    told = result.summary()["speculation"]
    assert told["drafted_tokens"] == 3 * steps * speculation["tokens"]
    assert told["accepted_tokens"] == 3 * (int(steps * Fraction(gained)) - steps)


def test_over_a_long_run_the_tokens_of_a_step_are_the_rate() -> None:
    """The rate is rounded to 1/64 token, and a request loses less than one token of it."""
    speculation = {"tokens": 4, "acceptance": [0.83, 0.61, 0.44, 0.3]}
    exact = 1 + 0.83 * (1 + 0.61 * (1 + 0.44 * (1 + 0.3)))
    assert abs(rate(speculation) - exact) <= 1 / 128
    told = alone(speculation, 20_000, kv={"gpu_blocks": 10_000}).summary()["speculation"]
    assert told["tokens_per_step"] == pytest.approx(float(rate(speculation)), rel=1e-4)
    assert told["acceptance_rate"] == pytest.approx(float(rate(speculation) - 1) / 4, rel=1e-3)


def test_without_drafts_a_run_is_as_it_was() -> None:
    plain, none = alone(None), alone({"tokens": 0, "acceptance": 0.7})
    assert plain.summary() == none.summary() and plain.scenario == none.scenario
    assert {name: list(column) for name, column in plain.requests.items()} == {
        name: list(column) for name, column in none.requests.items()
    }
    assert "speculation" not in plain.summary()


def test_a_rate_may_depend_on_the_class() -> None:
    scenario = {
        "workload": {
            "duration": "2s",
            "prompt_tokens": 10,
            "output_tokens": 101,
            "tenants": {"a": {"rate": "5/s", "priority": "realtime"}, "b": {"rate": "5/s", "priority": "batch"}},
        },
        "cluster": {
            "latency": {"model": "fixed", "decode_tokens_per_s": 1000, "prefill_tokens_per_s": 1_000_000},
            "speculation": {"tokens": 3, "acceptance": {"default": 0, "realtime": 1}},
        },
        "warmup": 0,
    }
    columns = headway.simulate(scenario, progress=False).requests
    taken = zip(columns["slo_class"], columns["first_token_ps"], columns["finished_ps"], strict=True)
    by_class: dict[str, set[int]] = {}
    for name, first, last in taken:
        by_class.setdefault(name, set()).add(round((last - first) / MS))
    assert by_class == {"realtime": {25}, "batch": {100}}


def test_a_gap_is_the_time_between_two_deliveries() -> None:
    summary = alone({"tokens": 3, "acceptance": 1}, 101).summary()["latency"]
    assert summary["itl"]["mean"] == 1 and summary["itl"]["p99"] == 1
    assert summary["tpot"]["mean"] == 0.25


def test_drafts_take_blocks_that_are_free_again_at_the_end() -> None:
    """Prompt and answer need 110 tokens at most, one less in the KV cache; eight drafts need eight more."""
    for blocks, outcome in ((117, "completed"), (116, "rejected")):
        kv = {"block_tokens": 1, "gpu_blocks": blocks}
        result = alone({"tokens": 8, "acceptance": 0}, kv=kv)
        assert set(result.requests["outcome"]) == {outcome}
    kv = {"block_tokens": 1, "gpu_blocks": 200}
    (instance,) = alone({"tokens": 8, "acceptance": 0}, kv=kv).summary()["instances"]
    assert instance["peak_kv_utilization"] == 117 / 200


def test_the_budget_of_a_step_holds_the_drafts_of_all_decodes() -> None:
    result = headway.simulate(
        {
            "workload": {"requests": 40, "rate": "10000/s", "prompt_tokens": 1, "output_tokens": 30},
            "cluster": {
                "instances": 1,
                "max_batch_tokens": 43,
                "latency": {"model": "fixed", "decode_tokens_per_s": 1000, "prefill_tokens_per_s": 10**9},
                "speculation": {"tokens": 3, "acceptance": 0.5},
            },
            "warmup": 0,
        },
        trace="full",
        progress=False,
    )
    batches = [event for event in result.events if hasattr(event, "running")]
    assert max(event.running for event in batches) == 43 // 4


# --- the time of a step ------------------------------------------------------------------------------------------


def test_a_decode_counts_as_its_tokens_and_reads_its_context_once() -> None:
    model = Linear(step_ps=1000, sequence_ps=10, context_token_ps=640, prefill_token_ps=7)
    verification = Verification(model, 3)
    assert verification.steps(2, 500 * UNITS, 5 * UNITS, ()) == (1000 + 8 * 10 + 500 * 640, 5 * 640, 1 << 60)
    first, rise, _ = model.run(0, 0, [(16, 32)])
    assert verification.steps(2, 500 * UNITS, 5 * UNITS, [(16, 32)])[:2] == (first + 80 + 500 * 640, rise + 5 * 640)


def test_hardware_takes_longer_for_more_drafts_but_far_less_than_for_more_steps() -> None:
    model = headway.latency("h200", "llama-3.1-8b").hardware
    plain = model.run(16, 16 * 1000, ())[0]
    assert Verification(model, 0).run(16, 16 * 1000, ())[0] == pytest.approx(plain, rel=1e-3)
    times = [Verification(model, tokens).run(16, 16 * 1000, ())[0] for tokens in range(6)]
    assert times == sorted(times) and plain < times[-1] < 1.3 * plain


@pytest.mark.parametrize("chunks", [(), [(64, 0)], [(64, 640)]])
@pytest.mark.parametrize("tokens", [1, 4])
def test_the_steps_of_a_run_are_those_that_are_asked_for_one_by_one(tokens: int, chunks: Any) -> None:
    model = headway.latency("h200", "llama-3.1-8b", 2).hardware
    verification = Verification(model, tokens, headway.latency("h200", "qwen-3-4b", 2).hardware, 12345)
    growth = 7 * UNITS + 13
    first, rise, k_max = verification.steps(5, 4321, growth, chunks)
    for step in range(min(4, k_max)):
        later = [(length, past + length * step) for length, past in chunks]
        assert verification.steps(5, 4321 + growth * step, growth, later)[0] == first + rise * step


def test_a_draft_costs_time_and_memory() -> None:
    def cluster(draft: Any) -> headway.Scenario:
        own = {"tokens": 3, "acceptance": 0.7, "draft": draft}
        return headway.Scenario.load({"workload": {"requests": 1, "rate": "1/s"}, "cluster": {"speculation": own}})

    drafts = ("ngram", {"layers": 1}, {"model": "qwen-3-4b"})
    loaded = [cluster(draft).cluster for draft in drafts]
    blocks = [each.kv_blocks() for each in loaded]
    assert blocks == sorted(blocks, reverse=True) and len(set(blocks)) == 3
    steps = []
    for each in loaded:
        verification = each.verification()
        assert verification is not None
        steps.append(verification.run(8, 8000, ())[0])
    assert steps == sorted(steps) and len(set(steps)) == 3
    slower = cluster("2ms").cluster.verification()
    assert slower is not None
    assert slower.run(8, 8000, ())[0] == steps[0] + 2 * MS
    assert slower.run(0, 0, [(100, 0)]) == loaded[0].latency_model().run(0, 0, [(100, 0)])


# --- mistakes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("speculation", "sentence"),
    [
        ({"tokens": 3}, "speculation: set either 'acceptance', such as 0.7, or 'length', such as 2.4."),
        ({"tokens": 3, "acceptance": 1.2}, "speculation.acceptance: must lie between 0 and 1, got 1.2."),
        ({"tokens": 3, "acceptance": [0.5]}, "has 1 positions, but 'tokens' is 3; make them equal."),
        ({"tokens": 2, "acceptance": [0.5, "x"]}, "speculation.acceptance[1]: must lie between 0 and 1, got 'x'."),
        ({"tokens": 3, "acceptance": {"batch": 0.5}}, "'default' is missing, for requests of all other SLO classes."),
        ({"tokens": 3, "length": 5}, "speculation.length: must lie between 1 and 4, got 5."),
        (
            {"tokens": 3, "length": 2, "draft": "fast"},
            "expected ngram, {layers: 1}, {model: NAME} or a duration",
        ),
        ({"tokens": 3, "length": 2, "draft": {}}, "draft: set either 'layers', such as 1 for an MTP or EAGLE head"),
        ({"tokens": 2048 // 40, "length": 2}, "speculation.tokens: must be below max_batch_tokens (32), got 51."),
        (
            {"tokens": 99, "length": 2},
            "tokens: expected a whole number of at least 0 and of at most 64, got 99.",
        ),
    ],
)
def test_a_mistake_says_what_would_be_right(speculation: Json, sentence: str) -> None:
    scenario = {"workload": {"requests": 1, "rate": "1/s"}, "cluster": {"max_batch_tokens": 32}}
    scenario["cluster"]["speculation"] = speculation  # type: ignore[assignment]
    with pytest.raises(HeadwayError) as caught:
        headway.Scenario.load(scenario)
    assert sentence in str(caught.value)


def test_only_hardware_knows_the_time_of_a_draft_head() -> None:
    own = {"tokens": 3, "length": 2, "draft": {"layers": 1}}
    given = {
        "workload": {"requests": 1, "rate": "1/s"},
        "cluster": {"latency": {"model": "linear"}, "speculation": own},
    }
    with pytest.raises(HeadwayError, match="only the latency model 'hardware' knows the time of a draft's layers"):
        headway.Scenario.load(given)
