"""Candidates that are asked about live decisions: what they see, what is told of them, and what they cannot do."""

from __future__ import annotations

import pytest

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")
pytest.importorskip("aiohttp", reason="the extra `gateway` is not installed")

from asking import ADMIN, KEY, admin, chat

from headway.control import view_lock
from headway.errors import HeadwayError
from headway.gateway.config import Config
from headway.gateway.tape import replay

BUSIEST = "def score(request, instance, cluster):\n    return instance.inflight\n"
FAILING = "def score(request, instance, cluster):\n    return 1 / (instance.inflight - instance.inflight)\n"
ORACLE = {"name": "weighted", "scorers": {"oracle-prefix": 1}}
TENANTS = "def score(request, instance, cluster):\n    return tenant(request).requests + instance.inflight\n"
SLOW = """
import time

from headway.types import Route


class Slow:
    def route(self, request, cluster):
        time.sleep(0.003)  # above the budget
        return Route(cluster.instances[0].id)


class Seen:
    seen = []

    def route(self, request, cluster):
        self.seen.append(("route", request.id, [view.inflight for view in cluster.instances]))
        return Route(cluster.instances[0].id)

    def observe(self, event):
        self.seen.append((type(event).__name__, event.instance.id))
"""


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("TEST_ADMIN_KEY", KEY)


def code(source):
    return {"routing": {"name": "code", "source": source}}


def wait_until_asked(gateway, count):
    """Until every candidate has been asked so often, and nothing waits."""
    gateway.until(
        lambda: all(each.decisions >= count for each in gateway.app.shadows.candidates.values() if each.why is None)
    )
    gateway.until(lambda: not gateway.app.shadows._waiting)


def shadow_status(gateway):
    return {each["name"]: each for each in admin(gateway, "/status").json()["shadows"]}


@pytest.mark.parametrize("routing", ["lmetric", "power-of-two", "kv-aware", "weighted", "session-affinity"])
def test_a_candidate_that_is_the_policy_in_force_always_agrees(live, routing):
    """It sees what that saw: counts and beliefs before the decision, and real placements since."""
    gateway = live(3, admin=ADMIN, policies={"routing": routing}, shadow={"same": {"routing": routing}})
    for number in range(40):
        text = f"group {number % 4} " * 300 + str(number)
        assert chat(gateway, text, stream=number % 2 == 0, x_headway_session=f"s{number % 5}").status == 200
    wait_until_asked(gateway, 40)
    status = shadow_status(gateway)["same"]
    assert (status["asked"], status["agreement"], status["gained_tokens"], status["forgone_tokens"]) == (40, 1.0, 0, 0)
    assert status["ttft_s"] == pytest.approx(status["ttft_live_s"])


def test_what_another_choice_would_have_meant_is_told(live, tmp_path):
    journal = tmp_path / "journal"
    shadow = {"warm": {"routing": "lmetric-plus-one"}, "turns": {"routing": "round-robin"}}
    gateway = live(3, admin=ADMIN, policies={"routing": "least-loaded"}, shadow=shadow, journal=str(journal))
    for number in range(30):
        assert chat(gateway, f"group {number % 3} " * 900, stream=True).status == 200
    wait_until_asked(gateway, 30)
    status = shadow_status(gateway)
    assert status["warm"]["agreement"] == 1.0  # all goes to the first engine, which is the warmest and as idle as any
    assert status["turns"]["agreement"] == pytest.approx(1 / 3, abs=0.05)
    assert status["turns"]["forgone_tokens"] > 0 == status["turns"]["gained_tokens"]
    assert status["turns"]["ttft_s"] > status["turns"]["ttft_live_s"]
    page = admin(gateway, "/metrics").body.decode()
    assert 'headway_shadow_decisions_total{agrees="true",candidate="warm"} 30.0' in page
    assert 'headway_shadow_up{candidate="turns"} 1.0' in page
    document = admin(gateway, "/debug/decisions?last=5&every=true").json()
    of = document["decisions"][0]["shadow"]
    assert list(of) == ["warm", "turns"] and of["warm"]["agrees"] and of["warm"]["target"] == "e0"
    card = document["scorecards"]["warm"][0]
    assert card["live"] == "e0" and card["scorecard"]["candidates"] == ["e0", "e1", "e2"]
    gateway.until(gateway.idle)
    gateway.loop.call_soon_threadsafe(gateway.app.tape.flush)
    gateway.until(lambda: not gateway.app.tape._buffer)
    assert replay(journal).different == 0


def test_it_hears_of_real_placements_in_order(live, tmp_path):
    file = tmp_path / "shadows.py"
    file.write_text(SLOW)
    gateway = live(2, policies={"routing": "round-robin"}, shadow={"seen": {"routing": f"{file}:Seen"}})
    for _ in range(2):
        chat(gateway, stream=True)
        gateway.until(gateway.idle)
    wait_until_asked(gateway, 2)
    observed = gateway.app.shadows.candidates["seen"].routing.seen
    expected = []
    for number, name in enumerate(("e0", "e1")):
        expected += [("route", number, [0, 0]), ("Routed", name), ("FirstToken", name), ("Finished", name)]
    assert [entry for entry in observed if entry[0] != "InstanceChanged"] == expected


def test_one_that_fails_is_asked_no_more_and_nothing_else_happens(live, caplog):
    gateway = live(2, admin=ADMIN, shadow={"bad": code(FAILING), "good": code(BUSIEST)})
    assert {chat(gateway).status for _ in range(6)} == {200}
    wait_until_asked(gateway, 6)
    status = shadow_status(gateway)
    assert status["bad"]["running"] is False and "division by zero" in status["bad"]["why"]
    assert status["good"]["running"] and gateway.app.plane.version == 0 and gateway.app.switch.failures.last is None
    assert sum("shadow bad: stopped" in record.message for record in caplog.records) == 1
    assert b'headway_shadow_errors_total{candidate="bad"} 1.0' in admin(gateway, "/metrics").body


def test_a_pair_whose_decode_engine_fails_stops_no_candidate(live):
    """The prefill engine stands in for its partner only while that decision is taken."""
    members = {name: {"role": role, "models": ["m"]} for name, role in (("e0", "prefill"), ("e1", "decode"))}
    pairs = {"policies": {"routing": "pair"}, "shadow": {"other": {"routing": "least-loaded-pair"}}}
    gateway = live(2, members=members, disaggregation={"protocol": "vllm"}, **pairs)
    gateway.engines[1].mode = "busy"
    assert chat(gateway).headers["x-headway-target"] == "e0"
    shadow = gateway.app.shadows.candidates["other"]
    gateway.until(lambda: shadow.decisions == 2 or shadow.why)
    assert (shadow.why, shadow.agreed) == (None, 2)


def test_one_that_would_end_the_process_is_asked_no_more(live, tmp_path):
    file = tmp_path / "shadows.py"
    file.write_text("class Quits:\n    def route(self, request, cluster):\n        raise SystemExit(3)\n")
    gateway = live(2, admin=ADMIN, shadow={"quits": {"routing": f"{file}:Quits"}})
    assert {chat(gateway).status for _ in range(4)} == {200}
    assert "SystemExit: 3" in shadow_status(gateway)["quits"]["why"]


def test_one_that_takes_too_long_is_asked_no_more(live, tmp_path):
    file = tmp_path / "shadows.py"
    file.write_text(SLOW)
    shadow = {"slow": {"policies": {"routing": f"{file}:Slow"}, "budget": "1ms"}}
    gateway = live(2, admin=ADMIN, shadow=shadow)
    for _ in range(14):
        chat(gateway)
    gateway.until(lambda: gateway.app.shadows.candidates["slow"].why is not None)
    assert (
        shadow_status(gateway)["slow"]["asked"] == 10
        and "longer than its budget of 1 ms" in shadow_status(gateway)["slow"]["why"]
    )


WRITING = """
from headway.types import Route


class Writer:
    def route(self, request, cluster):
        cluster.instances[0].inflight += 100
        return Route(cluster.instances[0].id)


class TenantWriter:
    def route(self, request, cluster):
        cluster.tenants[request.tenant].active += 100
        return Route(cluster.instances[0].id)


class Listener:
    def route(self, request, cluster):
        return Route(cluster.instances[0].id)

    def observe(self, event):
        event.instance.queued = 7
"""


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("Writer", "InstanceView.inflight of e0"),
        ("TenantWriter", "TenantView.active"),
        ("Listener", "InstanceView.queued of e"),
    ],
)
def test_one_that_writes_to_what_it_sees_is_asked_no_more(live, tmp_path, name, field):
    """The candidates share their views, and their tenants are those of the policy in force."""
    file = tmp_path / "writing.py"
    file.write_text(WRITING)
    shadow = {"writer": {"routing": f"{file}:{name}"}, "same": {"routing": "least-loaded"}}
    gateway = live(2, admin=ADMIN, policies={"routing": "least-loaded"}, shadow=shadow)
    for _ in range(4):
        chat(gateway, "hello")
    wait_until_asked(gateway, 4)
    status = shadow_status(gateway)
    assert f"{name} writes to {field}" in status["writer"]["why"] and "at request" in status["writer"]["why"]
    assert (status["same"]["asked"], status["same"]["agreement"]) == (4, 1.0)
    gateway.until(gateway.idle)
    assert gateway.app.plane.control.audience.state.tenants["default"].active == 0


def test_the_views_are_locked_only_at_first(live, tmp_path, monkeypatch):
    monkeypatch.setattr(view_lock, "DECISIONS", 3)
    file = tmp_path / "slow.py"
    file.write_text(SLOW)
    shadow = {"own": {"routing": f"{file}:Seen"}, "ours": {"routing": "lmetric"}}
    gateway = live(1, admin=ADMIN, shadow=shadow)
    candidates = gateway.app.shadows.candidates
    assert candidates["ours"].lock is None
    for number in range(1, 5):
        assert (candidates["own"].lock is not None) == (number <= 3)
        chat(gateway, "hello")
        wait_until_asked(gateway, number)
    assert candidates["own"].why is None


def test_a_sample_is_every_so_many(live):
    gateway = live(2, admin=ADMIN, shadow={"some": {"policies": {"routing": "lmetric"}, "sample": 0.25}})
    for _ in range(20):
        chat(gateway)
    wait_until_asked(gateway, 5)
    assert shadow_status(gateway)["some"]["asked"] == 5


def test_what_the_policy_in_force_does_not_keep_is_kept_for_a_candidate(live):
    gateway = live(2, admin=ADMIN, policies={"routing": "least-loaded"})
    assert gateway.app.plane.control.audience.state is None
    assert admin(gateway, "/shadows/tenants", "PUT", code(TENANTS)).status == 201
    for _ in range(5):
        assert chat(gateway).status == 200
    wait_until_asked(gateway, 5)
    assert shadow_status(gateway)["tenants"]["running"] and shadow_status(gateway)["tenants"]["agreement"] == 1.0
    gateway.until(gateway.idle)


def test_they_come_and_go_by_the_admin_api_and_outlive_a_swap(live):
    gateway = live(2, admin=ADMIN, policies={"routing": "kv-aware"}, shadow={"fixed": {"routing": "lmetric"}})
    put = admin(gateway, "/shadows/new", "PUT", {"format": 1, "policies": {"routing": code(BUSIEST)["routing"]}})
    assert put.status == 201 and put.json()["running"]
    assert admin(gateway, "/shadows/fixed", "PUT", {"routing": "lmetric"}).status == 409
    assert admin(gateway, "/shadows/fixed", "DELETE").status == 409
    assert admin(gateway, "/shadows/none", "DELETE").status == 404
    wrong = admin(gateway, "/shadows/x", "PUT", {"routing": "lmetrik"})
    assert wrong.status == 400 and "shadow.x.routing: no routing policy is called 'lmetrik'" in wrong.said
    for section in ("/etc/passwd", {"policies": "/etc/passwd"}, {"routing": "/tmp/evil.py:Evil"}):
        assert admin(gateway, "/shadows/x", "PUT", section).status == 400
    chat(gateway, "x " * 3000)
    admin(gateway, "/policies", "PUT", {"routing": "lmetric"})
    chat(gateway, "x " * 3000)
    wait_until_asked(gateway, 2)
    assert shadow_status(gateway)["fixed"]["asked"] == 2
    assert admin(gateway, "/shadows/new", "DELETE").status == 200
    assert [each["name"] for each in admin(gateway, "/shadows").json()["shadows"]] == ["fixed"]


def test_without_candidates_nothing_listens(live):
    gateway = live(1, admin=ADMIN)
    assert gateway.app.shadows not in gateway.app.journals
    admin(gateway, "/shadows/new", "PUT", {"routing": "lmetric"})
    assert gateway.app.shadows in gateway.app.plane.control.journals
    admin(gateway, "/shadows/new", "DELETE")
    assert gateway.app.shadows not in gateway.app.plane.control.journals


@pytest.mark.parametrize(
    ("shadow", "message"),
    [
        (["lmetric"], "shadow: expected a mapping of names"),
        ({"a": {"priority": "none"}}, r"shadow\.a: a shadow candidate needs a `routing` policy"),
        ({"a": {"policies": {"routing": "lmetric"}, "sample": 2}}, r"shadow\.a\.sample: expected"),
        ({"a": "missing.yaml"}, "missing.yaml"),
        ({"a": {"routing": ORACLE}}, r"shadow\.a\.routing: .* is an oracle policy"),
    ],
)
def test_a_wrong_section_is_told(shadow, message):
    with pytest.raises(HeadwayError, match=message):
        Config.load({"backends": {"a": "http://127.0.0.1:9"}, "shadow": shadow})


def test_the_work_is_done_when_the_request_is_on_its_way(live):
    """What a decision waits for is to take down the views, whatever the candidates do."""
    gateway = live(2, policies={"routing": "least-loaded"}, shadow={str(n): {"routing": "lmetric"} for n in range(8)})
    shadows, order = gateway.app.shadows, []
    ask, dispatch = shadows._ask, gateway.app.reception.exchange_type.dispatch

    class Watched(gateway.app.reception.exchange_type):
        def dispatch(self):
            order.append("dispatch")
            dispatch(self)

    gateway.app.reception.exchange_type = Watched
    shadows._ask = lambda shot, asked: (order.append("ask"), ask(shot, asked))
    for _ in range(5):
        chat(gateway)
    wait_until_asked(gateway, 5)
    assert order == ["dispatch", "ask"] * 5
