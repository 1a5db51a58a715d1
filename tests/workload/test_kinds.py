"""Kinds of requests: turns, pauses, contexts, tools, sub-agents, chains of thought; and what a real engine reuses."""

from __future__ import annotations

from itertools import pairwise
from math import isqrt, log, sqrt
from typing import Any

import pytest
from generated import mean, near, plan, serve_workload, sessions, share, spec, takes

from headway import hashing, simulate
from headway.errors import HeadwayError
from headway.types import PS_PER_SECOND
from headway.workload.traffic import Planned

LENGTHS: dict[str, Any] = {
    "prompt_tokens": {"dist": "uniform", "min": 200, "max": 400},
    "output_tokens": {"dist": "uniform", "min": 20, "max": 60},
}
CHAT: dict[str, Any] = {
    "kind": "chat",
    "turns": {"dist": "uniform", "min": 1, "max": 7},
    "turn_tokens": {"dist": "uniform", "min": 10, "max": 30},
    "think_time": {"dist": "exponential", "mean": "4s"},
}


def chats(count: int = 4000, **changed: Any) -> list[list[Planned]]:
    section: dict[str, Any] = {"requests": count, "rate": "5/s", **LENGTHS}
    return sessions(plan(**(section | {"kind": CHAT | changed})))


def new_tokens(earlier: Planned, other: Planned) -> int:
    """What a prompt has beyond the one before and its output."""
    return other.request.prompt_tokens - earlier.request.prompt_tokens - earlier.output_tokens


# --- chat ---------------------------------------------------------------------------------------------------------


def test_turns_lengths_and_pauses_are_drawn_as_asked() -> None:
    conversations = chats()[:-5]
    assert near([len(turns) for turns in conversations], 4, 2)
    assert near([turns[0].request.prompt_tokens for turns in conversations], 300)
    assert near([item.output_tokens for turns in conversations for item in turns], 40)
    assert near([new_tokens(*pair) for turns in conversations for pair in pairwise(turns)], 20)
    pauses = [
        (b.request.arrival_ps - a.request.arrival_ps) / PS_PER_SECOND
        for turns in conversations
        for a, b in pairwise(turns)
    ]
    assert near(pauses, 4, 4)
    assert all(item.request.arrival_ps % 10**6 == 0 for turns in conversations for item in turns)


def test_sessions_begin_at_the_rate() -> None:
    starts = [turns[0].request.arrival_ps / PS_PER_SECOND for turns in chats()]
    assert near([b - a for a, b in pairwise(sorted(starts))], 0.2, 0.2)


def test_a_linear_context_repeats_prompts_and_outputs_word_for_word() -> None:
    for turns in chats(300):
        for number, (earlier, other) in enumerate(pairwise(turns)):
            a, b = earlier.request.path, other.request.path
            assert b.keys[: len(a.keys)] == a.keys and b.ends[: len(a.ends)] == a.ends
            assert b.keys[len(a.keys)] == earlier.output_key
            assert b.ends[len(a.ends)] == a.tokens + earlier.output_tokens
            assert len(b.keys) == len(a.keys) + 2
            assert (other.request.turn, other.request.kind) == (number + 1, "chat")
    keys = [turns[-1].request.path.keys for turns in chats(300)]
    flat = [key for path in keys for key in path]
    assert len(flat) == len(set(flat))


def test_every_session_keeps_the_prefix_of_its_group() -> None:
    conversations = sessions(plan(requests=500, rate="5/s", kind=CHAT, prefix={"groups": 3, "tokens": 100}, **LENGTHS))
    for turns in conversations:
        assert len({item.request.path.keys[0] for item in turns}) == 1
        assert {item.request.shared_prefix_tokens for item in turns} == {100}
        assert {item.request.path.ends[0] for item in turns} == {100}
    assert len({turns[0].request.path.keys[0] for turns in conversations}) == 3


def test_a_sublinear_context_is_summarised_behind_the_prefix() -> None:
    section: dict[str, Any] = {"requests": 500, "rate": "5/s", "prefix": {"groups": 3, "tokens": 100}, **LENGTHS}
    linear = sessions(plan(kind=CHAT, **section))
    for turns, same in zip(sessions(plan(kind=CHAT | {"growth": "sublinear"}, **section)), linear, strict=True):
        for number, (item, full) in enumerate(zip(turns, same, strict=True), 1):
            if number == 1:
                assert item.request.path == full.request.path
                continue
            fresh = new_tokens(same[number - 2], full)
            history = full.request.prompt_tokens - 100 - fresh
            assert item.request.prompt_tokens == 100 + isqrt(history**2 // number) + fresh
            assert item.request.path.ends == (100, item.request.prompt_tokens)
            assert item.request.path.keys[1] % 4 == hashing.PROMPT


def test_a_bounded_context_is_linear_up_to_its_limit_and_then_slides() -> None:
    section: dict[str, Any] = {"requests": 500, "rate": "5/s", "prefix": {"groups": 3, "tokens": 100}, **LENGTHS}
    linear = sessions(plan(kind=CHAT, **section))
    bounded = sessions(plan(kind=CHAT | {"growth": "bounded", "context_limit": 350}, **section))
    slid = 0
    for turns, same in zip(bounded, linear, strict=True):
        for number, (item, full) in enumerate(zip(turns, same, strict=True)):
            fresh = new_tokens(same[number - 1], full) if number else 0
            if number and full.request.prompt_tokens - 100 - fresh > 350:
                slid += 1
                assert item.request.prompt_tokens == 100 + 350 + fresh
                assert len(item.request.path.keys) == 2
            else:
                assert item.request.path == full.request.path
    assert slid > 50


def test_lengths_may_evolve_within_a_session() -> None:
    evolution = {"prompt_growth": 1.5, "decode_variation": 0.4}
    section: dict[str, Any] = {"requests": 6000, "rate": "5/s", "correlations": {"session": evolution}}
    lengths = {"prompt_tokens": 200, "output_tokens": {"dist": "uniform", "min": 4000, "max": 6000}}
    kind = CHAT | {"turns": 6, "turn_tokens": {"dist": "uniform", "min": 100, "max": 300}}
    ratios = []
    for turns in sessions(plan(kind=kind, **section, **lengths)):
        fresh = [new_tokens(*pair) for pair in pairwise(turns)]
        assert all(abs(tokens - fresh[0] * 1.5**number) <= 1.5**number for number, tokens in enumerate(fresh))
        ratios += [b.output_tokens / a.output_tokens for a, b in pairwise(turns)]
    assert near(ratios, 1, 0.4)
    logs, variance = [log(ratio) for ratio in ratios], log(1 + 0.4**2)
    assert near(logs, -variance / 2, sqrt(variance))
    assert near([(value + variance / 2) ** 2 for value in logs], variance, variance * sqrt(2))


# --- reasoning ----------------------------------------------------------------------------------------------------


def test_a_chain_of_thought_is_generated_and_never_repeated() -> None:
    kind = CHAT | {
        "kind": "reasoning",
        "steps": {"dist": "uniform", "min": 2, "max": 8},
        "step_tokens": {"dist": "uniform", "min": 50, "max": 150},
    }
    conversations = sessions(plan(requests=4000, rate="5/s", kind=kind, **LENGTHS))
    # a sum of N steps has the variance E[N] var(step) + var(N) E[step]^2; the answer has its own
    deviation = sqrt(5 * (101**2 - 1) / 12 + 4 * 100**2 + (41**2 - 1) / 12)
    assert near([item.output_tokens for turns in conversations for item in turns], 5 * 100 + 40, deviation)
    answers = []
    for turns in conversations:
        for earlier, other in pairwise(turns):
            a, b = earlier.request.path, other.request.path
            assert b.keys[:-1] == a.keys and b.ends[:-1] == a.ends
            assert earlier.output_key not in b.keys
            answers.append(b.tokens - a.tokens)  # the answer and what the turn brings
    assert near(answers, 40 + 20)


# --- agents -------------------------------------------------------------------------------------------------------

AGENT: dict[str, Any] = {
    "kind": "agentic",
    "tool_call": 0.75,
    "calls": {"dist": "uniform", "min": 1, "max": 5},
    "tool_latency": {"dist": "exponential", "mean": "2s"},
    "tool_tokens": {"dist": "uniform", "min": 100, "max": 200},
}


def test_tools_are_called_as_often_and_for_as_long_as_asked() -> None:
    conversations = sessions(plan(requests=6000, rate="5/s", kind=AGENT, **LENGTHS))[:-5]
    assert share([len(turns) > 1 for turns in conversations], 0.75)
    assert near([len(turns) - 1 for turns in conversations if len(turns) > 1], 3, sqrt(2))
    pairs = [pair for turns in conversations for pair in pairwise(turns)]
    assert near([(b.request.arrival_ps - a.request.arrival_ps) / PS_PER_SECOND for a, b in pairs], 2, 2)
    assert near([new_tokens(*pair) for pair in pairs], 150)
    assert {item.request.kind for turns in conversations for item in turns} == {"agentic"}


def test_subagents_work_side_by_side_and_the_agent_waits_for_them() -> None:
    kind = AGENT | {
        "tool_call": 1.0,
        "calls": 1,
        "subagents": {"probability": 1.0, "count": 3, "turns": 2, "prompt_tokens": 500},
    }
    traffic = serve_workload(
        takes(10**12), requests=8 * 30, rate="1/h", kind=kind, prefix={"groups": 1, "tokens": 64}, **LENGTHS
    )
    ends = traffic.served.ends
    for turns in sessions(traffic.planned):
        assert len(turns) == 8
        agent, *helpers, last = turns
        begins = [helpers[0], helpers[2], helpers[4]]
        assert {item.request.arrival_ps for item in begins} == {ends[agent.request.id][0]}
        assert last.request.arrival_ps == max(ends[item.request.id][0] for item in helpers)
        assert all(item.request.path.ends == (64, 500) for item in begins)
        assert len({item.request.path.keys[1] for item in begins}) == 3
        for first, second in (helpers[:2], helpers[2:4], helpers[4:]):
            assert second.request.path.keys[:2] == first.request.path.keys
            assert second.request.arrival_ps > ends[first.request.id][0]
        reports = sum(item.output_tokens for item in helpers[1::2])
        assert new_tokens(agent, last) == reports
        assert last.request.path.keys[: len(agent.request.path.keys)] == agent.request.path.keys


def test_subagents_come_with_their_probability() -> None:
    kind = AGENT | {"tool_call": 1.0, "calls": 1, "subagents": {"probability": 0.3, "count": 2, "turns": 1}}
    conversations = sessions(plan(requests=4000, rate="5/s", kind=kind, **LENGTHS))[:-1]
    assert {len(turns) for turns in conversations} == {2, 4}
    assert share([len(turns) == 4 for turns in conversations], 0.3)


# --- mixes --------------------------------------------------------------------------------------------------------


def test_kinds_and_models_come_by_their_weights_with_lengths_of_their_own() -> None:
    kinds = [{"kind": "chat", "weight": 3, "turns": 1}, {"kind": "completion", "prompt_tokens": 9, "max_tokens": 5}]
    requests = plan(requests=4000, rate="5/s", kinds=kinds, models={"small": 4, "large": 1}, **LENGTHS)
    assert share([item.request.kind == "chat" for item in requests], 0.75)
    assert share([item.request.model == "small" for item in requests], 0.8)
    for item in requests:
        alone = item.request.kind == "completion"
        assert (item.request.prompt_tokens == 9) == alone
        assert (item.request.max_tokens == 5) == alone and (item.request.session is None) == alone


def test_a_model_may_have_kinds_of_its_own() -> None:
    models = [{"name": "a", "kind": {"kind": "reasoning", "turns": 1}}, {"name": "b", "weight": 2}]
    requests = plan(requests=3000, rate="5/s", models=models, **LENGTHS)
    assert {(item.request.model, item.request.kind) for item in requests} == {("a", "reasoning"), ("b", "completion")}
    assert share([item.request.model == "b" for item in requests], 2 / 3)


# --- the engine ---------------------------------------------------------------------------------------------------


def test_an_engine_really_hits_what_a_conversation_repeats() -> None:
    turns = {"kind": "chat", "turns": 4, "turn_tokens": 33, "think_time": "5s"}
    lengths = {"prompt_tokens": 500, "output_tokens": 47}
    hits = {}
    for growth in ("linear", "sublinear"):
        workload = {"requests": 40, "rate": "1/s", "kind": turns | {"growth": growth}, **lengths}
        workload["prefix"] = {"groups": 1, "tokens": 160}
        result = simulate({"workload": workload, "cluster": {"instances": 1}})
        hits[growth] = list(result.requests.rows())
    for row in hits["linear"][1:]:
        # the blocks of 16 tokens that the turn before left: its prompt, and its output but for the last token
        before = 500 + (row["turn"] - 1) * 80 + 46
        assert row["cached_tokens"] == (before // 16 * 16 if row["turn"] else 160)
    assert {row["cached_tokens"] for row in hits["sublinear"][1:]} == {160}


# --- mistakes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "start"),
    [
        ({"kind": "chatt"}, "workload.kind: no kind of request is called 'chatt'. Did you mean 'chat'?"),
        ({"kind": {"turns": 3}}, "workload.kind: 'kind' is missing; use one of completion"),
        ({"kind": {"kind": "chat", "turn": 3}}, "workload.kind.turn: there is no such key. Did you mean 'turns'?"),
        ({"kind": {"kind": "completion", "turns": 3}}, "workload.kind.turns: there is no such key"),
        ({"kind": {"kind": "chat", "turns": 0}}, "workload.kind.turns: a length is a whole number"),
        ({"kind": {"kind": "chat", "think_time": 3}}, "workload.kind.think_time: 3 is not a duration"),
        (
            {"kind": {"kind": "chat", "think_time": {"mean": "3s"}}},
            "workload.kind.think_time: 'dist' is missing; use one of constant",
        ),
        (
            {"kind": {"kind": "chat", "think_time": {"dist": "geometric", "mean": "3s"}}},
            "workload.kind.think_time.dist: no distribution is called 'geometric'",
        ),
        ({"kind": {"kind": "chat", "think_time": {"dist": "normal", "mean": "3s"}}}, "workload.kind.think_time: 'std'"),
        (
            {"kind": {"kind": "chat", "think_time": {"dist": "exponential", "mean": "0s"}}},
            "workload.kind.think_time.mean: must be greater than zero",
        ),
        ({"kind": {"kind": "chat", "growth": "square"}}, "workload.kind.growth: no growth is called 'square'. Known:"),
        ({"kind": {"kind": "chat", "context_limit": 9}}, "workload.kind.context_limit: only a bounded context"),
        (
            {"kind": {"kind": "chat", "growth": "bounded", "context_limit": 0}},
            "workload.kind.context_limit: must lie between",
        ),
        ({"kind": {"kind": "agentic", "tool_call": 1.2}}, "workload.kind.tool_call: a probability lies"),
        ({"kind": {"kind": "agentic", "subagents": {}}}, "workload.kind.subagents: 'probability' is missing"),
        (
            {"kind": {"kind": "agentic", "subagents": {"probability": 1, "count": 0}}},
            "workload.kind.subagents.count: a length is",
        ),
        ({"kind": "chat", "kinds": ["chat"]}, "workload.kinds: 'kind' is set too"),
        ({"kinds": []}, "workload.kinds: expected a list of kinds"),
        ({"kinds": [{"kind": "chat", "weight": 0}]}, "workload.kinds[0].weight: a weight is a positive number"),
        ({"models": {"a": -1}}, "workload.models: a weight is a positive number, got -1"),
        ({"models": {"a": "many"}}, "workload.models.a.weight: expected a number"),
        ({"models": [{"name": "a"}, {"name": "a"}]}, "workload.models[1].name: 'a' is listed twice"),
        ({"models": [{"name": "a", "kind": "x"}]}, "workload.models[0].kind: no kind of request is called 'x'"),
        ({"correlations": {"session": {"prompt_growth": 0}}}, "workload.correlations.session.prompt_growth: must be"),
        ({"correlations": {"session": {"decode_variation": -1}}}, "workload.correlations.session.decode_variation:"),
        (
            {"prompt_tokens": {"dist": "geometric", "mean": 0.5}},
            "workload.prompt_tokens.mean: the mean of a geometric distribution",
        ),
        ({"prompt_tokens": {"dist": "uniform", "min": 5}}, "workload.prompt_tokens: 'max' is missing"),
    ],
)
def test_a_mistake_is_told_at_its_key(section: dict[str, Any], start: str) -> None:
    with pytest.raises(HeadwayError) as caught:
        spec(requests=5, rate="1/s", **section)
    assert str(caught.value).startswith(start) and str(caught.value).endswith((".", "?"))


def test_no_draw_makes_a_session_endless() -> None:
    huge = {"dist": "constant", "value": 2**31 - 1}
    agent = AGENT | {"calls": huge, "subagents": {"probability": 0.5, "count": huge, "turns": huge}}
    for kind in (CHAT | {"turns": huge}, agent, CHAT | {"kind": "reasoning", "turns": 2, "steps": huge}):
        assert len(plan(requests=30, rate="1/s", kind=kind)) == 30


def test_geometric_and_uniform_lengths() -> None:
    requests = plan(
        requests=20_000,
        rate="1/s",
        prompt_tokens={"dist": "geometric", "mean": 3},
        output_tokens={"dist": "uniform", "min": 2, "max": 5},
    )
    prompts = [item.request.prompt_tokens for item in requests]
    assert near(prompts, 3, sqrt(6))
    assert share([prompt == 1 for prompt in prompts], 1 / 3)
    for value in range(2, 6):
        assert share([item.output_tokens == value for item in requests], 1 / 4)
    assert mean([item.output_tokens for item in requests]) > 3
