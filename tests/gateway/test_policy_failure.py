"""Policies that fail: a fallback decides, the failure is reported, and no request fails."""

from __future__ import annotations

import pytest

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")
pytest.importorskip("aiohttp", reason="the extra `gateway` is not installed")

from asking import ADMIN, KEY, admin, chat

from headway.control.flights import Flight
from headway.errors import HeadwayError
from headway.gateway.deciding.policy_versions import PlaneSettings
from headway.gateway.live_policies import read_policies
from headway.gateway.plane import Plane
from headway.gateway.tape import replay
from headway.types import Path, Reject, Request

FAILING = {
    "raises": "def score(request, instance, cluster):\n    return 1 / (instance.index - instance.index)\n",
    "over budget": (
        "def score(request, instance, cluster):\n"
        "    total = 0\n"
        "    for one in range(1000):\n"
        "        for other in range(1000):\n"
        "            total = total + one * other\n"
        "    return total\n"
    ),
}
WRONG = """
from headway.types import Priority, Reject, Route


class Nowhere:
    def route(self, request, cluster):
        return Route("nobody")


class Nothing:
    def route(self, request, cluster):
        return None


class Deaf:
    def route(self, request, cluster):
        return Route(cluster.instances[-1].id)

    def observe(self, event):
        raise RuntimeError("this policy cannot bear to hear of anything")


class Quits:
    def route(self, request, cluster):
        raise SystemExit(3)


class Unbound:
    def bind(self, context):
        raise RuntimeError("it does not like these engines")

    def route(self, request, cluster):
        return Route(cluster.instances[0].id)


class Doors:
    def admit(self, request, cluster):
        return "perhaps"


class Worth:
    def prioritise(self, request, cluster):
        return Priority(float("nan"))
"""


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("TEST_ADMIN_KEY", KEY)


@pytest.fixture
def wrong(tmp_path):
    file = tmp_path / "wrong.py"
    file.write_text(WRONG)
    return file


def flush_tape(gateway):
    """Write the buffered records of the tape to its file."""
    gateway.until(gateway.idle)
    gateway.loop.call_soon_threadsafe(gateway.app.tape.flush)
    gateway.until(lambda: not gateway.app.tape._buffer)


@pytest.mark.parametrize("source", FAILING.values(), ids=FAILING)
def test_failing_code_is_replaced_by_the_former_policies(live, tmp_path, source):
    gateway = live(3, admin=ADMIN, policies={"routing": "round-robin"}, journal=str(tmp_path / "journal"))
    assert chat(gateway).headers["x-headway-reason"] == "next in turn"
    bundle = {"format": 1, "policies": {"routing": {"type": "code", "source": source}}}
    assert admin(gateway, "/policies", "PUT", bundle).json()["version"] == 1
    answers = [chat(gateway, f"number {number}", stream=number % 2 == 0) for number in range(12)]
    assert {answer.status for answer in answers} == {200}
    assert answers[0].headers["x-headway-reason"] == "fallback: next in turn"
    assert answers[-1].headers["x-headway-reason"] == "next in turn"
    status = admin(gateway, "/status").json()["policy"]
    assert status["version"] == 2 and "routing: round-robin" in status["text"]
    assert status["failures"]["count"]["live"] == 5 and status["failures"]["fell_back"]["version"] == 2
    assert "policies.routing" in status["failures"]["last"]
    assert b'headway_policy_failures_total{arm="live"} 5.0' in admin(gateway, "/metrics").body
    flush_tape(gateway)
    replayed = replay(tmp_path / "journal")
    assert (replayed.decisions, replayed.different) == (13, 0)


@pytest.mark.parametrize("name", ["Nowhere", "Nothing", "Deaf", "Quits"])
def test_a_wrong_answer_falls_back_and_a_replay_repeats_it(live, tmp_path, wrong, name):
    gateway = live(3, policies={"routing": f"{wrong}:{name}"}, journal=str(tmp_path / "journal"))
    answers = [chat(gateway, stream=number % 2 == 0) for number in range(9)]
    assert {answer.status for answer in answers} == {200}
    gateway.until(lambda: gateway.app.plane.version == 1)
    assert gateway.app.plane.policies["routing"] == "least-loaded"  # there were none before
    flush_tape(gateway)
    replayed = replay(tmp_path / "journal")
    assert replayed.decisions == 9 and replayed.different == 0, replayed.differences
    assert gateway.app.plane.version == 1


@pytest.mark.parametrize(("stage", "name"), [("admission", "Doors"), ("priority", "Worth")])
def test_failures_of_other_stages_fail_no_request(live, wrong, stage, name):
    gateway = live(2, policies={stage: f"{wrong}:{name}"})
    assert {chat(gateway).status for _ in range(7)} == {200}
    gateway.until(lambda: gateway.app.plane.version == 1)
    assert gateway.app.switch.failures.count["live"] == 5 and gateway.app.switch.failures.last.startswith(
        f"policies.{stage}"
    )


def test_a_policy_that_cannot_be_bound_is_rejected_and_the_old_one_stays(live, wrong, tmp_path):
    gateway = live(2, policies={"routing": "round-robin"}, journal=str(tmp_path / "journal"))
    chat(gateway)
    control = gateway.app.plane.control

    async def swap():
        with pytest.raises(HeadwayError, match="cannot be bound to the engines: RuntimeError: it does not like"):
            gateway.app.switch.swap({"routing": f"{wrong}:Unbound"}, "test")

    gateway.call(swap())
    assert gateway.app.plane.control is control and gateway.app.plane.version == 0
    assert chat(gateway).status == 200
    flush_tape(gateway)
    assert replay(tmp_path / "journal").different == 0


def test_queued_requests_are_decided_again_by_the_fallback(live, wrong):
    flow = {"name": "bands", "max_inflight": 1}
    gateway = live(1, policies={"routing": "round-robin", "flow": flow}, policy_failures=2)
    swapped = {"routing": f"{wrong}:Nothing", "flow": flow}
    gateway.loop.call_soon_threadsafe(gateway.app.switch.swap, swapped, "test")
    gateway.until(lambda: gateway.app.plane.version == 1)
    assert {chat(gateway).status for _ in range(6)} == {200}
    gateway.until(lambda: gateway.app.plane.version == 2)
    assert gateway.app.plane.policies["routing"] == "round-robin"
    gateway.until(gateway.idle)


def test_counts_are_right_after_a_failure_during_a_decision(wrong):
    """A decode request to a prefill-only engine is detected only after the flight was counted."""
    plane = Plane(PlaneSettings(2, read_policies({"routing": f"{wrong}:Deaf"}), most_failures=3))
    for place, role in enumerate(("decode", "prefill")):
        plane.join(0, place, {"id": f"e{place}", "serves": [], "role": role})
        plane.changed(0, place, "ready")
    assert plane.versions.arms.live.failures > 0  # it heard of the engines
    answers = [plane.arrive(10, Request(number, 10, 64, Path((number,), (64,)))) for number in range(4)]
    assert all(isinstance(answer, Flight) for answer in answers)
    assert plane.next_ps == 0
    assert plane.wake(11) == [] and plane.version == 1 and plane.next_ps > 0
    for number in range(4):
        plane.first_token(20, number)
        plane.finished(30, number, "completed", 3)
    counts = {(view.inflight, view.inflight_tokens, view.pending_prefill_tokens) for view in plane.views}
    assert counts == {(0, 0, 0)}


def test_a_policy_that_writes_to_a_view_fails_and_changes_nothing(tmp_path):
    file = tmp_path / "greedy.py"
    file.write_text(
        "from headway.types import Route\n\n\nclass Greedy:\n    def route(self, request, cluster):\n"
        "        cluster.instances[1].inflight = 0\n        return Route(cluster.instances[1].id)\n"
    )
    plane = Plane(PlaneSettings(2, read_policies({"routing": f"{file}:Greedy"})))
    errors = []
    plane.versions.on_failure = lambda arm, error: errors.append(str(error))
    for place in range(2):
        plane.join(0, place, {"id": f"e{place}", "serves": []})
        plane.changed(0, place, "ready")
    answer = plane.arrive(1, Request(0, 1, 64, Path((1,), (64,))))
    assert isinstance(answer, Flight) and answer.reason.startswith("fallback")
    assert errors[0].startswith(
        "policies: Greedy writes to InstanceView.inflight of e1 in greedy.py line 6, at request 0."
    )


def test_a_rejection_is_not_a_failure(tmp_path):
    file = tmp_path / "closed.py"
    file.write_text(
        "from headway.types import Reject\n\n\nclass Closed:\n    def admit(self, request, cluster):\n"
        "        return Reject('429: not today')\n"
    )
    plane = Plane(PlaneSettings(1, read_policies({"admission": f"{file}:Closed"})))
    plane.join(0, 0, {"id": "e0", "serves": []})
    plane.changed(0, 0, "ready")
    assert plane.arrive(1, Request(0, 1, 64, Path((1,), (64,)))) == Reject("429: not today")
    assert plane.versions.arms.live.failures == 0
