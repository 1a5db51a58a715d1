"""A plain client of the router, which records when each piece of an answer arrives."""

import asyncio
import json
import re
import time
from typing import Any, Final

from msgspec import Struct

from headway.http.address import Address
from headway.http.client import HttpClient, NoAnswer
from headway.types import Json

CONTENT: Final = re.compile(rb'"(?:content|text)": ?"[^"]')
WAIT_S: Final = 30.0
PLAIN: Final = {"accept-encoding": "identity"}


class Answer(Struct):
    status: int = 0
    pieces: list[tuple[float, int]] = []  # for each piece: arrival time and number of tokens
    complete: bool = False  # whether the stream ended with [DONE]
    error: bool = False  # whether the stream has an error event
    whole: bool = False  # whether the HTTP body is complete
    fields: dict[str, str] = {}

    @property
    def tokens(self) -> int:
        return sum(count for _, count in self.pieces)

    def hear(self, lines: bytes) -> None:
        """Record lines of the answer that have just arrived."""
        count = len(CONTENT.findall(lines))
        if count:
            self.pieces.append((time.monotonic(), count))
        self.complete = self.complete or b"data: [DONE]" in lines
        self.error = self.error or b'"error"' in lines


class Router:
    def __init__(self, url: str, model: str, key: str | None = None) -> None:
        self.address = Address(url.rstrip("/").removesuffix("/v1"), "URL")
        self.model, self.key = model, key

    def ask(self, prompt: str, tokens: int = 4, api: str = "chat", leave_after: int | None = None) -> Answer:
        """Request a stream of tokens, and return the answer. If `leave_after` is set, disconnect after that number of
        tokens."""
        body: Json = {"model": self.model, "max_tokens": tokens, "stream": True, "ignore_eos": True}
        if api == "chat":
            path, body["messages"] = "/v1/chat/completions", [{"role": "user", "content": prompt}]
        else:
            path, body["prompt"] = "/v1/completions", prompt
        fields = {"content-type": "application/json", **PLAIN}
        if self.key is not None:
            fields["authorization"] = f"Bearer {self.key}"
        return asyncio.run(self._ask(f"{self.address.root}{path}", json.dumps(body).encode(), fields, leave_after))

    async def _ask(self, url: str, body: bytes, fields: dict[str, str], leave_after: int | None) -> Answer:
        answer = Answer(pieces=[])
        client = HttpClient(WAIT_S, redirects=False)
        try:
            async with client.stream("POST", url, body, fields, WAIT_S) as stream:
                answer.status, answer.fields = stream.status, stream.fields
                rest = b""
                async for data in stream.pieces():
                    lines, _, rest = (rest + data).rpartition(b"\n")
                    answer.hear(lines)
                    if leave_after is not None and answer.tokens >= leave_after:
                        return answer
                answer.hear(rest)
                answer.whole = True
        except NoAnswer:
            pass  # return the part of the answer that has arrived
        finally:
            await client.close()
        return answer


def text(seed: Any, words: int = 600) -> str:
    """Return a prompt that shares no prefix with the prompts of other seeds."""
    return f"case {seed} " + " ".join(f"{seed}-{number % 7}" for number in range(words))


def get(url: str, seconds: float = 5.0) -> tuple[int, str]:
    """Return the status and text of a page. If the server does not answer, return status 0 and an empty string."""
    return asyncio.run(_get(Address(url, "--metrics").root, seconds))


async def _get(url: str, seconds: float) -> tuple[int, str]:
    client = HttpClient(seconds, redirects=False)
    try:
        answer = await client.get(url, PLAIN)
    except NoAnswer:
        return 0, ""
    finally:
        await client.close()
    return answer.status, answer.body.decode(errors="replace")


def wait_until_up(router: Router, seconds: float, alive: Any = lambda: True) -> bool:
    """Wait until the router serves a request. Return False after `seconds`, or if `alive` returns False."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and alive():
        if router.ask("are you there", 1).status == 200:
            return True
        time.sleep(0.3)
    return False
