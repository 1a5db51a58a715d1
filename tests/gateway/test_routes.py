"""Routes of the file pass through to engines."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")

from asking import fetch
from rough import http_post, send
from test_model_names import keys_file

from headway.errors import HeadwayError
from headway.gateway.config import Config

FORM = {"content_type": "multipart/form-data; boundary=b"}
JSON = {"content_type": "application/json"}


def form(model, more=b""):
    field = b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\n%b\r\n' % model
    return field + more + b'--b\r\ncontent-disposition: form-data; name="file"\r\n\r\n\x00\xff\r\n--b--\r\n'


def ask(gateway, path, body=None, **more):
    return fetch(f"http://127.0.0.1:{gateway.port}{path}", body, **more)


def start(live, *routes, **more):
    return live(2, members={"e0": {"models": ["m"]}, "e1": {"models": ["n"]}}, routes=list(routes), **more)


def test_a_request_passes_through_to_an_engine_of_its_model(live):
    gateway = start(live, {"path": "/v1/rerank"})
    body = b'{"query":"x" , "model":"n"}'
    answer = ask(gateway, "/v1/rerank?a=b", body, **JSON)
    assert (answer.status, answer.headers["x-headway-target"]) == (200, "e1")
    assert gateway.engines[1].bodies == [body]
    assert ask(gateway, "/v1/rerank", b'{"model":"none"}', **JSON).status == 404
    gateway.until(gateway.idle)


def test_a_form_names_its_model_too(live):
    gateway = start(live, {"path": "/v1/audio/*"}, aliases={"whisper": "n"})
    assert ask(gateway, "/v1/audio/transcriptions", form(b"n"), **FORM).headers["x-headway-target"] == "e1"
    assert ask(gateway, "/v1/audio/transcriptions", form(b"whisper"), **FORM).headers["x-headway-target"] == "e1"
    assert gateway.engines[1].bodies == [form(b"n")] * 2
    twice = form(b"n", b"--b\r\ncontent-disposition: form-data; name=model\r\n\r\nm\r\n")
    assert ask(gateway, "/v1/audio/transcriptions", twice, **FORM).status == 400


def test_methods_and_limits(live):
    gateway = start(live, {"path": "/v1/files*", "methods": ["POST", "DELETE"], "body_limit": "1KB", "model": "n"})
    assert ask(gateway, "/v1/files/7", b"1234567890", method="DELETE").headers["x-headway-target"] == "e1"
    answer = ask(gateway, "/v1/files/7")
    assert (answer.status, answer.headers["allow"]) == (405, "POST, DELETE")
    assert ask(gateway, "/v1/files", bytes(1001)).status == 413
    for path in ("/v1/other", "/v1/files/../admin", "/v1/files/%2E%2e/admin"):
        assert ask(gateway, path, b"").status == 404
    gateway.until(gateway.idle)


def test_a_get_is_answered_with_the_engines_own_status(live):
    gateway = start(live, {"path": "/v1/models/*", "methods": "GET"}, {"path": "/version", "methods": "GET"})
    gateway.engines[0].mode = "ok"
    assert ask(gateway, "/version").status == 404
    assert gateway.engines[0].looked[-1][0] == b"/version"
    gateway.until(gateway.idle)


def test_the_first_engine_keeps_what_a_path_needs(live):
    gateway = live(3, routes=[{"path": "/v1/files", "balance": "first"}], policies={"routing": "round-robin"})
    targets = [ask(gateway, "/v1/files", b"{}").headers["x-headway-target"] for _ in range(5)]
    assert targets == ["e0"] * 5
    gateway.call(cordon(gateway, "e0"))
    assert ask(gateway, "/v1/files", b"{}").headers["x-headway-target"] == "e1"
    gateway.engines[1].mode = "busy"
    assert ask(gateway, "/v1/files", b"{}").status == 503
    assert not gateway.engines[2].bodies
    gateway.until(gateway.idle)


async def cordon(gateway, name):
    gateway.app.fleet.cordon(name)


def test_keys_and_their_models_apply(live, tmp_path):
    file, keys = keys_file(tmp_path, ann={"models": ["m"]})
    gateway = start(live, {"path": "/v1/rerank"}, {"path": "/v1/files", "methods": "GET"}, keys=file)
    known = {"authorization": keys["ann"], **JSON}
    assert ask(gateway, "/v1/rerank", b"{}").status == 401
    assert ask(gateway, "/v1/rerank", b'{"model":"m"}', **known).status == 200
    for body in (b'{"model":"n"}', b"{}", b'{"model":["m"]}'):
        assert ask(gateway, "/v1/rerank", body, **known).status == 403
    assert ask(gateway, "/v1/rerank", b'{"model":"n"}', authorization=keys["ann"]).status == 403  # of no known type
    assert ask(gateway, "/v1/rerank", b'{"model":"n","model":"m"}', **known).status == 400
    assert ask(gateway, "/v1/files", **known).status == 404
    gateway.until(gateway.idle)
    assert {key.inflight for key in gateway.app.reception.keyring.keys.values()} == {0}


DISPOSITION = b"content-disposition: form-data; "
AMBIGUOUS = {
    "an encoded name": b"--b\r\n" + DISPOSITION + b"name*=utf-8''model\r\n\r\nn\r\n",
    "a name in pieces": b"--b\r\n" + DISPOSITION + b'name*0="mod"; name*1="el"\r\n\r\nn\r\n',
    "two names": b"--b\r\n" + DISPOSITION + b'name="x"; name="model"\r\n\r\nn\r\n',
    "an escape": b"--b\r\n" + DISPOSITION + b'name="mo\\del"\r\n\r\nn\r\n',
    "two dispositions": b"--b\r\n" + DISPOSITION + b'name="x"\r\n' + DISPOSITION + b'name="model"\r\n\r\nn\r\n',
    "a folded header": b"--b\r\n" + DISPOSITION + b'x="\r\n name="model"\r\n\r\nn\r\n',
    "line feeds alone": b"--b\n" + DISPOSITION + b'name="model"\n\nn\n',
    "a boundary within a line": b"--b\r\n" + DISPOSITION + b'name="x"\r\n\r\na --b\r\nn\r\n',
    "no header": b"--b\r\n\r\nn\r\n",
    "no content": b"--b\r\n" + DISPOSITION + b'name="x"\r\n\r\n',
    "the model twice": form(b"m")[: -len(b"--b--\r\n")],
    "an end": b"--b--\r\n",
}


@pytest.mark.parametrize("more", AMBIGUOUS.values(), ids=AMBIGUOUS)
def test_a_form_that_engines_could_read_in_another_way_is_refused(live, more):
    gateway = start(live, {"path": "/v1/audio"})
    assert ask(gateway, "/v1/audio", form(b"m", more), **FORM).status == 400
    encoded = form(b"m").replace(b"\r\n\r\nm", b"\r\ncontent-transfer-encoding: base64\r\n\r\nbQ==")
    assert ask(gateway, "/v1/audio", encoded, **FORM).status == 400
    for kind in ("multipart/form-data", "multipart/form-data; boundary=c; boundary=b"):
        assert ask(gateway, "/v1/audio", form(b"m"), content_type=kind).status == 400
    assert [engine.bodies for engine in gateway.engines] == [[], []]


@pytest.mark.parametrize("kind", ['multipart/form-data; boundary="b"', "Multipart/Form-Data;boundary=b; charset=UTF-8"])
@pytest.mark.parametrize(
    "more",
    [
        b"--b\r\nContent-Disposition: form-data; name=language; filename=a; filename*=utf-8''%e4\r\n\r\nde\r\n",
        b"--b\r\nContent-Type: audio/wav\r\n"
        + DISPOSITION
        + b'name="file"; filename="a \\" b"\r\n\r\nname="model"\r\n',
    ],
)
def test_forms_of_usual_clients_pass(live, kind, more):
    gateway = start(live, {"path": "/v1/audio"})
    body = form(b"n", more).replace(b"\r\n\r\nn", b"\r\nContent-Type: text/plain; charset=utf-8\r\n\r\nn")
    answer = ask(gateway, "/v1/audio", body, content_type=kind)
    assert (answer.status, answer.headers["x-headway-target"]) == (200, "e1")


def test_a_request_with_two_content_types_is_refused(live):
    gateway = start(live, {"path": "/v1/audio"})
    fields = b"content-type: multipart/form-data; boundary=b\r\ncontent-type: application/json\r\n"
    answer = send(gateway, http_post(b'{"model":"m"}', fields + b"connection: close\r\n", b"/v1/audio"))
    assert answer.startswith(b"HTTP/1.1 400 ")


SPELLINGS = [b"/v1/%63hat/completions", b"/v1//chat/completions", b"/v1/messages%2f", b"/v1/responses//"]
SPELLINGS += [b"/v1/chat/completions#x", b"/v1/chat/completions;x", b"/v1/chat/completions/"]


@pytest.mark.parametrize("path", SPELLINGS)
def test_a_route_serves_no_other_spelling_of_the_gateways_own_paths(live, path):
    gateway = start(live, {"path": "/v1/*"})
    fields = b"content-type: application/json\r\nconnection: close\r\n"
    answer = send(gateway, http_post(b'{"model":"m","messages":[{}]}', fields, path))
    assert answer.startswith(b"HTTP/1.1 404 ") and gateway.engines[0].bodies == []
    assert ask(gateway, "/v1/re%72ank", b'{"model":"m"}', **JSON).status == 200


@pytest.mark.parametrize(
    "body",
    [
        b"[",
        b"\xff",
        b'{"\xff":1}',
        b"[" * 100_000,
        b'{"kv_transfer_params":{}}',
        b'{"vllm_xargs":{"kv_transfer_params":"x"}}',
    ],
)
def test_a_wrong_body_is_refused(live, body):
    gateway = start(live, {"path": "/v1/rerank"})
    assert ask(gateway, "/v1/rerank", body, **JSON).status == 400
    gateway.until(gateway.idle)


def test_a_stream_is_forwarded_as_it_arrives(live):
    gateway = start(live, {"path": "/v1/speech"})
    gateway.engines[0].tokens = 3
    answer = ask(gateway, "/v1/speech", json.dumps({"model": "m", "stream": True}).encode(), **JSON)
    assert answer.body.count(b"data: ") == 4
    gateway.until(gateway.idle)


@pytest.mark.parametrize(
    ("route", "why"),
    [
        ({"path": "v1"}, "path: expected a path"),
        ({"path": "/a*b"}, "path: expected a path"),
        ({"path": "/v1/messages"}, "the gateway itself serves /v1/messages"),
        ({"path": "/a", "methods": "CONNECT"}, "methods: expected GET, POST"),
        ({"path": "/a", "methods": []}, "methods: expected GET, POST"),
        ({"path": "/a", "body_limit": "1GB"}, "body_limit: is above"),
        ({"path": "/a", "balance": "x"}, "balance"),
    ],
)
def test_wrong_routes_are_refused(route, why):
    with pytest.raises(HeadwayError, match=why):
        Config.load({"backends": {"a": "http://x:1"}, "routes": [route]})
