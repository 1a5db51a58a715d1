"""Faults of an emulated engine as its clients see them."""

from __future__ import annotations

import json
import urllib.error
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from emulated import Emulated
from openai_client import openai, openai_client

from headway.sim.instance_end import check_instance

MODEL = "llama-3.1-8b"
Start = Callable[..., Emulated]


@pytest.fixture
def start() -> Iterator[Start]:
    made: list[Emulated] = []

    def one(replicas: int = 1, **settings: Any) -> Emulated:
        made.append(Emulated({"instances": replicas}, **settings))
        return made[-1]

    yield one
    for each in made:
        each.stop()


def client(engine: Emulated, replica: int = 0, timeout: float = 30.0) -> Any:
    return openai_client(f"{engine.url(replica)}/v1", timeout=timeout)


def ask(engine: Emulated, replica: int = 0, tokens: int = 3, **more: Any) -> Any:
    return client(engine, replica).completions.create(model=MODEL, prompt="x " * 100, max_tokens=tokens, **more)


@pytest.mark.parametrize(("mode", "error"), [("500", openai.InternalServerError), ("503", openai.InternalServerError)])
def test_an_engine_fails_and_is_well_again(start: Start, mode: str, error: type[Exception]) -> None:
    one = start(2)
    one.fault(mode)
    with pytest.raises(error, match="because of an injected fault"):
        ask(one)
    assert ask(one, 1).usage.completion_tokens == 3
    assert json.loads(one.get("/faults"))["faults"] == {"instance-0": mode, "instance-1": "none"}
    one.fault("none")
    assert ask(one).usage.completion_tokens == 3


def test_only_as_many_requests_fail_as_are_said(start: Start) -> None:
    one = start()
    one.fault("500", requests=2)
    for _ in range(2):
        with pytest.raises(openai.InternalServerError):
            ask(one)
    assert ask(one).usage.completion_tokens == 3


def test_connections_are_reset_before_a_byte(start: Start) -> None:
    one = start()
    one.fault("reset")
    with pytest.raises(openai.APIConnectionError):
        ask(one)
    assert not one.host.room.instances[0].batch.running


def test_a_slow_engine_takes_longer_by_its_own_clock(start: Start) -> None:
    one = start()
    ask(one, tokens=6)
    one.fault("slow", factor=3)
    ask(one, tokens=6)
    one.fault("none")
    ask(one, tokens=6)
    spans = [flight.last_ps - flight.first_ps for flight, _ in one.ended]
    assert spans[1] == pytest.approx(3 * spans[0], rel=0.01) and spans[2] == spans[0]


def test_an_engine_that_hangs_goes_on_when_it_is_well_again(start: Start) -> None:
    one = start()
    one.fault("hang")
    with pytest.raises(openai.APITimeoutError):
        client(one, timeout=0.3).completions.create(model=MODEL, prompt="x", max_tokens=2)
    assert json.loads(one.get("/v1/models"))["data"]
    one.fault("none")
    assert ask(one).usage.completion_tokens == 3
    assert not one.host.room.instances[0].batch.running


def test_a_frozen_engine_answers_nothing_until_it_goes_on(start: Start) -> None:
    one = start(2)
    one.fault("freeze")
    with pytest.raises(openai.APITimeoutError):
        client(one, timeout=0.2).completions.create(model=MODEL, prompt="x", max_tokens=2)
    with pytest.raises(openai.APITimeoutError):
        client(one, timeout=0.2).models.list()
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(ask, one)
        one.until(lambda: len(one.host.replicas[0].clients) == 1)
        one.fault("none", through=1)
        assert late.result().usage.completion_tokens == 3
    assert not one.host.room.instances[0].batch.running


@pytest.mark.parametrize("mode", ["cut", "garbage"])
def test_an_engine_breaks_its_streams_after_some_tokens(start: Start, mode: str) -> None:
    one = start()
    one.fault(mode, tokens=2, requests=1)
    result = []
    with pytest.raises(Exception, match=r"peer closed|incomplete|illegal|malformed|Connection"):
        for chunk in ask(one, tokens=20, stream=True):
            result.append(chunk)
    assert len(result) == 2
    assert len(list(ask(one, tokens=20, stream=True))) == 20  # only one stream was to break
    one.until(lambda: not one.host.room.instances[0].batch.running)


def test_a_fault_of_some_seconds_passes(start: Start) -> None:
    one = start()
    one.fault("hang", seconds=0.2)
    assert ask(one).usage.completion_tokens == 3


def test_an_unhealthy_engine_says_so_and_serves(start: Start) -> None:
    one = start()
    assert one.get("/health") == ""
    one.fault("unhealthy")
    with pytest.raises(urllib.error.HTTPError, match="503"):
        one.get("/health")
    assert ask(one).usage.completion_tokens == 3


def test_an_engine_crashes_amid_a_stream_and_comes_back_with_nothing_cached(start: Start) -> None:
    one = start(2)
    assert ask(one).usage.prompt_tokens_details.cached_tokens == 0
    assert ask(one).usage.prompt_tokens_details.cached_tokens == 48
    one.fault("crash-after-tokens", tokens=4)
    result = []
    with pytest.raises(Exception, match=r"peer closed|incomplete|disconnected|reset|Connection"):
        for chunk in ask(one, tokens=50, stream=True):
            result.append(chunk)
    assert len(result) == 4
    with pytest.raises(openai.APIConnectionError):
        ask(one)
    assert ask(one, 1).usage.completion_tokens == 3
    one.fault("none", through=1)
    one.until(lambda: one.host.replicas[0].server is not None)
    assert ask(one).usage.prompt_tokens_details.cached_tokens == 0
    one.do(partial(check_instance, one.host.room.instances[0]))
    assert [outcome for _, outcome in one.ended].count("lost") == 1


def test_an_engine_that_crashes_for_some_seconds_comes_back_by_itself(start: Start) -> None:
    one = start(2)
    one.fault("crash-after-tokens", tokens=1, seconds=0.2)
    with pytest.raises(Exception, match=r"peer closed|incomplete|disconnected|reset|Connection"):
        list(ask(one, tokens=50, stream=True))
    one.until(lambda: [outcome for _, outcome in one.ended] == ["lost"] and one.host.replicas[0].server is not None)
    assert ask(one).usage.completion_tokens == 3


def test_one_that_has_crashed_for_good_is_called_back_through_another(start: Start) -> None:
    one = start(2)
    one.fault("crash")
    one.until(lambda: one.host.replicas[0].server is None)
    with pytest.raises(openai.APIConnectionError):
        ask(one)
    one.fault("none", through=1)
    one.until(lambda: one.host.replicas[0].server is not None)
    assert ask(one).usage.completion_tokens == 3


@pytest.mark.parametrize("body", [{"mode": "slwo"}, {"mode": "slow", "factor": -1}, {"mode": "500", "replica": "x"}, 3])
def test_a_fault_that_is_none_is_told_so(start: Start, body: Any) -> None:
    one = start()
    with pytest.raises(urllib.error.HTTPError, match="400"):
        one.post("/faults", body)
    assert one.host.replicas[0].fault.mode == "none"


def test_a_fault_of_a_few_requests_is_over_with_the_last_of_them(start: Start) -> None:
    one = start()
    one.fault("reset", requests=1)
    with pytest.raises(openai.APIConnectionError):
        ask(one)
    assert json.loads(one.get("/faults"))["faults"] == {"instance-0": "none"}


def test_who_has_crashed_and_is_struck_again_stays_gone(start: Start) -> None:
    one = start(2)
    one.fault("crash", 0, through=1)
    one.fault("crash", 0, through=1)
    one.do(lambda: None)
    with pytest.raises(openai.APIConnectionError):
        ask(one)
    one.fault("none", 0, through=1)
    one.until(lambda: one.host.replicas[0].server is not None)
    assert ask(one).usage.completion_tokens == 3


def test_who_hung_and_crashed_is_well_when_it_comes_back(start: Start) -> None:
    one = start(2)
    one.fault("hang")
    one.fault("crash", 0, through=1)
    one.fault("none", 0, through=1)
    one.until(lambda: one.host.replicas[0].server is not None)
    assert ask(one).usage.completion_tokens == 3


def test_a_step_that_was_slow_does_not_outlast_the_fault(start: Start) -> None:
    """At a million times its length a step would take hours."""
    one = start()
    one.fault("slow", factor=1e6)
    with pytest.raises(openai.APITimeoutError):
        client(one, timeout=0.5).completions.create(model=MODEL, prompt="x", max_tokens=2)
    one.fault("none")
    assert ask(one).usage.completion_tokens == 3
