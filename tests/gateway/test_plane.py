"""The plane's recorded inputs are enough to repeat its decisions."""

from __future__ import annotations

import pytest

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")

from msgspec.structs import replace

from headway.config.section import read
from headway.control.flights import Flight
from headway.errors import HeadwayError
from headway.gateway.deciding.policy_versions import PlaneSettings
from headway.gateway.live_policies import read_policies
from headway.gateway.plane import Plane
from headway.gateway.signals.event_listener import EventSettings
from headway.types import Path, Request
from headway.views.instance import EXACT, REPORTED, InstanceView


@pytest.mark.parametrize("routing", ["round-robin", "lmetric", "power-of-two", "kv-aware"])
def test_recorded_inputs_give_the_same_decisions_again(routing):
    def plane(tape=None):
        return Plane(PlaneSettings(4, read_policies({"routing": routing})), tape)

    inputs, decided, again = [], [], []
    first = plane(lambda *entry: inputs.append(entry))
    for place in range(3):
        first.join(0, place, {"id": f"e{place}", "serves": []})
        first.changed(0, place, "ready")
    for number in range(40):
        request = Request(number, number * 10, 64, Path((number % 7,), (64,)))
        answer = first.arrive(number * 10, request)
        assert isinstance(answer, Flight)
        decided.append(answer.view.id)
        if number % 5 == 4:
            first.first_token(number * 10 + 1, number)
            first.finished(number * 10 + 2, number, "completed", 3)
        if number % 11 == 10:
            first.changed(number * 10 + 3, number % 3, "unreachable")
            first.changed(number * 10 + 4, number % 3, "ready")
    other = plane()
    for now_ps, kind, payload in [entry for entry in inputs if entry[1] != "decided"]:
        answer = getattr(other, kind)(now_ps, *payload)
        if kind == "arrive":
            again.append(answer.view.id)
    assert again == decided
    assert len(set(decided)) > 1


def test_a_free_place_has_no_signals_of_its_former_engine():
    plane = Plane(PlaneSettings(1, read_policies({})))
    plane.join(0, 0, {"id": "a", "serves": ["m"]})
    plane.changed(0, 0, "ready")
    plane.report(1, 0, {"queued": 3, "running": 2, "kv_used": 7, "busy": 0.5, "watts": 300.0, "adapters": ("chat",)})
    plane.arrive(2, Request(0, 2, 64, Path((1,), (64,)), model="m"))
    plane.finished(3, 0, "completed", 3)
    plane.leave(4, 0)
    view, free = plane.views[0], InstanceView(0, "")
    names = ("id", "serves", "role", *EXACT, *REPORTED)
    assert {name: getattr(view, name) for name in names} == {name: getattr(free, name) for name in names}


def test_a_belief_that_fits_the_engine_follows_what_the_engine_reports():
    plane = Plane(PlaneSettings(2, read_policies({"routing": {"name": "lmetric", "lru_blocks": "auto"}})))
    plane.join(0, 0, {"id": "a", "serves": [], "kv_blocks": 6400})
    plane.changed(0, 0, "ready")
    (index,) = plane.control.indexes
    assert index.capacities[0] == 200  # blocks of 512 tokens instead of 16
    prompt = Path((1,), (20 * 512,))
    plane.arrive(1, Request(0, 1, prompt.tokens, prompt))
    plane.report(2, 0, {"queued": 0, "running": 1, "kv_blocks": 160})
    assert (index.capacities[0], index.size(0), index.matches(prompt)[0]) == (5, 5, 5)
    plane.report(3, 0, {"queued": 0, "running": 1})
    assert index.capacities[0] == 5
    plane.finished(4, 0, "completed", 3)
    plane.leave(5, 0)
    plane.join(6, 0, {"id": "b", "serves": [], "kv_blocks": 3200})  # another engine at the same place
    assert (index.capacities[0], index.size(0)) == (100, 0)
    plane.swap(7, read_policies({"routing": {"name": "lmetric-plus-one", "lru_blocks": "auto"}}))
    plane.report(8, 0, {"queued": 0, "running": 0, "kv_blocks": 320})
    assert plane.control.indexes == [index] and index.capacities[0] == 10


@pytest.mark.parametrize(
    ("belief", "sent", "stored", "removed"),
    # blocks believed cached after a prompt of two blocks was sent, after the engine reported these two and a third one,
    # and after it removed the last two
    [("routed", 2, 2, 2), ("both", 2, 3, 1), ("stored", 0, 3, 1)],
)
def test_the_gateway_believes_what_it_sent_or_what_engines_report_or_both(belief, sent, stored, removed):
    tape = []
    settings = PlaneSettings(1, read_policies({"routing": {"name": "prefix-affinity", "lru_blocks": 2}}), belief=belief)
    if belief != "stored":
        settings = replace(settings, policies=read_policies({"routing": "prefix-affinity"}))
    plane = Plane(settings, lambda *entry: tape.append(entry))
    plane.join(0, 0, {"id": "a", "serves": []})
    plane.changed(0, 0, "ready")
    plane.cleared(0, 0, "exact")
    (index,) = plane.control.indexes
    prompt, longer = Path((1, 2), (16, 32)), Path((1, 2, 3), (16, 32, 48))
    plane.arrive(1, Request(0, 1, 32, prompt))
    assert index.matches(longer) == [sent]
    plane.stored(2, 0, [(0, 1, 0, 16), (1, 2, 16, 32), (2, 3, 32, 48)])
    assert index.matches(longer) == [stored]
    plane.removed(3, 0, [3, 2])
    assert index.matches(longer) == [removed]
    plane.swap(4, read_policies({"routing": {"name": "prefix-affinity", "block_tokens": 8}}))
    (other,) = plane.control.indexes
    assert other.matches(longer) == [2 if belief == "stored" else 4]  # the prompt in flight counts as sent
    again = Plane(settings)
    for now_ps, kind, payload in [entry for entry in tape if entry[1] != "decided"]:
        getattr(again, kind)(now_ps, *payload)
    assert again.control.indexes[0].matches(longer) == other.matches(longer)


def test_without_the_key_a_gateway_believes_both():
    assert PlaneSettings(1, {}).belief == EventSettings().belief == "both"
    assert read(EventSettings, {"belief": "stored"}, "events").belief == "stored"
    with pytest.raises(HeadwayError, match=r"events\.belief: expected 'routed' or 'both' or 'stored', got"):
        read(EventSettings, {"belief": "told"}, "events")


def expecting(spec, tape=None, **more):
    """A plane whose policies route by expected KV, with two engines."""
    routing = {"name": "weighted", "scorers": {"expected-kv": 1}}
    plane = Plane(PlaneSettings(3, read_policies({"routing": routing, "estimator": spec, **more})), tape)
    for place in range(2):
        plane.join(0, place, {"id": f"e{place}", "serves": [], "kv_blocks": 1000})
        plane.changed(0, place, "ready")
    return plane


def answer(plane, number, tokens):
    flight = plane.arrive(number * 10, Request(number, number * 10, 64, Path((number,), (64,))))
    plane.first_token(number * 10 + 1, number)
    plane.finished(number * 10 + 2, number, "completed", tokens)
    return flight.expected


def test_the_estimator_learns_from_finished_answers_and_keeps_it_when_an_engine_joins():
    tape = []
    plane = expecting({"name": "by-class", "least": 2, "unknown_tokens": 70}, lambda *entry: tape.append(entry))
    assert [answer(plane, number, tokens) for number, tokens in enumerate((9, 11, 20))] == [70, 70, 9]
    plane.join(35, 2, {"id": "e2", "serves": [], "kv_blocks": 1000, "role": "prefill"})  # builds the policies again
    plane.changed(36, 2, "ready")
    assert answer(plane, 4, 20) == 11
    plane.swap(60, {**plane.policies, "estimator": {"name": "by-class", "least": 2, "unknown_tokens": 80}})
    assert answer(plane, 7, 20) == 80  # other settings start afresh
    again = Plane(plane.settings)
    for now_ps, kind, payload in [entry for entry in tape if entry[1] not in ("decided", "swap")]:
        if now_ps < 60:
            getattr(again, kind)(now_ps, *payload)
    assert answer(again, 7, 20) == 11  # a replay has learned the same: 9, 11, 20, 20


def test_an_estimator_that_is_not_read_does_not_run():
    plane = Plane(PlaneSettings(1, read_policies({"routing": "round-robin"})))
    assert plane.control.expectations is None


def test_no_gateway_asks_an_oracle_for_lengths():
    with pytest.raises(HeadwayError, match=r"policies\.estimator: 'noisy-oracle' is an oracle policy"):
        read_policies({"estimator": "noisy-oracle"})


def test_an_estimator_that_fails_stops_no_request(tmp_path):
    file = tmp_path / "broken.py"
    file.write_text("class Broken:\n    def estimate(self, request, cluster):\n        return request.id // 0\n")
    plane = expecting(f"{file}:Broken")
    failed = []
    plane.versions.on_failure = lambda arm, error: failed.append(type(error).__name__)
    assert answer(plane, 0, 5) == 256
    assert failed == ["ZeroDivisionError"]


def test_a_decider_of_its_own_needs_a_routing_policy_in_a_canary():
    canary = {"policies": {"decider": "never"}, "share": 0.5}
    with pytest.raises(HeadwayError, match=r"canary\.policies\.decider: it needs a routing policy of its own"):
        Plane(PlaneSettings(1, read_policies({"canary": canary})))


def test_the_gateway_splits_as_its_decider_says():
    def plane(**policies):
        made = Plane(PlaneSettings(2, read_policies({"routing": "least-loaded", **policies})))
        for place, role in enumerate(("prefill", "decode")):
            made.join(0, place, {"id": role, "serves": [], "kv_blocks": 1000, "role": role})
            made.changed(0, place, "ready")
        return made

    short, long = (Request(number, 1, tokens, Path((number,), (tokens,))) for number, tokens in enumerate((64, 640)))
    threshold = {"name": "prompt-threshold", "colocate_below_tokens": 100}
    for policies in ({"decider": threshold}, {"routing": {"name": "pair", "decider": threshold}}):
        made = plane(**policies)
        assert [made.arrive(1, request).prefill is not None for request in (short, long)] == [False, True]
    assert [plane().arrive(1, request).prefill is not None for request in (short, long)] == [True, True]
