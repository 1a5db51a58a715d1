"""The admin API: who may, what it tells, and what it changes."""

from __future__ import annotations

import base64
import json
import socket
import urllib.request

import pytest

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")
pytest.importorskip("aiohttp", reason="the extra `gateway` is not installed")

from asking import ADMIN, KEY, admin, chat, component

from headway.errors import HeadwayError
from headway.gateway.config import Config


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("TEST_ADMIN_KEY", KEY)


def test_without_a_key_it_does_not_start(monkeypatch):
    monkeypatch.delenv("TEST_ADMIN_KEY")
    with pytest.raises(HeadwayError, match=r"admin\.key_env: the environment variable TEST_ADMIN_KEY is not set"):
        Config.load({"backends": {"a": "http://127.0.0.1:9"}, "admin": ADMIN})
    with pytest.raises(HeadwayError, match="'key_env' is missing"):
        Config.load({"backends": {"a": "http://127.0.0.1:9"}, "admin": {"listen": "127.0.0.1:0"}})


def test_nothing_is_answered_without_the_right_key(live):
    gateway = live(1, admin=ADMIN)
    paths = [(each.method, each.path.replace("{name}", "e0")) for each, _ in component(gateway, "Admin").operations()]
    assert len(paths) > 12
    for wrong in (None, "", "another", KEY + "x", KEY[:-1]):
        for method, path in [*paths, ("GET", "/no/such/path")]:
            answer = admin(gateway, path, method, {} if method == "PUT" else None, key=wrong)
            assert answer.status == 401, (method, path, wrong)
            assert "error" in answer.json()
    assert not gateway.app.fleet.cordoned and gateway.app.plane.version == 0
    assert admin(gateway, "/metrics", key=None).status == 401
    assert admin(live(1, admin={**ADMIN, "open_metrics": True}), "/metrics", key=None).status == 200


def test_a_browsers_password_is_enough_to_look_and_not_to_change(live):
    gateway = live(1, admin=ADMIN)
    basic = "Basic " + base64.b64encode(f"anybody:{KEY}".encode()).decode()
    assert admin(gateway, "/status", key=None, Authorization=basic).status == 200
    assert admin(gateway, "/backends/e0/cordon", "POST", key=None, Authorization=basic).status == 401
    wrong = "Basic " + base64.b64encode(b"anybody:else").decode()
    for value in (wrong, "Basic !!!", "Basic", "Digest x"):
        refused = admin(gateway, "/", key=None, Authorization=value)
        assert refused.status == 401 and refused.headers["WWW-Authenticate"].startswith("Basic ")


def test_the_key_is_in_no_answer_and_no_log(live, caplog):
    gateway = live(1, admin=ADMIN)
    for path in (operation.path for operation, _ in component(gateway, "Admin").operations()):
        if "{" not in path and path != "/events":
            assert KEY.encode() not in admin(gateway, path).body
    assert KEY not in caplog.text and KEY not in repr(gateway.app.config)


def test_an_engine_joins_serves_and_leaves(live):
    gateway, other = live(1, admin=ADMIN), live(1)
    url = f"http://127.0.0.1:{other.engines[0].port}"
    joined = admin(gateway, "/backends/new", "PUT", {"url": url, "capacity": 0.5})
    assert (joined.status, joined.json()["source"], joined.json()["state"]) == (201, "admin", "ready")
    admin(gateway, "/backends/e0/cordon", "POST")
    assert chat(gateway).headers["x-headway-target"] == "new"
    assert admin(gateway, "/backends/new", "PUT", url).status == 200
    assert [each["name"] for each in admin(gateway, "/backends").json()["backends"]] == ["e0", "new"]
    assert admin(gateway, "/backends/new", "DELETE").status == 200
    gateway.until(lambda: [backend.name for backend in gateway.app.fleet.members] == ["e0"])


def test_the_files_word_counts_more(live):
    gateway = live(1, admin=ADMIN)
    changed = admin(gateway, "/backends/e0", "PUT", "http://127.0.0.1:9")
    assert changed.status == 409 and "defined in the gateway's file" in changed.said
    assert admin(gateway, "/backends/e0", "DELETE").status == 409
    assert admin(gateway, "/backends/nobody", "DELETE").status == 404
    assert admin(gateway, "/backends/nobody/cordon", "POST").status == 404


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"url": "ftp://x"}, "backends.new.url: expected a URL"),
        ({"url": "http://x", "modles": []}, "backends.new.modles: there is no such key"),
        ({"url": "http://x", "key_env": "PATH"}, "PATH is not in `admin.engine_keys`"),
        (7, "backends.new: expected a mapping"),
    ],
)
def test_a_wrong_engine_is_told_and_changes_nothing(live, body, message):
    gateway = live(1, admin=ADMIN)
    answer = admin(gateway, "/backends/new", "PUT", body)
    assert answer.status == 400 and message in answer.said
    assert list(gateway.app.fleet.names) == ["e0"]


def test_a_variable_that_the_file_allows_may_hold_an_engines_key(live, monkeypatch):
    monkeypatch.setenv("ENGINE_KEY", "sk-engine")
    gateway = live(1, admin={**ADMIN, "engine_keys": ["ENGINE_KEY"]})
    put = admin(gateway, "/backends/new", "PUT", {"url": "http://127.0.0.1:9", "key_env": "ENGINE_KEY"})
    assert put.status == 201 and b"sk-engine" not in put.body


def test_cordon_holds_until_it_is_lifted(live):
    gateway = live(2, admin=ADMIN)
    held = admin(gateway, "/backends/e0/drain", "POST").json()
    assert (held["cordoned"], held["serving"], held["inflight"]) == (True, False, 0)
    assert {chat(gateway).headers["x-headway-target"] for _ in range(6)} == {"e1"}
    assert admin(gateway, "/backends/e0/uncordon", "POST").json()["serving"] is True
    assert admin(gateway, "/healthz").json() == {"ready": True, "serving": 2, "draining": False}
    for name in ("e0", "e1"):
        admin(gateway, f"/backends/{name}/cordon", "POST")
    refused = admin(gateway, "/healthz")
    assert (refused.status, refused.headers["retry-after"]) == (503, "1")


def test_policies_are_swapped_and_a_wrong_one_leaves_the_old(live):
    gateway = live(2, admin=ADMIN, policies={"routing": "round-robin"})
    assert chat(gateway).headers["x-headway-reason"] == "next in turn"
    wrong = admin(gateway, "/policies", "PUT", {"routing": "round-robbin"})
    assert wrong.status == 400 and "no routing policy is called 'round-robbin'" in wrong.said
    assert admin(gateway, "/policies").json()["version"] == 0
    swapped = admin(gateway, "/policies", "PUT", {"routing": "lmetric"})
    assert (swapped.status, swapped.json()["version"]) == (200, 1)
    assert swapped.json()["policies"]["routing"] == "lmetric" and "routing: lmetric" in swapped.json()["text"]
    assert chat(gateway).headers["x-headway-reason"] == "lowest score"
    bundle = {"format": 1, "name": "best", "policies": {"routing": {"type": "code", "source": CODE}}}
    assert admin(gateway, "/policies", "PUT", bundle).status == 200
    assert chat(gateway).status == 200


CODE = "def score(request, instance, cluster):\n    return -instance.inflight\n"


@pytest.mark.parametrize(
    "policies",
    [
        {"routing": "/tmp/evil.py:Evil"},
        {"routing": {"name": "/tmp/evil.py:Evil"}},
        {"routing": {"name": "weighted", "scorers": {"/tmp/evil.py:Evil": 1}}},
        {"routing": {"name": "weighted", "scorers": [{"name": "evil.py:Evil", "weight": 1}]}},
        {"routing": {"name": "code", "path": "/etc/passwd"}},
        {"format": 1, "name": "b", "policies": {"routing": {"type": "code", "path": "/etc/passwd"}}},
    ],
)
def test_no_file_of_the_machine_is_read_or_run(live, policies):
    gateway = live(1, admin=ADMIN)
    answer = admin(gateway, "/policies", "PUT", policies)
    assert answer.status == 400 and "admin API" in answer.said and "root:" not in answer.said
    assert gateway.app.plane.version == 0


def test_what_is_no_json_and_what_is_too_long_is_told(live):
    gateway = live(1, admin=ADMIN)
    with socket.create_connection(("127.0.0.1", component(gateway, "Admin").port), timeout=300) as sock:
        head = f"PUT /policies HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\nconnection: close\r\n"
        sock.sendall(f"{head}content-length: 5\r\n\r\n{{nope".encode())
        assert b" 400 " in sock.recv(65536).partition(b"\r\n")[0]
    for body in (b'{"routing": "\xff"}', b"[" * 5000):
        with socket.create_connection(("127.0.0.1", component(gateway, "Admin").port), timeout=300) as sock:
            sock.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
            assert b" 400 " in sock.recv(65536).partition(b"\r\n")[0]
    assert admin(gateway, f"/debug/decisions?last=000000001{'9' * 4400}").status == 400
    assert admin(gateway, "/policies", "PUT", ["x"]).status == 400
    assert admin(gateway, "/policies", "PUT", {"routing": "x" * 2_000_000}).status == 413
    assert admin(gateway, "/policies", "POST").status == 405


def test_events_tell_how_it_stands_again_and_again(live):
    gateway = live(2, admin=ADMIN)
    url = f"http://127.0.0.1:{component(gateway, 'Admin').port}/events"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(request, timeout=300) as stream:
        first = json.loads(_event(stream))
        chat(gateway)
        while not (latest := json.loads(_event(stream)))["requests"]:
            pass
    assert (first["requests"], latest["requests"]) == ({}, {"completed": 1})
    gateway.until(lambda: component(gateway, "Admin").watchers == 0)


def _event(stream):
    line = stream.readline()
    assert line.startswith(b"data: ") and stream.readline() == b"\n"
    return line[6:]


def test_the_documents_of_both_addresses_have_every_path(live):
    gateway = live(1, admin=ADMIN)
    document = admin(gateway, "/openapi.json").json()
    there = {(each.method.lower(), each.path) for each, _ in component(gateway, "Admin").operations()}
    assert there == {(method, path) for path, methods in document["paths"].items() for method in methods}
    with urllib.request.urlopen(f"http://127.0.0.1:{gateway.port}/openapi.json", timeout=300) as answer:
        data = json.load(answer)
    assert data["openapi"].startswith("3.1") and "/v1/chat/completions" in data["paths"]
    for path in ("/v1/models", "/health"):
        with urllib.request.urlopen(f"http://127.0.0.1:{gateway.port}{path}", timeout=300) as answer:
            assert answer.status == 200 and "get" in data["paths"][path]


def test_an_address_that_is_taken_is_told(live):
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        with pytest.raises(HeadwayError, match=r"admin\.listen: cannot listen on 127"):
            live(1, admin={**ADMIN, "listen": f"127.0.0.1:{busy.getsockname()[1]}"})
