"""The watch over worker processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

from headway.gateway.worker_watch import BEAT_S, FIRST_PAUSE_S, LONGEST_PAUSE_S, STEADY_S, Watch, beat, is_stopped
from waiting import until


class Number:
    value = 0


class Scene:
    def __init__(self) -> None:
        self.now, self.counter = 0.0, Number()
        self.watch = Watch(self.counter, lambda: self.now)

    def look_after(self, seconds: float, beats: int = 0, stopped: bool = False) -> float:
        self.now += seconds
        self.counter.value += beats
        return self.watch.look(stopped)


def test_a_worker_that_beats_is_not_silent_and_one_that_stops_is() -> None:
    scene = Scene()
    assert [scene.look_after(1.0, beats=2) for _ in range(100)] == [0.0] * 100
    assert [scene.look_after(1.0) for _ in range(3)] == [1.0, 2.0, 3.0]
    assert scene.look_after(1.0, beats=1) == 0.0


def test_a_worker_that_has_not_begun_to_beat_is_not_silent() -> None:
    scene = Scene()
    assert [scene.look_after(1.0) for _ in range(50)] == [0.0] * 50


def test_a_worker_that_is_stopped_before_it_begins_to_beat_is_silent() -> None:
    scene = Scene()
    assert [scene.look_after(1.0, stopped=True) for _ in range(3)] == [1.0, 2.0, 3.0]
    assert scene.look_after(1.0) == 0.0  # it goes on


def test_a_stopped_process_is_told_from_one_that_runs_or_has_ended() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert not is_stopped(process.pid)
        process.send_signal(signal.SIGSTOP)
        until(lambda: is_stopped(process.pid))
        assert is_stopped(process.pid)  # asking changes nothing
        process.send_signal(signal.SIGCONT)
        until(lambda: not is_stopped(process.pid))
        process.kill()
        until(lambda: os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT) is not None)
        assert not is_stopped(process.pid)


def test_time_in_which_the_parent_itself_stood_still_does_not_count() -> None:
    scene = Scene()
    scene.look_after(1.0, beats=1)
    assert scene.look_after(3600.0) == 2.0


def test_replacements_that_fail_soon_are_delayed_more_and_more() -> None:
    scene, pauses = Scene(), [0.0]
    for _ in range(7):
        pauses.append(Watch(scene.counter, lambda: scene.now).pause_s(pauses[-1]))
    assert pauses[1:] == [1.0, 2.0, 4.0, 8.0, 16.0, LONGEST_PAUSE_S, LONGEST_PAUSE_S]
    scene.now = STEADY_S
    assert scene.watch.pause_s(LONGEST_PAUSE_S) == FIRST_PAUSE_S


def test_a_loop_that_is_blocked_does_not_beat() -> None:
    async def run() -> list[int]:
        counter, loop = Number(), asyncio.get_running_loop()
        calls: list[float] = []
        loop.call_later = lambda delay, *call: calls.append(delay)  # type: ignore[method-assign, assignment]
        beat(counter, loop)
        assert calls == [BEAT_S]  # the next beat needs a turn of the loop
        return [counter.value]

    assert asyncio.run(run()) == [1]
