"""A candidate that decides on a share of live sessions: who they are, what is told of them, and how it is stopped."""

from __future__ import annotations

import asyncio
import random
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")
pytest.importorskip("aiohttp", reason="the extra `gateway` is not installed")

from asking import ADMIN, KEY, admin, chat

from headway.errors import HeadwayError
from headway.gateway.config import Config
from headway.gateway.deciding.policy_versions import PlaneSettings
from headway.gateway.live_policies import read_policies
from headway.gateway.plane import Plane
from headway.gateway.shadow.canary import Choice
from headway.gateway.shadow.canary_trial import Trial, more_often, wilson
from headway.gateway.shadow.canary_watch import GONE, CanaryWatch
from headway.gateway.tape import records, replay
from headway.types import PS_PER_SECOND, Path, Request

BUSIEST = "def score(request, instance, cluster):\n    return instance.inflight\n"
FAILING = "def score(request, instance, cluster):\n    return 1 / (instance.inflight - instance.inflight)\n"
ORACLE = {"name": "weighted", "scorers": {"oracle-prefix": 1}}
MS = PS_PER_SECOND // 1000


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("TEST_ADMIN_KEY", KEY)


def code(source):
    return {"routing": {"name": "code", "source": source}}


def crowd(gateway, count, threads=16, sessions=40):
    with ThreadPoolExecutor(threads) as pool:

        def ask(number):
            session = f"s{number % sessions}"
            return chat(gateway, f"number {number}", stream=True, x_headway_session=session)

        return list(pool.map(ask, range(count)))


def slow_down_with_load(gateway):
    """Engines whose first token takes the longer the more they have to do."""
    for engine in gateway.engines:

        async def before(body, engine=engine):
            await asyncio.sleep(0.004 * engine.under_way**2)
            return {}

        engine.before = before


def flush_tape(gateway):
    gateway.until(gateway.idle)
    gateway.loop.call_soon_threadsafe(gateway.app.tape.flush)
    gateway.until(lambda: not gateway.app.tape._buffer)


def test_a_bad_candidate_is_stopped_by_itself_and_no_request_fails_for_it(live, tmp_path):
    file = tmp_path / "journal"
    canary = {"policies": code(BUSIEST), "share": 0.4, "stop": {"metric": "ttft_p90", "min_requests": 20}}
    gateway = live(4, admin=ADMIN, policies={"routing": "least-loaded"}, canary=canary, journal=str(file))
    slow_down_with_load(gateway)
    answers = crowd(gateway, 300)
    assert {answer.status for answer in answers} == {200}
    gateway.until(lambda: gateway.app.plane.version == 1)
    reasons = [answer.headers["x-headway-reason"].partition(":")[0] for answer in answers]
    assert "canary" in reasons[:60] and "canary" not in reasons[-60:]
    status = admin(gateway, "/status").json()
    assert status["canary"]["running"] is False and "first tokens took longer than" in status["canary"]["stopped"]
    arms = status["canary"]["arms"]
    assert arms["canary"]["ttft_mean_s"] > arms["live"]["ttft_mean_s"] and arms["canary"]["errors"] == 0
    assert "canary" not in status["policy"]["text"]
    assert b"headway_canary_stops_total 1.0" in admin(gateway, "/metrics").body
    flush_tape(gateway)
    replayed = replay(file)
    assert replayed.decisions == 300 and replayed.different == 0, replayed.differences
    assert [record[1] for record in records(file) if isinstance(record, list)].count("halt") == 1


def wait_for_the_next_second(gateway):
    """Pairs are of whole seconds."""
    now = gateway.app.clock.now_ps
    ended = now() // PS_PER_SECOND
    gateway.until(lambda: now() // PS_PER_SECOND > ended)


def test_a_good_candidate_goes_on_and_the_two_are_compared(live):
    canary = {"policies": {"routing": "round-robin"}, "share": 0.5, "slo": {"ttft": "30s"}}
    canary["stop"] = {"metric": "ttft_p90", "worse_by": 100}  # a busy machine may delay the tokens of one side
    gateway = live(3, admin=ADMIN, policies={"routing": "least-loaded"}, canary=canary)
    for _ in range(3):
        crowd(gateway, 60, threads=4)
        wait_for_the_next_second(gateway)
    status = admin(gateway, "/canary").json()["canary"]
    assert status["running"] and status["stopped"] is None
    assert status["arms"]["canary"]["requests"] + status["arms"]["live"]["requests"] == 180
    assert status["arms"]["canary"]["slo_missed"] == 0
    mean, low, high = status["ttft_difference_s"]
    assert status["pairs"] >= 2 and low <= mean <= high
    assert b'headway_canary_ttft_difference_seconds{bound="low"}' in admin(gateway, "/metrics").body


def test_a_candidate_that_fails_is_stopped_and_the_policies_in_force_keep_what_they_know(live, tmp_path):
    file = tmp_path / "journal"
    canary = {"policies": code(FAILING), "share": 0.5}
    gateway = live(3, policies={"routing": "round-robin"}, canary=canary, journal=str(file))
    live_routing = gateway.app.plane.versions.arms.live.stages.routing
    answers = crowd(gateway, 60, threads=1)
    assert {answer.status for answer in answers} == {200}
    assert gateway.app.switch.failures.count == {"live": 0, "canary": 5}
    assert "canary" not in gateway.app.plane.policies and gateway.app.canary.stopped == "its policies failed 5 times"
    assert gateway.app.plane.versions.arms.live.stages.routing is live_routing  # the same object, in the same turn
    flush_tape(gateway)
    assert replay(file).different == 0


def test_it_is_put_and_taken_away_by_the_admin_api(live):
    gateway = live(2, admin=ADMIN, policies={"routing": "least-loaded"})
    assert admin(gateway, "/canary", "DELETE").status == 404
    put = admin(gateway, "/canary", "PUT", {"policies": {"routing": "round-robin"}, "share": 1.0})
    assert put.status == 200 and put.json()["policies"]["canary"]["share"] == 1.0
    assert chat(gateway).headers["x-headway-reason"] == "canary: next in turn"
    assert admin(gateway, "/canary", "PUT", {"policies": "/etc/passwd"}).status == 400
    assert admin(gateway, "/policies", "PUT", {"canary": {"policies": "/etc/passwd"}}).status == 400
    assert admin(gateway, "/canary", "DELETE").json()["version"] == 2
    assert chat(gateway).headers["x-headway-reason"] == "fewest requests in flight"
    assert admin(gateway, "/canary").json()["canary"]["stopped"] == "by the admin API"


@pytest.mark.parametrize(
    ("canary", "message"),
    [
        ({}, r"canary: 'policies' is missing"),
        ({"policies": {"routing": "lmetric"}, "share": 0}, r"canary\.share: expected a number above 0"),
        ({"policies": {"routing": "lmetrik"}}, r"canary\.policies\.routing: no routing policy is called 'lmetrik'"),
        ({"policies": {"routing": ORACLE}}, r"canary\.policies\.routing: .* is an oracle policy"),
        ({"policies": {"flow": "bands"}}, r"canary\.policies\.flow: a candidate shares the queue"),
        ({"policies": {}}, r"canary\.policies: name at least one policy"),
        ({"policies": {"routing": "lmetric"}, "stop": {"metric": "slo"}}, r"canary\.stop\.metric: 'slo' needs a limit"),
        ({"policies": {"routing": "lmetric"}, "stop": {"metric": "tpot"}}, r"canary\.stop\.metric: expected"),
    ],
)
def test_a_wrong_section_is_told(canary, message):
    with pytest.raises(HeadwayError, match=message):
        Config.load({"backends": {"a": "http://127.0.0.1:9"}, "canary": canary})


def test_what_is_read_once_more_is_the_same():
    policies = {"routing": "lmetric", "canary": {"policies": code(BUSIEST), "share": 0.1, "slo": {"ttft": "1s"}}}
    parsed = read_policies(policies)
    assert read_policies(parsed) == parsed and [rule["metric"] for rule in parsed["canary"]["stop"]] == [
        "ttft_p90",
        "error_rate",
        "slo",
    ]


def test_a_session_is_always_on_one_side_and_a_larger_share_has_all_of_a_smaller():
    def request(number, session):
        return Request(number, 0, 1, Path((), ()), tenant=f"t{session % 3}", session=f"s{session}")

    small, large = Choice(0.05, "session"), Choice(0.3, "session")
    chosen = [session for session in range(4000) if small(request(session, session))]
    assert 0.03 < len(chosen) / 4000 < 0.07
    assert all(large(request(9 + session, session)) and small(request(8 + session, session)) for session in chosen)
    tenants = Choice(0.5, "tenant")
    assert {tenants(request(number, 3 * number)) for number in range(50)} in ({True}, {False})
    each = [Choice(0.5, "request")(request(number, 1)) for number in range(200)]
    assert 60 < sum(each) < 140


def test_each_side_goes_by_its_own_stages_and_both_hear_of_everything():
    observing = {"routing": "session-affinity"}
    policies = read_policies({**observing, "canary": {"policies": {"routing": "lmetric"}, "share": 0.5}})
    plane = Plane(PlaneSettings(2, policies))
    for place in range(2):
        plane.join(0, place, {"id": f"e{place}", "serves": []})
        plane.changed(0, place, "ready")
    control, live, trial = plane.control, plane.versions.arms.live.stages, plane.versions.arms.trial.stages
    assert trial.admission is live.admission and trial.routing is not live.routing
    assert len(control.indexes) == 1  # the candidate's, touched by all
    for number in range(20):
        plane.arrive(number, Request(number, number, 512, Path((number,), (512,)), session=f"s{number}"))
    assert sum(control.indexes[0].size(place) for place in range(2)) == 20


@pytest.mark.full
def test_equal_sides_are_not_stopped_and_worse_ones_are():
    """Looked at four times a second for ten minutes, as a gateway does."""
    draw = random.Random(5)
    rules = read_policies({"canary": {"policies": {"routing": "lmetric"}, "slo": {"ttft": "1s"}}})["canary"]["stop"]

    def seconds_to_stop(slower, fails=0.01):
        trial, waiting = Trial(PS_PER_SECOND), {"live": [], "canary": []}
        for second in range(600):
            for _ in range(20):
                side = "canary" if draw.random() < 0.2 else "live"
                worse = side == "canary"
                ttft = round(draw.lognormvariate(-2, 0.8) * (slower if worse else 1.0) * PS_PER_SECOND)
                trial.record_end(side, second * PS_PER_SECOND, ttft, draw.random() < (fails if worse else 0.01))
            for rule in rules:
                if trial.verdict(rule, second * PS_PER_SECOND, waiting) is not None:
                    return second, trial
        return None, trial

    alike, trial = seconds_to_stop(1.0)
    assert alike is None
    apart = trial.difference(0)
    assert apart.low < 0.0 < apart.high
    assert seconds_to_stop(0.7)[0] is None
    slow, trial = seconds_to_stop(3.0)
    assert slow is not None and slow < 60
    assert seconds_to_stop(1.0, fails=0.5)[0] < 40


def test_engines_that_never_answer_count_too():
    trial = Trial(None)
    for number in range(100):
        trial.record_end("live", number, 50 * MS, False)
    rule = {"metric": "ttft_p90", "worse_by": 0.2, "min_requests": 20}
    assert trial.verdict(rule, 0, {"live": [], "canary": [10 * MS] * 50}) is None  # they may come soon
    assert trial.verdict(rule, 0, {"live": [], "canary": [900 * MS] * 19}) is None  # too few
    assert "took longer" in trial.verdict(rule, 0, {"live": [], "canary": [900 * MS] * 20})


def test_clients_that_go_count_with_the_time_that_they_have_waited():
    """Otherwise a candidate that nobody has the patience for would go on for ever."""
    watch = CanaryWatch(SimpleNamespace(now_ps=lambda: 0), None, [], print)
    watch.trial, watch.choice = Trial(None), Choice(1.0, "request")
    for number in range(60):
        watch.trial.record_end("live", 0, 50 * MS, False)
        left = SimpleNamespace(request=Request(number, 0, 10, Path((), ())), first_ps=-1)
        watch._on_end(left, 400 * MS, "failed", GONE)
    rule = {"metric": "ttft_p90", "worse_by": 0.2, "min_requests": 50}
    assert "took longer" in watch.trial.verdict(rule, 0, {"live": [], "canary": []})
    assert watch.trial.total["canary"].errors == 0


def test_the_error_rates_are_compared_also_where_one_side_never_answers():
    trial = Trial(None)
    for second in range(6):
        for _ in range(5):
            trial.record_end("live", second * PS_PER_SECOND, 50 * MS, False)
            trial.record_end("canary", second * PS_PER_SECOND, -1, True)
    assert trial.difference(1).mean == 1.0 and trial.difference(0) is None


def test_intervals_hold_the_true_share_about_as_often_as_they_say():
    draw = random.Random(1)
    missed = 0
    for _ in range(2000):
        low, high = wilson(sum(draw.random() < 0.1 for _ in range(60)), 60)
        missed += not low <= 0.1 <= high
    assert missed < 2000 * 0.01
    assert more_often(30, 50, 5, 50)[1] > 0 > more_often(6, 50, 5, 50)[1]
