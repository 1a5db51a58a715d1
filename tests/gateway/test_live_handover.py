"""Requests that a prefill and a decode engine serve together."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from contextlib import AsyncExitStack

import pytest
from openai_client import openai, openai_client

from headway.errors import HeadwayError
from headway.gateway.config import Config
from headway.gateway.kvd.channel import KvdError
from headway.gateway.tape import replay

LONG = [{"role": "user", "content": "word " * 400}]
SHORT = [{"role": "user", "content": "hello"}]
PARAMS = {"do_remote_prefill": True, "remote_block_ids": [1, 2], "remote_engine_id": "p", "remote_host": "10.0.0.7"}
OPEN = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None}


def client(gateway):
    return openai_client(gateway.url)


def two(live, protocol, *more_engines, kvd=(None, None), handover=None, **more):
    """Return a gateway with a prefill engine e0, a decode engine e1, and further engines with the given roles."""
    members = {"e0": {"role": "prefill"}, "e1": {"role": "decode"}}
    for name, address in zip(("e0", "e1"), kvd, strict=True):
        members[name]["kvd"] = address
    for number, role in enumerate(more_engines):
        members[f"e{number + 2}"] = {"role": role, "bootstrap_port": 8999}
    decider = {"name": "prompt-threshold", "colocate_below_tokens": 256}
    more.setdefault("policies", {"routing": {"name": "least-loaded-pair", "decider": decider}})
    section = {"protocol": protocol, "timeout": "10m", **(handover or {})}
    return live(len(members), members=members, disaggregation=section, **more)


def bodies(engine):
    return [json.loads(body) for body in engine.bodies]


async def with_params(body):
    return {"kv_transfer_params": PARAMS} if body.get("kv_transfer_params") else {}


def ask(gateway, messages=LONG, **more):
    return client(gateway).chat.completions.with_raw_response.create(model="m", messages=messages, **more)


def leave_early(gateway, number, **more):
    """Disconnect a client while an engine computes."""
    body = json.dumps({"model": "m", "messages": LONG, **more}).encode()
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=300) as sock:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        sock.sendall(head.encode() + body)
        gateway.until(lambda: gateway.engines[number].under_way == 1)
    gateway.until(lambda: gateway.engines[number].cancelled == 1)
    gateway.until(gateway.idle)


# --- vLLM ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_vllm_computes_the_prompt_on_one_engine_and_decodes_on_the_other(live, stream):
    gateway = two(live, "vllm")
    gateway.engines[0].before = with_params
    more = {"stream_options": {"include_usage": True}} if stream else {}
    answer = ask(gateway, stream=stream, max_tokens=50, extra_headers={"x-request-id": "mine"}, **more)
    assert (answer.headers["x-headway-target"], answer.headers["x-headway-prefill"]) == ("e1", "e0")
    if stream:
        assert len(list(answer.parse())) == 5
    else:
        assert answer.parse().choices[0].message.content == "hello"
    (first,), (second,) = bodies(gateway.engines[0]), bodies(gateway.engines[1])
    assert (first["max_tokens"], first["stream"]) == (1, False)
    assert "stream_options" not in first and "max_completion_tokens" not in first
    assert first["kv_transfer_params"] == {**OPEN, "remote_host": None, "remote_port": None}
    assert second["kv_transfer_params"] == PARAMS
    assert second["max_tokens"] == 50
    assert first["messages"] == second["messages"] == LONG
    names = [engine.fields[0][b"x-request-id"] for engine in gateway.engines]
    assert names[0] == names[1] != b"mine"
    gateway.until(gateway.idle)
    assert [view.completed for view in gateway.app.plane.views[:2]] == [0, 1]


def test_the_prefill_request_limits_max_completion_tokens_to_1(live):
    gateway = two(live, "vllm")
    gateway.engines[0].before = with_params
    ask(gateway, max_completion_tokens=9)
    assert bodies(gateway.engines[0])[0]["max_completion_tokens"] == 1
    assert bodies(gateway.engines[1])[0]["max_completion_tokens"] == 9


def test_a_short_prompt_takes_one_engine_and_its_body_is_untouched(live):
    gateway = two(live, "vllm")
    answer = ask(gateway, SHORT)
    assert "x-headway-prefill" not in answer.headers
    assert gateway.engines[0].bodies == []
    assert bodies(gateway.engines[1]) == [{"messages": SHORT, "model": "m"}]
    gateway.until(gateway.idle)


@pytest.mark.parametrize("mode", ["error", "busy", "reset", "garbage", "ok"])
def test_a_failed_prefill_falls_back_to_the_decode_engine(live, mode):
    """A successful prefill without the location of the KV counts as failed too."""
    gateway = two(live, "vllm")
    gateway.engines[0].mode = mode
    answer = ask(gateway)
    assert answer.headers["x-headway-target"] == "e1"
    assert "x-headway-prefill" not in answer.headers
    assert bodies(gateway.engines[1]) == [{"messages": LONG, "model": "m"}]
    gateway.until(gateway.idle)
    assert sum(gateway.app.handover.fallbacks.values()) == 1


def test_a_slow_prefill_falls_back_to_the_decode_engine(live):
    gateway = two(live, "vllm")
    gateway.app.handover.settings = gateway.app.handover.settings.__class__("vllm", 0.1)
    gateway.engines[0].mode = "hang"
    assert ask(gateway).headers["x-headway-target"] == "e1"
    gateway.until(lambda: gateway.engines[0].cancelled == 1)
    gateway.until(gateway.idle)


@pytest.mark.parametrize("mode", ["reset", "busy"])
def test_if_the_decode_engine_fails_the_prefill_engine_serves_alone(live, mode):
    gateway = two(live, "vllm")
    gateway.engines[0].before = with_params
    gateway.engines[1].mode = mode
    answer = ask(gateway)
    assert answer.headers["x-headway-target"] == "e0"
    assert "x-headway-prefill" not in answer.headers
    assert bodies(gateway.engines[0])[-1] == {"messages": LONG, "model": "m"}
    gateway.until(gateway.idle)


def test_if_the_decode_engine_fails_another_one_takes_over(live):
    gateway = two(live, "vllm", "decode")
    gateway.engines[0].before = with_params
    gateway.engines[1].mode = "reset"
    answer = ask(gateway)
    assert answer.headers["x-headway-target"] == "e2"
    assert bodies(gateway.engines[2])[0]["kv_transfer_params"] == PARAMS
    gateway.until(gateway.idle)


@pytest.mark.parametrize(("lost", "left"), [(0, "e1"), (1, "e0")])
def test_an_engine_without_a_partner_serves_whole_requests(live, lost, left):
    gateway = two(live, "vllm", health={"failures": 1, "eject": "10m"})
    gateway.engines[0].before = with_params
    gateway.engines[lost].mode = "reset"
    for _ in range(3):
        assert ask(gateway).headers["x-headway-target"] == left
    assert len(gateway.engines[lost].bodies) == 1
    gateway.until(gateway.idle)
    gateway.call(restore(gateway))
    gateway.engines[lost].mode = "ok"
    assert ask(gateway).headers["x-headway-prefill"] == "e0"


async def restore(gateway):
    for backend in gateway.app.fleet.members:
        if backend.ejected:
            backend.ejected = False
            backend.failures = 0
            gateway.app.fleet.settle(backend)


@pytest.mark.parametrize("number", [0, 1])
def test_a_client_that_disconnects_cancels_the_current_half(live, number):
    gateway = two(live, "vllm")
    gateway.engines[0].before = with_params
    gateway.engines[number].mode = "hang"
    leave_early(gateway, number)
    assert len(gateway.engines[1].bodies) == number


def test_the_deadline_ends_the_prefill(live):
    gateway = two(live, "vllm")
    gateway.engines[0].mode = "hang"
    with pytest.raises(openai.InternalServerError, match="the deadline has passed"):
        ask(gateway, extra_headers={"x-headway-deadline": "200ms"})
    gateway.until(lambda: gateway.engines[0].cancelled == 1)
    assert gateway.engines[1].bodies == []
    gateway.until(gateway.idle)


def test_the_answer_of_the_prefill_has_a_size_limit(live, monkeypatch):
    monkeypatch.setattr("headway.gateway.handover.leg.ANSWER_BYTES", 1000)

    async def long_winded(body):
        return {"kv_transfer_params": {"remote_host": "x" * 5000}}

    gateway = two(live, "vllm")
    gateway.engines[0].before = long_winded
    assert "x-headway-prefill" not in ask(gateway).headers
    gateway.until(gateway.idle)


def test_a_policy_without_pairing_routes_prefill_and_decode(live):
    gateway = two(live, "vllm", policies={"routing": "round-robin"})
    gateway.engines[0].before = with_params
    answer = ask(gateway, SHORT)
    assert (answer.headers["x-headway-prefill"], answer.headers["x-headway-target"]) == ("e0", "e1")
    gateway.until(gateway.idle)


@pytest.mark.parametrize(
    "field", ["kv_transfer_params", "ec_transfer_params", "bootstrap_host", "bootstrap_room", "headway_kv"]
)
def test_a_client_may_not_set_fields_of_kv_transfer(live, field):
    gateway = two(live, "vllm")
    with pytest.raises(openai.BadRequestError, match="a client may not set the fields of KV transfer"):
        ask(gateway, extra_body={field: {"remote_host": "10.6.6.6"}})
    with pytest.raises(openai.BadRequestError, match="a client may not set the fields of KV transfer"):
        ask(gateway, extra_body={"vllm_xargs": {"a": 1, field: "x"}})
    assert [engine.bodies for engine in gateway.engines] == [[], []]


def test_a_cascade_works_with_disaggregation(live):
    gateway = live(
        3,
        members={
            "e0": {"role": "prefill", "models": ["small"]},
            "e1": {"role": "decode", "models": ["small"]},
            "e2": {"models": ["large"]},
        },
        disaggregation={"protocol": "vllm"},
        cascade={"chains": {"answer": ["small", "large"]}},
    )
    gateway.engines[0].before = with_params
    gateway.engines[1].logprob = -0.1
    answer = client(gateway).chat.completions.with_raw_response.create(model="answer", messages=LONG)
    assert answer.headers["x-headway-cascade"] == "1/2 small"
    assert (answer.headers["x-headway-prefill"], answer.headers["x-headway-target"]) == ("e0", "e1")
    gateway.engines[1].logprob = -9.0
    answer = client(gateway).chat.completions.with_raw_response.create(model="answer", messages=LONG)
    assert (answer.headers["x-headway-cascade"], answer.headers["x-headway-target"]) == ("2/2 large", "e2")
    assert "x-headway-prefill" not in answer.headers
    gateway.until(gateway.idle)


@pytest.mark.parametrize("protocol", ["vllm", "sglang"])
def test_a_journal_with_handovers_failures_and_escalations_replays(live, tmp_path, protocol):
    file = tmp_path / "journal"
    names = {"e0": "prefill", "e1": "decode", "e2": "prefill", "e3": "both"}
    gateway = live(
        4,
        members={
            name: {"role": role, "models": ["large" if name == "e3" else "small"]} for name, role in names.items()
        },
        disaggregation={"protocol": protocol},
        cascade={"chains": {"answer": ["small", "large"]}},
        health={"failures": 2, "eject": "50ms", "eject_most": "50ms"},
        journal=str(file),
    )
    for number, mode in enumerate(["ok", "reset", "error", "busy", "ok"] * 4):
        gateway.engines[number % 3].mode = mode
        gateway.engines[number % 3].before = with_params
        gateway.engines[1].logprob = -9.0 if number % 2 else -0.1
        client(gateway).chat.completions.create(model="answer", messages=LONG)
    gateway.until(gateway.idle)
    gateway.loop.call_soon_threadsafe(gateway.app.tape.flush)
    gateway.until(lambda: not gateway.app.tape._buffer)
    again = replay(file)
    assert again.different == 0, again.differences
    assert again.decisions > 20


# --- SGLang ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_sglang_sends_both_halves_at_once_into_one_room(live, stream):
    gateway = two(live, "sglang")
    answer = ask(gateway, stream=stream)
    assert (answer.headers["x-headway-target"], answer.headers["x-headway-prefill"]) == ("e1", "e0")
    if stream:
        assert len(list(answer.parse())) == 5
    gateway.until(lambda: len(gateway.engines[0].bodies) == 1)
    (first,), (second,) = bodies(gateway.engines[0]), bodies(gateway.engines[1])
    assert first == second
    assert (first["bootstrap_host"], first["bootstrap_port"]) == ("127.0.0.1", 8998)
    assert 0 <= first["bootstrap_room"] < 2**63
    assert first["messages"] == LONG
    gateway.until(gateway.idle)
    ask(gateway)
    assert bodies(gateway.engines[1])[1]["bootstrap_room"] != first["bootstrap_room"]


def test_sglang_gives_each_prompt_of_a_list_a_room(live):
    gateway = two(live, "sglang")
    client(gateway).completions.with_raw_response.create(model="m", prompt=["once " * 300, "upon " * 300])
    (body,) = bodies(gateway.engines[1])
    assert body["bootstrap_host"] == ["127.0.0.1"] * 2
    assert len({*body["bootstrap_room"]}) == 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("mode", ["error", "reset"])
def test_sglang_retries_the_prefill_and_cancels_the_waiting_decode(live, mode, stream):
    gateway = two(live, "sglang", "prefill")
    bad, waiting, good = gateway.engines
    bad.mode = mode
    waits, rooms = asyncio.Event(), set()

    async def fail_late(body):
        await waits.wait()
        return {}

    async def join(body):
        rooms.add(body["bootstrap_room"])
        return {}

    async def wait_for_it(body):
        """The decode engine sends the head of a stream before the prefill ends."""
        waiting.mode = ("head" if stream else "hang") if body["bootstrap_port"] == 8998 else "ok"
        waits.set()
        while waiting.mode == "ok" and body["bootstrap_room"] not in rooms:
            await asyncio.sleep(0.01)
        return {}

    bad.before, waiting.before, good.before = fail_late, wait_for_it, join
    answer = ask(gateway, stream=stream)
    assert (answer.headers["x-headway-prefill"], answer.headers["x-headway-target"]) == ("e2", "e1")
    if stream:
        assert len(list(answer.parse())) == 5
    gateway.until(lambda: waiting.cancelled == 1)
    gateway.until(gateway.idle)


def test_sglang_cancels_the_prefill_if_the_decode_fails(live):
    gateway = two(live, "sglang", retries=0)
    gateway.engines[0].mode = "hang"
    gateway.engines[1].mode = "error"
    with pytest.raises(openai.InternalServerError):
        ask(gateway)
    gateway.until(lambda: gateway.engines[0].cancelled == 1)
    gateway.until(gateway.idle)


def test_sglang_fails_if_every_prefill_fails(live):
    gateway = two(live, "sglang", retries=1)
    gateway.engines[0].mode = "reset"
    gateway.engines[1].mode = "hang"
    with pytest.raises(openai.InternalServerError, match="e0: the connection was lost"):
        ask(gateway)
    gateway.until(lambda: gateway.engines[1].under_way == 0)
    gateway.until(gateway.idle)


def test_sglang_ends_a_stream_whose_prefill_fails_late(live):
    gateway = two(live, "sglang")
    gateway.engines[0].mode = "hang"
    gateway.engines[1].pause, gateway.engines[1].tokens = 0.01, 10_000
    stream = ask(gateway, stream=True).parse()
    next(iter(stream))
    gateway.call(cut(gateway.app))
    with pytest.raises(openai.APIError, match="e0: the connection was lost"):
        list(stream)
    gateway.until(lambda: gateway.engines[1].cancelled == 1)
    gateway.until(gateway.idle)


async def cut(app):
    """Break the connection of the prefill."""
    (at,) = [client.exchange for client in app.reception.clients if client.exchange is not None]
    at.handing.leg._upstream.transport.abort()


@pytest.mark.parametrize("number", [0, 1])
def test_sglang_cancels_both_halves_if_the_client_disconnects(live, number):
    gateway = two(live, "sglang")
    for engine in gateway.engines:
        engine.mode = "hang"
    leave_early(gateway, number)
    gateway.until(lambda: [engine.cancelled for engine in gateway.engines] == [1, 1])


# --- Headway's own ---------------------------------------------------------------------------------------------------


class Node:
    """An engine with KV daemons: stores computed blocks, and loads the requested ones."""

    def __init__(self, engine, short=0, rename=False):
        self.short, self.rename = short, rename
        self.fetched = []
        engine.before = self.before

    async def before(self, body):
        from headway.gateway.kvd.kvd_client import KvdClient

        section = body.get("headway_kv", {})
        keys = [bytes.fromhex(key) for key in section.get("keys", [])]
        if "put" in section:
            if self.rename:
                keys = [b"own-%d" % number for number in range(3)]
            async with KvdClient(section["put"]) as daemon:
                await daemon.put({key: b"KV of " + key for key in keys[: len(keys) - self.short]})
            return {"headway_kv": {"keys": [key.hex() for key in keys]}} if self.rename else {}
        if "get" in section:
            async with KvdClient(section["get"][0]) as daemon:
                blocks = zip(keys, await daemon.get(keys), strict=True)
                self.fetched.append([block is not None and bytes(block) == b"KV of " + key for key, block in blocks])
        return {}


@pytest.fixture
def kvd(live, tmp_path):
    """Return gateways with KV daemons: the first belongs to e0, an optional second one to e1."""
    pytest.importorskip("xxhash")
    from kvd_nodes import daemon

    stacks = []

    def start(daemons=1, **more):
        addresses = [f"unix:{tmp_path}/{number}.sock" for number in range(daemons)]
        gateway = two(live, "kvd", kvd=(addresses[0], addresses[-1]), **more)

        async def begin():
            stack = AsyncExitStack()
            for address in addresses:
                peers = {"peers": addresses} if daemons > 1 else {}
                await stack.enter_async_context(daemon(tmp_path, listen=address, **peers))
            return stack

        stacks.append((gateway, gateway.call(begin())))
        return gateway

    start.stop = lambda: [gateway.call(stack.aclose()) for gateway, stack in stacks[:]] and stacks.clear()
    yield start
    start.stop()


@pytest.mark.parametrize("stream", [False, True])
def test_blocks_move_from_one_engine_to_the_other_through_a_daemon(kvd, stream):
    gateway = kvd()
    Node(gateway.engines[0])
    taker = Node(gateway.engines[1])
    answer = ask(gateway, stream=stream, max_tokens=50)
    assert (answer.headers["x-headway-target"], answer.headers["x-headway-prefill"]) == ("e1", "e0")
    if stream:
        assert len(list(answer.parse())) == 5
    first, second = bodies(gateway.engines[0])[0], bodies(gateway.engines[1])[0]
    assert (first["max_tokens"], second["max_tokens"]) == (1, 50)
    assert first["headway_kv"]["keys"] == second["headway_kv"]["keys"]
    assert taker.fetched == [[True] * len(first["headway_kv"]["keys"])]
    assert len(taker.fetched[0]) > 5
    gateway.until(gateway.idle)


def test_daemons_move_blocks_to_the_decode_engines_daemon(kvd):
    gateway = kvd(daemons=2)
    Node(gateway.engines[0])
    taker = Node(gateway.engines[1])
    ask(gateway)
    addresses = [backend.spec.kvd for backend in gateway.app.fleet.members]
    assert bodies(gateway.engines[1])[0]["headway_kv"]["get"] == addresses[::-1]
    assert taker.fetched and all(taker.fetched[0])
    gateway.until(gateway.idle)


def test_an_engine_may_store_blocks_under_its_own_keys(kvd):
    gateway = kvd()
    Node(gateway.engines[0], rename=True)
    taker = Node(gateway.engines[1])
    assert ask(gateway).headers["x-headway-prefill"] == "e0"
    assert taker.fetched == [[True] * 3]


def test_another_prompt_another_tool_or_another_tenant_has_other_keys(kvd):
    gateway = kvd()
    Node(gateway.engines[0])
    Node(gateway.engines[1])
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    ask(gateway)
    ask(gateway, [*LONG, {"role": "user", "content": "more"}])
    ask(gateway, tools=[tool])
    ask(gateway, extra_headers={"x-headway-tenant": "other"})
    ask(gateway)
    keys = [tuple(body["headway_kv"]["keys"]) for body in bodies(gateway.engines[0])]
    assert len({*keys[:4]}) == 4
    assert keys[4] == keys[0]


def test_missing_blocks_fall_back_to_the_decode_engine(kvd):
    gateway = kvd()
    Node(gateway.engines[0], short=1)
    taker = Node(gateway.engines[1])
    answer = ask(gateway)
    assert "x-headway-prefill" not in answer.headers
    assert bodies(gateway.engines[1]) == [{"messages": LONG, "model": "m"}]
    assert taker.fetched == []
    assert gateway.app.handover.fallbacks == {"blocks missing": 1}
    gateway.until(gateway.idle)


def test_a_lost_daemon_falls_back_to_one_engine(kvd):
    gateway = kvd()

    async def put_nothing(body):
        return {}

    gateway.engines[0].before = put_nothing
    kvd.stop()
    answer = ask(gateway)
    assert (answer.headers["x-headway-target"], "x-headway-prefill" in answer.headers) == ("e1", False)
    assert gateway.app.handover.fallbacks == {"kvd lost": 1}
    assert gateway.engines[0].bodies == []  # the prompt is not computed for a daemon that cannot store it
    gateway.until(gateway.idle)


def test_a_daemon_that_hangs_is_known_before_the_handover_and_used_again_when_it_answers(kvd):
    gateway = kvd(handover={"kvd_check": "50ms"})
    Node(gateway.engines[0])
    Node(gateway.engines[1])
    assert ask(gateway).headers["x-headway-prefill"] == "e0"
    address = gateway.app.fleet.members[0].spec.kvd
    daemons = gateway.app.handover.daemons
    client = daemons.client(address)
    ping, client.ping = client.ping, asyncio.Event().wait  # hangs
    gateway.until(lambda: daemons.answers(address) is False)
    assert "x-headway-prefill" not in ask(gateway).headers
    assert [len(engine.bodies) for engine in gateway.engines] == [1, 2]
    assert "headway_kv" not in bodies(gateway.engines[1])[1]
    client.ping = ping
    gateway.until(lambda: daemons.answers(address) is True)
    assert ask(gateway).headers["x-headway-prefill"] == "e0"


def test_a_daemon_that_hangs_during_the_prefill_falls_back_to_the_decode_engine(kvd):
    gateway = kvd(handover={"kvd_check": "100ms"})
    Node(gateway.engines[0])
    Node(gateway.engines[1])
    ask(gateway)
    client = gateway.app.handover.daemons.client(gateway.app.fleet.members[0].spec.kvd)
    gateway.engines[0].mode = "hang"  # waits for its daemon

    def stop_daemon() -> None:
        gateway.until(lambda: gateway.engines[0].under_way == 1)
        client.ping = asyncio.Event().wait

    thread = threading.Thread(target=stop_daemon)
    thread.start()
    assert "x-headway-prefill" not in ask(gateway).headers
    thread.join()
    assert gateway.app.handover.fallbacks == {"kvd lost": 1}
    gateway.until(lambda: gateway.engines[0].cancelled == 1)
    gateway.until(gateway.idle)


def test_decode_is_not_pointed_at_a_daemon_that_is_lost_during_the_handover(kvd, monkeypatch):
    gateway = kvd(daemons=2, handover={"kvd_timeout": "300ms"})
    Node(gateway.engines[0])
    Node(gateway.engines[1])
    daemons = gateway.app.handover.daemons
    far = daemons.client(gateway.app.fleet.members[0].spec.kvd)
    near = daemons.client(gateway.app.fleet.members[1].spec.kvd)

    async def fetch(keys, source):
        """Fail as a daemon whose source has just been lost."""
        far.lookup = no_answer
        raise KvdError("failed", "no answer")

    async def no_answer(keys):
        raise KvdError("timeout", "no answer within 0.3 s")

    near.fetch = fetch
    assert "x-headway-prefill" not in ask(gateway).headers
    assert "headway_kv" not in bodies(gateway.engines[1])[0]
    assert gateway.app.handover.fallbacks == {"kvd lost": 1}
    gateway.until(gateway.idle)


def test_an_engine_without_a_daemon_hands_nothing_over(live):
    gateway = two(live, "kvd")
    assert "x-headway-prefill" not in ask(gateway).headers
    assert gateway.engines[0].bodies == []
    gateway.until(gateway.idle)


# --- the file --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "word"),
    [
        ({}, "'protocol' is missing"),
        ({"protocol": "nixl"}, "protocol"),
        ({"protocol": "vllm", "timeout": "0s"}, "greater than zero"),
        ({"protocol": "vllm", "tls": {"ca": "a", "certificate": "b", "key": "c"}}, "is valid only with protocol kvd"),
        ({"protocol": "kvd", "tls": {"ca": "a"}}, "missing"),
        ({"protocol": "kvd", "tsl": {}}, "tls"),
    ],
)
def test_a_wrong_section_is_reported(section, word):
    with pytest.raises(HeadwayError, match=r"^disaggregation") as caught:
        Config.load({"backends": {"a": "http://127.0.0.1:1"}, "disaggregation": section})
    assert word in str(caught.value)
