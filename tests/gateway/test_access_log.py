"""The access log."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")
pytest.importorskip("xxhash", reason="the extra `gateway` is not installed")

from asking import chat, fetch


def accesses(caplog: pytest.LogCaptureFixture) -> list[Any]:
    return [record for record in caplog.records if record.name == "headway.access"]


def test_the_access_log_is_off_by_default(live, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    gateway = live(1)
    assert chat(gateway).status == 200 and fetch(f"{gateway.url}/nowhere").status == 404
    assert not accesses(caplog)


def test_the_access_log_names_engine_outcome_and_times_but_no_text(live, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    gateway = live(1, log={"access": 1})
    assert chat(gateway, "a secret question", stream=True, model="m m").status == 200
    gateway.until(lambda: len(accesses(caplog)) == 1)
    record = accesses(caplog)[0]
    fields, message = record.fields, record.getMessage()
    assert (fields["status"], fields["outcome"], fields["engine"]) == (200, "completed", "e0")
    assert fields["output_tokens"] == 5 and fields["total_ms"] >= fields["first_token_ms"] > 0
    assert "method=POST path=/v1/chat/completions status=200" in message and 'model="m m"' in message
    assert "secret" not in message and "secret" not in str(fields)


def test_refused_requests_are_in_the_access_log(live, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    gateway = live(1, log={"access": 1})
    assert fetch(f"{gateway.url}/nowhere?key=hidden").status == 404
    assert "path=/v1/nowhere status=404" in accesses(caplog)[0].getMessage()
    assert "hidden" not in accesses(caplog)[0].getMessage()


def test_a_share_of_requests_is_logged_evenly(live, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    gateway = live(1, log={"access": 0.25})
    for _ in range(20):
        fetch(f"{gateway.url}/nowhere")
    assert len(accesses(caplog)) == 5
