"""Engines that come and go, and policies that change, while requests are under way."""

from __future__ import annotations

import threading

import pytest

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")

from fake_engine import Engine
from openai_client import openai, openai_client

from headway.errors import HeadwayError
from headway.gateway.engines.member import BackendSpec

TURNS = {"routing": "round-robin"}


def client(one):
    return openai_client(one.url)


def ask(one, model="m", **more):
    messages = [{"role": "user", "content": "hello"}]
    return client(one).chat.completions.with_raw_response.create(model=model, messages=messages, **more)


def target(one, **more):
    return ask(one, **more).headers["x-headway-target"]


def do(one, function, *arguments):
    async def done():
        return function(*arguments)

    return one.call(done())


def spec(engine, **more):
    return BackendSpec.read(engine.name, {"url": f"http://127.0.0.1:{engine.port}", **more}, "backends")


def more_engines(one, count, first=10):
    found = [Engine(f"e{first + number}") for number in range(count)]
    for engine in found:
        one.call(engine.start())
    one.engines += found
    return found


def test_an_engine_joins_and_leaves(live):
    one = live(1, policies=TURNS)
    (other,) = more_engines(one, 1)
    do(one, one.app.fleet.offer, "admin", {other.name: spec(other)})
    assert {target(one) for _ in range(8)} == {"e0", "e10"}
    do(one, one.app.fleet.offer, "admin", {})
    assert {target(one) for _ in range(4)} == {"e0"}
    assert one.app.fleet.backends[1] is None
    assert one.app.plane.views[1].state == "stopped"


def test_who_leaves_ends_what_it_has_begun(live):
    one = live(1)
    (other,) = more_engines(one, 1)
    other.pause = 0.2
    do(one, one.app.fleet.offer, "admin", {other.name: spec(other)})
    do(one, one.app.fleet.cordon, "e0")
    got = []
    thread = threading.Thread(target=lambda: got.extend(stream(one)))
    thread.start()
    one.until(lambda: other.under_way == 1)
    do(one, one.app.fleet.uncordon, "e0")
    do(one, one.app.fleet.offer, "admin", {})
    assert target(one) == "e0"
    assert one.app.fleet.members[1].view.state == "draining"
    thread.join()
    assert len(got) == 5
    one.until(lambda: one.app.fleet.backends[1] is None)
    one.until(one.idle)


def stream(one):
    found = client(one).chat.completions.create(model="m", messages=[{"role": "user", "content": "hello"}], stream=True)
    return [part.choices[0].delta.content for part in found]


def test_a_place_is_used_again(live):
    one = live(1, max_backends=2, policies=TURNS)
    engines = more_engines(one, 3)
    for engine in engines:
        do(one, one.app.fleet.offer, "admin", {engine.name: spec(engine)})
        assert {target(one) for _ in range(6)} == {"e0", engine.name}
    one.until(one.idle)


def test_an_engine_that_moves_is_another(live):
    one = live(1, policies=TURNS)
    first, second = more_engines(one, 2)
    do(one, one.app.fleet.offer, "admin", {"x": BackendSpec.read("x", f"http://127.0.0.1:{first.port}", "x")})
    do(one, one.app.fleet.offer, "admin", {"x": BackendSpec.read("x", f"http://127.0.0.1:{second.port}", "x")})
    for _ in range(6):
        target(one)
    assert not first.bodies
    assert second.bodies


def test_more_engines_than_places_are_refused_and_nothing_changes(live):
    one = live(1, max_backends=2)
    engines = more_engines(one, 2)
    with pytest.raises(HeadwayError, match="room for 2"):
        do(one, one.app.fleet.offer, "admin", {engine.name: spec(engine) for engine in engines})
    assert [backend.name for backend in one.app.fleet.members] == ["e0"]


def test_a_cordon_holds_over_another_registration(live):
    one = live(2, policies=TURNS)
    do(one, one.app.fleet.cordon, "e1")
    assert {target(one) for _ in range(6)} == {"e0"}
    do(one, one.app.fleet.offer, "file", dict(one.app.fleet.sources["file"]))
    do(one, one.app.fleet.ready, "e1", True, "", "agent")
    assert {target(one) for _ in range(6)} == {"e0"}
    do(one, one.app.fleet.uncordon, "e1")
    assert {target(one) for _ in range(6)} == {"e0", "e1"}


def test_all_who_speak_of_an_engine_must_find_it_ready(live):
    one = live(2, policies=TURNS)
    do(one, one.app.fleet.ready, "e1", False, "no answer", "check")
    do(one, one.app.fleet.ready, "e1", False, "loading", "agent")
    do(one, one.app.fleet.ready, "e1", True, "", "check")
    assert {target(one) for _ in range(6)} == {"e0"}
    do(one, one.app.fleet.ready, "e1", True, "", "agent")
    assert {target(one) for _ in range(6)} == {"e0", "e1"}


def test_models_have_engines_of_their_own_and_may_come_later(live):
    one = live(0, backends={"a": {"url": "http://127.0.0.1:1", "models": ["small"]}})
    (other,) = more_engines(one, 1)
    with pytest.raises(openai.NotFoundError, match="no instance serves model 'large'"):
        ask(one, model="large")
    do(one, one.app.fleet.offer, "admin", {other.name: spec(other, models=["large"])})
    assert target(one, model="large") == "e10"
    assert [model.id for model in client(one).models.list()] == ["small", "large"]
    with pytest.raises(HeadwayError, match="where one engine names its models, all do"):
        do(one, one.app.fleet.offer, "admin", {other.name: spec(other)})
    assert target(one, model="large") == "e10"


def test_a_request_waits_for_an_engine_only_so_long(live):
    one = live(1, patience="50ms")
    do(one, one.app.fleet.cordon, "e0")
    with pytest.raises(openai.InternalServerError, match="no engine came up in time") as found:
        ask(one)
    assert found.value.response.headers["retry-after"] == "1"
    one.until(one.idle)


def test_a_request_that_waits_goes_when_an_engine_comes(live):
    one = live(1, patience="30s")
    do(one, one.app.fleet.cordon, "e0")
    got = []
    thread = threading.Thread(target=lambda: got.append(target(one)))
    thread.start()
    one.until(lambda: len(one.app.waiting) == 1)
    do(one, one.app.fleet.uncordon, "e0")
    thread.join()
    assert got == ["e0"]
    one.until(one.idle)


def test_policies_change_under_way_and_counts_go_on(live):
    one = live(2, policies={"routing": "round-robin", "admission": {"name": "max-concurrency", "max_queue": 3}})
    for engine in one.engines:
        engine.pause = 0.1
    threads = [threading.Thread(target=stream, args=(one,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    one.until(lambda: sum(engine.under_way for engine in one.engines) == 3)
    do(
        one,
        one.app.switch.swap,
        {"routing": "least-loaded", "admission": {"name": "max-concurrency", "max_queue": 3}},
        "test",
    )
    with pytest.raises(openai.InternalServerError, match="as many requests in flight as it may"):
        ask(one)
    for thread in threads:
        thread.join()
    one.until(one.idle)
    ask(one)
    one.until(one.idle)
    assert one.app.plane.version == 1


def test_a_wrong_policy_is_refused_and_the_old_one_stays(live):
    one = live(2, policies={"routing": "round-robin"})
    for wrong in (
        {"routing": "no-such"},
        {"routing": {"name": "weighted", "scorers": {"x": 1}}},
        {"what": "x"},
        "none",
    ):
        with pytest.raises(HeadwayError):
            do(one, one.app.switch.swap, wrong, "test")
    assert (one.app.plane.policies["routing"], one.app.plane.version) == ("round-robin", 0)
    assert [target(one) for _ in range(4)] == ["e0", "e1", "e0", "e1"]


def test_those_that_wait_in_the_queue_are_asked_anew_when_policies_change(live):
    flow = {"name": "bands", "saturation": "concurrency", "max_inflight": 1}
    one = live(1, policies={"flow": flow})
    one.engines[0].pause = 0.1
    threads = [threading.Thread(target=stream, args=(one,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    one.until(lambda: len(one.app.waiting) == 3)
    do(one, one.app.switch.swap, {"routing": "round-robin"}, "test")
    one.until(lambda: not one.app.waiting)
    one.until(lambda: one.engines[0].under_way >= 2)  # the queue let one go at a time
    for thread in threads:
        thread.join()
    one.until(one.idle)


def test_the_belief_of_what_is_cached_survives_a_change_of_policies(live):
    one = live(3, policies={"routing": "lmetric"})
    prompt = "words " * 500
    ask_for = [{"role": "user", "content": prompt}]
    first = client(one).chat.completions.with_raw_response.create(model="m", messages=ask_for)
    place = int(first.headers["x-headway-target"][1:])
    index = one.app.plane.control.indexes[0]
    assert index.size(place) > 0
    do(one, one.app.switch.swap, {"routing": "lmetric", "priority": "by-class"}, "test")
    assert one.app.plane.control.indexes[0] is index
