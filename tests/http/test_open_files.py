"""The limit of open files."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from typing import Any

import pytest

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")

from headway.http import open_files
from headway.http.client_limits import Limits
from headway.http.open_files import OpenFiles, fit_connections

FULL = OSError(errno.EMFILE, "Too many open files")


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> int:
        raise FULL

    monkeypatch.setattr(open_files.os, "open", refuse)


def test_connections_are_cut_to_what_the_process_can_open(caplog: pytest.LogCaptureFixture) -> None:
    limits = fit_connections(Limits(connections=16_384), 2, 1024)
    assert limits.connections == (1024 - 136) // 2
    assert "reduced from 16,384 to 444, because this process may open only 1,024 files" in caplog.text
    assert "Raise the limit (ulimit -n) to 32,904, or set limits.connections to at most 444." in caplog.text


@pytest.mark.parametrize("files", [None, 40_000])
def test_connections_stay_if_the_process_can_open_enough(caplog: pytest.LogCaptureFixture, files: int | None) -> None:
    assert fit_connections(Limits(connections=16_384), 64, files) == Limits(connections=16_384)
    assert not caplog.records


def test_a_tiny_limit_leaves_some_connections_and_files_to_refuse_others() -> None:
    assert [fit_connections(Limits(), 4096, files).connections for files in (20, 64, 256)] == [1, 16, 96]


def test_a_shortage_is_told_from_other_errors_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    files = OpenFiles()
    assert not files.are_short(OSError(errno.ECONNREFUSED, "refused")) and not caplog.records
    wrapped = Exception("cannot connect")
    wrapped.os_error = FULL  # type: ignore[attr-defined]
    for error in (FULL, OSError(errno.ENFILE, "machine"), wrapped) * 100:
        assert files.are_short(error)
    assert len(caplog.records) == 1 and caplog.records[0].levelno == logging.ERROR


def test_an_error_while_no_file_can_be_opened_is_a_shortage(full: None) -> None:
    assert OpenFiles().are_short(OSError("Temporary failure in name resolution"))


def test_connections_that_cannot_be_accepted_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        loop, files = asyncio.get_running_loop(), OpenFiles()
        for _ in range(1000):
            files.handle(loop, {"message": "socket.accept() out of system resource", "exception": FULL})
        assert len(caplog.records) == 1 and caplog.records[0].name == "headway.gateway"
        files.handle(loop, {"message": "a bug", "exception": ValueError("x")})
        assert caplog.records[-1].name == "asyncio"

    asyncio.run(run())


def test_a_process_that_can_open_only_a_few_files_is_short_of_them(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    left, really_open, really_close = 5, os.open, os.close

    def open_file(*arguments: Any) -> int:
        nonlocal left
        if not left:
            raise FULL
        left -= 1
        return really_open(*arguments)

    def close(file: int) -> None:
        nonlocal left
        left += 1
        really_close(file)

    monkeypatch.setattr(open_files.os, "open", open_file)
    monkeypatch.setattr(open_files.os, "close", close)
    files = OpenFiles()
    assert not files.are_short() and not caplog.records
    assert files.are_short(spare=6) and len(caplog.records) == 1
    assert left == 5  # all are closed again


def test_a_test_for_a_shortage_leaves_no_file_open() -> None:
    first = os.open(os.devnull, os.O_RDONLY)
    os.close(first)
    assert not OpenFiles().are_short(spare=5)
    again = os.open(os.devnull, os.O_RDONLY)
    os.close(again)
    assert again == first
