"""Make a running vllm-router, sglang-router or smg use these engines and no others, as `headway conformance --reload`
needs it. Their three APIs differ in how an engine is named when it is removed.

python set_workers.py PORT URL [URL ...]"""

from __future__ import annotations

import json
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

SETTLE_S = 15.0


def call(port: int, method: str, path: str, document: object = None) -> Any:
    data = None if document is None else json.dumps(document).encode()
    fields = {"content-type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, fields, method=method)
    with urllib.request.urlopen(request, timeout=10) as answer:
        text = answer.read()
    try:
        return json.loads(text)
    except ValueError:  # vllm-router answers in words
        return text.decode()


def workers(port: int) -> dict[str, str]:
    """Return the names by which engines are removed, by URL."""
    return {worker["url"]: worker.get("id", worker["url"]) for worker in call(port, "GET", "/workers")["workers"]}


def main(port: int, urls: list[str]) -> None:
    before = workers(port)
    for url, name in before.items():
        if url not in urls:
            call(port, "DELETE", f"/workers/{urllib.parse.quote(name, safe='')}")
    for url in urls:
        if url not in before:
            call(port, "POST", "/workers", {"url": url})
    end = time.monotonic() + SETTLE_S
    while sorted(workers(port)) != sorted(urls):  # they add and remove engines in the background
        if time.monotonic() > end:
            raise SystemExit(f"The router uses {sorted(workers(port))}, not {sorted(urls)}.")
        time.sleep(0.1)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
