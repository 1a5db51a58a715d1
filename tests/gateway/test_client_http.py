"""What correct clients may send: HTTP/1.0, null values, header fields; and what the engine receives of it."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")

from rough import BODY, RoughEngine, connect, http_post, read_all, says, send

EVENTS = b"".join(b'data: {"choices":[{"index":0,"delta":{"content":"t%d"}}]}\n\n' % number for number in range(3))


def old_post(body: object = BODY, fields: bytes = b"", path: bytes = b"/v1/chat/completions") -> bytes:
    """Return an HTTP/1.0 request without a host."""
    return http_post(body, fields, path).replace(b"HTTP/1.1\r\nhost: x", b"HTTP/1.0", 1)


def split(answer: bytes) -> tuple[list[bytes], bytes]:
    """Return the lines of the head and the body of an answer."""
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.split(b"\r\n"), body


# --- HTTP/1.0 --------------------------------------------------------------------------------------------------------


def test_http_1_0_gets_its_answer_and_a_closed_connection(live):
    lines, body = split(send(live(1), old_post()))
    assert lines[0].endswith(b"200 OK") and b"connection: close" in lines
    assert b"content-length: %d" % len(body) in lines
    assert json.loads(body)["choices"][0]["message"]["content"] == "hello"


def test_a_stream_for_http_1_0_has_no_chunks_and_ends_with_the_connection(live):
    gateway = live(1)
    lines, body = split(send(gateway, old_post({**BODY, "stream": True}, b"connection: keep-alive\r\n")))
    assert b"connection: close" in lines and not any(line.startswith(b"transfer-encoding") for line in lines)
    events = body.split(b"\n\n")
    assert len(events) == 7 and all(event.startswith(b"data: ") for event in events[:6])
    assert events[5:] == [b"data: [DONE]", b""]
    gateway.until(gateway.idle)


def test_a_broken_stream_for_http_1_0_ends_with_a_plain_error_event(live):
    gateway = live(1)
    gateway.engines[0].mode = "die"
    body = split(send(gateway, old_post({**BODY, "stream": True})))[1]
    events = body.split(b"\n\n")
    assert len(events) == 4 and "error" in json.loads(events[2].removeprefix(b"data: "))


def test_http_1_0_keeps_the_connection_only_on_request(live):
    gateway = live(1)
    health = b"GET /health HTTP/1.0\r\n%b\r\n"
    assert b"connection: close" in split(send(gateway, health % b""))[0]
    with connect(gateway) as sock:
        sock.sendall(
            old_post(fields=b"connection: keep-alive\r\n") + health % b"connection: keep-alive\r\n" + old_post()
        )
        answers = read_all(sock)
    assert answers.count(b"HTTP/1.1 200 OK") == 3
    assert answers.count(b"connection: keep-alive") == 2 and answers.count(b"connection: close") == 1


def test_http_1_0_gets_no_interim_answer(live):
    assert send(live(1), old_post(fields=b"expect: 100-continue\r\n")).count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("logprobs", [None, True])
def test_a_cascade_serves_http_1_0(live, logprobs):
    chain = {"chains": {"answer": ["e0", "e1"]}, "confident_tokens": 2}
    gateway = live(2, members={name: {"models": [name]} for name in ("e0", "e1")}, cascade=chain)
    gateway.engines[0].logprob = -0.1
    lines, body = split(send(gateway, old_post({**BODY, "model": "answer", "stream": True, "logprobs": logprobs})))
    assert b"x-headway-cascade: 1/2 e0" in lines
    events = body.split(b"\n\n")
    assert len(events) == 7 and all(event.startswith(b"data: ") for event in events[:6])


# --- null ------------------------------------------------------------------------------------------------------------

CHAT_NULLS = [
    "audio",
    "frequency_penalty",
    "logit_bias",
    "logprobs",
    "max_completion_tokens",
    "max_tokens",
    "metadata",
    "modalities",
    "n",
    "prediction",
    "presence_penalty",
    "prompt_cache_key",
    "reasoning_effort",
    "safety_identifier",
    "seed",
    "service_tier",
    "stop",
    "store",
    "stream",
    "stream_options",
    "temperature",
    "top_logprobs",
    "top_p",
    "verbosity",
]
COMPLETION_NULLS = [
    "best_of",
    "echo",
    "frequency_penalty",
    "logit_bias",
    "logprobs",
    "max_tokens",
    "n",
    "presence_penalty",
    "prompt",
    "seed",
    "stop",
    "stream",
    "stream_options",
    "suffix",
    "temperature",
    "top_p",
]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (b"/v1/chat/completions", {**BODY, **dict.fromkeys(CHAT_NULLS)}),
        (
            b"/v1/chat/completions",
            {"model": "m", "messages": [{"role": "assistant", "content": None, "refusal": None}]},
        ),
        (b"/v1/completions", {"model": "m", **dict.fromkeys(COMPLETION_NULLS)}),
        (b"/v1/embeddings", {"model": "m", "input": "x", "user": None}),
        (
            b"/v1/chat/completions",
            {**BODY, **dict.fromkeys(("user", "tools", "prompt", "input", "kv_transfer_params"))},
        ),
    ],
)
def test_null_is_accepted_wherever_openai_accepts_it(live, path, body):
    gateway = live(1)
    data = json.dumps(body).encode()
    lines, _ = split(send(gateway, http_post(data, b"connection: close\r\n", path)))
    assert lines[0] == b"HTTP/1.1 200 OK"
    assert gateway.engines[0].bodies == [data]


def test_null_is_no_prompt(live):
    gateway = live(1)
    paths = []
    gateway.app.services.on_end.append(lambda exchange, *rest: paths.append(exchange.request.path))
    long = "hello there " * 100
    for body in ({"prompt": long}, {"messages": None, "prompt": long, "input": None}):
        send(gateway, http_post({"model": "m", **body}, b"connection: close\r\n", b"/v1/completions"))
    gateway.until(lambda: len(paths) == 2)
    assert paths[0] == paths[1] and len(paths[0].keys) > 1


# --- header fields ---------------------------------------------------------------------------------------------------


def test_fields_of_the_gateway_never_reach_an_engine(live):
    gateway = live(1)
    names = ("tenant", "class", "session", "deadline", "target", "request", "anything")
    fields = "".join(f"X-Headway-{name}: {'9s' if name == 'deadline' else 'x'}\r\n" for name in names).encode()
    send(gateway, http_post(fields=fields + b"connection: close\r\nx-mine: y\r\n"))
    received = gateway.engines[0].fields[0]
    assert received[b"x-mine"] == b"y"
    assert not [name for name in received if name.startswith(b"x-headway")]


def test_fields_named_in_connection_are_forwarded_in_neither_direction(live):
    answer = (
        b"HTTP/1.1 200 OK\r\nconnection: x-Hop, content-length\r\nconnection: x-more\r\nx-hop: 1\r\nx-more: 2\r\n"
        b"x-kept: 3\r\nx-headway-judged: 4\r\ncontent-length: 2\r\n\r\n{}"
    )
    received = []

    def act(sock, request):
        received.append(request)
        says(answer)(sock, request)

    engine = RoughEngine(act)
    gateway = live(0, backends={"rough": engine.url})
    fields = b"connection: close, X-Secret\r\nConnection: x-other\r\nx-secret: a\r\nx-other: b\r\nx-kept: c\r\n"
    lines, body = split(send(gateway, http_post(fields=fields)))
    assert body == b"{}" and b"content-length: 2" in lines and b"x-kept: 3" in lines
    assert not [line for line in lines if line.startswith((b"x-hop", b"x-more", b"x-headway-judged"))]
    head = received[0].partition(b"\r\n\r\n")[0]
    assert b"x-kept: c" in head
    assert not any(name in head for name in (b"x-secret", b"x-other", b"connection"))
    engine.close()
