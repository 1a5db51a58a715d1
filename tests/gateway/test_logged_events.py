"""What an operator reads in the log: each event once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")
pytest.importorskip("xxhash", reason="the extra `gateway` is not installed")

from asking import chat

from headway.config.section import read
from headway.gateway.membership.etcd_client import EtcdError, Snapshot
from headway.gateway.membership.etcd_settings import EtcdSettings
from headway.gateway.membership.etcd_source import EtcdSource


def order(gateway: Any, *orders: Any) -> None:
    async def give() -> None:
        gateway.app.orders.give(*orders)

    gateway.call(give())


def lines(caplog: pytest.LogCaptureFixture, *words: str) -> list[str]:
    """Return the lines with one of these words, without the reasons in them."""
    messages = [record.getMessage() for record in caplog.records if record.name == "headway.gateway"]
    return [message for message in messages if any(word in message for word in words)]


def test_ejections_and_recoveries_are_logged_once(live, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    health = {"failures": 3, "eject": "50ms", "path": None}
    gateway = live(2, policies={"routing": "round-robin"}, health=health, retries=1)
    gateway.engines[0].mode = "reset"
    for _ in range(20):
        assert chat(gateway).status == 200
    assert len(lines(caplog, "e0: a request failed")) == 1
    assert lines(caplog, "ejected")
    gateway.engines[0].mode = "ok"
    gateway.until(lambda: chat(gateway).status == 200 and bool(lines(caplog, "e0: a request has succeeded")))
    assert len(lines(caplog, "e0: a request has succeeded")) == 1


def test_drains_and_policy_swaps_are_logged_once(live, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    gateway = live(2)
    for _ in range(3):
        order(gateway, "cordon", "e0")
    for _ in range(3):
        order(gateway, "uncordon", "e0")
    assert lines(caplog, "cordon") == ["admin: e0 is cordoned and drains", "admin: the cordon of e0 is lifted"]
    for _ in range(3):
        order(gateway, "swap", {"routing": "round-robin"})
    assert lines(caplog, "policies: ") == ["policies: version 1 from admin: routing round-robin"]

    async def remove() -> None:
        gateway.app.fleet.offer("file", {"e1": gateway.app.fleet.sources["file"]["e1"]})

    gateway.call(remove())
    gateway.until(lambda: len(gateway.app.fleet.members) == 1)
    assert lines(caplog, "e0 drains", "e0 is drained") == [
        "backends: e0 drains and leaves",
        "backends: e0 is drained and has left",
    ]


def test_a_lost_etcd_is_logged_once_and_so_is_its_return(live, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    gateway = live(1)
    app, settings = gateway.app, read(EtcdSettings, {"endpoints": ["http://127.0.0.1:1"]}, "etcd")

    async def follow(*_: Any) -> AsyncIterator[Any]:
        for news in (Snapshot(1, {}), *[EtcdError("etcd: no answer.")] * 50, Snapshot(1, {})):
            yield news

    async def sync(snapshot: Snapshot) -> None: ...

    async def run() -> None:
        source = EtcdSource(app.clock, app.fleet, app.switch, app.signals, settings, 0)
        source.etcd.follow, source._sync = follow, sync  # type: ignore[method-assign, assignment]
        await source._run()

    gateway.call(run())
    assert lines(caplog, "etcd") == [
        "etcd: connected at http://127.0.0.1:1",
        "etcd: no answer. The gateway keeps the last known state and retries.",
        "etcd: connected at http://127.0.0.1:1",
    ]
