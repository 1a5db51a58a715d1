"""Turns of a session continue with the engine's answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")

from canned import DONE, Canned, event, stream
from emulated import Emulated

from headway.load import conversations
from headway.load.asking import Ask
from headway.load.conversations import Conversations
from headway.load.driver import load
from headway.scenario.scenario import Scenario
from headway.types import Path, Request
from headway.workload.traffic import Planned

TURNS = 3
SCENARIO = {
    "seed": 3,
    "workload": {
        "requests": 2 * TURNS,
        "rate": "50/s",
        "prompt_tokens": 96,
        "output_tokens": 40,
        "kind": {"kind": "chat", "turns": TURNS, "think_time": "1ms", "turn_tokens": 50},
    },
    "cluster": {"instances": 1, "latency": {"model": "fixed"}},
}
SAID = 'wel"l, gr\u00fc\u00df \U0001f600'
PROMPTS = [96, 96 + 40 + 50, 96 + 2 * (40 + 50)]


@pytest.fixture
def engines() -> Iterator[Emulated]:
    made = Emulated(speed=20.0)
    yield made
    made.stop()


@pytest.mark.parametrize(("api", "marks"), [("completions", 0), ("chat", 4)])
def test_earlier_answers_are_found_cached_and_lengths_stay_as_planned(engines: Emulated, api: Any, marks: int) -> None:
    """An emulator's tokens between messages do not accumulate over the turns."""
    result = load(Ask(engines.url(), api=api), SCENARIO)
    names = ("session", "turn", "prompt_tokens", "cached_tokens")
    rows = sorted(zip(*(result.requests.column(name) for name in names), strict=True))
    assert [turn for _, turn, _, _ in rows] == [*range(TURNS)] * 2
    for (_, turn, prompt, cached), before in zip(rows, [rows[0], *rows], strict=False):
        assert 0 <= prompt - PROMPTS[turn] <= marks
        assert cached == (0 if turn == 0 else (before[2] + 40) // 16 * 16)


def test_a_chat_has_the_real_answers_as_messages_and_a_completion_has_them_in_its_text() -> None:
    answer = stream(event(content='wel"l, '), event(content="gr\u00fc\u00df \U0001f600"), DONE)
    for api in ("chat", "completions"):
        engine = Canned(answer)
        load(Ask(engine.url, api=api), {**SCENARIO, "workload": {**SCENARIO["workload"], "requests": TURNS}})
        engine.stop()
        if api == "chat":
            first, *_, last = (asked["messages"] for asked in engine.asked)
            assert [one["role"] for one in last] == ["user", "assistant", "user", "assistant", "user"]
            assert last[0] == first[0] and {one["content"] for one in last[1::2]} == {SAID}
        else:
            first, second, last = (asked["prompt"] for asked in engine.asked)
            assert second.startswith(first + SAID) and last.startswith(second)


def plan(session: str | None = "s") -> list[Planned]:
    """Return two turns of a session: the second continues the first and its answer, which has the key 9."""
    first = Request(0, 0, 20, Path((7,), (20,)), session=session)
    second = Request(1, 0, 50, Path((7, 9, 8), (20, 30, 50)), session=session, turn=1)
    return [Planned(first, 10, 9), Planned(second, 10, 10)]


def words(texts: tuple[str, ...]) -> list[int]:
    return [len(text) // 4 for text in texts]


def test_a_shorter_answer_or_a_longer_prompt_is_made_up_for_by_the_next_words() -> None:
    first, second = plan()
    for tokens, new in ((20 + 10, 20), (20 + 4, 26), (23 + 10, 17), (60, 1)):
        talks = Conversations()
        talks.ask(first.request)
        talks.record_answer(first, "an answer", tokens)
        said = talks.ask(second.request)
        assert said[1] == "an answer" and words(said[::2]) == [20, new]


def test_a_turn_whose_answer_did_not_come_or_said_nothing_goes_on_with_made_up_words() -> None:
    first, second = plan()
    talks = Conversations()
    talks.ask(first.request)
    talks.record_answer(first)
    assert words(talks.ask(second.request)) == [50]


def test_a_turn_that_is_sent_again_says_the_same_again() -> None:
    first, second = plan()
    talks = Conversations()
    talks.ask(first.request)
    talks.record_answer(first, "an answer", 30)
    said = talks.ask(second.request)
    talks.record_answer(second)
    assert talks.ask(second.request) == said


def test_what_is_remembered_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversations, "KEPT", 1000)
    talks = Conversations()
    for number in range(40):
        request = Request(number, 0, 20, Path((7,), (20,)), session=f"s{number}")
        talks.ask(request)
        talks.record_answer(Planned(request, 10, 100 + number), "an answer", 30)
    second = Request(50, 0, 50, Path((7, 139, 8), (20, 30, 50)), session="s39", turn=1)
    forgotten = Request(51, 0, 50, Path((7, 100, 8), (20, 30, 50)), session="s0", turn=1)
    assert words(talks.ask(second)[::2]) == [20, 20] and words(talks.ask(forgotten)) == [50]


def test_the_plan_is_as_these_tests_think() -> None:
    made = Scenario.load(SCENARIO)
    planned = made.workload.plan(3, made.cluster.default_model())
    assert sorted({one.request.prompt_tokens for one in planned}) == PROMPTS
