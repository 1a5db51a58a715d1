"""The log of servers: lines with time and level, limits on repeated lines."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator

import pytest

from headway.http import server_log
from headway.http.server_log import BURST, WINDOW_S, Handler, LogSettings, Occasional, change_log, log_to_stderr

log = logging.getLogger("headway.test")
LINE = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (DEBUG|INFO|WARNING|ERROR) headway: .*$")


class Scene:
    def __init__(self) -> None:
        self.now = 100.0
        self.handler = next(each for each in logging.getLogger().handlers if isinstance(each, Handler))
        self.handler.seconds = lambda: self.now
        self.text = io.StringIO()
        self.handler.setStream(self.text)

    @property
    def lines(self) -> list[str]:
        return self.text.getvalue().splitlines()


@pytest.fixture
def scene() -> Iterator[Scene]:
    with log_to_stderr():
        yield Scene()


def test_each_line_has_time_and_level_even_those_of_a_traceback(scene: Scene) -> None:
    log.info("it begins")
    try:
        raise ValueError("two\nlines")
    except ValueError:
        log.exception("it failed")
    assert len(scene.lines) > 3 and all(map(LINE.match, scene.lines)), scene.lines
    assert scene.lines[0].endswith(" INFO headway: it begins")


def test_text_of_a_client_cannot_forge_a_line(scene: Scene) -> None:
    log.warning("refused %s", "x\n2026-01-01T00:00:00.000Z INFO headway: all is well\x1b[2J")
    assert len(scene.lines) == 1 and "\\n2026" in scene.lines[0] and "\\x1b" in scene.lines[0]


def test_json_lines_have_the_same_fields(scene: Scene) -> None:
    change_log(LogSettings(format="json"))
    log.warning("engine %s\nis gone", "a")
    line = json.loads(scene.lines[0])
    assert line.pop("time").endswith("Z")
    assert line == {"level": "warning", "logger": "headway.test", "message": "engine a\nis gone"}


def test_the_level_can_change_while_the_server_runs(scene: Scene) -> None:
    log.debug("a")
    change_log(LogSettings(level="debug"))
    log.debug("b")
    change_log(LogSettings(level="error"))
    log.warning("c")
    assert [line[-1] for line in scene.lines] == ["b"]


def test_libraries_log_warnings_only_and_quic_logs_nothing(scene: Scene) -> None:
    logging.getLogger("somebody").info("chatter")
    logging.getLogger("quic").error("a peer sent an invalid frame")
    logging.getLogger("somebody").warning("worth reading")
    assert len(scene.lines) == 1 and "worth reading" in scene.lines[0]


def test_a_place_that_logs_again_and_again_is_cut_short(scene: Scene) -> None:
    def repeat(number: int) -> None:
        log.warning("failure %d", number)

    for number in range(1000):
        repeat(number)
    assert len(scene.lines) == BURST
    scene.now += WINDOW_S
    repeat(1000)
    assert scene.lines[-1].endswith(f"failure 1000 ({1000 - BURST} similar lines were omitted)")


def test_an_occasional_event_is_logged_at_once_and_then_with_its_count(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    event = Occasional(log, "%s is full", seconds=lambda: now)
    for _ in range(500):
        event.note("it")
    now += server_log.OFTEN_S
    event.note("it")
    assert [record.getMessage() for record in caplog.records] == [
        "it is full",
        "it is full (500 times since the last such line)",
    ]
