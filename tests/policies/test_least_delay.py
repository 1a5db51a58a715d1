"""The policy least-delay: its formula by hand, and a saturated cluster against a policy that sees the wait alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from states import LinearSteps, choose, prompt, states, views

import headway
from headway.testing import RoutingSuite, check_policy

DEFAULTS = {"wait": 1.0, "others": 0.1, "decode": 1.0}
# Long prompts of few groups, faster than four instances can serve: queues grow until the end.
SATURATED = {
    "workload": {
        "requests": 300,
        "rate": "60/s",
        "prompt_tokens": {"dist": "lognormal", "mean": 7000, "std": 4000, "min": 3000, "max": 30000},
        "output_tokens": {"dist": "lognormal", "mean": 100, "std": 80, "min": 4, "max": 600},
        "prefix": {"groups": 30, "tokens": 2500},
    },
    "cluster": {"instances": 4, "gpu": "h200", "model": "llama-3.1-8b"},
}


def delay(view, request, cached):
    """The formula with the step times of `LinearSteps`; a step has room for 2,048 tokens."""
    room, decodes = view.max_batch_tokens - view.running, view.running

    def seconds(tokens):
        full, rest = divmod(tokens, room)
        step = LinearSteps().step_seconds
        return full * step(view, room, decodes, 0) + (step(view, rest, decodes, 0) if rest else 0.0)

    wait = seconds(view.pending_prefill_tokens)
    compute = seconds(view.pending_prefill_tokens + request.prompt_tokens - cached) - wait
    memory = DEFAULTS["decode"] * view.decode_tokens / 1_000_000
    return DEFAULTS["wait"] * wait + compute * (1 + DEFAULTS["others"] * view.inflight) + memory


@given(states())
def test_it_is_its_formula(state):
    instances, request, hits = state
    cached = [16 * hit for hit in hits]
    delays = [delay(view, request, tokens) for view, tokens in zip(instances, cached, strict=True)]
    chosen = choose("least-delay", instances, request, hits, **DEFAULTS)
    assert delays[chosen] == pytest.approx(min(delays))


def test_a_prompt_goes_where_it_delays_few_others():
    # 1,000 tokens take one second: 1 × (1 + 0.1 × 9) with nine others, 0.5 + 1 × (1 + 0.1 × 2) behind 500 tokens.
    instances = views(2, inflight=[9, 2], pending_prefill_tokens=[0, 500])
    assert choose("least-delay", instances, prompt(1000), **DEFAULTS) == 1
    assert choose("least-delay", instances, prompt(100), **DEFAULTS) == 0  # 0.19 s and 0.62 s


def test_the_suite_for_authors_passes():
    check_policy(RoutingSuite, "least-delay")


def test_at_saturation_answers_come_sooner_than_by_the_wait_alone():
    def mean(routing, seed):
        result = headway.simulate({"seed": seed, **SATURATED}, routing=routing).summary()
        assert result["requests"]["completed"] == 300
        return result["latency"]["e2e"]["mean"]

    predicted = {"name": "weighted", "scorers": {"predicted-latency": 1}}
    leads = [1 - mean("least-delay", seed) / mean(predicted, seed) for seed in (1, 2)]
    assert min(leads) > 0
