"""OpenAI's Responses API and Anthropic's Messages API: their clients, a gateway and emulated engines."""

from __future__ import annotations

import json
import time

import pytest
from asking import chat, fetch
from emulated import Emulated
from openai_client import openai, openai_client
from test_model_names import keys_file

anthropic = pytest.importorskip("anthropic", reason="the anthropic package is not installed")

MODEL = "llama-3.1-8b"
SAID = [{"role": "user", "content": "hello " * 200}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"name": "weather", "description": "the weather", "input_schema": SCHEMA}
FUNCTION = {"type": "function", "name": "weather", "parameters": SCHEMA}


class Scene:
    """A gateway before emulated engines, and the requests that its policies saw."""

    def __init__(self, live, **more):
        cluster = {"instances": more.pop("instances", 2)}
        self.engines = Emulated(cluster, speed=more.pop("speed", 50.0))
        names = [replica.name for replica in self.engines.host.replicas]
        backends = {name: {"url": self.engines.url(number), "models": [MODEL]} for number, name in enumerate(names)}
        self.gateway = live(0, backends=backends, **{"retries": 0, **more})
        self.requests = []
        self.gateway.app.services.on_end.append(self._record)

    def _record(self, exchange, now_ps, outcome, why):
        self.requests.append((exchange.request, exchange.tally.tokens, exchange.tally.usage, outcome))

    def openai(self, **more):
        return openai_client(self.gateway.url, **more)

    def anthropic(self, **more):
        url = self.gateway.url.removesuffix("/v1")
        return anthropic.Anthropic(base_url=url, auth_token="x", max_retries=0, **more)

    def last(self, count):
        self.gateway.until(lambda: len(self.requests) >= count)
        return self.requests[count - 1]


@pytest.fixture(scope="module")
def scene(request):
    """One gateway for all tests that leave it as it was."""
    from live_gateway import Live

    started = []

    def live(engines, **more):
        started.append(Live(engines, **more))
        return started[0]

    scene = Scene(live)
    yield scene
    started[0].stop()
    scene.engines.stop()


@pytest.fixture
def fresh(live):
    scenes = []

    def start(**more):
        scenes.append(Scene(live, **more))
        return scenes[0]

    yield start
    for each in scenes:
        each.engines.stop()


# --- Responses -------------------------------------------------------------------------------------------------------


def test_a_response(scene):
    count = len(scene.requests)
    response = scene.openai().responses.create(model=MODEL, input="hello " * 50, max_output_tokens=5)
    assert (
        response.status == "incomplete" and response.usage.output_tokens == 5 and len(response.output_text.split()) == 5
    )
    request, tokens, usage, outcome = scene.last(count + 1)
    assert (request.kind, request.max_tokens, tokens, outcome) == ("responses", 5, 5, "completed")
    assert b'"prompt_tokens":%d' % response.usage.input_tokens in usage


def test_the_stream_of_a_response(scene):
    count = len(scene.requests)
    with scene.openai().responses.stream(model=MODEL, input=SAID, max_output_tokens=6) as stream:
        events = list(stream)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert len(deltas) == 6 and events[-1].response.output_text == "".join(deltas)
    assert scene.last(count + 1)[1] == 6


def test_a_response_calls_a_tool(scene):
    choice = {"type": "function", "name": "weather"}
    asking = {"model": MODEL, "input": SAID, "tools": [FUNCTION], "tool_choice": choice}
    (call,) = scene.openai().responses.create(**asking).output
    assert (call.type, call.name, list(json.loads(call.arguments))) == ("function_call", "weather", ["city"])
    with scene.openai().responses.stream(**asking) as stream:
        (streamed,) = stream.get_final_response().output
    assert streamed.arguments == call.arguments


def test_a_response_belongs_to_the_session_of_the_response_before_it(scene):
    count, client = len(scene.requests), scene.openai()
    first = client.responses.create(model=MODEL, input="hello there", max_output_tokens=2)
    streamed = client.responses.create(
        model=MODEL, input="and then", previous_response_id=first.id, max_output_tokens=2, stream=True
    )
    second = next(event.response.id for event in streamed if event.type == "response.created")
    scene.last(count + 2)
    client.responses.create(model=MODEL, input="more", previous_response_id=second, max_output_tokens=2)
    scene.last(count + 3)
    sessions = {request.session for request, *_ in scene.requests[count:]}
    assert len(sessions) == 1 and None not in sessions


def test_a_response_is_read_and_deleted_at_the_engine_that_gave_it(fresh):
    scene, used = fresh(policies={"routing": "round-robin"}), set()
    client = scene.openai()
    for stream in (False, True, False, True):
        given = client.responses.create(model=MODEL, input="hello", max_output_tokens=2, stream=stream)
        if stream:
            *_, last = given
            given = last.response
        assert client.responses.retrieve(given.id) == given
        used |= {replica.name for replica in scene.engines.host.replicas if given.id in replica.responses.by_id}
        (item,) = client.responses.input_items.list(given.id).data
        assert item.content[0].text == "hello"
        with pytest.raises(openai.BadRequestError, match="Cannot cancel a synchronous response"):
            client.responses.cancel(given.id)
        client.responses.delete(given.id)
        for ask in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
            with pytest.raises(openai.NotFoundError, match=f"Response with id '{given.id}' not found"):
                ask(given.id)
    unkept = client.responses.create(model=MODEL, input="hello", max_output_tokens=2, store=False)
    with pytest.raises(openai.NotFoundError, match="not found"):
        client.responses.retrieve(unkept.id)
    assert len(used) == 2


def test_requests_about_responses_that_no_engine_answers(scene):
    url, counted = scene.gateway.url, scene.gateway.app.intake.count
    for id in ("resp_unknown", "resp_" + "a" * 150):
        answer = fetch(f"{url}/responses/{id}")
        assert (answer.status, answer.json()["error"]["type"]) == (404, "not_found_error")
        assert answer.said == f"Response with id '{id}' not found."
    answer = fetch(f"{url}/responses/resp_1/cancel")
    assert (answer.status, answer.headers["allow"]) == (405, "POST")
    for path in ("resp_1/other", "resp_../models", "..%2fmodels", "compact", "resp_1/cancel/x"):
        assert fetch(f"{url}/responses/{path}").status == 404
    assert scene.gateway.app.intake.count == counted


def test_a_response_of_an_engine_that_is_gone(fresh):
    scene = fresh(instances=1)
    response = scene.openai().responses.create(model=MODEL, input="hello", max_output_tokens=2)
    gateway, (replica,) = scene.gateway, scene.engines.host.replicas
    place = gateway.app.fleet.names[replica.name].place

    async def change(state):
        gateway.app.plane.changed(gateway.app.clock.now_ps(), place, state)

    gateway.call(change("unreachable"))
    answer = fetch(f"{gateway.url}/responses/{response.id}")
    assert answer.status == 503 and answer.headers["retry-after"]
    gateway.call(change("ready"))
    scene.engines.do(replica.crash)
    answer = fetch(f"{gateway.url}/responses/{response.id}")
    assert answer.status == 502 and "x-headway-request" not in answer.headers


def test_a_response_is_seen_by_its_own_tenant_only(fresh, tmp_path):
    file, keys = keys_file(tmp_path, ann={}, bob={}, eve={"tenant": "ann"})
    scene = fresh(keys=file)
    clients = {name: scene.openai(key=key.removeprefix("Bearer ")) for name, key in keys.items()}
    given = clients["ann"].responses.create(model=MODEL, input="hello", max_output_tokens=2)
    with pytest.raises(openai.NotFoundError):
        clients["bob"].responses.retrieve(given.id)
    assert fetch(f"{scene.gateway.url}/responses/{given.id}").status == 401
    assert clients["eve"].responses.retrieve(given.id).id == clients["ann"].responses.retrieve(given.id).id
    assert {key.inflight for key in scene.gateway.app.reception.keyring.keys.values()} == {0}


def test_a_stream_can_be_cancelled_while_it_runs(fresh):
    scene = fresh(speed=1.0)
    stream = scene.openai().responses.create(model=MODEL, input="hello", max_output_tokens=2000, stream=True)
    id = next(iter(stream)).response.id
    answer = fetch(f"{scene.gateway.url}/responses/{id}/cancel", b"", method="POST")
    assert answer.status == 404 and "x-headway-target" in answer.headers  # of the engine, which keeps it at the end
    stream.close()


def test_the_errors_of_responses(scene):
    count = len(scene.requests)
    with pytest.raises(openai.NotFoundError, match="model 'none' is not served"):
        scene.openai().responses.create(model="none", input="hello")
    with pytest.raises(openai.BadRequestError, match="no messages, prompt or input"):
        scene.openai().responses.create(model=MODEL)
    with pytest.raises(openai.BadRequestError, match="malformed"):  # the engine's own answer
        scene.openai().responses.create(model=MODEL, input=[{"type": "function_call"}])
    # The client may have its answer before the gateway has its record, which must not fall into the next test.
    scene.gateway.until(lambda: any(outcome == "failed" for *_, outcome in scene.requests[count:]))


# --- Messages --------------------------------------------------------------------------------------------------------


def test_a_message(scene):
    count = len(scene.requests)
    message = scene.anthropic().messages.create(model=MODEL, max_tokens=5, system="be kind", messages=SAID)
    assert message.stop_reason == "max_tokens" and len(message.content[0].text.split()) == 5
    request, tokens, usage, outcome = scene.last(count + 1)
    assert (request.kind, request.max_tokens, tokens, outcome) == ("messages", 5, 5, "completed")
    assert b'"prompt_tokens":%d' % message.usage.input_tokens in usage


def test_the_stream_of_a_message(scene):
    count = len(scene.requests)
    with scene.anthropic().messages.stream(model=MODEL, max_tokens=6, messages=SAID) as stream:
        pieces = list(stream.text_stream)
        final = stream.get_final_message()
    assert len(pieces) == 6 and final.content[0].text == "".join(pieces) and final.usage.output_tokens == 6
    assert scene.last(count + 1)[1] == 6


def test_a_message_calls_a_tool(scene):
    asking = {"model": MODEL, "max_tokens": 100, "messages": SAID, "tools": [TOOL], "tool_choice": {"type": "any"}}
    whole = scene.anthropic().messages.create(**asking)
    assert (whole.stop_reason, whole.content[0].name, list(whole.content[0].input)) == ("tool_use", "weather", ["city"])
    with scene.anthropic().messages.stream(**asking) as stream:
        assert stream.get_final_message().content[0].input == whole.content[0].input


def test_tokens_are_counted_without_a_belief_about_caches(scene):
    count = len(scene.requests)
    asking = {"model": MODEL, "messages": SAID}
    counted = scene.anthropic().messages.count_tokens(**asking).input_tokens
    assert counted == scene.anthropic().messages.create(**asking, max_tokens=1).usage.input_tokens
    request = scene.last(count + 1)[0]
    assert (request.kind, request.path.keys, request.max_tokens) == ("count_tokens", (), 1)


def test_the_errors_of_messages(scene):
    client = scene.anthropic()
    with pytest.raises(anthropic.NotFoundError, match="model 'none' is not served") as caught:
        client.messages.create(model="none", max_tokens=1, messages=SAID)
    assert caught.value.body == {
        "type": "error",
        "error": {"type": "not_found_error", "message": "model 'none' is not served"},
    }
    with pytest.raises(anthropic.BadRequestError, match="invalid request"):
        client.messages.create(model=MODEL, max_tokens=1, messages=None)
    with pytest.raises(anthropic.BadRequestError, match="malformed"):  # the engine's own answer
        client.messages.create(model=MODEL, max_tokens=1, messages=[{"role": "user"}])


# --- both ------------------------------------------------------------------------------------------------------------


def test_prompts_go_where_their_beginnings_are_cached(fresh):
    scene = fresh(instances=3, policies={"routing": "prefix-overlap"})
    texts = [f"{number} and so on " * 100 for number in range(4)]
    targets = []
    for _ in range(2):
        for text in texts:
            said = [{"role": "user", "content": text}]
            client = scene.anthropic().messages.with_raw_response
            answer = client.create(model=MODEL, max_tokens=1, system="x" * 300, messages=said)
            responses = scene.openai().responses.with_raw_response
            other = responses.create(model=MODEL, instructions="x" * 300, input=said, max_output_tokens=1)
            targets.append((answer.headers["x-headway-target"], other.headers["x-headway-target"]))
    assert targets[:4] == targets[4:]
    scene.gateway.until(scene.gateway.idle)


def test_bytes_are_equal_on_both_sides(live):
    gateway = live(1)
    body = b'{ "model":"m", "messages" : [{"role":"user","content":"\\u00e9"}],"max_tokens":1.0e1,"stream":true}'
    for path in ("messages", "messages/count_tokens", "responses"):
        sent = body if path != "responses" else body.replace(b'"messages"', b'"input"')
        answer = fetch(f"{gateway.url}/{path}?beta=true", sent)
        assert gateway.engines[0].bodies[-1] == sent
        assert answer.body == fetch(f"http://127.0.0.1:{gateway.engines[0].port}/v1/chat/completions", sent).body


@pytest.mark.parametrize("fault", ["cut", "garbage"])
def test_a_stream_that_breaks_ends_with_the_error_of_its_api(fresh, fault):
    scene = fresh(instances=1)
    scene.engines.fault(fault, tokens=3)
    with pytest.raises(openai.APIError, match=r"connection was lost|invalid HTTP"):
        list(scene.openai().responses.create(model=MODEL, input=SAID, max_output_tokens=20, stream=True))
    with pytest.raises(anthropic.APIStatusError, match=r"connection was lost|invalid HTTP") as caught:
        list(scene.anthropic().messages.create(model=MODEL, max_tokens=20, messages=SAID, stream=True))
    assert caught.value.body["error"]["type"] == "api_error"
    scene.gateway.until(scene.gateway.idle)


def test_an_overloaded_engine_and_a_deadline(fresh):
    scene = fresh(instances=1)
    scene.engines.fault("503")
    with pytest.raises(anthropic.InternalServerError) as caught:
        scene.anthropic().messages.create(model=MODEL, max_tokens=2, messages=SAID)
    assert caught.value.status_code == 503
    scene.engines.fault("hang")
    headers = {"x-headway-deadline": "100ms"}
    with pytest.raises(anthropic.APIStatusError, match="the deadline has passed") as caught:
        scene.anthropic().messages.create(model=MODEL, max_tokens=2, messages=SAID, extra_headers=headers)
    assert caught.value.body["error"]["type"] == "timeout_error"
    with pytest.raises(openai.APIStatusError, match="the deadline has passed"):
        scene.openai().responses.create(model=MODEL, input=SAID, extra_headers=headers)
    scene.gateway.until(scene.gateway.idle)


def test_a_client_that_closes_a_stream_cancels_it(fresh):
    scene = fresh(instances=1, speed=1.0)
    for stream in (
        scene.anthropic().messages.create(model=MODEL, max_tokens=5000, messages=SAID, stream=True),
        scene.openai().responses.create(model=MODEL, input=SAID, max_output_tokens=5000, stream=True),
    ):
        next(iter(stream))
        stream.close()
    scene.gateway.until(lambda: [outcome for _, outcome in scene.engines.ended] == ["abandoned"] * 2)
    scene.gateway.until(scene.gateway.idle)


def test_a_client_that_gives_up_waiting_cancels_its_request(fresh):
    scene = fresh(instances=1)
    scene.engines.fault("hang")
    began = time.monotonic()
    with pytest.raises(anthropic.APITimeoutError):
        scene.anthropic(timeout=0.2).messages.create(model=MODEL, max_tokens=2, messages=SAID)
    with pytest.raises(openai.APITimeoutError):
        scene.openai(timeout=0.2).responses.create(model=MODEL, input=SAID)
    assert time.monotonic() - began >= 0.4
    scene.gateway.until(scene.gateway.idle)


def test_aliases_and_fallbacks_apply_to_all_apis(fresh):
    scene = fresh(instances=1, aliases={"claude": MODEL}, fallbacks={"gone": [MODEL]})
    client = scene.anthropic().messages.with_raw_response
    assert client.create(model="claude", max_tokens=1, messages=SAID).parse().model == MODEL
    answer = client.create(model="gone", max_tokens=1, messages=SAID)
    assert answer.headers["x-headway-fallback"] == f"{MODEL}; from=gone; cause=error"
    response = scene.openai().responses.with_raw_response.create(model="gone", input="hi", max_output_tokens=1)
    assert response.headers["x-headway-fallback"] == f"{MODEL}; from=gone; cause=error"


def test_hints_for_caches_are_sessions(live):
    gateway = live(1)
    requests = []
    gateway.app.services.on_end.append(lambda exchange, *_: requests.append(exchange.request))
    said = [{"role": "user", "content": "hi"}]
    bodies = [
        ("messages", {"messages": said, "metadata": {"user_id": "u1"}}),
        ("responses", {"input": "hi", "prompt_cache_key": "u1"}),
        ("responses", {"input": "hi", "conversation": {"id": "u1"}}),
        ("responses", {"input": "hi", "conversation": "u1", "prompt_cache_key": "u2"}),
        ("responses", {"input": "hi", "previous_response_id": "u1"}),
        ("chat/completions", {"messages": said, "prompt_cache_key": "u1", "user": "u2"}),
    ]
    for path, body in bodies:
        fetch(f"{gateway.url}/{path}", json.dumps({"model": "m", **body}).encode())
    gateway.until(lambda: len(requests) == len(bodies))
    assert {request.session for request in requests} == {"u1"}


def test_what_changes_behind_the_mark_for_the_cache_does_not_change_the_session(live):
    gateway = live(1)
    requests = []
    gateway.app.services.on_end.append(lambda exchange, *_: requests.append(exchange.request))
    for today in ("monday", "tuesday"):
        system = [
            {"type": "text", "text": "be kind", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": today},
        ]
        body = {"model": "m", "system": system, "messages": [{"role": "user", "content": "hi"}]}
        fetch(f"{gateway.url}/messages", json.dumps(body).encode())
    chat(gateway)
    gateway.until(lambda: len(requests) == 3)
    assert requests[0].session == requests[1].session != requests[2].session
