"""Endpoints with invalid answers: they enter no figure, and each has a reason."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")

from canned import DONE, STREAM, Canned, event, stream

from headway.load.asking import Ask
from headway.load.driver import load
from headway.load.line import LINE

SCENARIO = {
    "seed": 3,
    "workload": {"requests": 3, "rate": "50/s", "prompt_tokens": 64, "output_tokens": 4},
    "cluster": {"instances": 1, "latency": {"model": "fixed"}},
}
PAGE = b"<html>\n<body>hello</body>\n</html>"
BAD = {
    "redirect": (b"HTTP/1.1 302 Found\r\nlocation: /login\r\ncontent-length: 0\r\n\r\n", "status 302"),
    "page": (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: %d\r\n\r\n%b" % (len(PAGE), PAGE),
        "no tokens",
    ),
    "nothing": (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", "no tokens"),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", "no tokens"),
    "rubbish": (b"\x00\xff what?\r\n\r\n", "not valid HTTP/1.1"),
    "upgrade": (b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n", "not valid HTTP/1.1"),
    "endless line": (STREAM + b"%x\r\n%b\r\n" % (LINE + 1, b"x" * (LINE + 1)), "more than 4,000,000 bytes"),
}


def seen(answer: bytes) -> Any:
    endpoint = Canned(answer)
    try:
        return load(Ask(endpoint.url), SCENARIO)
    finally:
        endpoint.stop()


@pytest.mark.parametrize("kind", BAD)
def test_what_is_no_answer_fails_and_is_told(kind: str) -> None:
    answer, why = BAD[kind]
    result = seen(answer)
    assert set(result.requests.column("outcome")) == {"failed"}
    assert [one for one in result.summary()["client"]["reasons"] if why in one]


@pytest.mark.parametrize("number", ["9" * 30, "9" * 5000])
def test_lengths_that_cannot_be_are_not_believed(number: str) -> None:
    usage = '{"usage": {"prompt_tokens": @, "completion_tokens": @, "prompt_tokens_details": {"cached_tokens": @}}}'
    told = f"data: {usage.replace('@', number)}\n\n".encode()
    result = seen(stream(event(content="a"), event(content="b"), told, DONE))
    assert set(result.requests.column("outcome")) == {"completed"}
    assert set(result.requests.column("output_tokens")) == {2}
    assert set(result.requests.column("prompt_tokens")) == {64}


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://127.0.0.1:9", "URL: http://127.0.0.1:9 cannot be reached (Connection refused)"),
        ("http://127.0.0.1:9/v1?key=x", "Remove the part from ? or # on"),
    ],
)
def test_an_endpoint_that_cannot_be_asked_is_told_before_anything_is_sent(headway, url: str, why: str) -> None:
    completed = headway("load", url)
    assert completed.returncode == 2 and why in completed.stderr and "Traceback" not in completed.stderr


def test_a_key_that_no_header_can_have_is_refused(headway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOAD_TEST_KEY", "one\nx-evil: two")
    completed = headway("load", "http://127.0.0.1:9", "--key-env", "LOAD_TEST_KEY")
    assert (
        completed.returncode == 2
        and "LOAD_TEST_KEY has characters that an HTTP header may not have" in completed.stderr
    )
