"""API keys: the gateway stores hashes only, and applies the limits of each key."""

from __future__ import annotations

import socket
import threading

import pytest
import yaml

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")

from asking import chat
from openai_client import openai, openai_client

from headway.cli import status
from headway.errors import HeadwayError
from headway.gateway.api_keys import Keyring, new_key
from headway.gateway.config import Config

MESSAGES = [{"role": "user", "content": "hello"}]


def ring(tmp_path, **limits):
    """Return a key file with two keys, and the keys by name."""
    keys = {name: new_key() for name in ("ann", "bob")}
    file = tmp_path / "keys.yaml"
    file.write_text(yaml.safe_dump({name: {"sha256": pair[1], **limits} for name, pair in keys.items()}))
    return str(file), {name: pair[0] for name, pair in keys.items()}


def ask(gateway, key, **more):
    client = openai_client(gateway.url, key)
    return client.chat.completions.create(model="m", messages=MESSAGES, **more)


def test_requests_without_a_valid_key_are_rejected(live, tmp_path):
    file, keys = ring(tmp_path)
    gateway = live(1, keys=file)
    assert ask(gateway, keys["ann"]).choices[0].message.content == "hello"
    for wrong in ("sk-wrong", keys["ann"] + "x", keys["ann"][:-1]):
        with pytest.raises(openai.AuthenticationError):
            ask(gateway, wrong)
        with pytest.raises(openai.AuthenticationError):
            openai_client(gateway.url, wrong).models.list()
    assert openai_client(gateway.url, keys["ann"]).models.list().data == []
    gateway.until(gateway.idle)


@pytest.mark.parametrize("framing", ["content-length: 20000000", "transfer-encoding: chunked"])
def test_a_long_body_without_a_valid_key_is_not_buffered(live, tmp_path, framing):
    file, keys = ring(tmp_path)
    gateway = live(1, keys=file)
    piece = b"10000\r\n" + b"a" * 65536 + b"\r\n" if "chunked" in framing else b"a" * 65536
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n{framing}\r\n"
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=300) as sock:
        sock.sendall(f"{head}authorization: Bearer sk-wrong\r\n\r\n".encode() + piece)
        try:
            sock.sendall(piece)
            assert sock.recv(65536)[9:12] in (b"401", b"")
        except ConnectionError:  # closed while one sends
            pass
    gateway.until(lambda: gateway.app.metrics.refusals == {401: 1})
    long = [{"role": "user", "content": "a" * 200_000}]
    client = openai_client(gateway.url, keys["ann"])
    assert client.chat.completions.create(model="m", messages=long).choices[0].message.content == "hello"


def test_the_engine_never_sees_the_key(live, tmp_path):
    file, keys = ring(tmp_path)
    gateway = live(1, keys=file)
    ask(gateway, keys["ann"])
    assert b"authorization" not in gateway.engines[0].fields[0]
    assert keys["ann"].encode() not in b"".join(gateway.engines[0].fields[0].values())


@pytest.mark.parametrize("header", ["x-api-key", "api-key", "X-Api-Key"])
def test_a_key_may_come_in_the_headers_of_other_clients(live, tmp_path, header):
    file, keys = ring(tmp_path)
    gateway = live(1, keys=file)
    assert chat(gateway, **{header: keys["ann"]}).status == 200
    assert chat(gateway, **{header: keys["ann"], "Authorization": "Bearer sk-of-another-server"}).status == 200
    assert chat(gateway, **{header: "sk-wrong"}).status == chat(gateway).status == 401
    assert all(keys["ann"].encode() not in b"".join(fields.values()) for fields in gateway.engines[0].fields)
    assert not any(b"authorization" in fields for fields in gateway.engines[0].fields)


def test_without_keys_an_engine_gets_the_headers_of_the_client(live):
    gateway = live(1)
    assert chat(gateway, **{"x-api-key": "of-the-engine"}).status == 200
    assert gateway.engines[0].fields[0][b"x-api-key"] == b"of-the-engine"


def test_the_key_overrides_the_tenant_header(live, tmp_path):
    file, keys = ring(tmp_path, slo_class="batch")
    gateway = live(1, keys=file)
    tenants = []
    gateway.app.services.on_end.append(
        lambda exchange, *rest: tenants.append((exchange.request.tenant, exchange.request.slo_class))
    )
    ask(gateway, keys["bob"], extra_headers={"x-headway-tenant": "ann", "x-headway-class": "critical"})
    gateway.until(lambda: tenants == [("bob", "batch")])


@pytest.mark.parametrize(
    ("most", "asked", "classes", "given"),
    [
        ("standard", "realtime", None, "standard"),
        ("standard", "batch", None, "batch"),
        ("realtime", "best-effort", None, "best-effort"),
        ("batch", None, None, "batch"),
        ("batch", "Realtime", None, "batch"),
        ("standard", "unheard-of", None, "standard"),
        ("unheard-of", "batch", None, "unheard-of"),
        ("silver", "gold", ["gold", "silver", "tin"], "silver"),
        ("silver", "tin", ["gold", "silver", "tin"], "tin"),
        (None, "realtime", None, "standard"),
        (None, "batch", None, "batch"),
    ],
)
def test_a_client_may_ask_only_for_a_less_important_class_than_its_keys(live, tmp_path, most, asked, classes, given):
    file, keys = ring(tmp_path, **({} if most is None else {"slo_class": most}))
    gateway = live(1, keys=file, **({} if classes is None else {"classes": classes}))
    seen = []
    gateway.app.services.on_end.append(lambda exchange, *rest: seen.append(exchange.request.slo_class))
    ask(gateway, keys["ann"], extra_headers={} if asked is None else {"x-headway-class": asked})
    gateway.until(lambda: seen == [given])


def test_a_class_has_one_rank():
    with pytest.raises(HeadwayError, match="classes: expected different classes"):
        Config.load({"backends": {"a": "http://a"}, "classes": ["a", "b", "a"]})


def test_a_key_limits_requests_in_flight(live, tmp_path):
    file, keys = ring(tmp_path, concurrency=2)
    gateway = live(1, keys=file)
    gateway.engines[0].pause = 0.1
    threads = [threading.Thread(target=lambda: list(ask(gateway, keys["ann"], stream=True))) for _ in range(2)]
    for thread in threads:
        thread.start()
    gateway.until(lambda: gateway.engines[0].under_way == 2)
    with pytest.raises(openai.RateLimitError, match="2 requests in flight, its limit"):
        ask(gateway, keys["ann"])
    ask(gateway, keys["bob"])
    for thread in threads:
        thread.join()
    gateway.until(gateway.idle)
    ask(gateway, keys["ann"])
    gateway.until(gateway.idle)
    assert {key.inflight for key in gateway.app.config.keyring.keys.values()} == {0}


def test_a_key_limits_the_request_rate():
    key, digest = new_key()
    owner = Keyring.of({"ann": {"sha256": digest, "rate": "2/s", "burst": 3}}, "keys").owner(
        {b"authorization": f"Bearer {key}".encode()}
    )
    assert [owner.take(100.0) for _ in range(3)] == [None] * 3
    refused = owner.take(100.0)
    assert (refused.status, refused.retry_after) == (429, 1)
    assert owner.take(100.5) is None
    assert owner.take(100.9).status == 429
    assert [owner.take(200.0) is None for _ in range(4)] == [True, True, True, False]


def test_an_invalid_request_releases_its_key(live, tmp_path):
    file, keys = ring(tmp_path, concurrency=1)
    gateway = live(1, keys=file)
    for _ in range(3):
        with pytest.raises(openai.BadRequestError):
            ask(gateway, keys["ann"], extra_headers={"x-headway-deadline": "soon"})
    ask(gateway, keys["ann"])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "expected a mapping of names"),
        ({"ann": {"sha256": "abc"}}, "64 hex digits"),
        ({"ann": {"sha256": "ab" * 32}, "bob": {"sha256": "ab" * 32}}, "ann has the same hash"),
        ({"ann": {"sha256": "ab" * 32, "rate": "often"}}, "is not a rate"),
        ({"ann": {"sha255": "ab" * 32}}, "no such key"),
        ({"ann\nbob": {"sha256": "ab" * 32}}, "expected a name of 1 to 100 printable characters"),
    ],
)
def test_a_wrong_key_file_is_reported(data, message):
    with pytest.raises(HeadwayError, match=message):
        Keyring.of(data, "keys.yaml")


@pytest.mark.parametrize("name", ["ann", "ann: the first", "yes", "7", "grün #1"])
def test_the_key_command_prints_a_key_and_its_file_entry(capsys, name):
    assert status(["key", name]) == 0
    output = capsys.readouterr()
    key = output.err.split()[-1]
    assert (
        Keyring.of(yaml.safe_load(output.out), "keys").owner({b"authorization": f"bearer {key}".encode()}).name == name
    )


@pytest.mark.parametrize("name", ["", "ann\nbob", "x" * 101])
def test_a_name_that_is_not_printable_gets_no_key(capsys, name):
    assert status(["key", name]) == 2
    output = capsys.readouterr()
    assert output.out == "" and "NAME: expected a name of 1 to 100 printable characters" in output.err


def test_a_new_version_of_the_file_removes_keys_and_changes_limits():
    (first, first_digest), (second, two) = new_key(), new_key()
    ring = Keyring.of({"ann": {"sha256": first_digest, "concurrency": 1}, "bob": {"sha256": two}}, "keys")
    held = ring.owner({b"authorization": f"Bearer {first}".encode()})
    assert held.take(0.0) is None
    assert held.take(0.0).status == 429
    ring.renew(Keyring.of({"ann": {"sha256": first_digest, "concurrency": 2}}, "keys"))
    assert ring.owner({b"authorization": f"Bearer {second}".encode()}) is None
    assert held.take(0.0) is None
    held.release()
    held.release()
    assert ring.owner({b"authorization": f"Bearer {first}".encode()}).inflight == 0
