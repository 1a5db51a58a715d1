"""Asks the router as a plain client does, and notes when each piece of the answer comes."""

from __future__ import annotations

import http.client
import json
import re
import time
from typing import Any, Final

from msgspec import Struct

from headway.http.address import Address

CONTENT: Final = re.compile(rb'"(?:content|text)": ?"[^"]')
WAIT_S: Final = 30.0


class Answer(Struct):
    status: int = 0
    pieces: list[tuple[float, int]] = []  # when content came, and how many tokens of it
    done: bool = False  # the stream said that it was complete
    error: bool = False  # it said that it was not
    whole: bool = False  # HTTP's own end has come
    fields: dict[str, str] = {}

    @property
    def tokens(self) -> int:
        return sum(count for _, count in self.pieces)

    def hear(self, lines: bytes) -> None:
        """Whole lines of it have come."""
        count = len(CONTENT.findall(lines))
        if count:
            self.pieces.append((time.monotonic(), count))
        self.done = self.done or b"data: [DONE]" in lines
        self.error = self.error or b'"error"' in lines


class Router:
    """Where the router is."""

    def __init__(self, url: str, model: str, key: str | None = None) -> None:
        self.address = Address(url.rstrip("/").removesuffix("/v1"), "URL")
        self.model, self.key = model, key

    def ask(self, prompt: str, tokens: int = 4, api: str = "chat", leave_after: int | None = None) -> Answer:
        """A stream of so many tokens. `leave_after` so many the client goes."""
        path, said = ("/v1/chat/completions", {"messages": [{"role": "user", "content": prompt}]})
        if api == "completions":
            path, said = "/v1/completions", {"prompt": prompt}  # type: ignore[dict-item]
        body = {"model": self.model, "max_tokens": tokens, "stream": True, "ignore_eos": True, **said}
        fields = {"content-type": "application/json"}
        if self.key is not None:
            fields["authorization"] = f"Bearer {self.key}"
        found = Answer(pieces=[])
        connection = connected(self.address, WAIT_S)
        try:
            connection.request("POST", self.address.base.decode() + path, json.dumps(body), fields)
            answer = connection.getresponse()
            found.status = answer.status
            found.fields = {name.lower(): value for name, value in answer.getheaders()}
            self._read(answer, found, leave_after)
        except (OSError, http.client.HTTPException):
            pass  # what has come so far tells
        finally:
            connection.close()
        return found

    def _read(self, answer: http.client.HTTPResponse, found: Answer, leave_after: int | None) -> None:
        rest = b""
        while data := answer.read1(65536):
            lines, _, rest = (rest + data).rpartition(b"\n")
            found.hear(lines)
            if leave_after is not None and found.tokens >= leave_after:
                return
        found.hear(rest)
        found.whole = True


def connected(address: Address, seconds: float) -> http.client.HTTPConnection:
    kind = http.client.HTTPSConnection if address.tls else http.client.HTTPConnection
    return kind(address.host, address.port, timeout=seconds)


def text(seed: Any, words: int = 600) -> str:
    """A prompt that begins like no other."""
    return f"case {seed} " + " ".join(f"{seed}-{number % 7}" for number in range(words))


def get(url: str, seconds: float = 5.0) -> tuple[int, str]:
    """Status and text of a page; 0 where nobody answers."""
    address = Address(url, "--metrics")
    connection = connected(address, seconds)
    try:
        connection.request("GET", address.base.decode() or "/")
        answer = connection.getresponse()
        return answer.status, answer.read().decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return 0, ""
    finally:
        connection.close()


def wait_until_up(router: Router, seconds: float, alive: Any = lambda: True) -> bool:
    """Until a request is served."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and alive():
        if router.ask("are you there", 1).status == 200:
            return True
        time.sleep(0.3)
    return False
