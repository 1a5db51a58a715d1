"""What the gateway owes whatever happens to it: an answer to each, and every count back at nothing."""

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


def do(one, function, *arguments):
    async def done():
        return function(*arguments)

    return one.call(done())


def begun(one, count=1, **more):
    """Clients that wait for their answers."""
    got = []

    def ask():
        with suppress(ConnectionError):  # of those that the test lets go
            got.append(chat(one, **more))

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads, got


def leave(one):
    """All clients go."""
    do(one, lambda: [client.transport.abort() for client in list(one.app.reception.clients)])
    one.until(one.idle)


def test_who_waits_and_is_put_off_by_other_policies_comes_up_in_time(live):
    one = live(1, policies=FLOW)
    one.engines[0].mode = "hang"
    begun(one, 3)
    one.until(lambda: one.engines[0].under_way == 1 and len(one.app.waiting) == 2)
    later = {"name": "token-bucket", "rate": 5.0, "burst": 1, "on_empty": "delay"}
    do(one, one.app.switch.swap, {"admission": later, "flow": "none"}, "a test")
    one.until(lambda: one.engines[0].under_way == 3, 5)
    leave(one)


def test_a_fault_with_one_who_waited_is_told_and_the_others_are_served(live, monkeypatch):
    one = live(1, policies=FLOW)
    one.engines[0].mode = "hang"
    begun(one)
    one.until(lambda: one.engines[0].under_way == 1)
    waiting, got = begun(one, 2)
    one.until(lambda: len(one.app.waiting) == 2)
    one.engines[0].mode = "ok"
    (unlucky, *_) = one.app.waiting.exchanges.values()
    dispatch = type(unlucky).dispatch
    monkeypatch.setattr(type(unlucky), "dispatch", lambda self: fail() if self is unlucky else dispatch(self))
    do(one, one.app.switch.swap, {"flow": "none"}, "a test")
    for thread in waiting:
        thread.join(10)
    assert sorted(answer.status for answer in got) == [200, 500]
    leave(one)


def test_a_fault_after_a_long_prompt_was_read_is_told(live, monkeypatch):
    one = live(1)
    monkeypatch.setattr(one.app.plane, "arrive", fail)
    threads, got = begun(one, text="word " * 300_000)
    threads[0].join(10)
    assert [answer.status for answer in got] == [500]
    one.until(one.idle)


def test_a_fault_before_a_request_is_one_gives_its_key_back(live, tmp_path, monkeypatch):
    key, digest = new_key()
    (tmp_path / "keys.yaml").write_text(f"ann: {{sha256: {digest}, concurrency: 1}}")
    one = live(1, keys=str(tmp_path / "keys.yaml"))
    monkeypatch.setattr(one.app.intake, "request", fail)
    assert chat(one, authorization=f"Bearer {key}").status == 500
    monkeypatch.undo()
    assert chat(one, authorization=f"Bearer {key}").status == 200


def test_who_hears_of_ends_and_fails_holds_up_nobody(live):
    one = live(1)
    heard = []
    one.app.services.on_end[:0] = [fail]
    one.app.services.on_end.append(lambda exchange, *rest: heard.append(exchange))
    assert chat(one).status == 200
    one.until(lambda: len(heard) == 1)
    one.until(one.idle)


def test_what_is_done_now_and_then_goes_on_after_a_fault(live, monkeypatch):
    one = live(1, timeouts={"first_byte": "100ms"}, retries=0)
    failed = []
    monkeypatch.setattr(one.app.plane, "expire", lambda now_ps: failed.append(now_ps) or fail())
    one.app._expired = 0.0
    one.until(lambda: failed)
    one.engines[0].mode = "hang"
    assert chat(one).status == 502


def test_an_engine_that_cannot_even_be_tried_is_one_that_failed(live, monkeypatch):
    one = live(1, retries=0)

    async def connect(*anything):
        raise UnicodeError("label too long")

    monkeypatch.setattr("headway.gateway.exchange.connect", connect)
    threads, got = begun(one)
    threads[0].join(10)
    assert [answer.status for answer in got] == [502]
    one.until(one.idle)


def test_what_is_heard_of_an_engine_that_has_left_is_not_of_the_next_in_its_place(live):
    one = live(2)
    (gone,) = [backend for backend in one.app.fleet.members if backend.name == "e1"]
    other = Engine("other")
    one.call(other.start())
    one.engines.append(other)
    spec = BackendSpec.read("other", f"http://127.0.0.1:{other.port}", "backends")
    file = dict(one.app.fleet.sources["file"])
    do(one, one.app.fleet.offer, "file", {"e0": file["e0"], "other": spec})
    (taken,) = [backend for backend in one.app.fleet.members if backend.name == "other"]
    assert taken.place == gone.place
    for _ in range(3):
        do(one, one.app.health.failed, gone, "too late")
    assert taken.view.state == "ready"


@pytest.mark.parametrize("stream", [False, True])
def test_a_count_that_cannot_be_is_not_taken_for_one(stream):
    tally = AnswerTally(stream)
    tally.seen(b'data: {"usage": {"completion_tokens": ' + b"9" * 6000 + b"}}\n\n")
    assert tally.tokens < 10**12


def test_a_permit_goes_back_as_what_it_was_taken_for(live):
    """Who generates for whom changes while a request is under way."""
    members = {"e0": {"role": "prefill"}, "e1": {"role": "decode"}}
    policies = {"admission": {"name": "max-concurrency", "max_queue": 2}, "routing": "least-loaded-pair"}
    one = live(2, members=members, disaggregation={"protocol": "vllm"}, policies=policies, health={"failures": 1000})
    one.engines[1].mode = "reset"
    for _ in range(6):
        assert chat(one).status == 200
        one.until(one.idle)
    assert one.app.plane.control.stages.admission.taken == {}


def test_names_that_clients_make_up_are_not_kept(live):
    one = live(1, policies={"admission": "max-concurrency"})
    for number in range(5):
        assert chat(one, model=f"made-up-{number}").status == 200
    one.until(one.idle)
    assert one.app.plane.control.stages.admission.taken == {}
