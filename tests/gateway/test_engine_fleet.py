"""Engines that join and leave, and policies that change, while requests are in flight."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")

from fake_engine import Engine
from openai_client import openai, openai_client

from headway.errors import HeadwayError
from headway.experiment.engines import engines
from headway.gateway.engines.member import BackendSpec
from headway.scenario.scenario import Scenario

TURNS = {"routing": "round-robin"}


def client(gateway):
    return openai_client(gateway.url)


def ask(gateway, model="m", **more):
    messages = [{"role": "user", "content": "hello"}]
    return client(gateway).chat.completions.with_raw_response.create(model=model, messages=messages, **more)


def target(gateway, **more):
    return ask(gateway, **more).headers["x-headway-target"]


def do(gateway, function, *arguments):
    async def run():
        return function(*arguments)

    return gateway.call(run())


def spec(engine, **more):
    return BackendSpec.read(engine.name, {"url": f"http://127.0.0.1:{engine.port}", **more}, "backends")


def more_engines(gateway, count, first=10):
    engines = [Engine(f"e{first + number}") for number in range(count)]
    for engine in engines:
        gateway.call(engine.start())
    gateway.engines += engines
    return engines


def test_capacity_is_derived_from_tp_dtype_and_memory_as_in_simulation():
    def live(**more):
        fields = BackendSpec.read("e", {"url": "http://127.0.0.1:1", **more}, "backends.e").view_fields
        return fields["capacity"]

    def simulated(model, tp):
        cluster = {"workload": {"requests": 1, "rate": "1/s"}, "cluster": {"model": model, "gpu": "h100", "tp": tp}}
        return engines(Scenario.load(cluster).cluster)[0].view.capacity

    assert live() == 1.0
    assert live(gpu="h100", models=["llama-3.1-8b"]) == simulated("llama-3.1-8b", 1)
    assert live(gpu="h100", tp=2, weights="llama-3.1-8b", models=["m"]) == simulated("llama-3.1-8b", 2)
    half = {"like": "llama-3.1-8b", "dtype_bytes": 1}
    assert live(gpu="h100", weights="llama-3.1-8b", dtype_bytes=1) == simulated(half, 1) > simulated("llama-3.1-8b", 1)
    assert live(gpu="h100", weights="llama-3.1-8b", capacity=0.25) == 0.25
    with pytest.raises(HeadwayError, match=r"^backends\.e\.weights: is missing"):
        live(gpu="h100")
    with pytest.raises(HeadwayError, match=r"^backends\.e\.gpu: "):
        live(gpu="h1000", weights="llama-3.1-8b")


def test_an_engine_joins_and_leaves(live):
    gateway = live(1, policies=TURNS)
    (other,) = more_engines(gateway, 1)
    do(gateway, gateway.app.fleet.offer, "admin", {other.name: spec(other)})
    assert {target(gateway) for _ in range(8)} == {"e0", "e10"}
    do(gateway, gateway.app.fleet.offer, "admin", {})
    assert {target(gateway) for _ in range(4)} == {"e0"}
    assert gateway.app.fleet.backends[1] is None
    assert gateway.app.plane.views[1].state == "stopped"


def test_a_leaving_engine_finishes_its_requests(live):
    gateway = live(1)
    (other,) = more_engines(gateway, 1)
    other.pause = 0.2
    do(gateway, gateway.app.fleet.offer, "admin", {other.name: spec(other)})
    do(gateway, gateway.app.fleet.cordon, "e0")
    pieces = []
    thread = threading.Thread(target=lambda: pieces.extend(stream(gateway)))
    thread.start()
    gateway.until(lambda: other.under_way == 1)
    do(gateway, gateway.app.fleet.uncordon, "e0")
    do(gateway, gateway.app.fleet.offer, "admin", {})
    assert target(gateway) == "e0"
    assert gateway.app.fleet.members[1].view.state == "draining"
    thread.join()
    assert len(pieces) == 5
    gateway.until(lambda: gateway.app.fleet.backends[1] is None)
    gateway.until(gateway.idle)


def stream(gateway):
    answer = client(gateway).chat.completions.create(
        model="m", messages=[{"role": "user", "content": "hello"}], stream=True
    )
    return [part.choices[0].delta.content for part in answer]


def test_a_free_place_is_reused(live):
    gateway = live(1, max_backends=2, policies=TURNS)
    engines = more_engines(gateway, 3)
    for engine in engines:
        do(gateway, gateway.app.fleet.offer, "admin", {engine.name: spec(engine)})
        assert {target(gateway) for _ in range(6)} == {"e0", engine.name}
    gateway.until(gateway.idle)


def test_an_engine_with_a_new_url_is_a_new_engine(live):
    gateway = live(1, policies=TURNS)
    first, second = more_engines(gateway, 2)
    do(gateway, gateway.app.fleet.offer, "admin", {"x": BackendSpec.read("x", f"http://127.0.0.1:{first.port}", "x")})
    do(gateway, gateway.app.fleet.offer, "admin", {"x": BackendSpec.read("x", f"http://127.0.0.1:{second.port}", "x")})
    for _ in range(6):
        target(gateway)
    assert not first.bodies
    assert second.bodies


def test_more_engines_than_places_are_rejected_without_any_change(live):
    gateway = live(1, max_backends=2)
    engines = more_engines(gateway, 2)
    with pytest.raises(HeadwayError, match="there are 3 engines, but `max_backends` is 2"):
        do(gateway, gateway.app.fleet.offer, "admin", {engine.name: spec(engine) for engine in engines})
    assert [backend.name for backend in gateway.app.fleet.members] == ["e0"]


def test_a_cordon_survives_a_new_registration(live):
    gateway = live(2, policies=TURNS)
    do(gateway, gateway.app.fleet.cordon, "e1")
    assert {target(gateway) for _ in range(6)} == {"e0"}
    do(gateway, gateway.app.fleet.offer, "file", dict(gateway.app.fleet.sources["file"]))
    do(gateway, gateway.app.fleet.ready, "e1", True, "", "agent")
    assert {target(gateway) for _ in range(6)} == {"e0"}
    do(gateway, gateway.app.fleet.uncordon, "e1")
    assert {target(gateway) for _ in range(6)} == {"e0", "e1"}


def test_an_engine_is_ready_only_if_all_reporters_agree(live):
    gateway = live(2, policies=TURNS)
    do(gateway, gateway.app.fleet.ready, "e1", False, "no answer", "check")
    do(gateway, gateway.app.fleet.ready, "e1", False, "loading", "agent")
    do(gateway, gateway.app.fleet.ready, "e1", True, "", "check")
    assert {target(gateway) for _ in range(6)} == {"e0"}
    do(gateway, gateway.app.fleet.ready, "e1", True, "", "agent")
    assert {target(gateway) for _ in range(6)} == {"e0", "e1"}


def test_each_model_has_its_engines_and_may_be_added_later(live):
    gateway = live(0, backends={"a": {"url": "http://127.0.0.1:1", "models": ["small"]}})
    (other,) = more_engines(gateway, 1)
    with pytest.raises(openai.NotFoundError, match="model 'large' is not served"):
        ask(gateway, model="large")
    do(gateway, gateway.app.fleet.offer, "admin", {other.name: spec(other, models=["large"])})
    assert target(gateway, model="large") == "e10"
    assert [model.id for model in client(gateway).models.list()] == ["small", "large"]
    with pytest.raises(HeadwayError, match="List the models of every engine, or of none"):
        do(gateway, gateway.app.fleet.offer, "admin", {other.name: spec(other)})
    assert target(gateway, model="large") == "e10"


def test_a_request_waits_for_an_engine_until_its_patience_ends(live):
    gateway = live(1, patience="50ms")
    do(gateway, gateway.app.fleet.cordon, "e0")
    with pytest.raises(openai.InternalServerError, match="no engine became available in time") as caught:
        ask(gateway)
    assert caught.value.response.headers["retry-after"] == "1"
    gateway.until(gateway.idle)


def test_a_queued_request_waits_for_an_engine_until_its_patience_ends(live):
    flow = {"name": "bands", "saturation": "concurrency", "max_inflight": 1}
    gateway = live(1, patience="50ms", policies={"flow": flow})
    gateway.engines[0].tokens, gateway.engines[0].pause = 100_000, 0.02
    with ThreadPoolExecutor() as pool:
        first = pool.submit(stream, gateway)
        gateway.until(lambda: gateway.engines[0].under_way == 1)
        second = pool.submit(ask, gateway)
        gateway.until(lambda: len(gateway.app.waiting) == 1)
        do(gateway, gateway.app.fleet.cordon, "e0")
        with pytest.raises(openai.InternalServerError, match="no engine became available in time"):
            second.result()
        gateway.engines[0].mode = "die"
        with pytest.raises(openai.APIError, match="the connection was lost"):
            first.result()
    gateway.until(gateway.idle)


def test_a_waiting_request_is_sent_when_an_engine_joins(live):
    gateway = live(1, patience="30s")
    do(gateway, gateway.app.fleet.cordon, "e0")
    pieces = []
    thread = threading.Thread(target=lambda: pieces.append(target(gateway)))
    thread.start()
    gateway.until(lambda: len(gateway.app.waiting) == 1)
    do(gateway, gateway.app.fleet.uncordon, "e0")
    thread.join()
    assert pieces == ["e0"]
    gateway.until(gateway.idle)


def test_the_default_admission_follows_the_engines(live):
    gateway = live(2, members={name: {"max_batch_size": 1, "max_queue": 1} for name in ("e0", "e1")})
    for engine in gateway.engines:
        engine.pause = 0.1
    threads = [threading.Thread(target=stream, args=(gateway,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    gateway.until(lambda: sum(engine.under_way for engine in gateway.engines) == 4)
    with pytest.raises(openai.InternalServerError, match="reached its limit of requests in flight"):
        ask(gateway)
    for thread in threads:
        thread.join()
    gateway.until(gateway.idle)
    admission = gateway.app.plane.control.maker.stages.admission
    do(gateway, gateway.app.fleet.offer, "file", {})
    gateway.until(lambda: not gateway.app.fleet.members)
    spec = BackendSpec("http://127.0.0.1:1", max_batch_size=1000, max_queue=500, name="big")
    do(gateway, gateway.app.fleet.offer, "file", {"big": spec})
    assert admission.measure(("", "both")) == 1500


def test_counts_of_requests_in_flight_survive_a_policy_swap(live):
    gateway = live(2, policies={"routing": "round-robin", "admission": {"name": "max-concurrency", "max_queue": 3}})
    for engine in gateway.engines:
        engine.pause = 0.1
    threads = [threading.Thread(target=stream, args=(gateway,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    gateway.until(lambda: sum(engine.under_way for engine in gateway.engines) == 3)
    do(
        gateway,
        gateway.app.switch.swap,
        {"routing": "least-loaded", "admission": {"name": "max-concurrency", "max_queue": 3}},
        "test",
    )
    with pytest.raises(openai.InternalServerError, match="reached its limit of requests in flight"):
        ask(gateway)
    for thread in threads:
        thread.join()
    gateway.until(gateway.idle)
    ask(gateway)
    gateway.until(gateway.idle)
    assert gateway.app.plane.version == 1


def test_a_wrong_policy_is_rejected_and_the_old_one_stays(live):
    gateway = live(2, policies={"routing": "round-robin"})
    for wrong in (
        {"routing": "no-such"},
        {"routing": {"name": "weighted", "scorers": {"x": 1}}},
        {"what": "x"},
        "none",
    ):
        with pytest.raises(HeadwayError):
            do(gateway, gateway.app.switch.swap, wrong, "test")
    assert (gateway.app.plane.policies["routing"], gateway.app.plane.version) == ("round-robin", 0)
    assert [target(gateway) for _ in range(4)] == ["e0", "e1", "e0", "e1"]


def test_queued_requests_are_decided_again_after_a_policy_swap(live):
    flow = {"name": "bands", "saturation": "concurrency", "max_inflight": 1}
    gateway = live(1, policies={"flow": flow})
    gateway.engines[0].pause = 0.1
    threads = [threading.Thread(target=stream, args=(gateway,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    gateway.until(lambda: len(gateway.app.waiting) == 3)
    do(gateway, gateway.app.switch.swap, {"routing": "round-robin"}, "test")
    gateway.until(lambda: not gateway.app.waiting)
    gateway.until(lambda: gateway.engines[0].under_way >= 2)  # the queue let one go at a time
    for thread in threads:
        thread.join()
    gateway.until(gateway.idle)


def test_beliefs_about_caches_survive_a_policy_swap(live):
    gateway = live(3, policies={"routing": "lmetric"})
    prompt = "words " * 500
    ask_for = [{"role": "user", "content": prompt}]
    first = client(gateway).chat.completions.with_raw_response.create(model="m", messages=ask_for)
    place = int(first.headers["x-headway-target"][1:])
    index = gateway.app.plane.control.indexes[0]
    assert index.size(place) > 0
    do(gateway, gateway.app.switch.swap, {"routing": "lmetric", "priority": "by-class"}, "test")
    assert gateway.app.plane.control.indexes[0] is index
