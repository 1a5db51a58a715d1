"""If a model fails, is overloaded or cannot hold the prompt, another model answers."""

from __future__ import annotations

import json
import socket
from contextlib import ExitStack

import pytest

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")

from asking import chat, fetch
from openai_client import openai, openai_client
from test_model_names import keys_file

from headway.errors import HeadwayError
from headway.gateway.config import Config

MESSAGES = [{"role": "user", "content": "hello"}]
TOO_LONG = [
    "This model's maximum context length is 10 tokens. However, your request has 12 input tokens.",
    "The input (12 tokens) is longer than the model's context length (10 tokens).",
    "Input length (12 tokens) exceeds the maximum allowed length (10 tokens).",
    "the request exceeds the available context size, try increasing it",
    "prompt is too long: 12 tokens > 10 maximum",
]


def start(live, count=2, **more):
    members = {f"e{number}": {"models": [f"m{number}"]} for number in range(count)}
    more.setdefault("fallbacks", {"m0": [f"m{number}" for number in range(1, count)]})
    return live(count, members=members, patience="50ms", **{"retries": 0, **more})


def refuse(engine, status, message):
    """Let an engine answer requests with an error."""

    async def before(body):
        return {"refusal": (status, message)}

    engine.before = before


def hold(gateway):
    """Send a request for m0, and return its connection."""
    client = socket.create_connection(("127.0.0.1", gateway.port), timeout=60)
    body = json.dumps({"model": "m0", "messages": MESSAGES}).encode()
    client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    return client


def header(answer):
    return answer.headers.get("x-headway-fallback")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("mode", ["error", "busy", "reset", "garbage"])
def test_another_model_answers_if_one_fails(live, mode, stream):
    gateway = start(live)
    gateway.engines[0].mode = mode
    answer = chat(gateway, model="m0", stream=stream)
    cause = "overload" if mode == "busy" else "error"
    assert (answer.status, header(answer)) == (200, f"m1; from=m0; cause={cause}")
    assert [json.loads(engine.bodies[-1])["model"] for engine in gateway.engines] == ["m0", "m1"]
    assert gateway.engines[1].bodies[0] == gateway.engines[0].bodies[0].replace(b'"m0"', b'"m1"')
    gateway.until(gateway.idle)


def test_a_model_that_answers_needs_no_fallback(live):
    gateway = start(live)
    answer = chat(gateway, model="m0")
    assert header(answer) is None and answer.headers["x-headway-target"] == "e0"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("message", TOO_LONG)
def test_a_prompt_that_is_too_long_goes_to_another_model(live, message, stream):
    gateway = start(live)
    refuse(gateway.engines[0], 400, message)
    answer = chat(gateway, model="m0", stream=stream)
    assert (answer.status, header(answer)) == (200, "m1; from=m0; cause=context")
    gateway.until(gateway.idle)


@pytest.mark.parametrize("stream", [False, True])
def test_other_errors_of_the_request_are_the_answer(live, stream):
    gateway = start(live)
    refuse(gateway.engines[0], 400, "temperature must be positive")
    answer = chat(gateway, model="m0", stream=stream)
    assert (answer.status, answer.said, header(answer)) == (400, "temperature must be positive", None)
    refuse(gateway.engines[0], 400, "x" * 200_000 + TOO_LONG[0])  # too long to be looked at
    assert chat(gateway, model="m0", stream=stream).status == 400
    assert not gateway.engines[1].bodies
    gateway.until(gateway.idle)


def test_a_model_without_an_engine_is_skipped(live):
    gateway = start(live, fallbacks={"gone": ["none", "m1"]})
    answer = chat(gateway, model="gone")
    assert (answer.status, header(answer)) == (200, "m1; from=gone; cause=error")


def test_a_request_that_admission_rejects_goes_to_another_model(live):
    small = {"max_batch_size": 1, "max_queue": 1}  # the default admission lets two requests in
    gateway = live(2, members={"e0": {"models": ["m0"], **small}, "e1": {"models": ["m1"]}}, fallbacks={"m0": ["m1"]})
    gateway.engines[0].mode = "hang"
    with ExitStack() as held:
        for _ in range(2):
            held.enter_context(hold(gateway))
        gateway.until(lambda: gateway.engines[0].under_way == 2)
        answer = chat(gateway, model="m0")
        assert (answer.status, header(answer)) == (200, "m1; from=m0; cause=overload")
    gateway.until(gateway.idle)


def test_the_last_failure_is_the_answer(live):
    gateway = start(live, 3)
    for engine in gateway.engines:
        engine.mode = "error"
    answer = chat(gateway, model="m0")
    assert (answer.status, header(answer)) == (500, "m2; from=m0; cause=error")
    assert [len(engine.bodies) for engine in gateway.engines] == [1, 1, 1]
    gateway.until(gateway.idle)


def test_retries_come_before_fallbacks(live):
    gateway = live(
        3,
        members={"e0": {"models": ["a"]}, "e1": {"models": ["a"]}, "e2": {"models": ["b"]}},
        fallbacks={"a": ["b"]},
        retries=1,
    )
    gateway.engines[0].mode = gateway.engines[1].mode = "busy"
    assert header(chat(gateway, model="a")) == "b; from=a; cause=overload"
    assert [len(engine.bodies) for engine in gateway.engines] == [1, 1, 1]
    gateway.until(gateway.idle)


def test_only_the_causes_on_the_list_count(live):
    gateway = start(live, fallbacks={"m0": {"models": ["m1"], "causes": ["context"]}})
    gateway.engines[0].mode = "busy"
    assert chat(gateway, model="m0").status == 503
    gateway.engines[0].mode = "reset"
    assert chat(gateway, model="m0").status == 502
    assert not gateway.engines[1].bodies


def test_a_stream_that_breaks_is_not_answered_twice(live):
    gateway = start(live)
    gateway.engines[0].mode = "die"
    with pytest.raises(openai.APIError, match="e0: the connection was lost"):
        list(openai_client(gateway.url).chat.completions.create(model="m0", messages=MESSAGES, stream=True))
    assert not gateway.engines[1].bodies
    gateway.until(gateway.idle)


def test_a_deadline_ends_all_models(live):
    gateway = start(live)
    gateway.engines[0].mode, gateway.engines[1].mode = "error", "hang"
    answer = chat(gateway, model="m0", x_headway_deadline="2s")
    assert (answer.status, header(answer)) == (504, "m1; from=m0; cause=error")
    gateway.until(lambda: gateway.engines[1].cancelled == 1)
    gateway.until(gateway.idle)


def test_a_client_that_disconnects_ends_the_request(live):
    gateway = start(live)
    gateway.engines[0].mode, gateway.engines[1].mode = "error", "hang"
    with hold(gateway):
        gateway.until(lambda: gateway.engines[1].under_way == 1)
    gateway.until(lambda: gateway.engines[1].cancelled == 1)
    gateway.until(gateway.idle)


def test_aliases_and_keys_apply_to_fallbacks(live, tmp_path):
    file, keys = keys_file(tmp_path, ann={"models": ["best", "second"]}, bob={"models": ["best"]})
    gateway = start(live, keys=file, aliases={"best": "m0", "second": "m1"}, fallbacks={"best": ["second"]})
    gateway.engines[0].mode = "busy"
    answer = chat(gateway, model="best", authorization=keys["ann"])
    assert (answer.status, header(answer)) == (200, "m1; from=m0; cause=overload")
    assert chat(gateway, model="best", authorization=keys["bob"]).status == 503
    gateway.until(gateway.idle)
    assert {key.inflight for key in gateway.app.reception.keyring.keys.values()} == {0}


def test_a_field_that_occurs_twice_is_refused(live):
    gateway = start(live)
    answer = fetch(f"{gateway.url}/chat/completions", b'{"model":"m1","messages":[{}],"model":"m0"}')
    assert answer.status == 400 and not gateway.engines[0].bodies


@pytest.mark.parametrize(
    ("fallbacks", "why"),
    [
        ({"a": ["a"]}, "fallbacks.a: the model is in its own list"),
        ({"a": []}, "fallbacks.a: expected 1 to 16 different models"),
        ({"a": {"models": ["b"], "causes": ["rain"]}}, "fallbacks.a.causes"),
        (["a"], "fallbacks: expected a mapping"),
        ({"both": ["c"]}, "fallbacks.both: this model begins a cascade"),
        ({"large": ["best"]}, "fallbacks.large: 'best' is the same model by an alias"),
        ({"best": ["n", "large"]}, "fallbacks.best: 'large' is the same model by an alias"),
    ],
)
def test_wrong_fallbacks_are_refused(fallbacks, why):
    cascade = {"chains": {"both": ["m", "n"]}}
    with pytest.raises(HeadwayError, match=why):
        Config.load(
            {
                "backends": {"a": "http://x:1"},
                "fallbacks": fallbacks,
                "cascade": cascade,
                "aliases": {"best": "large"},
            }
        )
