"""Requests to a gateway and its admin API, with the standard library only."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

KEY = "the-admin-key"
ADMIN = {"listen": "127.0.0.1:0", "key_env": "TEST_ADMIN_KEY"}


class Answer:
    def __init__(self, status: int, headers: Any, body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def said(self) -> str:
        """The message of an error."""
        return str(self.json()["error"]["message"])


def fetch(url: str, body: bytes | None = None, method: str | None = None, **fields: str) -> Answer:
    request = urllib.request.Request(url, body, {name.replace("_", "-"): value for name, value in fields.items()})
    request.method = method or request.get_method()
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:
            return Answer(answer.status, answer.headers, answer.read())
    except urllib.error.HTTPError as error:
        return Answer(error.code, error.headers, error.read())


def chat(live: Any, text: str = "hello there", stream: bool = False, model: str = "m", **fields: str) -> Answer:
    body = {"model": model, "messages": [{"role": "user", "content": text}], "stream": stream}
    return fetch(f"{live.url}/chat/completions", json.dumps(body).encode(), **fields)


def component(live: Any, name: str) -> Any:
    return next(part for part in live.app.components if type(part).__name__ == name)


def admin(
    live: Any, path: str, method: str = "GET", body: object = None, key: str | None = KEY, **fields: str
) -> Answer:
    url = f"http://127.0.0.1:{component(live, 'Admin').port}{path}"
    if key is not None:
        fields.setdefault("Authorization", f"Bearer {key}")
    return fetch(url, None if body is None else json.dumps(body).encode(), method, **fields)


def count_ended(live: Any) -> int:
    """Return the number of finished requests in the metrics."""
    groups = list(live.app.metrics.groups.values())
    return sum(count for group in groups for count in list(group.ends.values()))
