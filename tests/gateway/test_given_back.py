"""After any fault, every request has an answer, and every count returns to zero."""

from __future__ import annotations

import threading
from contextlib import suppress

import pytest

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")

from asking import chat
from fake_engine import Engine

from headway.gateway.api_keys import new_key
from headway.gateway.engines.member import BackendSpec
from headway.http.answer_tally import AnswerTally

FLOW = {"flow": {"name": "bands", "saturation": "concurrency", "max_inflight": 1}}


def fail(*anything, **more):
    raise RuntimeError("what nobody has thought of")


def do(gateway, function, *arguments):
    async def run():
        return function(*arguments)

    return gateway.call(run())


def start_clients(gateway, count=1, **more):
    """Start clients that wait for their answers."""
    answers = []

    def ask():
        with suppress(ConnectionError):  # of those that the test lets go
            answers.append(chat(gateway, **more))

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads, answers


def leave(gateway):
    """Disconnect all clients."""
    do(gateway, lambda: [client.transport.abort() for client in list(gateway.app.reception.clients)])
    gateway.until(gateway.idle)


def test_a_waiting_request_that_new_policies_delay_is_decided_in_time(live):
    gateway = live(1, policies=FLOW)
    gateway.engines[0].mode = "hang"
    start_clients(gateway, 3)
    gateway.until(lambda: gateway.engines[0].under_way == 1 and len(gateway.app.waiting) == 2)
    later = {"name": "token-bucket", "rate": 5.0, "burst": 1, "on_empty": "delay"}
    do(gateway, gateway.app.switch.swap, {"admission": later, "flow": "none"}, "a test")
    gateway.until(lambda: gateway.engines[0].under_way == 3)
    leave(gateway)


def test_an_exception_for_one_waiting_request_does_not_affect_the_others(live, monkeypatch):
    gateway = live(1, policies=FLOW)
    gateway.engines[0].mode = "hang"
    start_clients(gateway)
    gateway.until(lambda: gateway.engines[0].under_way == 1)
    waiting, answers = start_clients(gateway, 2)
    gateway.until(lambda: len(gateway.app.waiting) == 2)
    gateway.engines[0].mode = "ok"
    (unlucky, *_) = gateway.app.waiting.exchanges.values()
    dispatch = type(unlucky).dispatch
    monkeypatch.setattr(type(unlucky), "dispatch", lambda self: fail() if self is unlucky else dispatch(self))
    do(gateway, gateway.app.switch.swap, {"flow": "none"}, "a test")
    for thread in waiting:
        thread.join(60)
    assert sorted(answer.status for answer in answers) == [200, 500]
    leave(gateway)


def test_an_exception_after_hashing_a_long_prompt_is_answered(live, monkeypatch):
    gateway = live(1)
    monkeypatch.setattr(gateway.app.plane, "arrive", fail)
    threads, answers = start_clients(gateway, text="word " * 300_000)
    threads[0].join(60)
    assert [answer.status for answer in answers] == [500]
    gateway.until(gateway.idle)


def test_an_exception_before_the_exchange_releases_the_key(live, tmp_path, monkeypatch):
    key, digest = new_key()
    (tmp_path / "keys.yaml").write_text(f"ann: {{sha256: {digest}, concurrency: 1}}")
    gateway = live(1, keys=str(tmp_path / "keys.yaml"))
    monkeypatch.setattr(gateway.app.intake, "request", fail)
    assert chat(gateway, authorization=f"Bearer {key}").status == 500
    monkeypatch.undo()
    assert chat(gateway, authorization=f"Bearer {key}").status == 200


def test_an_observer_that_raises_does_not_delay_requests(live):
    gateway = live(1)
    ended = []
    gateway.app.services.on_end[:0] = [fail]
    gateway.app.services.on_end.append(lambda exchange, *rest: ended.append(exchange))
    assert chat(gateway).status == 200
    gateway.until(lambda: len(ended) == 1)
    gateway.until(gateway.idle)


def test_periodic_work_continues_after_an_exception(live, monkeypatch):
    gateway = live(1, timeouts={"first_byte": "100ms"}, retries=0)
    failed = []
    monkeypatch.setattr(gateway.app.plane, "expire", lambda now_ps: failed.append(now_ps) or fail())
    gateway.app._expired = 0.0
    gateway.until(lambda: failed)
    gateway.engines[0].mode = "hang"
    assert chat(gateway).status == 502


def test_an_engine_that_cannot_be_connected_counts_as_failed(live, monkeypatch):
    gateway = live(1, retries=0)

    async def connect(*anything):
        raise UnicodeError("label too long")

    monkeypatch.setattr("headway.gateway.exchange.connect", connect)
    threads, answers = start_clients(gateway)
    threads[0].join(60)
    assert [answer.status for answer in answers] == [502]
    gateway.until(gateway.idle)


def test_news_of_an_engine_that_left_does_not_affect_the_next_one_at_its_place(live):
    gateway = live(2)
    (former,) = [backend for backend in gateway.app.fleet.members if backend.name == "e1"]
    other = Engine("other")
    gateway.call(other.start())
    gateway.engines.append(other)
    spec = BackendSpec.read("other", f"http://127.0.0.1:{other.port}", "backends")
    file = dict(gateway.app.fleet.sources["file"])
    do(gateway, gateway.app.fleet.offer, "file", {"e0": file["e0"], "other": spec})
    (successor,) = [backend for backend in gateway.app.fleet.members if backend.name == "other"]
    assert successor.place == former.place
    for _ in range(3):
        do(gateway, gateway.app.health.record_failure, former, "too late")
    assert successor.view.state == "ready"


@pytest.mark.parametrize("stream", [False, True])
def test_an_impossible_count_is_ignored(stream):
    tally = AnswerTally(stream)
    tally.count(b'data: {"usage": {"completion_tokens": ' + b"9" * 6000 + b"}}\n\n")
    assert tally.tokens < 10**12


def test_a_permit_is_returned_to_the_class_that_it_came_from(live):
    """The roles of engines change while a request is in flight."""
    members = {"e0": {"role": "prefill"}, "e1": {"role": "decode"}}
    policies = {"admission": {"name": "max-concurrency", "max_queue": 2}, "routing": "least-loaded-pair"}
    gateway = live(
        2, members=members, disaggregation={"protocol": "vllm"}, policies=policies, health={"failures": 1000}
    )
    gateway.engines[1].mode = "reset"
    for _ in range(6):
        assert chat(gateway).status == 200
        gateway.until(gateway.idle)
    assert gateway.app.plane.control.maker.stages.admission.in_use == {}


def test_invented_names_are_not_stored(live):
    gateway = live(1, policies={"admission": "max-concurrency"})
    for number in range(5):
        assert chat(gateway, model=f"made-up-{number}").status == 200
    gateway.until(gateway.idle)
    assert gateway.app.plane.control.maker.stages.admission.in_use == {}
