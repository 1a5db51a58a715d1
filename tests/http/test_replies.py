"""Replies that a server creates itself."""

from __future__ import annotations

from headway.http.replies import head_of


def test_an_answer_that_asks_the_client_to_try_later_says_when() -> None:
    for status in (429, 503):
        assert b"\r\nretry-after: 1\r\n" in head_of(status, 0)
        assert head_of(status, 0, (("retry-after", "7"),)).count(b"retry-after") == 1
    assert b"retry-after" not in head_of(502, 0)
