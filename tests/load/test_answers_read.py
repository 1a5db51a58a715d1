"""How `headway load` reads the answers of engines and routers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")

from canned import DONE, Canned, event, stream, whole

from headway.load.asking import Ask
from headway.load.driver import load

SCENARIO = {
    "seed": 3,
    "workload": {"requests": 2, "rate": "50/s", "prompt_tokens": 96, "output_tokens": 6},
    "cluster": {"instances": 1, "latency": {"model": "fixed"}},
}
USAGE = {"prompt_tokens": 50, "completion_tokens": 6, "prompt_tokens_details": {"cached_tokens": 16}}
See = Callable[[bytes], tuple[Any, ...]]


@pytest.fixture
def seen() -> Iterator[See]:
    made: list[Canned] = []

    def see(answer: bytes) -> tuple[Any, ...]:
        """Return outcome, lengths, cached tokens and reason of the first request."""
        made.append(Canned(answer))
        result = load(Ask(made[-1].url, api="chat"), SCENARIO)
        columns = ("outcome", "prompt_tokens", "output_tokens", "cached_tokens")
        reasons = result.summary()["client"]["reasons"]
        return (*(result.requests.column(name)[0] for name in columns), next(iter(reasons), None))

    yield see
    for one in made:
        one.stop()


def counting(tokens: int) -> bytes:
    return event(content="a")[:-3] + b', "usage": {"prompt_tokens": 50, "completion_tokens": %d}}\n\n' % tokens


def test_a_stream_that_ends_without_its_mark_is_no_answer(seen: See) -> None:
    outcome, *_, why = seen(stream(event(content="a"), event(content="b")))
    assert outcome == "failed" and "the stream ended without [DONE]" in why


def test_gaps_count_of_whole_answers_alone() -> None:
    for mark, there in ((DONE, True), (b"", False)):
        one = Canned(stream(event(content="a"), event(content="b") + mark))
        result = load(Ask(one.url, api="chat"), SCENARIO)
        one.stop()
        assert (result.summary()["latency"]["itl"]["mean"] is not None) is there


def test_a_stream_that_ends_with_an_error_is_no_answer(seen: See) -> None:
    for error in (b'data: {"error": {"message": "it broke"}}\n\n', b'data:{"error":{"message":"it broke"}}\n\n'):
        assert seen(stream(event(content="a"), error, DONE))[::4] == ("failed", "it broke")


def test_an_answer_that_is_no_stream_tells_its_lengths_as_well(seen: See) -> None:
    answer = whole({"choices": [{"message": {"content": "hello you"}}], "usage": USAGE})
    assert seen(answer) == ("completed", 50, 6, 16, None)


def test_where_nothing_tells_the_length_events_are_counted_and_each_once(seen: See) -> None:
    """Some engines send reasoning twice in one event, under an old and a new name."""
    thought = event(reasoning="x", reasoning_content="x")
    assert seen(stream(thought, thought + thought, event(content="y") + DONE))[2] == 4


def test_an_engine_that_counts_as_it_goes_is_believed_in_the_end(seen: See) -> None:
    assert seen(stream(b"".join(counting(tokens) for tokens in range(1, 7)) + DONE))[:3] == ("completed", 50, 6)


def test_events_may_come_in_any_pieces(seen: See) -> None:
    text = event(content="a") + counting(6) + DONE
    for at in (1, 10, len(event(content="a")) + 30, len(text) - 5, len(text) - 1):
        assert seen(stream(text[:at], text[at:]))[:3] == ("completed", 50, 6)
