"""`headway epp` as an inference gateway sees it."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import COMMAND, ROOT, Run

pytest.importorskip("grpc", reason="the extra `gateway` is not installed")
pytest.importorskip("httptools", reason="the extra `gateway` is not installed")

import grpc
from inference_gateway import EVENT, USAGE, Call, Epp, chat, mutated, target

from headway.errors import HeadwayError
from headway.gateway.tape import replay
from headway.interop.ext_proc import BUFFERED, FULL_DUPLEX, SERVICE, ProcessingRequest

A, B = "127.0.0.2:8000", "127.0.0.3:8000"
BACKENDS = {"a": f"http://{A}", "b": f"http://{B}"}


@pytest.fixture
def epp() -> Iterator[Callable[..., Epp]]:
    started: list[Epp] = []

    def start(backends: dict[str, Any] | None = None, **more: Any) -> Epp:
        started.append(Epp(BACKENDS if backends is None else backends, **more))
        return started[-1]

    yield start
    for one in started:
        one.stop()


def test_a_request_is_sent_to_an_endpoint_and_counted_until_its_answer_ends(epp: Callable[..., Epp]) -> None:
    picker = epp(policies={"routing": "least-loaded"})
    call = Call(picker)
    reply = call.ask(chat(stream=True))
    assert target(reply) == A
    assert call.echoed == chat(stream=True)  # the picker sends back the whole body
    assert picker.inflight() == {"a": 1, "b": 0}
    headed = call.answer_head()
    assert mutated(headed, "response_headers")["x-headway-target"] == "a"
    assert picker.app.plane.views[0].pending_prefill_tokens > 0
    echoed = call.answer_body(EVENT).response_body.response.body_mutation.streamed_response
    assert (echoed.body, echoed.end_of_stream) == (EVENT, False)
    assert picker.app.plane.views[0].pending_prefill_tokens == 0  # the first token has arrived
    assert picker.inflight() == {"a": 1, "b": 0}
    assert call.answer_body(USAGE, end=True).response_body.response.body_mutation.streamed_response.end_of_stream
    picker.until(picker.idle)
    assert call.rest() == []
    assert picker.ends() == {("completed", 200): 1}
    (group,) = picker.app.metrics.groups.values()
    assert group.output == 7  # from the engine's usage


def test_the_policies_choose_among_several_calls_at_once(epp: Callable[..., Epp]) -> None:
    picker = epp(policies={"routing": "least-loaded"})
    calls = [Call(picker) for _ in range(20)]
    targets = [target(call.ask(chat(f"prompt {number}"))) for number, call in enumerate(calls)]
    assert (targets.count(A), targets.count(B)) == (10, 10)
    assert picker.inflight() == {"a": 10, "b": 10}
    for call in reversed(calls):
        call.answer_head()
        call.answer_body(b'{"usage": {"completion_tokens": 3}}', end=True)
        call.rest()
    picker.until(picker.idle)
    assert picker.ends() == {("completed", 200): 20}


def test_a_prompt_goes_where_its_beginning_went(epp: Callable[..., Epp]) -> None:
    picker = epp(policies={"routing": {"name": "weighted", "scorers": "prefix-affinity:3,active-requests:1"}})
    first, other = "all about one thing. " * 100, "quite another thing. " * 100
    calls = [Call(picker) for _ in range(4)]
    targets = [target(calls[at].ask(chat(text))) for at, text in enumerate((first, other, first + "and?", other))]
    assert targets == [A, B, A, B]


def test_a_body_that_the_gateway_buffers_is_answered_in_the_bodys_phase(epp: Callable[..., Epp]) -> None:
    picker = epp()
    call = Call(picker, BUFFERED)
    reply = call.ask()
    assert reply.WhichOneof("one") == "request_body"
    assert target(reply, "request_body") in (A, B)
    assert not reply.request_body.response.HasField("body_mutation")  # the gateway has the body
    call.answer_head()
    assert call.answer_body(b"{}", end=True).WhichOneof("one") == "response_body"
    picker.until(picker.idle)
    assert call.rest() == []


def test_a_body_comes_in_pieces_and_goes_back_in_pieces(epp: Callable[..., Epp]) -> None:
    picker = epp()
    call = Call(picker, configured=False)  # without modes the gateway uses full duplex
    body = chat("long " * 50_000)
    call.head()
    for at in range(0, len(body), 10_000):
        call.body(body[at : at + 10_000], end=at + 10_000 >= len(body))
    assert target(call.said()) in (A, B)
    pieces = []
    while not pieces or not pieces[-1].end_of_stream:
        pieces.append(call.said().request_body.response.body_mutation.streamed_response)
    assert b"".join(piece.body for piece in pieces) == body
    assert max(len(piece.body) for piece in pieces) <= 60_000


def test_a_body_that_is_buffered_is_whole_also_where_trailers_follow_it(epp: Callable[..., Epp]) -> None:
    picker = epp()
    call = Call(picker, BUFFERED)
    call.head()
    assert call.said().WhichOneof("one") == "request_headers"
    call.body(chat(), end=False)
    assert target(call.said(), "request_body") in (A, B)
    call.request_trailers()
    assert call.said().WhichOneof("one") == "request_trailers"


def test_an_answer_of_trailers_ends_there(epp: Callable[..., Epp]) -> None:
    picker = epp()
    call = Call(picker)
    call.ask()
    call.answer_head()
    call.answer_body(b'{"usage": {"completion_tokens": 5}}')
    assert not picker.idle()
    assert call.answer_trailers().WhichOneof("one") == "response_trailers"
    picker.until(picker.idle)
    assert picker.ends() == {("completed", 200): 1}


def test_a_client_that_goes_gives_its_place_back(epp: Callable[..., Epp]) -> None:
    picker = epp()
    before_the_answer, amid_it, at_the_head = Call(picker), Call(picker), Call(picker)
    before_the_answer.ask()
    amid_it.ask(chat(stream=True))
    amid_it.answer_head()
    amid_it.answer_body(EVENT)
    at_the_head.head()
    assert sum(picker.inflight().values()) == 2
    before_the_answer.stream.cancel()
    amid_it.rest()  # Envoy half-closes before the end of the answer
    at_the_head.stream.cancel()
    picker.until(picker.idle)
    picker.until(lambda: not picker.picker.calls)
    assert picker.ends() == {("failed", 0): 1, ("failed", 200): 1}


def test_an_engine_that_fails_is_not_asked_for_a_while(epp: Callable[..., Epp]) -> None:
    picker = epp(policies={"routing": "round-robin"}, health={"path": None, "failures": 1, "eject": "1h"})
    call = Call(picker)
    failed = target(call.ask())
    call.answer_head(503)
    call.answer_body(b"no", end=True)
    picker.until(picker.idle)
    assert picker.ends() == {("failed", 503): 1}
    assert {target(Call(picker).ask()) for _ in range(4)} == {A, B} - {failed}


def test_bytes_that_are_no_message_end_the_call_and_nothing_else(epp: Callable[..., Epp], caplog: Any) -> None:
    picker = epp()
    process = picker.channel.stream_stream(f"/{SERVICE}/Process")
    with pytest.raises(grpc.RpcError) as told:
        list(process(iter([b"\xff\xfe\x00 rubbish"]), timeout=300))
    assert told.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert not [record for record in caplog.records if record.exc_info]
    assert target(Call(picker).ask(chat())) in (A, B)


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b"this is no JSON", "invalid request"),
        (b"[1, 2]", "invalid request"),
        (b'{"model": "m"}', "no messages, prompt or input"),
        (b"", "invalid request"),
    ],
)
@pytest.mark.parametrize("mode", [BUFFERED, FULL_DUPLEX])
def test_a_wrong_body_is_answered_by_the_gateway_itself(
    epp: Callable[..., Epp], mode: int, body: bytes, word: str
) -> None:
    picker = epp()
    call = Call(picker, mode)
    reply = call.ask(body).immediate_response
    assert reply.status.code == 400
    assert word in json.loads(reply.body)["error"]["message"]
    assert call.rest() == []  # there are no more replies
    assert picker.idle()


def test_a_body_that_is_too_long_is_not_read_to_its_end(epp: Callable[..., Epp]) -> None:
    picker = epp(limits={"body_bytes": 1000})
    call = Call(picker)
    call.head()
    call.body(b"x" * 1001, end=False)
    assert call.said().immediate_response.status.code == 413


def test_what_the_policies_reject_is_answered_with_their_status(epp: Callable[..., Epp]) -> None:
    picker = epp(policies={"admission": {"name": "max-concurrency", "max_queue": 2}, "routing": "least-loaded"})
    held = [Call(picker) for _ in range(2)]
    for call in held:
        call.ask()
    reply = Call(picker).ask().immediate_response
    assert reply.status.code in (429, 503)
    assert "retry-after" in {one.header.key for one in reply.headers.set_headers}
    assert sum(picker.inflight().values()) == 2
    held[0].answer_head()
    held[0].answer_body(b"{}", end=True)
    picker.until(lambda: sum(picker.inflight().values()) == 1)
    assert target(Call(picker).ask()) in (A, B)


def test_without_an_engine_a_request_waits_and_then_is_refused(epp: Callable[..., Epp]) -> None:
    picker = epp(patience="200ms")

    async def cordon() -> None:
        picker.app.fleet.cordon("a")
        picker.app.fleet.cordon("b")

    picker.call(cordon())
    reply = Call(picker).ask().immediate_response
    assert reply.status.code == 503
    assert picker.idle()


def test_a_request_that_waits_is_sent_when_an_engine_comes_up(epp: Callable[..., Epp]) -> None:
    picker = epp(patience="60s")

    async def cordon(lift: bool) -> None:
        for name in "ab":
            (picker.app.fleet.uncordon if lift else picker.app.fleet.cordon)(name)

    picker.call(cordon(False))
    call, gone = Call(picker), Call(picker)
    for one in (call, gone):
        one.head()
        one.body(chat())
    picker.until(lambda: len(picker.app.waiting) == 2)
    gone.stream.cancel()
    picker.until(lambda: len(picker.app.waiting) == 1)
    picker.call(cordon(True))
    assert target(call.said()) in (A, B)
    assert sum(picker.inflight().values()) == 1


def test_a_key_of_the_pickers_own_does_not_go_on_to_the_engine(epp: Callable[..., Epp], tmp_path: Path) -> None:
    from headway.gateway.api_keys import new_key

    key, digest = new_key()
    keys = tmp_path / "keys.yaml"
    keys.write_text(f"team: {{sha256: {digest}, concurrency: 1}}\n")
    picker = epp(keys=str(keys))
    assert Call(picker).ask().immediate_response.status.code == 401
    call = Call(picker)
    reply = call.ask(authorization=f"Bearer {key}")
    assert target(reply) in (A, B)
    assert list(reply.request_headers.response.header_mutation.remove_headers) == ["authorization"]
    assert Call(picker).ask(authorization=f"Bearer {key}").immediate_response.status.code == 429
    call.stream.cancel()
    picker.until(picker.idle)
    assert target(Call(picker).ask(authorization=f"Bearer {key}")) in (A, B)


def test_fields_of_the_picker_do_not_go_on_to_the_engine(epp: Callable[..., Epp]) -> None:
    fields = {"x-headway-tenant": "a", "x-headway-class": "batch", "x-mine": "b"}
    reply = Call(epp()).ask(**fields)
    assert list(reply.request_headers.response.header_mutation.remove_headers) == [
        "x-headway-tenant",
        "x-headway-class",
    ]


def test_an_engine_below_a_path_gets_it(epp: Callable[..., Epp]) -> None:
    picker = epp({"a": "http://127.0.0.2:8000/base"})
    assert mutated(Call(picker).ask())[":path"] == "/base/v1/chat/completions"


def test_two_engines_that_share_a_request_are_both_named(epp: Callable[..., Epp]) -> None:
    roles = {"p": {"url": f"http://{A}", "role": "prefill"}, "d": {"url": f"http://{B}", "role": "decode"}}
    picker = epp(roles)
    call = Call(picker)
    reply = call.ask(chat("long " * 1000, stream=True))
    assert target(reply) == B
    assert mutated(reply)["x-prefiller-host-port"] == A
    assert picker.inflight() == {"p": 1, "d": 1}
    call.answer_head()
    picker.until(lambda: picker.inflight() == {"p": 0, "d": 1})
    call.answer_body(EVENT)
    call.answer_body(USAGE, end=True)
    picker.until(picker.idle)


def test_models_are_told_by_the_picker(epp: Callable[..., Epp]) -> None:
    picker = epp({"a": {"url": f"http://{A}", "models": ["m", "n"]}})
    call = Call(picker)
    call.head("/v1/models", "GET", end=True)
    reply = call.said().immediate_response
    assert reply.status.code == 200
    assert [one["id"] for one in json.loads(reply.body)["data"]] == ["m", "n"]
    call = Call(picker)
    call.head("/v1/nothing", "GET", end=True)
    assert call.said().immediate_response.status.code == 404


def ask_within(picker: Epp, *allowed: str, model: str = "m") -> Call:
    """Return a call whose gateway allows only these endpoints."""
    call = Call(picker)
    message = ProcessingRequest()
    for name, value in ((":method", "POST"), (":path", "/v1/chat/completions")):
        message.request_headers.headers.headers.add(key=name, raw_value=value.encode())
    entry = message.metadata_context.filter_metadata.add(key="envoy.lb.subset_hint")
    entry.value["x-gateway-destination-endpoint-subset"] = list(allowed)
    call.say(message)
    call.body(chat(model=model))
    return call


def test_policies_choose_among_the_endpoints_that_the_gateway_allows(epp: Callable[..., Epp], tmp_path: Path) -> None:
    picker = epp(policies={"routing": "least-loaded"}, journal={"file": str(tmp_path / "j")})
    result = []
    for allowed in ((A,), (B,), (A, B), ("127.0.0.9:8000", B)):
        call = ask_within(picker, *allowed)
        result.append(target(call.said()))
        call.stream.cancel()
        picker.until(picker.idle)
    assert result == [A, B, A, B]
    call = ask_within(picker, "127.0.0.9:8000")
    reply = call.said().immediate_response
    assert reply.status.code == 503 and b"none of the endpoints that the gateway allows" in reply.body
    assert {view.state for view in picker.app.plane.views if view.id} == {"ready"}
    picker.app.plane.tape.flush()
    replayed = replay(tmp_path / "j")
    assert replayed.decisions >= 5 and not replayed.differences


def test_who_waits_in_the_queue_is_sent_to_an_endpoint_that_the_gateway_allows(epp: Callable[..., Epp]) -> None:
    flow = {"name": "bands", "saturation": "concurrency", "max_inflight": 1}
    picker = epp(policies={"routing": "least-loaded", "flow": flow})
    before = []
    for _ in BACKENDS:
        before.append(Call(picker))
        before[-1].ask()
    call = ask_within(picker, B)
    picker.until(lambda: len(picker.app.waiting) == 1)
    before[0].stream.cancel()  # frees A, to which the queue would send the request
    assert target(call.said()) == B
    for one in (*before, call):
        one.stream.cancel()
    picker.until(picker.idle)


def test_a_gateway_that_sends_no_bodies_is_told_so(epp: Callable[..., Epp]) -> None:
    call = Call(epp(), mode=0)
    call.head()
    reply = call.said().immediate_response
    assert reply.status.code == 500
    assert b"BUFFERED" in reply.body


def test_an_answer_whose_body_is_not_sent_ends_with_the_call(epp: Callable[..., Epp]) -> None:
    picker = epp()
    call = Call(picker, answers=0)
    call.ask()
    call.answer_head()
    call.rest()
    picker.until(picker.idle)
    assert picker.ends() == {("completed", 200): 1}


def test_a_message_that_is_none_of_the_protocol_ends_the_call_and_nothing_else(epp: Callable[..., Epp]) -> None:
    picker = epp()
    raw = picker.channel.stream_stream("/envoy.service.ext_proc.v3.ExternalProcessor/Process")
    with pytest.raises(grpc.RpcError):
        list(raw(iter([b"\xff\xff\xff"]), timeout=300))
    assert target(Call(picker).ask()) in (A, B)


def test_its_health_is_told_as_clusters_ask_it(epp: Callable[..., Epp]) -> None:
    picker = epp()
    assert picker.healthy() == 1
    picker.app.reception.draining = True
    assert picker.healthy() == 2


def test_what_needs_a_data_plane_is_refused() -> None:
    chain = {"chains": {"both": ["small", "large"]}}
    with pytest.raises(HeadwayError, match="an endpoint picker sends no requests"):
        Epp(
            {"a": {"url": f"http://{A}", "models": ["small"]}, "b": {"url": f"http://{B}", "models": ["large"]}},
            cascade=chain,
        )


@pytest.mark.full
def test_the_command_picks_until_it_is_told_to_end(headway: Run, tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    quiet = {"health": {"path": None}, "signals": False, "shutdown": {"lame_duck": "0s"}}
    file.write_text(json.dumps({"listen": "127.0.0.1:0", "backends": BACKENDS, **quiet}))
    command = [*COMMAND, "epp", str(file)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stderr is not None and process.stdout is not None
    told = next(line for line in process.stderr if "picking endpoints at" in line)
    address = told.split(" at ")[1].split()[0]
    file.write_text(json.dumps({"listen": address, "backends": BACKENDS, **quiet}))
    second = headway("epp", str(file))
    assert second.returncode == 2
    assert f"listen: cannot listen on {address}" in second.stderr
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert process.stdout.read() == ""
