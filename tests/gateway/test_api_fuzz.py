"""Made-up HTTP and JSON on the paths of all APIs: every request gets an answer, and engines receive what was read."""

from __future__ import annotations

import json
import re
import socket
from hashlib import sha256
from pathlib import Path
from random import Random

import pytest

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")

from rough import http_post, read_all

from headway.config.documents import yaml_text

BATCH = 1000
MOST_GROWTH_MB = 50  # from the end of the first batch to the end of the test
PATHS = [b"/v1/chat/completions", b"/v1/responses", b"/v1/messages", b"/v1/messages/count_tokens", b"/v1/rerank"]
SAID = [{"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "tool_result", "tool_use_id": "a"}]}]
BODIES = [
    {"model": "m", "messages": SAID, "system": [{"type": "text", "text": "x", "cache_control": {}}], "max_tokens": 3},
    {
        "model": "fast",
        "input": SAID,
        "instructions": "x",
        "previous_response_id": "resp_1",
        "conversation": {"id": "c"},
    },
    {"model": "gone", "input": "hello", "stream": True, "metadata": {"user_id": "u"}, "tools": [{"name": "f"}]},
    {"model": "m", "messages": SAID, "prompt_cache_key": "k", "stream": False, "query": "POST /v1/x HTTP/1.1\r\n\r\n"},
]
FORM = (
    b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\nfast\r\n'
    b'--b\r\ncontent-disposition: form-data; name="file"; filename="a.wav"\r\n'
    b"content-type: audio/wav\r\n\r\n\x00\xff\r\n--b--\r\n"
)
TOKENS = [
    b"{",
    b"}",
    b"[",
    b"]",
    b'"',
    b"\\",
    b",",
    b":",
    b"null",
    b"1e9",
    b"\\u0000",
    b"\\ud800",
    b"\xff",
    b'"model":"m",',
    b"\r\n",
    b"--b\r\n",
]
JSON = b"content-type: application/json\r\n"
HEADERS = [b"", b"transfer-encoding: chunked\r\n", b"content-length: 3\r\n", b"x-headway-class: \xff\r\n", JSON, JSON]
HEADERS += [
    b"content-type: multipart/form-data; boundary=b\r\n",
    b"x-headway-deadline: 9s\r\nx-headway-tenant: \xb2\r\n",
]
KEYS = [b"authorization: Bearer ann\r\n", b"x-api-key: bob\r\n"]


def mutate(random: Random, data: bytes) -> bytes:
    """Return the data with a few pieces inserted, removed or repeated."""
    for _ in range(random.choice((0, 0, 0, 1, 1, 2, 3))):
        at, size = random.randrange(len(data) + 1), random.randrange(8)
        piece = random.choice([*TOKENS, data[at : at + 40], bytes([random.randrange(256)])])
        data = data[:at] + piece + data[at + size :]
    return data


def resident_mb() -> float:
    """Return the memory of this process."""
    return int(re.search(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1024


def make_up(random: Random) -> bytes:
    body = FORM if random.random() < 0.1 else json.dumps(random.choice(BODIES)).encode()
    head = random.choice(HEADERS) + random.choice(KEYS)
    request = http_post(mutate(random, body), head, random.choice(PATHS))
    return mutate(random, request) if random.random() < 0.3 else request


def ask(port: int, number: int, data: bytes) -> bytes:
    source = (f"127.0.0.{number % 200 + 1}", 0)  # several addresses, because each has few ports
    with socket.create_connection(("127.0.0.1", port), timeout=300, source_address=source) as sock:
        try:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
        except OSError:  # the gateway has refused it already
            pass
        return read_all(sock)


@pytest.mark.parametrize(
    "cases",
    [
        200,
        pytest.param(20_000, marks=pytest.mark.full),
        pytest.param(1_000_000, marks=pytest.mark.long),
    ],
)
def test_every_request_gets_an_answer_and_engines_receive_what_was_read(live, tmp_path, cases):
    limits = {"concurrency": 100, "token_rate": "1000000000/s"}
    file = tmp_path / "keys.yaml"
    owners = {"ann": limits, "bob": {**limits, "models": ["fast", "gone"]}}
    file.write_text(yaml_text({name: {"sha256": sha256(name.encode()).hexdigest(), **owners[name]} for name in owners}))
    routes = [{"path": "/v1/rerank"}]
    gateway = live(1, aliases={"fast": "m"}, fallbacks={"gone": ["m"]}, routes=routes, keys=str(file), retries=0)
    engine, reception, sent = gateway.engines[0], gateway.app.reception, []
    gateway.app.services.on_end.append(lambda exchange, *_: sent.append(exchange.body) if exchange.attempts else None)
    random, begun = Random(cases), 0.0
    batch = max(BATCH, cases // 100)
    for number in range(cases):
        data = make_up(random)
        answer = ask(gateway.port, number, data)
        assert answer.startswith(b"HTTP/1.1 ") and not answer.startswith(b"HTTP/1.1 500"), (data, answer)
        if number % batch == batch - 1 or number == cases - 1:
            gateway.until(gateway.idle)
            gateway.until(lambda: not reception.clients)
            assert sorted(engine.bodies) == sorted(sent)
            assert reception.held_bytes == 0 and len(reception.response_ids.known) <= BATCH
            assert {key.inflight for key in reception.keyring.keys.values()} == {0}
            engine.bodies.clear()
            engine.fields.clear()
            sent.clear()
            begun = begun or resident_mb()
            print(f"{number + 1:,} cases, {resident_mb():.1f} MB")
    assert resident_mb() < begun + MOST_GROWTH_MB
