"""A gateway's engines, cordons and policies from a real etcd, whatever becomes of the server."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.request import Request, urlopen

import pytest

pytest.importorskip("aiohttp", reason="the extra `gateway` is not installed")
pytest.importorskip("httptools", reason="the extra `gateway` is not installed")
pytest.importorskip("xxhash", reason="the extra `gateway` is not installed")

from etcd_server import EtcdServer, started
from fake_engine import Engine

from conftest import ROOT
from headway.config.section import read
from headway.errors import HeadwayError
from headway.gateway.app import App
from headway.gateway.config import Config
from headway.gateway.engines.member import BackendSpec
from headway.gateway.live_policies import read_policies
from headway.gateway.membership.etcd_client import Etcd
from headway.gateway.membership.etcd_fleet import read_policy
from headway.gateway.membership.etcd_settings import EtcdSettings
from headway.gateway.membership.etcd_source import EtcdSource
from headway.gateway.membership.node import Node

STATUS = "/headway/routing/policy-status/here"


class Gateway(App):
    """A gateway that serves nobody and keeps what agents report."""

    def __init__(self, **more: Any) -> None:
        config = Config.load({"backends": {"filed": {"url": "http://127.0.0.1:9", "models": ["m"]}}, **more})
        super().__init__(asyncio.get_running_loop(), config)
        self.reports: list[tuple[str, dict[str, float]]] = []

        self.told, self.signals.take_report = self.signals.take_report, self._hear  # type: ignore[method-assign]

    def _hear(self, name: str, signals: Any, age_s: float = 0.0) -> None:
        self.told(name, signals)
        self.reports.append((name, signals))

    def state(self, name: str) -> str | None:
        backend = self.fleet.names.get(name)
        return None if backend is None else backend.view.state

    @property
    def names(self) -> list[str]:
        return sorted(self.fleet.names)


def source_of(app: App, settings: EtcdSettings, **more: Any) -> EtcdSource:
    return EtcdSource(app.clock, app.fleet, app.switch, app.signals, settings, app.config.port, **more)


class Scene:
    def __init__(self, server: EtcdServer, app: Gateway, etcd: Etcd, source: EtcdSource) -> None:
        self.server, self.app, self.etcd, self.source = server, app, etcd, source

    async def register(self, name: str, lease: int = 0, **more: Any) -> None:
        document = {"url": f"http://127.0.0.1:{9000 + len(name)}", "models": ["m"], **more}
        await self.etcd.put(f"/headway/nodes/{name}", json.dumps(document).encode(), lease)

    async def put(self, key: str, document: Any) -> None:
        await self.etcd.put(f"/headway/{key}", json.dumps(document).encode())

    async def status(self) -> dict[str, Any]:
        node = await self.etcd.get(STATUS)
        return {} if node is None else json.loads(node.value)


async def until(holds: Callable[[], bool]) -> None:
    """Wait for something that is about to happen."""
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.01)


def play(
    server: EtcdServer,
    act: Callable[[Scene], Awaitable[None]],
    grace_s: float = 15.0,
    connect: bool = True,
    **more: Any,
) -> None:
    async def go() -> None:
        app, etcd = Gateway(**more), Etcd(read(EtcdSettings, server.url, "etcd"))
        settings = read(EtcdSettings, {"endpoints": server.url, "gateway": "here", "timeout": "2s"}, "etcd")
        source = source_of(app, settings, grace_s=grace_s)
        await source.start()
        try:
            if connect:
                await until(lambda: source.connected is True)
            await asyncio.wait_for(act(Scene(server, app, etcd, source)), 120)
        finally:
            await source.stop()
            await etcd.close()

    asyncio.run(go())


shared = pytest.fixture(started, scope="module")
server = pytest.fixture(started)


@pytest.fixture
def clean(shared: EtcdServer) -> EtcdServer:
    """The shared server without any key."""

    async def wipe() -> None:
        async with Etcd(read(EtcdSettings, shared.url, "etcd")) as etcd:
            for key in (await etcd.range("/headway/")).items:
                await etcd.delete(key)

    asyncio.run(wipe())
    return shared


def test_a_node_joins_reports_and_leaves_when_its_lease_expires(clean: EtcdServer) -> None:
    async def act(scene: Scene) -> None:
        lease = await scene.etcd.grant(2)
        await scene.register("a", lease, role="decode", pool="large", signals={"running": 3, "watts": 250.5})
        await until(lambda: scene.app.names == ["a", "filed"])
        spec = scene.app.fleet.names["a"].spec
        assert (spec.role, spec.pool, spec.models, scene.app.state("a")) == ("decode", "large", ("m",), "ready")
        await until(lambda: scene.app.reports == [("a", {"running": 3, "watts": 250.5})])
        await until(lambda: scene.app.names == ["filed"])

    play(clean, act)


def test_a_heartbeat_changes_the_load_and_not_the_engine(clean: EtcdServer) -> None:
    async def act(scene: Scene) -> None:
        await scene.register("a", signals={"running": 0})
        await until(lambda: "a" in scene.app.names)
        backend = scene.app.fleet.names.get("a")
        for running in range(1, 4):
            await scene.register("a", signals={"running": running})
        await until(lambda: len(scene.app.reports) == 4)
        assert [report[1]["running"] for report in scene.app.reports] == [0, 1, 2, 3]
        assert scene.app.fleet.names.get("a") is backend

    play(clean, act)


def test_a_node_is_sent_to_while_its_agent_finds_it_ready(clean: EtcdServer) -> None:
    async def act(scene: Scene) -> None:
        await scene.register("a", models=[], ready=False, why="it loads")  # nobody knows yet what it serves
        await scene.register("b")
        await until(lambda: "b" in scene.app.names)
        assert "a" not in scene.app.names
        await scene.register("a")
        await until(lambda: scene.app.state("a") == "ready")
        await scene.register("a", ready=False, why="/health answered 503")
        await until(lambda: scene.app.state("a") == "unreachable")
        assert "/health answered 503" in scene.app.fleet.names["a"].unready.values()
        await scene.register("a")
        await until(lambda: scene.app.state("a") == "ready")

    play(clean, act)


def test_old_figures_that_a_gateway_finds_at_its_start_are_not_passed_on(clean: EtcdServer) -> None:
    async def before() -> None:
        async with Etcd(read(EtcdSettings, clean.url, "etcd")) as etcd:
            for name, at in (("new", time.time() + 3600), ("old", 1.0)):  # an agent's clock may be ahead
                document = {"url": "http://127.0.0.1:9001", "models": ["m"], "signals": {"running": 1}, "at": at}
                await etcd.put(f"/headway/nodes/{name}", json.dumps(document).encode())

    async def act(scene: Scene) -> None:
        await until(lambda: scene.app.names == ["filed", "new", "old"])
        assert scene.app.reports == [("new", {"running": 1})]
        await scene.register("old", signals={"running": 2}, at=1.0)  # it comes now, whatever its agent's clock says
        await until(lambda: ("old", {"running": 2}) in scene.app.reports)

    asyncio.run(before())
    play(clean, act)


def test_wrong_nodes_are_refused_once_and_keep_nobody_else_out(
    clean: EtcdServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "headway.gateway")

    async def act(scene: Scene) -> None:
        for _ in range(3):
            await scene.etcd.put("/headway/nodes/garbage", b"\xff{")
            await scene.etcd.put("/headway/nodes/broken", b'{"url": "\xff"}')
            await scene.etcd.put("/headway/nodes/deep", b'{"x": ' + b"[" * 5000 + b"]" * 5000 + b"}")
            await scene.etcd.put("/headway/nodes/x\nheadway: a line of its own\x1b[31m", b"{}")
            await scene.register("nowhere", url="ftp://10.0.0.1")
            await scene.register("role", role="cook")
            await scene.register("modelless", models=[])  # while the others name theirs
            await scene.register("bad name")
        await scene.register("good")
        await until(lambda: scene.app.state("good") == "ready")
        assert scene.app.names == ["filed", "good"]
        messages = [record.getMessage() for record in caplog.records if "refused the node" in record.getMessage()]
        assert len(messages) == 8, messages
        assert all(line.isprintable() for line in messages)
        assert not any(record.exc_info for record in caplog.records)
        await scene.register("role")  # mended
        await until(lambda: scene.app.state("role") == "ready")

    play(clean, act)


def test_a_node_that_turns_wrong_stays_as_it_was(clean: EtcdServer) -> None:
    async def act(scene: Scene) -> None:
        await scene.register("a")
        await until(lambda: "a" in scene.app.names)
        await scene.etcd.put("/headway/nodes/a", b"{}")
        await scene.register("b")
        await until(lambda: "b" in scene.app.names)
        assert scene.app.state("a") == "ready"

    play(clean, act)


def test_a_node_cannot_choose_which_variable_is_sent_to_it(clean: EtcdServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_GATEWAY", "x")

    async def act(scene: Scene) -> None:
        await scene.register("a", key_env="SECRET_OF_THE_GATEWAY")
        await until(lambda: "a" in scene.app.names)
        assert scene.app.fleet.names["a"].key is None

    play(clean, act)


def test_more_nodes_than_places_leave_the_others_at_work(clean: EtcdServer) -> None:
    async def act(scene: Scene) -> None:
        for name in ("a", "b", "c"):
            await scene.register(name)
        await until(lambda: len(scene.app.names) == 3)
        assert scene.app.names == ["a", "b", "filed"]
        await scene.etcd.delete("/headway/nodes/a")
        await until(lambda: scene.app.names == ["b", "c", "filed"])

    play(clean, act, max_backends=3)


def test_a_cordon_holds_over_heartbeats_and_a_new_registration_until_it_is_lifted(clean: EtcdServer) -> None:
    async def act(scene: Scene) -> None:
        await scene.register("a")
        await until(lambda: scene.app.state("a") == "ready")
        await scene.put("cordon/a", {"why": "repairs"})
        await scene.put("cordon/filed", {})
        await until(lambda: scene.app.state("a") == scene.app.state("filed") == "draining")
        for running in range(3):
            await scene.register("a", signals={"running": running})
        await until(lambda: len(scene.app.reports) == 3)
        assert scene.app.state("a") == "draining"
        await scene.etcd.delete("/headway/nodes/a")
        await until(lambda: "a" not in scene.app.names)
        await scene.register("a")
        await until(lambda: scene.app.state("a") == "draining")
        await scene.etcd.delete("/headway/cordon/a")
        await until(lambda: scene.app.state("a") == "ready")
        assert list(scene.app.fleet.cordoned) == ["filed"]

    play(clean, act)


def test_a_cordon_of_somebody_else_is_not_lifted(clean: EtcdServer) -> None:
    async def act(scene: Scene) -> None:
        scene.app.fleet.cordon("filed")
        await scene.put("cordon/other", {})
        await until(lambda: "other" in scene.app.fleet.cordoned)
        await scene.etcd.delete("/headway/cordon/other")
        await until(lambda: list(scene.app.fleet.cordoned) == ["filed"])

    play(clean, act)


def test_policies_are_swapped_and_wrong_ones_are_refused_while_the_old_ones_stay(
    clean: EtcdServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def act(scene: Scene) -> None:
        await scene.put("routing/policy", {"routing": {"name": "kv-aware", "kv": 0.7}})
        await until(lambda: scene.app.plane.policies["routing"] == {"name": "kv-aware", "kv": 0.7})
        while not (status := await scene.status()).get("accepted"):
            await asyncio.sleep(0.01)
        for wrong, why in (
            ({"routing": {"name": "kv-aware", "kvv": 0.7}}, "kvv"),
            ({"rooting": "random"}, "rooting"),
            (["random"], "expected a mapping"),
            ({"routing": "/tmp/evil.py:Evil"}, "names a file"),
        ):
            revision = status["revision"]
            await scene.put("routing/policy", wrong)
            while (status := await scene.status())["revision"] == revision:
                await asyncio.sleep(0.01)
            assert not status["accepted"] and why in status["error"]
            assert any(record.levelname == "WARNING" and why in record.getMessage() for record in caplog.records)
        assert scene.app.plane.policies["routing"] == {"name": "kv-aware", "kv": 0.7}
        await scene.etcd.put("/headway/routing/policy", b"routing: round-robin  # as people write it\n")
        await until(lambda: scene.app.plane.policies["routing"] == "round-robin")
        await scene.etcd.delete("/headway/routing/policy")
        await scene.register("after")
        await until(lambda: "after" in scene.app.names)
        assert scene.app.plane.policies["routing"] == "round-robin"

    play(clean, act)


def test_a_node_that_cannot_be_read_keeps_nothing_from_a_gateway_that_starts(clean: EtcdServer) -> None:
    async def before() -> None:
        async with Etcd(read(EtcdSettings, clean.url, "etcd")) as etcd:
            await etcd.put("/headway/nodes/0", b'{"url": "\xff"}')
            await etcd.put("/headway/cordon/filed", b"{}")
            await etcd.put("/headway/routing/policy", b'{"routing": "round-robin"}')

    async def act(scene: Scene) -> None:
        await until(lambda: scene.app.plane.policies["routing"] == "round-robin")
        assert scene.app.state("filed") == "draining"

    asyncio.run(before())
    play(clean, act)


@pytest.mark.parametrize("value", [b'{"routing":' * 5000, b"{routing: " * 5000])
def test_a_policy_that_is_too_deep_is_told_in_a_sentence(value: bytes) -> None:
    with pytest.raises(HeadwayError, match="too deep"):
        read_policy(value, "policy")


@pytest.mark.parametrize(
    "document",
    [
        {"routing": {"name": "code", "path": "/etc/passwd"}},
        {"routing": {"name": "weighted", "scorers": {"/x/evil.py:Evil": 1}}},
        {"routing": {"name": "weighted", "scorers": "prefix-affinity:1,/x/evil.py:Evil:1"}},
        {"format": 1, "policies": {"routing": {"type": "code", "path": "/etc/passwd"}}},
    ],
)
def test_no_file_is_read_for_a_policy_of_etcd(document: Any) -> None:
    with pytest.raises(HeadwayError, match="names a file"):
        read_policy(json.dumps(document).encode(), "policy")


def test_a_bundle_in_etcd_is_its_policies() -> None:
    document = {"format": 1, "policies": {"routing": {"type": "parameters", "template": "random", "parameters": {}}}}
    assert read_policy(json.dumps(document).encode(), "policy")["routing"] == "random"


def test_while_etcd_is_down_what_was_known_holds_and_then_all_is_read_anew(server: EtcdServer) -> None:
    async def act(scene: Scene) -> None:
        lease = await scene.etcd.grant(600)
        for name in ("a", "bb"):
            await scene.register(name, lease)
        await scene.put("cordon/bb", {})
        await scene.put("routing/policy", {"routing": "random"})
        await until(lambda: scene.app.plane.policies["routing"] == "random" and scene.app.state("bb") == "draining")
        scene.server.kill()
        await until(lambda: scene.source.connected is False)
        assert scene.app.names == ["a", "bb", "filed"] and scene.app.state("a") == "ready"
        await asyncio.to_thread(scene.server.start)
        await scene.etcd.delete("/headway/nodes/a")  # before or after the gateway is back
        await scene.etcd.delete("/headway/cordon/bb")
        await scene.register("ccc", lease)
        await until(lambda: scene.app.names == ["bb", "ccc", "filed"])
        await until(lambda: scene.app.state("bb") == "ready")
        assert scene.source.connected and scene.app.plane.policies["routing"] == "random"

    play(server, act)


def test_a_store_that_lost_its_data_costs_no_engine_that_registers_again_and_no_cordon(server: EtcdServer) -> None:
    async def act(scene: Scene) -> None:
        for name in ("back", "gone", "held"):
            await scene.register(name)
        await scene.put("cordon/held", {"why": "repairs"})
        await scene.put("routing/policy", {"routing": "random"})
        await until(lambda: scene.app.plane.policies["routing"] == "random" and scene.app.state("held") == "draining")
        backend, lifted = scene.app.fleet.names.get("back"), []
        left: list[tuple[str, str]] = []
        lift = scene.app.fleet.uncordon
        scene.app.fleet.uncordon = lambda name: (lifted.append(name), lift(name))[1]  # type: ignore[method-assign]
        scene.app.fleet.on_change.append(lambda one, what: left.append((one.name, what)))
        scene.server.kill()
        scene.server.lose_data()
        await asyncio.to_thread(scene.server.start)
        for name in ("back", "held"):
            await scene.register(name)
        await until(lambda: list(scene.source._late) == ["gone"])
        assert left == [] and scene.source._timer is not None
        scene.source._overdue()
        assert left == [("gone", "left")]
        assert scene.app.fleet.names.get("back") is backend and scene.app.state("held") == "draining"
        restored = await scene.etcd.get("/headway/cordon/held")
        assert restored is not None and json.loads(restored.value) == {"why": "repairs"} and lifted == []
        await scene.etcd.delete("/headway/cordon/held")
        await until(lambda: scene.app.state("held") == "ready")
        assert scene.app.plane.policies["routing"] == "random"

    play(server, act, grace_s=3600)


def test_a_gateway_begins_without_its_etcd_and_finds_it_later() -> None:
    server = EtcdServer()

    async def act(scene: Scene) -> None:
        await until(lambda: scene.source.connected is False)
        assert scene.app.names == ["filed"]
        await asyncio.to_thread(scene.server.start)
        await scene.register("a")
        await until(lambda: scene.app.state("a") == "ready")

    try:
        play(server, act, connect=False)
    finally:
        server.stop()


def test_another_prefix_is_another_fleet(clean: EtcdServer) -> None:
    async def go() -> None:
        app, etcd = Gateway(), Etcd(read(EtcdSettings, clean.url, "etcd"))
        source = source_of(app, read(EtcdSettings, {"endpoints": clean.url, "prefix": "/staging"}, "etcd"))
        await source.start()
        document = json.dumps({"url": "http://127.0.0.1:9001", "models": ["m"]}).encode()
        await etcd.put("/headway/nodes/live", document)
        await etcd.put("/staging/nodes/staged", document)
        await until(lambda: app.names == ["filed", "staged"])
        await source.stop()
        await etcd.close()

    asyncio.run(go())


def test_requests_go_to_an_engine_of_etcd_and_none_to_a_cordoned_one(clean: EtcdServer, live: Any) -> None:
    gateway = live(engines=1)
    engine, etcd = Engine("from-etcd"), Etcd(read(EtcdSettings, clean.url, "etcd"))
    source = source_of(gateway.app, read(EtcdSettings, clean.url, "etcd"))
    gateway.call(engine.start())
    gateway.call(source.start())
    url = f"http://127.0.0.1:{engine.port}"
    gateway.call(etcd.put("/headway/nodes/n1", json.dumps({"url": url}).encode()))
    gateway.call(etcd.put("/headway/cordon/e0", b"{}"))
    gateway.until(lambda: gateway.app.fleet.names.get("n1") is not None and "e0" in gateway.app.fleet.cordoned)
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello"}]}).encode()
    request = Request(f"{gateway.url}/chat/completions", body, {"content-type": "application/json"})
    for _ in range(5):
        with urlopen(request, timeout=300) as answer:
            assert answer.headers["x-headway-target"] == "n1"
    assert len(engine.bodies) == 5 and not gateway.engines[0].bodies
    gateway.call(source.stop())
    gateway.call(etcd.close())
    assert engine.server is not None
    engine.server.close()


def test_the_documents_that_are_shown_can_be_read() -> None:
    page = (ROOT / "docs" / "membership.md").read_text(encoding="utf-8")
    node, policy = re.findall(r"^```json\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert set(json.loads(node)) <= set(Node.__struct_fields__)
    assert BackendSpec.read("n", Node.read(node.encode(), "node").backend(), "node").max_batch_size == 128
    assert read_policies(read_policy(policy.encode(), "policy"))["routing"]["kv"] == 0.7
