"""`headway load` with emulated engines: times of sending, and measurements of the answers."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic_ns
from typing import Any

import pytest

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")

from emulated import Emulated

from headway import simulate
from headway.errors import HeadwayError
from headway.load.asking import Ask
from headway.load.driver import Driver, drive, load
from headway.results.result import Result
from headway.workload.traffic import OpenLoop

PLAIN = {"requests": 12, "rate": "50/s", "prompt_tokens": 96, "output_tokens": 6}


def scenario(workload: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"seed": 3, "workload": workload, "cluster": {"instances": 1, "latency": {"model": "fixed"}}, **more}


def loaded(engines: Emulated, workload: dict[str, Any], **more: Any) -> Result:
    asked = {name: more.pop(name) for name in ("truth", "api", "model", "url") if name in more}
    ask = Ask(asked.pop("url", engines.url()), **asked)
    return load(ask, scenario(workload, **{name: more.pop(name) for name in ("horizon",) if name in more}), **more)


@pytest.fixture
def engines():
    made = Emulated(speed=20.0)
    yield made
    made.stop()


def column(result: Result, name: str) -> list[Any]:
    return list(result.requests.column(name))


@pytest.mark.parametrize(("api", "marks"), [("completions", 0), ("chat", 3)])
@pytest.mark.parametrize("truth", [True, False])
def test_engines_see_the_lengths_of_the_workload(engines: Emulated, api: Any, marks: int, truth: bool) -> None:
    result = loaded(engines, PLAIN, api=api, truth=truth)
    assert column(result, "outcome") == ["completed"] * 12
    assert column(result, "output_tokens") == [6] * 12
    assert column(result, "prompt_tokens") == [96 + (0 if truth else marks)] * 12  # a chat has role and end tokens


def test_a_load_begins_at_a_multiple_of_its_tick(engines: Emulated) -> None:
    """The clock is the machine's, which other processes share."""

    async def origin() -> int:
        traffic = OpenLoop(())
        driver = Driver(asyncio.get_running_loop(), traffic, Ask(engines.url()), tick_s=0.25)
        before = monotonic_ns()
        await driver.run()
        assert driver.origin_ns > before
        return driver.origin_ns

    assert asyncio.run(origin()) % 250_000_000 == 0


def test_connections_can_be_open_before_the_first_request(engines: Emulated) -> None:
    result = loaded(engines, PLAIN | {"requests": 2, "rate": "1/s"}, speed=20.0, lines=5)
    assert column(result, "outcome") == ["completed"] * 2
    assert result.summary()["client"]["connections"] == 5


def test_requests_are_sent_at_their_times_whatever_becomes_of_those_before(engines: Emulated) -> None:
    engines.fault("hang")
    outcome: list[Result] = []
    thread = threading.Thread(target=lambda: outcome.append(loaded(engines, PLAIN, truth=True)))
    thread.start()
    instance = engines.host.replicas[0].instance
    engines.until(lambda: instance.stats.requests == 12)  # no request has an answer
    engines.fault("none")
    thread.join(60)
    (result,) = outcome
    planned = [one.request.arrival_ps for one in plan(PLAIN)]
    assert column(result, "arrival_ps") == planned
    assert max(column(result, "started_ps")) < min(column(result, "first_token_ps"))
    waits = [first - at for first, at in zip(column(result, "first_token_ps"), planned, strict=True)]
    assert result.summary()["latency"]["ttft"]["mean"] == pytest.approx(sum(waits) / 12 / 1e9)


def plan(workload: dict[str, Any]) -> list[Any]:
    from headway.scenario.scenario import Scenario

    made = Scenario.load(scenario(workload))
    return list(made.workload.plan(3, made.cluster.default_model()))


def test_a_closed_loop_waits_for_its_answers_and_thinks(engines: Emulated) -> None:
    closed = {"concurrency": 2, "think_time": "20ms"}
    result = loaded(engines, {**PLAIN, "rate": None, "closed_loop": closed}, truth=True)
    begun, ended = column(result, "arrival_ps"), column(result, "finished_ps")
    assert len(begun) == 12
    for at in begun:
        assert sum(one <= at < end for one, end in zip(begun, ended, strict=True)) <= 2
    thought = [at for at in begun if at > 0]
    assert all(any(at == end + 20 * 10**9 for end in ended) for at in thought if at not in begun[:2])


def test_the_next_turn_of_a_session_comes_after_the_last_and_finds_it_cached(engines: Emulated) -> None:
    chat = {"kind": "chat", "turns": 3, "think_time": "10ms"}
    result = loaded(engines, {**PLAIN, "requests": 9, "kind": chat}, truth=True)
    rows = sorted(zip(*(column(result, name) for name in ("session", "turn", "cached_tokens")), strict=True))
    assert [turn for _, turn, _ in rows] == [0, 1, 2] * 3
    assert all((cached > 0) == (turn > 0) for _, turn, cached in rows)


@pytest.mark.parametrize(("fault", "outcome"), [("500", "failed"), ("503", "rejected"), ("reset", "failed")])
def test_what_is_not_served_is_told_with_its_reason(engines: Emulated, fault: str, outcome: str) -> None:
    engines.fault(fault, requests=3)
    result = loaded(engines, PLAIN)
    outcomes = column(result, "outcome")
    assert outcomes.count(outcome) == 3 and outcomes.count("completed") == 9
    (reason,) = result.summary()["client"]["reasons"]
    assert reason == "the connection was lost" if fault == "reset" else reason.startswith(f"status {fault}: the engine")


def test_an_answer_that_breaks_off_is_no_answer(engines: Emulated) -> None:
    engines.fault("crash-after-tokens", tokens=20, seconds=0.2)
    outcomes = column(loaded(engines, {**PLAIN, "output_tokens": 16}, truth=True), "outcome")
    assert "failed" in outcomes and set(outcomes) <= {"failed", "completed"}


def test_a_client_that_waits_no_longer_lets_go(engines: Emulated) -> None:
    engines.fault("hang")
    result = loaded(engines, {**PLAIN, "requests": 3, "timeout": "500ms"})
    assert column(result, "outcome") == ["timed_out"] * 3
    engines.until(lambda: len(engines.ended) == 3)
    assert {outcome for _, outcome in engines.ended} == {"abandoned"}


def test_what_is_under_way_at_the_horizon_is_in_flight(engines: Emulated) -> None:
    engines.fault("hang")
    result = loaded(engines, PLAIN, horizon="100ms")
    outcomes = column(result, "outcome")
    assert 0 < len(outcomes) < 12 and set(outcomes) == {"in_flight"}
    first_s = column(result, "arrival_ps")[0] / 1e12
    assert result.summary()["duration_s"] == pytest.approx(0.1 - first_s)  # not only until the last answer


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://no..name:80"])
def test_nobody_at_the_endpoint_is_told_of_each_request(url: str) -> None:
    result = load(Ask(url), scenario({**PLAIN, "requests": 2}))
    assert column(result, "outcome") == ["failed"] * 2
    assert "no connection" in next(iter(result.summary()["client"]["reasons"]))


def test_what_goes_wrong_with_the_workload_in_the_middle_of_a_run_ends_it(engines: Emulated) -> None:
    def broken() -> Iterator[Any]:
        yield from plan({**PLAIN, "requests": 3})
        raise HeadwayError("trace line 4: is none.")

    with pytest.raises(HeadwayError, match="line 4"):
        drive(OpenLoop(broken()), Ask(engines.url()))


@pytest.mark.full
def test_slowed_down_times_are_the_workloads() -> None:
    """Emulator and load run at a quarter of real time, so TPOT is the simulator's."""
    workload = {**PLAIN, "requests": 6, "rate": "10/s", "output_tokens": 12}
    engines = Emulated(speed=0.25)
    try:
        result = loaded(engines, workload, truth=True, speed=0.25)
    finally:
        engines.stop()
    simulated = simulate(scenario(workload)).summary()["latency"]["tpot"]["mean"]
    assert result.summary()["latency"]["tpot"]["mean"] == pytest.approx(simulated, rel=0.25)


def test_the_command_writes_a_run_folder_that_is_read_again(engines: Emulated, headway: Any, tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(scenario(PLAIN)))
    completed = headway("load", engines.url() + "/v1", str(file), "-o", str(tmp_path / "run"), "--json")
    assert completed.returncode == 0, completed.stderr
    document = json.loads(completed.stdout)
    assert document["requests"]["completed"] == 12 and document["client"]["lag"]["mean"] >= 0
    kept = Result.load(tmp_path / "run")
    assert kept.summary() == document and kept.instance_ids() == {0: "instance-0"}
    shown = headway("report", str(tmp_path / "run"), "-o", str(tmp_path / "page.html"))
    assert shown.returncode == 0, shown.stderr


def test_the_command_sends_a_trace(engines: Emulated, headway: Any, root: Path) -> None:
    completed = headway("load", engines.url(), "--trace", str(root / "examples" / "05_trace.jsonl"), "--speed", "50")
    assert completed.returncode == 0, completed.stderr
    assert "measured by its clients" in completed.stdout and "lag" in completed.stdout


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["somewhere"], "URL: expected a URL"),
        (["http://127.0.0.1:1", "--speed", "0"], "--speed: must be between"),
        (["http://127.0.0.1:1", "x.yaml", "--trace", "y.jsonl"], "--trace: cannot be combined with a scenario"),
        (["http://127.0.0.1:1", "--key-env", "NO_SUCH_KEY"], "--key-env: the environment variable"),
    ],
)
def test_what_cannot_be_sent_is_told_in_a_sentence(headway: Any, options: list[str], why: str) -> None:
    completed = headway("load", *options)
    assert completed.returncode == 2 and why in completed.stderr and "Traceback" not in completed.stderr
