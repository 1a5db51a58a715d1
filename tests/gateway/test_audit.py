"""Operators of the admin API have keys of their own, and a file says what they have changed."""

from __future__ import annotations

import asyncio
import base64
import json

import pytest

pytest.importorskip("aiohttp", reason="the extra `gateway` is not installed")
pytest.importorskip("httptools", reason="the extra `gateway` is not installed")

from asking import ADMIN, KEY, admin

from headway.errors import HeadwayError
from headway.gateway.api_keys import new_key
from headway.gateway.config import Config
from headway.gateway.observing.audit import MOST_REFUSED, AuditLog


@pytest.fixture
def operators(tmp_path, monkeypatch):
    monkeypatch.setenv("TEST_ADMIN_KEY", KEY)
    keys = {name: new_key() for name in ("ann", "eve")}
    file = tmp_path / "operators.yaml"
    file.write_text(f"ann: {{sha256: {keys['ann'][1]}}}\neve: {{sha256: {keys['eve'][1]}, read_only: true}}\n")
    return {name: pair[0] for name, pair in keys.items()}, file, tmp_path / "audit.jsonl"


def entries(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_each_change_has_a_line_with_who_what_when_and_the_result(live, operators):
    keys, file, audit = operators
    gateway = live(1, admin={**ADMIN, "operators": str(file), "audit": str(audit)})
    assert admin(gateway, "/status", key=keys["ann"]).status == 200
    assert admin(gateway, "/backends/e0/cordon", "POST", key=keys["ann"]).status == 200
    assert admin(gateway, "/policies", "PUT", {"routing": "no-such"}, key=KEY).status == 400
    assert admin(gateway, "/backends/e0/uncordon", "POST", key="hw-wrong").status == 401
    seen = entries(audit)
    facts = [(each["operator"], each["method"], each["path"], each["status"]) for each in seen]
    assert facts == [
        ("ann", "POST", "/backends/e0/cordon", 200),
        ("admin", "PUT", "/policies", 400),
        (None, "POST", "/backends/e0/uncordon", 401),
    ]
    assert json.loads(seen[1]["body"]) == {"routing": "no-such"} and seen[0]["address"] == "127.0.0.1"
    assert seen[0]["time"] <= seen[1]["time"] and seen[0]["time"].endswith("+00:00")
    assert audit.stat().st_mode & 0o777 == 0o600
    assert not any(key in audit.read_text() for key in (KEY, "hw-wrong", *keys.values()))


def test_strangers_cannot_fill_the_disk(tmp_path):
    audit = AuditLog(tmp_path / "audit.jsonl")
    for _ in range(MOST_REFUSED + 50):
        audit.write(None, "10.0.0.9", "GET", "/status", "", 401)
    audit.write("ann", "10.0.0.8", "PUT", "/policies", "x" * 10_000, 200)
    audit.close()
    seen = entries(tmp_path / "audit.jsonl")
    assert MOST_REFUSED < len(seen) <= 2 * MOST_REFUSED + 1  # the minute may change meanwhile
    assert seen[-1]["operator"] == "ann" and len(seen[-1]["body"]) == 4096


def test_a_body_that_is_too_large_has_a_line_too(live, operators):
    _, file, audit = operators
    gateway = live(1, admin={**ADMIN, "operators": str(file), "audit": str(audit)})
    assert admin(gateway, "/policies", "PUT", {"routing": "x" * (1 << 21)}).status == 413
    assert [(each["operator"], each["status"]) for each in entries(audit)] == [("admin", 413)]


def test_an_operator_may_be_allowed_to_look_only(live, operators):
    keys, file, audit = operators
    gateway = live(1, admin={"listen": "127.0.0.1:0", "operators": str(file), "audit": str(audit)})
    basic = "Basic " + base64.b64encode(f"any:{keys['eve']}".encode()).decode()
    assert admin(gateway, "/status", key=None, Authorization=basic).status == 200
    assert admin(gateway, "/backends", key=keys["eve"]).status == 200
    refused = admin(gateway, "/backends/e0/cordon", "POST", key=keys["eve"])
    assert refused.status == 403 and "may only look" in refused.said
    assert not gateway.app.fleet.cordoned
    assert [(each["operator"], each["status"]) for each in entries(audit)] == [("eve", 403)]
    assert admin(gateway, "/status", key=KEY).status == admin(gateway, "/status", key="").status == 401


def test_a_change_of_the_file_takes_effect(live, operators, tmp_path):
    keys, file, _ = operators
    text = "listen: 127.0.0.1:0\nbackends: {a: 'http://127.0.0.1:9'}\nhealth: {path: null}\n"
    path = tmp_path / "gateway.yaml"
    path.write_text(f"{text}admin: {{listen: '127.0.0.1:0', operators: operators.yaml}}\n")
    gateway = live(1)

    async def start():
        from headway.gateway.app import App

        second = App(asyncio.get_running_loop(), Config.load(path))
        await second.start()
        return second

    first, gateway.app = gateway.app, gateway.call(start())
    assert admin(gateway, "/status", key=keys["ann"]).status == 200
    file.write_text(f"bob: {{sha256: {new_key()[1]}}}\n")

    async def reload():
        gateway.app.reload()

    gateway.call(reload())
    assert admin(gateway, "/status", key=keys["ann"]).status == 401
    gateway.call(gateway.app.drain(0))
    gateway.app = first


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "expected a mapping of operators"),
        ("ann: {sha256: abc}", "expected 64 hex digits"),
        ("ann: {sha: abc}", "there is no such key"),
    ],
)
def test_a_wrong_file_is_reported(tmp_path, text, message):
    (tmp_path / "operators.yaml").write_text(text)
    with pytest.raises(HeadwayError, match=message):
        Config.load({"admin": {"operators": str(tmp_path / "operators.yaml")}})


def test_a_log_that_cannot_be_written_is_reported(live, operators):
    with pytest.raises(HeadwayError, match=r"admin\.audit: /no/such/audit cannot be written \(No such"):
        live(1, admin={**ADMIN, "audit": "/no/such/audit"})
