"""The last decisions with what they rested on, and the reason in an answer's header."""

from __future__ import annotations

import pytest

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")
pytest.importorskip("aiohttp", reason="the extra `gateway` is not installed")

from asking import ADMIN, KEY, admin, chat

from headway.errors import HeadwayError
from headway.gateway.config import Config
from headway.gateway.observing import recent_decisions
from headway.gateway.observing.recent_decisions import LONGEST_REASON, Reasons


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("TEST_ADMIN_KEY", KEY)


def test_the_last_decisions_have_their_scorecards_the_newest_first(live):
    gateway = live(3, admin=ADMIN, policies={"routing": "kv-aware"})
    targets = [chat(gateway, f"number {number % 3} " * 60).headers["x-headway-target"] for number in range(9)]
    decisions = admin(gateway, "/debug/decisions?last=5").json()["decisions"]
    assert [each["request"] for each in decisions] == [8, 7, 6, 5, 4]
    assert [each["target"] for each in reversed(decisions)] == targets[4:]
    for each in decisions:
        card = each["scorecard"]
        assert card["picked"] == each["target"] and len(card["totals"]) == 3
        assert max(card["totals"]) == card["totals"][card["left"].index(each["target"])]
        assert [view["id"] for view in each["candidates"]] == ["e0", "e1", "e2"]
        assert each["believed_tokens"] > 0
        assert {"kv", "load", "power", "capacity"} < card["scores"].keys()
        assert each["router_state"] == {"inflight": 0} and each["tenant_state"] is None
        assert {"inflight", "queued", "running", "hit_rate", "kv_utilization"} < each["candidates"][0].keys()


def test_a_decision_has_the_totals_the_tenant_and_recent_latencies_if_a_policy_declares_them(live, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from headway import Route, policy\n"
        "@policy('routing', 'mine', exact=('totals', 'tenants', 'recent'), reported=())\n"
        "class Mine:\n"
        "    def route(self, request, cluster):\n"
        "        return Route(cluster.instances[0].id)\n"
    )
    gateway = live(2, admin=ADMIN, policies={"routing": f"{file}:Mine"})
    for _ in range(2):
        chat(gateway, stream=True, x_headway_tenant="t")
    last, first = admin(gateway, "/debug/decisions").json()["decisions"]
    assert (last["reason"], last["router_state"]["inflight"], last["router_state"]["queued"]) == (
        "chosen by mine",
        0,
        0,
    )
    assert (first["tenant_state"]["requests"], last["tenant_state"]["requests"]) == (1, 2)
    assert first["candidates"][0]["recent_ttft"] is None and last["candidates"][0]["recent_ttft"] > 0


def test_only_so_many_are_explained_a_second_and_all_where_that_is_asked(live):
    few = live(2, admin=ADMIN, policies={"routing": "kv-aware"}, explain={"per_second": 0.01})
    for _ in range(6):
        chat(few)
    assert [each["request"] for each in admin(few, "/debug/decisions").json()["decisions"]] == [0]
    every = admin(few, "/debug/decisions?every=true").json()["decisions"]
    assert [each["request"] for each in every] == [5, 4, 3, 2, 1, 0]
    assert [each["scorecard"] is None for each in every] == [True] * 5 + [False]
    none = live(1, admin=ADMIN, policies={"routing": "kv-aware"}, explain=0)
    chat(none)
    assert admin(none, "/debug/decisions").json() == {"decisions": []}
    everything = live(2, admin=ADMIN, policies={"routing": "kv-aware"}, explain="all")
    for _ in range(30):
        chat(everything)
    assert len(admin(everything, "/debug/decisions?last=500").json()["decisions"]) == 30


def test_what_is_explained_is_asked_for_again_after_a_while(live):
    gateway = live(2, admin=ADMIN, policies={"routing": "kv-aware"}, explain=50)
    for _ in range(60):  # more than are explained at first
        chat(gateway)
    gateway.until(lambda: chat(gateway).status == 200 and len(gateway.app.decisions.explained) > 50)


def test_to_be_explained_changes_no_decision(live):
    choices = []
    for explain in (0, "all"):
        gateway = live(3, policies={"routing": "kv-aware"}, explain=explain)
        choices.append(
            [chat(gateway, f"number {number % 5} " * 60).headers["x-headway-target"] for number in range(20)]
        )
        gateway.until(gateway.idle)
    assert choices[0] == choices[1]


def test_decisions_are_kept_when_the_policies_are_replaced(live):
    gateway = live(2, admin=ADMIN, policies={"routing": "kv-aware"})
    chat(gateway)
    admin(gateway, "/policies", "PUT", {"routing": "weighted"})
    chat(gateway)
    decisions = admin(gateway, "/debug/decisions").json()["decisions"]
    assert [each["request"] for each in decisions] == [1, 0] and all(each["scorecard"] for each in decisions)


def test_who_was_turned_away_is_told_with_why(live):
    gateway = live(1, admin=ADMIN, policies={"admission": {"name": "token-bucket", "rate": 0.001, "burst": 1}})
    chat(gateway)
    refused = chat(gateway)
    latest = admin(gateway, "/debug/decisions?last=1").json()["decisions"][0]
    assert latest["decision"] == "rejected" and latest["reason"] and refused.status in (429, 503)


@pytest.mark.parametrize("query", ["last=0", "last=513", "last=x", "last=-1", "last=", "every=maybe", "last=%C2%B2"])
def test_a_wrong_question_is_told(live, query):
    assert admin(live(1, admin=ADMIN), f"/debug/decisions?{query}").status == 400


def test_only_so_many_are_kept(live, monkeypatch):
    monkeypatch.setattr(recent_decisions, "KEPT", 20)
    gateway = live(1, explain="all")
    for _ in range(30):
        chat(gateway)
    assert len(gateway.app.decisions.every) == len(gateway.app.decisions.explained) == 20


def test_the_header_has_the_policys_reason_or_its_name(live):
    gateway = live(2, policies={"routing": "session-affinity"})
    assert chat(gateway, x_headway_session="s").headers["x-headway-reason"] == "first sight"
    assert chat(gateway, x_headway_session="s").headers["x-headway-reason"] == "bound"
    assert chat(live(1, policies={"routing": "random"})).headers["x-headway-reason"] == "drawn at random"


def test_a_reason_cannot_write_a_header_of_its_own():
    class Policies:
        version, policies = 0, {"routing": {"name": "mine"}}

    reasons = Reasons(Policies())
    assert reasons.line("a\r\nset-cookie: x\x00\x7f") == b"x-headway-reason: a  set-cookie: x  "
    assert reasons.line("café") == b"x-headway-reason: caf?"
    assert len(reasons.line("x" * 5000)) == len(b"x-headway-reason: ") + LONGEST_REASON
    assert reasons.line("") == b"x-headway-reason: mine"


def test_a_wrong_setting_is_told_with_its_place():
    with pytest.raises(HeadwayError, match=r"explain\.per_second: expected a number of at least 0"):
        Config.load({"backends": {"a": "http://x"}, "explain": -1})
    with pytest.raises(HeadwayError, match=r"explain\.per_secnd: there is no such key"):
        Config.load({"backends": {"a": "http://x"}, "explain": {"per_secnd": 1}})
