"""Cascades: the smallest model answers first, and the next one if it is not confident."""

from __future__ import annotations

import json
import socket
import time

import pytest
from openai_client import openai, openai_client

from headway.errors import HeadwayError
from headway.gateway.cascade.answer_confidence import Confidence, Lines, document_of, without_logprobs
from headway.gateway.cascade.chains import read_chains

MESSAGES = [{"role": "user", "content": "hello there"}]
SURE, UNSURE = -0.1, -3.0


def client(gateway, **more):
    return openai_client(gateway.url, **more)


def chain(live, *logprobs, confident_tokens=3, threshold=-1.5, **more):
    """Return a gateway with engines e0, e1, ..., one for each model, with the given log-probabilities."""
    names = [f"e{number}" for number in range(len(logprobs))]
    gateway = live(
        len(names),
        members={name: {"models": [name]} for name in names},
        cascade={"chains": {"answer": names}, "threshold": threshold, "confident_tokens": confident_tokens},
        **more,
    )
    for engine, logprob in zip(gateway.engines, logprobs, strict=True):
        engine.logprob = logprob
    return gateway


def request_counts(gateway):
    """Return the number of requests that each engine received."""
    return [len(engine.bodies) for engine in gateway.engines]


def last_body(engine):
    return json.loads(engine.bodies[-1])


# --- answers in one piece --------------------------------------------------------------------------------------------


def test_a_confident_answer_of_the_smallest_model_is_returned(live):
    gateway = chain(live, SURE, SURE, SURE)
    answer = client(gateway).chat.completions.with_raw_response.create(model="answer", messages=MESSAGES)
    assert answer.headers["x-headway-cascade"] == "1/3 e0"
    assert answer.headers["x-headway-judged"] == "all 7 tokens, mean -0.100"
    assert answer.headers["x-headway-target"] == "e0"
    assert answer.parse().choices[0].message.content == "hello"
    assert request_counts(gateway) == [1, 0, 0]
    gateway.until(gateway.idle)


def test_an_unconfident_answer_escalates_and_the_last_model_is_not_judged(live):
    gateway = chain(live, UNSURE, UNSURE, UNSURE)
    answer = client(gateway).chat.completions.with_raw_response.create(model="answer", messages=MESSAGES)
    assert answer.headers["x-headway-cascade"] == "3/3 e2"
    assert answer.headers["x-headway-judged"] == "none"
    assert request_counts(gateway) == [1, 1, 1]
    assert [last_body(engine)["model"] for engine in gateway.engines] == ["e0", "e1", "e2"]
    assert [last_body(engine).get("logprobs") for engine in gateway.engines] == [True, True, None]
    gateway.until(gateway.idle)
    assert [view.completed for view in gateway.app.plane.views[:3]] == [1, 1, 1]
    assert [view.output_tokens for view in gateway.app.plane.views[:3]] == [7, 7, 7]


def test_each_step_is_a_separate_request_that_observers_see(live):
    gateway = chain(live, UNSURE, SURE)
    ends = []
    gateway.app.services.on_end.append(
        lambda exchange, now, outcome, why: ends.append((exchange.request.id, exchange.request.model, outcome, why))
    )
    client(gateway).chat.completions.create(model="answer", messages=MESSAGES)
    gateway.until(gateway.idle)
    assert ends == [(0, "e0", "completed", "escalated: mean log-probability -3.000"), (1, "e1", "completed", "")]


def test_only_the_first_model_of_a_chain_selects_it(live):
    gateway = chain(live, UNSURE, UNSURE, SURE)
    answer = client(gateway).chat.completions.with_raw_response.create(model="e0", messages=MESSAGES)
    assert answer.headers["x-headway-cascade"] == "3/3 e2"
    plain = client(gateway).chat.completions.with_raw_response.create(model="e1", messages=MESSAGES)
    assert "x-headway-cascade" not in plain.headers
    assert request_counts(gateway) == [1, 2, 1]


def test_a_long_prompt_is_tokenized_for_each_model(live):
    gateway = chain(live, UNSURE, SURE)
    paths = []
    gateway.app.services.on_end.append(lambda exchange, *_: paths.append(exchange.request.path.keys))
    messages = [{"role": "user", "content": "word " * 100_000}]
    answer = client(gateway).chat.completions.with_raw_response.create(model="answer", messages=messages)
    assert answer.headers["x-headway-cascade"] == "2/2 e1"
    gateway.until(gateway.idle)
    assert len(paths[0]) == len(paths[1]) > 100
    assert paths[0][0] != paths[1][0]  # blocks of one model are none of the other


def test_each_step_may_have_a_different_threshold(live):
    gateway = chain(live, -1.0, -1.0, -1.0, threshold=[-0.5, -2.0])
    answer = client(gateway).chat.completions.with_raw_response.create(model="answer", messages=MESSAGES)
    assert answer.headers["x-headway-cascade"] == "2/3 e1"


def test_only_clients_that_ask_receive_log_probabilities(live):
    gateway = chain(live, SURE, SURE)
    asking = client(gateway)
    plain = asking.chat.completions.create(model="answer", messages=MESSAGES)
    assert plain.choices[0].logprobs is None
    complete = asking.chat.completions.create(model="answer", messages=MESSAGES, logprobs=True, top_logprobs=2)
    assert [token.logprob for token in complete.choices[0].logprobs.content] == [SURE] * 7
    assert last_body(gateway.engines[0])["top_logprobs"] == 2


def test_a_completion_asks_for_log_probabilities_in_its_own_form(live):
    gateway = chain(live, SURE, SURE)
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=300) as sock:
        body = json.dumps({"model": "answer", "prompt": "once upon"}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        sock.sendall(head.encode() + body)
        answer = sock.recv(65536)
    assert b"x-headway-cascade: 1/2 e0" in answer
    assert last_body(gateway.engines[0]) == {"model": "e0", "prompt": "once upon", "logprobs": 1}
    assert b"token_logprobs" not in answer


def test_other_fields_of_the_body_stay_unchanged(live):
    gateway = chain(live, UNSURE, SURE)
    body = b'{"x":1.10, "messages":[{"role":"user","content":"\\u00e9"}],"model":"answer","n_":12345678901234567890123}'
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=300) as sock:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        sock.sendall(head.encode() + body)
        assert sock.recv(65536).startswith(b"HTTP/1.1 200")
    words = b'{"x":1.10,"messages":[{"role":"user","content":"\\u00e9"}],"model":"%b","n_":12345678901234567890123%b}'
    assert gateway.engines[0].bodies == [words % (b"e0", b',"logprobs":true')]
    assert gateway.engines[1].bodies == [words % (b"e1", b"")]


def test_an_answer_without_log_probabilities_escalates(live):
    gateway = chain(live, None, SURE)
    answer = client(gateway).chat.completions.with_raw_response.create(model="answer", messages=MESSAGES)
    assert answer.headers["x-headway-cascade"] == "2/2 e1"


# --- streams ---------------------------------------------------------------------------------------------------------


def test_a_confident_stream_is_forwarded_before_it_ends(live):
    gateway = chain(live, SURE, SURE, confident_tokens=3)
    gateway.engines[0].tokens, gateway.engines[0].pause = 10_000, 0.01
    answer = client(gateway).chat.completions.with_raw_response.create(model="answer", messages=MESSAGES, stream=True)
    assert answer.headers["x-headway-cascade"] == "1/2 e0"
    assert answer.headers["x-headway-judged"] == "first 3 tokens, mean -0.100"
    stream = iter(answer.parse())
    pieces = [next(stream) for _ in range(6)]
    assert [piece.choices[0].delta.content for piece in pieces] == [f"t{number} " for number in range(6)]
    assert all(getattr(piece.choices[0], "logprobs", None) is None for piece in pieces)
    assert gateway.engines[0].under_way == 1
    answer.http_response.close()
    gateway.until(lambda: gateway.engines[0].cancelled == 1)
    gateway.until(gateway.idle)
    assert request_counts(gateway) == [1, 0]


def test_an_unconfident_stream_is_cancelled_before_the_client_sees_it(live):
    gateway = chain(live, UNSURE, SURE)
    gateway.engines[0].tokens, gateway.engines[0].pause = 10_000, 0.001
    gateway.engines[1].tokens = 4
    answer = client(gateway).chat.completions.with_raw_response.create(model="answer", messages=MESSAGES, stream=True)
    assert answer.headers["x-headway-cascade"] == "2/2 e1"
    assert "".join(piece.choices[0].delta.content for piece in answer.parse()) == "t0 t1 t2 t3 "
    gateway.until(lambda: gateway.engines[0].cancelled == 1)
    gateway.until(gateway.idle)


@pytest.mark.parametrize(
    ("buffer", "cascade", "judged"),
    [
        (None, "1/2 e0", "first 3 tokens, mean -0.100"),
        ("2", "1/2 e0", "first 3 tokens, mean -0.100"),
        ("10", "1/2 e0", "first 10 tokens, mean -0.100"),
        ("12", "1/2 e0", "first 12 tokens, mean -0.583"),
        ("30", "2/2 e1", "none"),
        ("All", "2/2 e1", "none"),
    ],
)
@pytest.mark.parametrize("wish", [{}, {"logprobs": True}])
def test_a_client_may_let_the_gateway_hold_and_judge_more_of_a_stream(live, buffer, cascade, judged, wish):
    gateway = chain(live, SURE, SURE)
    gateway.engines[0].tokens, gateway.engines[0].later = 40, (10, UNSURE)  # the answer begins well and ends badly
    answer = client(gateway).chat.completions.with_raw_response.create(
        model="answer",
        messages=MESSAGES,
        stream=True,
        extra_headers={} if buffer is None else {"x-headway-buffer": buffer},
        **wish,
    )
    assert answer.headers["x-headway-cascade"] == cascade
    assert answer.headers["x-headway-judged"] == judged
    assert len(list(answer.parse())) == (40 if cascade == "1/2 e0" else 5)
    assert not any(b"x-headway-buffer" in engine.fields[0] for engine in gateway.engines if engine.fields)
    gateway.until(gateway.idle)


def test_a_stream_held_to_its_end_is_judged_by_all_its_tokens(live):
    gateway = chain(live, SURE, SURE)
    gateway.engines[0].tokens = 300
    answer = client(gateway).chat.completions.with_raw_response.create(
        model="answer", messages=MESSAGES, stream=True, extra_headers={"x-headway-buffer": "all"}
    )
    assert answer.headers["x-headway-judged"] == "all 300 tokens, mean -0.100"
    assert len(list(answer.parse())) == 300


def test_a_stream_that_is_too_large_to_hold_is_judged_by_what_is_held(live):
    gateway = chain(live, SURE, SURE)
    gateway.engines[0].tokens, gateway.engines[0].padding = 100, "x" * 50_000
    answer = client(gateway).chat.completions.with_raw_response.create(
        model="answer", messages=MESSAGES, stream=True, extra_headers={"x-headway-buffer": "all"}
    )
    assert answer.headers["x-headway-judged"].startswith("first 4")
    assert len(list(answer.parse())) == 100


@pytest.mark.parametrize("buffer", ["", "0", "-1", "1.5", "some", "9999999", "9" * 5000])
def test_a_wrong_buffer_is_reported(live, buffer):
    with pytest.raises(openai.BadRequestError, match="x-headway-buffer: expected `all` or a number of tokens"):
        client(chain(live, SURE, SURE)).chat.completions.create(
            model="answer", messages=MESSAGES, extra_headers={"x-headway-buffer": buffer}
        )


@pytest.mark.parametrize("logprob", [SURE, UNSURE])
def test_a_short_stream_is_judged_by_all_its_tokens(live, logprob):
    gateway = chain(live, logprob, SURE, confident_tokens=100)
    for engine in gateway.engines:
        engine.tokens = 4
    answer = client(gateway).chat.completions.with_raw_response.create(model="answer", messages=MESSAGES, stream=True)
    pieces = [piece.choices[0].delta.content for piece in answer.parse()]
    assert answer.headers["x-headway-cascade"] == ("1/2 e0" if logprob == SURE else "2/2 e1")
    assert pieces == ["t0 ", "t1 ", "t2 ", "t3 "]
    gateway.until(gateway.idle)


@pytest.mark.parametrize("wish", [{}, {"logprobs": True}])
@pytest.mark.parametrize("logprob", [SURE, UNSURE])
def test_a_stream_in_one_piece_is_judged_once(live, logprob, wish):
    gateway = chain(live, logprob, SURE)
    gateway.engines[0].mode = gateway.engines[1].mode = "burst"
    for _ in range(3):
        answer = client(gateway).chat.completions.with_raw_response.create(
            model="answer", messages=MESSAGES, stream=True, **wish
        )
        assert answer.headers["x-headway-cascade"] == ("1/2 e0" if logprob == SURE else "2/2 e1")
        assert [piece.choices[0].delta.content for piece in answer.parse()] == [f"t{number} " for number in range(5)]
    assert request_counts(gateway) == ([3, 0] if logprob == SURE else [3, 3])
    gateway.until(gateway.idle)


def test_a_stream_with_requested_log_probabilities_is_forwarded_byte_for_byte(live):
    gateway = chain(live, SURE, SURE)
    stream = client(gateway).chat.completions.create(model="answer", messages=MESSAGES, stream=True, logprobs=True)
    assert [piece.choices[0].logprobs.content[0].logprob for piece in stream] == [SURE] * 5
    gateway.until(gateway.idle)


def test_a_stream_without_log_probabilities_escalates_before_its_end(live):
    gateway = chain(live, None, SURE)
    gateway.engines[0].tokens, gateway.engines[0].pause = 1_000_000, 0.0
    stream = client(gateway).chat.completions.create(model="answer", messages=MESSAGES, stream=True)
    assert len(list(stream)) == 5
    gateway.until(lambda: gateway.engines[0].cancelled == 1)
    gateway.until(gateway.idle)


def test_a_stream_that_breaks_while_held_back_stays_invisible(live):
    gateway = chain(live, SURE, SURE, confident_tokens=5, retries=0)
    gateway.engines[0].mode = "die"
    answer = client(gateway).chat.completions.with_raw_response.create(model="answer", messages=MESSAGES, stream=True)
    assert answer.headers["x-headway-cascade"] == "2/2 e1"
    assert len(list(answer.parse())) == 5
    gateway.until(gateway.idle)


# --- what goes wrong -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["error", "busy", "reset", "garbage"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_step_that_fails_escalates(live, mode, stream):
    gateway = chain(live, SURE, SURE, retries=1)
    gateway.engines[0].mode = mode
    completions = client(gateway).chat.completions.with_raw_response
    answer = completions.create(model="answer", messages=MESSAGES, stream=stream)
    assert answer.headers["x-headway-cascade"] == "2/2 e1"
    gateway.until(gateway.idle)


def test_a_step_that_hangs_escalates(live):
    gateway = chain(live, SURE, SURE, retries=0, timeouts={"first_byte": "100ms"})
    gateway.engines[0].mode = "hang"
    answer = client(gateway).chat.completions.with_raw_response.create(model="answer", messages=MESSAGES)
    assert answer.headers["x-headway-cascade"] == "2/2 e1"
    gateway.until(lambda: gateway.engines[0].cancelled == 1)
    gateway.until(gateway.idle)


def test_a_model_without_an_engine_is_skipped(live):
    gateway = live(1, members={"e0": {"models": ["large"]}}, cascade={"chains": {"answer": ["small", "large"]}})
    answer = client(gateway).chat.completions.with_raw_response.create(model="answer", messages=MESSAGES)
    assert answer.headers["x-headway-cascade"] == "2/2 large"


def test_the_last_failure_is_the_answer(live):
    gateway = chain(live, SURE, SURE, retries=0)
    for engine in gateway.engines:
        engine.mode = "reset"
    with pytest.raises(openai.InternalServerError, match="e1: the connection was lost") as caught:
        client(gateway).chat.completions.create(model="answer", messages=MESSAGES)
    assert caught.value.response.headers["x-headway-cascade"] == "2/2 e1"
    gateway.until(gateway.idle)


def test_all_steps_share_one_deadline(live):
    gateway = chain(live, UNSURE, SURE)
    gateway.engines[1].mode = "hang"
    deadlines = []
    gateway.app.services.on_end.append(lambda exchange, *_: deadlines.append(exchange.request.deadline_ps))
    began = time.monotonic()
    with pytest.raises(openai.InternalServerError, match="the deadline has passed"):
        client(gateway).chat.completions.create(
            model="answer", messages=MESSAGES, extra_headers={"x-headway-deadline": "300ms"}
        )
    assert time.monotonic() - began >= 0.3
    assert request_counts(gateway) == [1, 1]
    assert len(deadlines) == 2
    assert deadlines[0] == deadlines[1] is not None
    gateway.until(lambda: gateway.engines[1].cancelled == 1)
    gateway.until(gateway.idle)


@pytest.mark.parametrize("step", [0, 1])
def test_a_client_that_disconnects_ends_the_current_step(live, step):
    gateway = chain(live, UNSURE, UNSURE, SURE)
    gateway.engines[step].mode = "hang"
    body = json.dumps({"model": "answer", "messages": MESSAGES}).encode()
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=300) as sock:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        sock.sendall(head.encode() + body)
        gateway.until(lambda: gateway.engines[step].under_way == 1)
    gateway.until(lambda: gateway.engines[step].cancelled == 1)
    gateway.until(gateway.idle)
    assert request_counts(gateway)[step + 1] == 0


def test_a_key_counts_all_steps_as_one_request(live, tmp_path):
    from headway.gateway.api_keys import new_key

    key, digest = new_key()
    file = tmp_path / "keys.yaml"
    file.write_text(f"me: {{sha256: {digest}, concurrency: 1}}\n")
    gateway = chain(live, UNSURE, UNSURE, SURE, keys=str(file))
    user = openai_client(gateway.url, key)
    for _ in range(3):
        user.chat.completions.create(model="answer", messages=MESSAGES)
    (owner,) = gateway.app.config.keyring.keys.values()
    gateway.until(lambda: owner.inflight == 0)


def test_a_rate_limit_does_not_escalate(live):
    gateway = chain(live, SURE, SURE, policies={"admission": {"name": "token-bucket", "rate": 0.001, "burst": 1}})
    client(gateway).chat.completions.create(model="answer", messages=MESSAGES)
    with pytest.raises(openai.RateLimitError) as caught:
        client(gateway).chat.completions.create(model="answer", messages=MESSAGES)
    assert caught.value.response.headers["x-headway-cascade"] == "1/2 e0"
    assert "retry-after" in caught.value.response.headers
    assert request_counts(gateway) == [1, 0]
    gateway.until(gateway.idle)


def test_a_chain_is_listed_as_a_model(live):
    gateway = chain(live, SURE, SURE)
    assert [model.id for model in client(gateway).models.list()] == ["e0", "e1", "answer"]


def test_embeddings_ignore_chains(live):
    gateway = chain(live, SURE, SURE)
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=300) as sock:
        body = json.dumps({"model": "e0", "input": "hello"}).encode()
        head = f"POST /v1/embeddings HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        sock.sendall(head.encode() + body)
        assert b"x-headway-cascade" not in sock.recv(65536)
    assert gateway.engines[0].bodies == [body]


# --- parts -----------------------------------------------------------------------------------------------------------


def test_a_mean_is_over_all_tokens_of_all_choices():
    confidence = Confidence()
    content = {"content": [{"logprob": -1.0}, {"logprob": -3}], "refusal": [{"logprob": -2.0}]}
    confidence.read(json.dumps({"choices": [{"logprobs": content}, {"logprobs": None}, {}]}).encode())
    confidence.read(json.dumps({"choices": [{"logprobs": {"token_logprobs": [None, -6.0]}}]}).encode())
    assert (confidence.tokens, confidence.mean) == (4, -3.0)
    assert confidence.reaches(-3.0)
    assert not confidence.reaches(-2.9)


@pytest.mark.parametrize(
    "document", [b"", b"[]", b"{}", b'{"choices": 3}', b'{"choices": [{"logprobs": [1]}]}', b"\xff"]
)
def test_documents_of_another_form_are_ignored_and_unchanged(document):
    confidence = Confidence()
    confidence.read(document)
    assert confidence.mean is None
    assert not confidence.reaches(-1e9)
    if not document.startswith(b'{"choices": ['):
        assert without_logprobs(document) == document


def test_lines_of_a_stream_are_complete_wherever_it_is_cut():
    data = b'data: {"a": 1}\r\n\r\n: comment\n\ndata: {"b": 2}\n\ndata: [DONE]\n\n'
    for size in (1, 2, 3, 7, len(data)):
        lines = Lines()
        complete_lines = [line for at in range(0, len(data), size) for line in lines.read(data[at : at + size])]
        assert b"".join(complete_lines) == data
        assert lines.rest == b""
        assert [document for line in complete_lines if (document := document_of(line))] == [b'{"a": 1}', b'{"b": 2}']


@pytest.mark.parametrize(
    ("section", "word"),
    [
        ({}, "'chains' is missing"),
        ({"chains": {}}, "name at least one"),
        ({"chains": {"a": ["small"]}}, "expected 2 to 16 different models"),
        ({"chains": {"a": ["x", "x"]}}, "expected 2 to 16 different models"),
        ({"chains": {"a": ["x", "y"], "b": ["x", "z"]}}, "another chain also begins with"),
        ({"chains": {"a": ["x", "y\n"]}}, "printable ASCII characters"),
        ({"chains": {"a": ["x", "y"]}, "threshold": 0.5}, "expected a mean log-probability"),
        ({"chains": {"a": ["x", "y"]}, "threshold": [-1, -2]}, "needs 1 values, for all models except the last, got 2"),
        ({"chains": {"a": ["x", "y"]}, "confident_token": 3}, "confident_tokens"),
    ],
)
def test_a_wrong_chain_is_reported(section, word):
    with pytest.raises(HeadwayError, match=r"^cascade") as caught:
        read_chains(section)
    assert word in str(caught.value)
