"""Scaling policies in a gateway: the pools that they see, and the numbers that it publishes."""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")

from asking import ADMIN, KEY, admin, chat, component

from headway.config.section import read
from headway.errors import HeadwayError
from headway.gateway import gateway_process
from headway.gateway.config import Config
from headway.gateway.deciding.policy_versions import PlaneSettings
from headway.gateway.live_policies import read_policies
from headway.gateway.live_scaling import LiveScaling, ScalingSettings
from headway.gateway.plane import Plane
from headway.report.page import report
from headway.results.result import Result
from headway.types import PS_PER_SECOND, Path, Request

MINUTE = 60 * PS_PER_SECOND
BACKENDS = {"a": "http://127.0.0.1:1"}


def code(expression: str) -> dict[str, str]:
    return {"name": "code", "source": f"def scale(pool):\n    return {expression}\n"}


class Gateway:
    """A plane with engines, and the scaling policies of its pools."""

    def __init__(self, *engines: dict[str, Any], places: int = 8, **scaling: Any) -> None:
        self.plane = Plane(PlaneSettings(places, read_policies({"routing": "least-loaded"})))
        for place, fields in enumerate(engines):
            self.join(place, **fields)
        settings = read(ScalingSettings, {"max_replicas": 5, **scaling}, "scaling")
        clock: Any = SimpleNamespace(now_ps=lambda: 0)
        self.live = LiveScaling(clock, self.plane, settings)
        self.live.begin(0)
        self.requests = 0

    def join(self, place: int, at: int = 0, **fields: Any) -> None:
        self.plane.join(at, place, {"id": f"e{place}", "serves": [], "pool": "default", "role": "both", **fields})
        self.plane.changed(at, place, "ready")

    def ask(self, at: int, model: str = "") -> int:
        request = Request(self.requests, at, 64, Path((self.requests,), (64,)), model=model)
        self.requests += 1
        self.plane.arrive(at, request)
        return request.id

    def wanted(self) -> dict[str, int]:
        return self.live.figures()["wanted_replicas"]


def test_wanted_engines_that_have_not_joined_count_as_starting() -> None:
    gateway = Gateway({}, {}, policy=code("10 * pool.replicas + pool.starting - 17 if pool.starting < 2 else 4"))
    assert gateway.wanted() == {}  # nothing before the first check
    (record,) = gateway.live.check(MINUTE)
    assert (record.before, record.after, record.trigger, gateway.wanted()) == (2, 3, "interval", {"default": 3})
    pool = gateway.live.pools["default"].view
    (record,) = gateway.live.check(2 * MINUTE)
    assert (pool.replicas, pool.serving, pool.starting, record.after) == (3, 2, 1, 5)
    gateway.join(2)
    gateway.join(3)
    gateway.live.check(3 * MINUTE)
    assert (pool.replicas, pool.serving, pool.starting) == (5, 4, 1)


def test_surplus_engines_with_the_fewest_requests_count_as_draining() -> None:
    gateway = Gateway({}, {}, {}, policy=code("2 if pool.now < 100 else pool.replicas"))
    for _ in range(4):
        gateway.ask(1)  # to e0, e1, e2, e0
    (record,) = gateway.live.check(MINUTE)
    assert (record.before, record.after) == (3, 2)
    assert gateway.live.check(2 * MINUTE) == []
    pool = gateway.live.pools["default"].view
    assert [view.id for view in pool.views] == ["e0", "e1"] and pool.inflight == 4
    gateway.plane.changed(2 * MINUTE, 2, "draining")  # an operator follows
    assert gateway.live.check(3 * MINUTE) == []
    assert pool.replicas == 2 and gateway.wanted() == {"default": 2}


def test_pools_are_counted_apart_and_follow_engines_that_join_and_leave() -> None:
    chat: dict[str, Any] = {"pool": "chat", "serves": ["m"]}
    roles = [{**chat, "role": "prefill"}, {**chat, "role": "decode"}, {"pool": "code", "serves": ["n"]}]
    gateway = Gateway(*roles, policy=code("1 + pool.inflight"), pools={"code": {"max_replicas": 1}})
    gateway.ask(1, model="m")
    gateway.live.check(MINUTE)
    assert gateway.wanted() == {"code": 1, "chat-prefill": 2, "chat-decode": 2}
    view = gateway.live.pools["chat-prefill"].view
    assert (view.role, view.inflight) == ("prefill", 1)
    gateway.plane.handed(MINUTE, 0)
    assert (view.inflight, gateway.live.pools["chat-decode"].view.inflight) == (0, 1)
    gateway.plane.changed(MINUTE, 2, "draining")
    gateway.plane.leave(MINUTE, 2)
    gateway.join(2, MINUTE, id="other", pool="late")
    gateway.live.check(2 * MINUTE)
    assert gateway.wanted() == {"code": 1, "chat-prefill": 1, "chat-decode": 2, "late": 1}


def test_a_named_pool_without_engines_gets_its_minimum() -> None:
    gateway = Gateway(policy={"name": "concurrency"}, pools={"spare": {"min_replicas": 2}})
    (record,) = gateway.live.check(MINUTE)
    assert (record.pool, record.before, record.after, gateway.wanted()) == ("spare", 0, 2, {"spare": 2})


def test_counts_survive_engines_out_of_reach_retries_and_other_routing_policies() -> None:
    gateway = Gateway({}, {}, policy=code("pool.replicas"))
    first, second = gateway.ask(1), gateway.ask(2)
    pool = gateway.live.pools["default"].view
    gateway.plane.changed(3, 0, "unreachable")
    assert pool.inflight == 2
    gateway.plane.changed(4, 0, "ready")
    gateway.plane.resend(5, first)
    gateway.plane.swap(6, read_policies({"routing": "round-robin"}))
    assert (pool.inflight, pool.arrivals.total) == (2, 3)
    for number in (first, second):
        gateway.plane.finished(7, number, "completed", 3)
    gateway.ask(8)
    assert (pool.inflight, pool.arrivals.total, pool.output.total) == (1, 4, 6)


def test_a_policy_that_fails_is_logged_and_its_number_stays(caplog: pytest.LogCaptureFixture) -> None:
    source = code("4 if pool.now < 100 else 1 // 0")
    gateway = Gateway({}, {"pool": "other"}, policy=source, pools={"other": {"policy": code("3")}})
    gateway.live.check(MINUTE)
    with caplog.at_level(logging.WARNING):
        assert gateway.live.check(2 * MINUTE) == []
    assert gateway.wanted() == {"other": 3, "default": 4}
    assert "the policy of pool default failed, and its number stays" in caplog.text
    assert gateway.live.figures()["scaling_failures"] == {"other": 0, "default": 1}
    status = gateway.live.status()
    assert "division by zero" in str(status["last_failure"])
    assert [pool["failures"] for pool in status["pools"]] == [0, 1]


def test_answers_that_are_not_streamed_are_judged_without_their_first_token() -> None:
    gateway = Gateway({}, policy=code("pool.replicas"), slo={"ttft": "1s", "e2e": "10s"})
    pool = gateway.live.pools["default"].view
    for end in (2, 11):
        gateway.plane.finished(end * PS_PER_SECOND, gateway.ask(0), "completed", 3)
    streamed = gateway.ask(12 * PS_PER_SECOND)
    gateway.plane.first_token(14 * PS_PER_SECOND, streamed)
    gateway.plane.finished(15 * PS_PER_SECOND, streamed, "completed", 3)
    pool.now_ps = 15 * PS_PER_SECOND
    assert pool.attainment == {"standard": 1 / 3}


def test_a_gateway_publishes_the_wanted_number(live, tmp_path, monkeypatch, records_written_here) -> None:
    monkeypatch.setenv("TEST_ADMIN_KEY", KEY)
    scaling = {"policy": code("2 + pool.inflight"), "max_replicas": 4, "interval": "50ms", "min_replicas": 0}
    gateway = live(1, scaling=scaling, admin=ADMIN, records=str(tmp_path))
    gateway.until(lambda: gateway.app.scaling.pools["default"].wanted == 2)
    chat(gateway)
    gateway.until(gateway.idle)
    assert 'headway_wanted_replicas{pool="default"} 2.0' in admin(gateway, "/metrics").body.decode()
    (pool,) = json.loads(admin(gateway, "/status").body)["scaling"]["pools"]
    assert (pool["wanted"], pool["replicas"], pool["min_replicas"], pool["max_replicas"]) == (2, 1, 0, 4)
    gateway.call(component(gateway, "Records").stop())
    (folder,) = tmp_path.glob("*/*")
    first = Result.load(folder).scaling_events[0]
    assert "scaled up" in report(folder, tmp_path / "page.html").read_text(encoding="utf-8")
    assert (first.pool, first.before, first.after, first.trigger) == ("default", 1, 2, "interval")
    assert first.metrics is not None and first.metrics.serving == 1


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        ({"policy": "concurency", "max_replicas": 2}, "concurency"),
        ({"policy": "concurrency"}, "'max_replicas' is missing"),
        ({"policy": "concurrency", "max_replicas": 2, "min_replicas": 3}, "2 is below `min_replicas`"),
        ({"policy": "hpa", "max_replicas": 2, "pools": {"x": {"policy": "no"}}}, "scaling.pools.x.policy"),
        ({"policy": "hpa", "max_replicas": 2, "pools": {"x": {"max": 3}}}, "scaling.pools.x.max"),
        ({"policy": code("1 +"), "max_replicas": 2}, "scaling.policy"),
    ],
)
def test_a_wrong_section_is_refused(scaling: dict[str, Any], message: str) -> None:
    with pytest.raises(HeadwayError) as error:
        Config.load({"backends": BACKENDS, "scaling": scaling})
    assert message in str(error.value) and str(error.value).startswith("scaling")


def test_several_processes_are_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("TEST_PEER_KEY", "0123456789abcdef")
    scaling = {"policy": "hpa", "max_replicas": 2}
    peers = {"listen": "127.0.0.1:1", "to": ["127.0.0.1:2"], "key_env": "TEST_PEER_KEY"}
    with pytest.raises(HeadwayError, match=r"scaling: .* one process. Remove `peers` or `scaling`"):
        Config.load({"backends": BACKENDS, "scaling": scaling, "peers": peers})
    file = tmp_path / "gateway.yaml"
    file.write_text(json.dumps({"listen": "127.0.0.1:0", "backends": BACKENDS, "scaling": scaling}))
    with pytest.raises(HeadwayError, match=r"scaling: .* one process. Remove `--workers` or `scaling`"):
        gateway_process.serve(file, lambda address: None, workers=2)
