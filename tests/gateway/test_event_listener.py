"""KV events over real ZMQ sockets, from publishers in threads of their own."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import pytest

pytest.importorskip("zmq", reason="the extra `gateway` is not installed")

from kv_engine import OWN, Publisher, clearing, hasher, path_of, prompt_event, removal

from headway.config.section import read
from headway.errors import HeadwayError
from headway.gateway.live_clock import Clock
from headway.gateway.signals.beliefs import Beliefs
from headway.gateway.signals.event_listener import EventSettings, Listener, with_rank
from headway.gateway.signals.kv_ledger import EXACT, GUESSED, PARTIAL
from headway.policies.prefix_index import PrefixIndex
from waiting import until


def backend(name, place, **spec):
    plain = {
        "events": None,
        "events_replay": None,
        "events_topic": None,
        "models": ("m",),
        "rank": None,
        "publishers": range(1),
    }
    return SimpleNamespace(spec=SimpleNamespace(name=name, **{**plain, **spec}), place=place)


class Gateway:
    """A loop in a thread with a listener, and the indexes that it corrects."""

    def __init__(self, *backends, bind=None, replay="1s", places=4, **more):
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.index = PrefixIndex(places, 10**6, OWN)
        self.beliefs = Beliefs(places, [self.index])
        section = {"bind": bind, "replay": replay, **more}
        self.fleet = SimpleNamespace(backends=[*backends, None], on_change=[])
        settings = read(EventSettings, section, "events")
        self.listener = Listener(Clock(self.loop), self.fleet, self.beliefs, settings, hasher())
        self.call(self.listener.start())

    def call(self, task):
        return asyncio.run_coroutine_threadsafe(task, self.loop).result(60)

    def ask(self, what):
        """In the loop, where nothing else happens meanwhile."""

        async def asked():
            return what()

        return self.call(asked())

    def matches(self, text):
        return self.ask(lambda: self.index.matches(path_of(text)))

    def counts(self, name):
        return self.ask(lambda: self.listener.engines[name].counts)

    def wait(self, holds):
        until(lambda: self.ask(holds))

    def until_matches(self, text, *expected):
        until(lambda: self.matches(text)[: len(expected)] == list(expected))

    def close(self):
        self.call(self.listener.stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)
        self.loop.close()


@pytest.fixture
def opened():
    resources = []
    yield lambda resource: resources.append(resource) or resource
    for resource in reversed(resources):
        resource.close()


@pytest.mark.parametrize("form", ["map", "row"])
def test_the_gateway_comes_to_an_engine_that_waits_for_it(opened, form):
    engine = opened(Publisher("tcp://127.0.0.1:*"))
    gateway = opened(Gateway(backend("a", 0, events=engine.endpoint)))
    engine.joined()
    engine.send(prompt_event(range(12), form=form))
    gateway.until_matches(range(12), 3)
    assert gateway.ask(lambda: gateway.beliefs.trust(0)) == EXACT
    engine.send(removal(range(12), form=form), removal(range(8), form=form))
    gateway.until_matches(range(12), 1)
    engine.send(clearing(form))
    gateway.until_matches(range(12), 0)


def test_engines_that_come_to_the_gateway_are_told_apart_by_their_topics(opened):
    gateway = opened(Gateway(backend("a", 0), backend("b", 2, events_topic="kv@9302"), bind="tcp://127.0.0.1:*"))
    address = gateway.listener.address
    a, b, other = (opened(Publisher(address, topic)) for topic in ("kv@a", "kv@9302", "kv@nobody"))
    for engine in (a, b, other):
        engine.joined()
    other.send(prompt_event(range(12)))
    a.send(prompt_event(range(8)))
    b.send(prompt_event(range(12)))
    gateway.until_matches(range(12), 2, 0, 3)
    gateway.wait(lambda: gateway.listener.unknown == 1)


def test_ranks_that_come_to_the_gateway_are_told_apart_by_the_rank_in_their_batches(opened):
    one, two = (backend(f"a-rank-{rank}", rank, events_topic="kv@a", rank=rank) for rank in (0, 1))
    gateway = opened(Gateway(one, two, bind="tcp://127.0.0.1:*"))
    first, second = (opened(Publisher(gateway.listener.address, "kv@a")) for _ in range(2))
    for engine in (first, second):
        engine.joined()
    first.send(prompt_event(range(8)), rank=0)
    second.send(prompt_event(range(12)), rank=1)
    gateway.until_matches(range(12), 2, 3)


def test_an_engine_is_heard_at_the_ports_of_all_its_ranks(opened):
    for port in range(31_000, 39_000, 7):
        publishers = [Publisher("tcp://127.0.0.1:*") for _ in range(2)]
        try:
            for rank, engine in enumerate(publishers):
                engine.pub.bind(f"tcp://127.0.0.1:{port + rank}")
            break
        except engine.zmq.ZMQError:
            for engine in publishers:
                engine.close()
    for engine in publishers:
        opened(engine)
    events = f"tcp://127.0.0.1:{port}"
    gateway = opened(Gateway(backend("a", 0, events=events, publishers=range(2))))
    for rank, engine in enumerate(publishers):
        engine.joined()
        engine.send(prompt_event([rank] * 8), rank=rank)
    for rank in (0, 1):
        gateway.until_matches([rank] * 8, 2)


def test_a_lost_batch_is_asked_for_again_and_leaves_no_trace(opened):
    engine = opened(Publisher("tcp://127.0.0.1:*", replay=True))
    gateway = opened(Gateway(backend("a", 0, events=engine.endpoint, events_replay=engine.replay_endpoint)))
    engine.joined()
    engine.send(prompt_event(range(12)))
    gateway.until_matches(range(12), 3)
    engine.send(removal(range(12)), lose=True)
    engine.send(prompt_event([7] * 8))
    gateway.until_matches([7] * 8, 2)
    assert gateway.matches(range(12))[0] == 2
    until(lambda: gateway.counts("a").replayed >= 2)
    assert engine.asked == [0, 1] and gateway.counts("a").gaps == 1
    assert gateway.ask(lambda: gateway.beliefs.trust(0)) == EXACT
    engine.send(prompt_event([8] * 8))
    gateway.until_matches([8] * 8, 2)
    assert engine.asked == [0, 1]
    gateway.wait(lambda: not gateway.listener.engines["a"].questions)


def test_a_lost_batch_that_cannot_be_had_again_purges_that_engine_alone(opened):
    a, b = (opened(Publisher("tcp://127.0.0.1:*")) for _ in range(2))
    gateway = opened(Gateway(backend("a", 0, events=a.endpoint), backend("b", 1, events=b.endpoint)))
    for engine in (a, b):
        engine.joined()
        engine.send(prompt_event(range(12)))
    gateway.until_matches(range(12), 3, 3)
    a.send(removal(range(12)), lose=True)
    a.send(prompt_event([7] * 8))
    gateway.until_matches([7] * 8, 2)
    assert gateway.matches(range(12))[:2] == [0, 3]
    assert gateway.ask(lambda: [gateway.beliefs.trust(place) for place in (0, 1)]) == [PARTIAL, EXACT]
    a.send(clearing(), prompt_event(range(12)))
    gateway.until_matches(range(12), 3, 3)
    assert gateway.ask(lambda: gateway.beliefs.trust(0)) == EXACT


def test_an_engine_that_does_not_answer_when_asked_is_not_waited_for_long(opened):
    engine = opened(Publisher("tcp://127.0.0.1:*", replay=True))
    engine.answers = False
    a = backend("a", 0, events=engine.endpoint, events_replay=engine.replay_endpoint)
    gateway = opened(Gateway(a, replay="50ms"))
    engine.joined()
    engine.send(prompt_event(range(12)))
    gateway.until_matches(range(12), 3)
    engine.send(lose=True)
    engine.send(prompt_event([7] * 8))
    gateway.until_matches([7] * 8, 2)
    assert engine.asked == [0, 1] and gateway.matches(range(12))[0] == 0
    assert not gateway.ask(lambda: gateway.listener.engines["a"].questions)


def test_a_replay_address_where_nobody_is_counts_as_none(opened):
    engine = opened(Publisher("tcp://127.0.0.1:*"))
    a = backend("a", 0, events=engine.endpoint, events_replay="tcp://127.0.0.1:9")
    gateway = opened(Gateway(a, replay="50ms"))
    engine.joined()
    engine.send(lose=True)
    engine.send(prompt_event([7] * 8))
    gateway.until_matches([7] * 8, 2)
    assert gateway.ask(lambda: gateway.beliefs.trust(0)) == PARTIAL


def test_who_joins_late_learns_what_was_before_from_the_engine(opened):
    engine = opened(Publisher("tcp://127.0.0.1:*", replay=True))
    engine.send(prompt_event(range(12)))
    engine.send(prompt_event([7] * 8))
    gateway = opened(Gateway(backend("a", 0, events=engine.endpoint, events_replay=engine.replay_endpoint)))
    gateway.until_matches(range(12), 3)  # though it tells nothing new
    gateway.until_matches([7] * 8, 2)
    engine.joined()
    engine.send(prompt_event(range(20), first=3))
    gateway.until_matches(range(20), 5)
    assert gateway.ask(lambda: gateway.beliefs.trust(0)) == EXACT


def test_who_joins_late_and_cannot_ask_begins_with_what_comes(opened):
    engine = opened(Publisher("tcp://127.0.0.1:*"))
    engine.send(prompt_event(range(12)))
    gateway = opened(Gateway(backend("a", 0, events=engine.endpoint)))
    engine.joined()
    engine.send(prompt_event(range(20), first=3), prompt_event([7] * 8))
    gateway.until_matches([7] * 8, 2)
    assert gateway.matches(range(20))[0] == 0
    assert gateway.ask(lambda: gateway.beliefs.trust(0)) == PARTIAL


def test_an_engine_that_starts_anew_on_the_same_port_has_nothing(opened):
    engine = Publisher("tcp://127.0.0.1:*")
    gateway = opened(Gateway(backend("a", 0, events=engine.endpoint)))
    engine.joined()
    engine.send(prompt_event(range(12)))
    engine.send(prompt_event([7] * 8))
    gateway.until_matches([7] * 8, 2)
    engine.close()
    port = engine.endpoint.rpartition(":")[2]
    again = opened(Publisher(f"tcp://*:{port}"))
    again.joined()
    again.send(prompt_event([8] * 8))
    gateway.until_matches([8] * 8, 2)
    assert gateway.matches(range(12))[0] == 0 and gateway.matches([7] * 8)[0] == 0
    assert gateway.counts("a").restarts == 1
    assert gateway.ask(lambda: gateway.beliefs.trust(0)) == EXACT


def test_a_flood_is_taken_in_slices_and_kept_within_bounds(opened):
    """20,000 events at once, while the loop has other things to do."""
    engine = opened(Publisher("tcp://127.0.0.1:*"))
    gateway = opened(Gateway(backend("a", 0, events=engine.endpoint), max_blocks=1000))
    engine.joined()
    turns = []

    async def tick():
        while turns is not None:
            turns.append(None)
            await asyncio.sleep(0)

    task = asyncio.run_coroutine_threadsafe(tick(), gateway.loop)
    many = [prompt_event([number, 1, 2, 3]) for number in range(1000)]
    removals = [removal([number, 1, 2, 3]) for number in range(1000)]
    for _ in range(9):
        engine.send(*many, *removals)
    for number in range(2000):
        engine.send(prompt_event([5000 + number, 1, 2, 3]))
    until(lambda: gateway.counts("a").events >= 20_000 or gateway.counts("a").gaps)
    task.cancel()
    counts = gateway.counts("a")
    assert counts.gaps == 0
    assert len(turns) > 20  # others had their turns
    assert gateway.ask(lambda: len(gateway.listener.engines["a"].ledger.blocks)) == 1000
    assert counts.overflow == 1000
    assert gateway.ask(lambda: gateway.index.size(0)) == 1000


def test_a_flood_from_nobody_we_know_does_not_hold_up_the_loop(opened):
    gateway = opened(Gateway(backend("a", 0), bind="tcp://127.0.0.1:*"))
    stranger, a = (opened(Publisher(gateway.listener.address, topic)) for topic in ("kv@x", "kv@a"))
    stranger.joined()
    a.joined()
    payload = b"x" * 100
    for _ in range(20_000):
        stranger.send(payload=payload)
    a.send(prompt_event(range(8)))
    gateway.until_matches(range(8), 2)


def test_messages_of_another_shape_are_counted_and_passed_over(opened):
    engine = opened(Publisher("tcp://127.0.0.1:*"))
    gateway = opened(Gateway(backend("a", 0, events=engine.endpoint)))
    engine.joined()
    engine.pub.send(b"alone")
    engine.pub.send_multipart((b"", b"12", b"x"))
    engine.pub.send_multipart((b"", b"12345678", b"x", b"y"))
    engine.send(prompt_event(range(8)))
    gateway.until_matches(range(8), 2)
    assert gateway.counts("a").malformed == 3


def test_an_engine_that_leaves_is_not_heard_any_more_and_may_come_again(opened):
    engine = opened(Publisher("tcp://127.0.0.1:*"))
    a = backend("a", 0, events=engine.endpoint)
    gateway = opened(Gateway(a))
    engine.joined()
    engine.send(prompt_event(range(8)))
    gateway.until_matches(range(8), 2)
    gateway.ask(lambda: [listener(a, "left") for listener in gateway.fleet.on_change])
    assert gateway.ask(lambda: (list(gateway.listener.engines), list(gateway.listener.inlets))) == ([], [])
    gateway.ask(lambda: gateway.beliefs.cleared(0, 0, GUESSED))  # as the plane does
    engine.parted()
    gateway.ask(lambda: [listener(a, "joined") for listener in gateway.fleet.on_change])
    engine.joined()
    engine.send(prompt_event([7] * 8))
    gateway.until_matches([7] * 8, 2)


def test_an_address_that_is_none_makes_an_engine_that_tells_nothing(opened, caplog):
    gateway = opened(Gateway(backend("a", 0, events="nonsense")))
    assert gateway.ask(lambda: list(gateway.listener.engines)) == []
    assert "cannot connect to" in caplog.text


def test_an_address_that_is_taken_is_said(opened):
    gateway = opened(Gateway(bind="tcp://127.0.0.1:*"))
    with pytest.raises(HeadwayError, match=r"events\.bind: cannot listen on "):
        settings = EventSettings(bind=gateway.listener.address)
        first = gateway.listener
        gateway.call(Listener(first.clock, first.fleet, gateway.beliefs, settings, hasher()).start())


def test_what_was_told_can_be_told_again():
    """A journal of what the plane heard gives the same beliefs."""
    engine = Publisher("tcp://127.0.0.1:*")
    gateway = Gateway(backend("a", 0, events=engine.endpoint))
    calls = []

    def tape(name):
        tell = getattr(gateway.beliefs, name)
        setattr(gateway.beliefs, name, lambda *value: (calls.append((name, value)), tell(*value)))

    for name in ("stored", "removed", "cleared"):
        tape(name)
    engine.joined()
    engine.send(prompt_event(range(20)), prompt_event([7] * 8))
    engine.send(removal(range(16)), lose=True)
    engine.send(prompt_event([8] * 12), prompt_event(range(12)))
    engine.send(removal([8] * 12))
    gateway.until_matches([8] * 12, 2)
    index = PrefixIndex(4, 10**6, OWN)
    again = Beliefs(4, [index])
    for name, value in calls:
        getattr(again, name)(*value)
    assert list(index.eviction_order(0)) == gateway.ask(lambda: list(gateway.index.eviction_order(0)))
    gateway.close()
    engine.close()


# --- settings --------------------------------------------------------------------------------------------------------


def test_settings_have_defaults():
    assert read(EventSettings, {}, "events") == EventSettings() == read(EventSettings, {}, "events")
    settings = read(EventSettings, {"bind": "tcp://10.0.0.1:5557", "ttl": "2m", "speculative": "5s"}, "events")
    assert (settings.ttl_ps, settings.speculative_ps) == (120 * 10**12, 5 * 10**12)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"bind": "10.0.0.1:5557"}, "events.bind: expected an address such as tcp://"),
        ({"ttl": "0s"}, "events.ttl: must be greater than zero"),
        ({"speculative": 5}, "events.speculative: 5 is not a duration"),
        ({"tll": "5s"}, "events.tll: there is no such key. Did you mean 'ttl'"),
        (7, "events: expected a mapping"),
    ],
)
def test_settings_that_are_wrong_are_said(value, says):
    with pytest.raises(HeadwayError, match=says.replace(".", r"\.").replace("'", ".?")):
        read(EventSettings, value, "events")


def test_each_rank_has_the_next_port():
    assert with_rank("tcp://10.0.0.1:5558", 0) == "tcp://10.0.0.1:5558"
    assert with_rank("tcp://10.0.0.1:5558", 3) == "tcp://10.0.0.1:5561"
    assert with_rank("ipc:///tmp/x", 3) == "ipc:///tmp/x"
