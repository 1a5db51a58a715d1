"""An emulated engine as OpenAI's client sees it: like a real engine."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from emulated import Emulated
from openai_client import openai, openai_client

from headway.sim.instance_end import check_instance

MODEL = "llama-3.1-8b"
SAID = [{"role": "user", "content": "tell me something about the sea " * 10}]
CITY = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "weather", "strict": True, "parameters": CITY}}


@pytest.fixture(scope="module")
def engine() -> Iterator[Emulated]:
    one = Emulated({"instances": 2}, speed=20.0)
    yield one
    one.stop()


def client(engine: Emulated, replica: int = 0) -> Any:
    return openai_client(f"{engine.url(replica)}/v1")


def raw(engine: Emulated, body: dict[str, Any], path: str = "/v1/chat/completions") -> bytes:
    """Return the chunks of the answer."""
    data = json.dumps(body).encode()
    with socket.create_connection(("127.0.0.1", engine.host.replicas[0].port), timeout=300) as sock:
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(data)}\r\n\r\n"
        sock.sendall(head.encode() + data)
        result = b""
        while piece := sock.recv(65536):
            result += piece
        return result


def test_chats_and_completions_are_answered_with_their_usage(engine: Emulated) -> None:
    for replica in (0, 1):
        asking = client(engine, replica)
        assert [model.id for model in asking.models.list()] == [MODEL]
        chat = asking.chat.completions.create(model=MODEL, messages=SAID, max_tokens=4)
        assert (chat.usage.prompt_tokens, chat.usage.completion_tokens) == (83, 4)
        assert chat.choices[0].finish_reason == "length" and len(chat.choices[0].message.content.split()) == 4
        text = asking.completions.create(model=MODEL, prompt="once " * 40, max_tokens=5)
        assert (text.usage.prompt_tokens, text.usage.completion_tokens) == (50, 5)
        assert len(text.choices[0].text.split()) == 5


def test_a_stream_comes_token_by_token_with_its_usage_at_the_end(engine: Emulated) -> None:
    chunks = list(
        client(engine).chat.completions.create(
            model=MODEL, messages=SAID, max_tokens=8, stream=True, stream_options={"include_usage": True}
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant" and chunks[0].choices[0].delta.content == ""
    pieces = [chunk.choices[0].delta.content for chunk in chunks[1:-1]]
    assert [len(piece.split()) for piece in pieces] == [1] * 8
    assert [chunk.choices[0].finish_reason for chunk in chunks[1:-1]] == [None] * 7 + ["length"]
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 8
    again = client(engine).chat.completions.create(model=MODEL, messages=SAID, max_tokens=8)
    assert again.choices[0].message.content == "".join(pieces)


def test_a_completions_stream_ends_with_its_reason(engine: Emulated) -> None:
    chunks = list(client(engine).completions.create(model=MODEL, prompt="once upon", max_tokens=3, stream=True))
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None, None, "length"]
    assert all(chunk.usage is None for chunk in chunks)


def test_events_are_framed_as_vllm_frames_them(engine: Emulated) -> None:
    answer = raw(engine, {"model": MODEL, "messages": SAID, "max_tokens": 3, "stream": True})
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: text/event-stream; charset=utf-8" in head and b"transfer-encoding: chunked" in head
    sizes, events = [], b""
    while body:
        size, _, body = body.partition(b"\r\n")
        events += body[: int(size, 16)]
        sizes.append(int(size, 16))
        body = body[int(size, 16) + 2 :]
    assert len(sizes) == 6 and sizes[-1] == 0  # the role, three tokens, [DONE], and the last chunk
    lines = events.split(b"\n\n")
    assert lines[-1] == b"" and lines[-2] == b"data: [DONE]"
    assert all(json.loads(line.removeprefix(b"data: "))["object"] == "chat.completion.chunk" for line in lines[:-2])


def test_usage_comes_with_every_chunk_where_that_is_asked_for(engine: Emulated) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(
        client(engine).completions.create(model=MODEL, prompt="once", max_tokens=3, stream=True, stream_options=options)
    )
    assert [chunk.usage.completion_tokens for chunk in chunks] == [1, 2, 3, 3]


def test_log_probabilities_come_with_each_token(engine: Emulated) -> None:
    asking = client(engine)
    chat = asking.chat.completions.create(model=MODEL, messages=SAID, max_tokens=3, logprobs=True, top_logprobs=2)
    result = chat.choices[0].logprobs.content
    assert [len(token.top_logprobs) for token in result] == [2, 2, 2] and all(token.logprob <= 0 for token in result)
    assert "".join(token.token for token in result) == chat.choices[0].message.content
    text = asking.completions.create(model=MODEL, prompt="once", max_tokens=3, logprobs=2)
    assert len(text.choices[0].logprobs.token_logprobs) == 3
    assert [len(top) for top in text.choices[0].logprobs.top_logprobs] == [2, 2, 2]
    streamed = asking.completions.create(model=MODEL, prompt="once", max_tokens=3, logprobs=2, stream=True)
    assert [chunk.choices[0].logprobs.token_logprobs[0] for chunk in streamed] == text.choices[
        0
    ].logprobs.token_logprobs


@pytest.mark.parametrize("choice", [{"type": "function", "function": {"name": "weather"}}, "required"])
def test_a_tool_is_called_as_it_is_described(engine: Emulated, choice: Any) -> None:
    asked = {"model": MODEL, "messages": SAID, "tools": [WEATHER], "tool_choice": choice}
    answer = client(engine).chat.completions.create(**asked)
    calls = answer.choices[0].message.tool_calls
    assert calls[0].function.name == "weather"
    assert json.loads(calls[0].function.arguments)["city"] in ("Paris", "Rome")
    assert answer.choices[0].finish_reason == ("tool_calls" if choice == "required" else "stop")
    pieces = [
        chunk.choices[0].delta.tool_calls for chunk in client(engine).chat.completions.create(**asked, stream=True)
    ]
    assert "".join(piece[0].function.arguments for piece in pieces if piece) == calls[0].function.arguments


def test_tools_that_need_not_be_called_are_taken(engine: Emulated) -> None:
    answer = client(engine).chat.completions.create(model=MODEL, messages=SAID, tools=[WEATHER], max_tokens=2)
    assert answer.choices[0].message.tool_calls is None and answer.usage.completion_tokens == 2


def test_a_stop_string_ends_an_answer(engine: Emulated) -> None:
    asking = client(engine)
    whole = asking.completions.create(model=MODEL, prompt="the end", max_tokens=12).choices[0].text
    stop = whole[17:23]
    cut = asking.completions.create(model=MODEL, prompt="the end", max_tokens=12, stop=["@@", stop])
    assert cut.choices[0].text == whole[: whole.index(stop)]
    assert (cut.choices[0].finish_reason, cut.choices[0].stop_reason) == ("stop", stop)
    pieces = asking.completions.create(model=MODEL, prompt="the end", max_tokens=12, stop=stop, stream=True)
    assert "".join(chunk.choices[0].text for chunk in pieces) == cut.choices[0].text


def test_embeddings_are_of_length_one_and_follow_from_the_text(engine: Emulated) -> None:
    asking = client(engine)
    result = asking.embeddings.create(model=MODEL, input=["a", "b", "a"], dimensions=32)
    one, two, three = [item.embedding for item in result.data]
    assert len(one) == 32 and one == three and one != two
    assert sum(value * value for value in one) == pytest.approx(1.0, abs=1e-5)
    plain = asking.embeddings.create(model=MODEL, input="a", dimensions=32, encoding_format="float")
    assert plain.data[0].embedding == pytest.approx(one, abs=1e-6)


def test_an_answer_without_a_limit_is_as_long_as_is_drawn_and_always_the_same(engine: Emulated) -> None:
    answers = [client(engine, replica).chat.completions.create(model=MODEL, messages=SAID) for replica in (0, 1)]
    assert answers[0].choices[0].message.content == answers[1].choices[0].message.content
    assert {answer.choices[0].finish_reason for answer in answers} == {"stop"}


def test_an_answer_that_comes_back_in_the_next_turn_is_found_cached(engine: Emulated) -> None:
    asking, said = client(engine), [{"role": "user", "content": "a beginning of its own, and a question " * 20}]
    first = asking.chat.completions.create(model=MODEL, messages=said, max_tokens=64)
    assert first.usage.prompt_tokens_details.cached_tokens == 0
    longer = [
        *said,
        {"role": "assistant", "content": first.choices[0].message.content},
        {"role": "user", "content": "so"},
    ]
    second = asking.chat.completions.create(model=MODEL, messages=longer, max_tokens=2)
    known = first.usage.prompt_tokens + 64 - 1  # the last token's KV is not computed
    assert second.usage.prompt_tokens_details.cached_tokens == known // 16 * 16
    other = client(engine, 1).chat.completions.create(model=MODEL, messages=longer, max_tokens=2)
    assert other.usage.prompt_tokens_details.cached_tokens == 0


def test_token_ids_are_a_prompt_too(engine: Emulated) -> None:
    asking, ids = client(engine), list(range(100, 164))
    for cached in (0, 48):
        answer = asking.completions.create(model=MODEL, prompt=ids, max_tokens=1)
        assert (answer.usage.prompt_tokens, answer.usage.prompt_tokens_details.cached_tokens) == (64, cached)


@pytest.mark.parametrize("by_header", [False, True])
def test_a_load_generator_says_the_true_lengths_and_the_path(engine: Emulated, by_header: bool) -> None:
    key = 9_000 + by_header
    truth = {
        "prompt_tokens": 330,
        "output_tokens": 7,
        "path": {"keys": [key, key + 10], "ends": [160, 330]},
        "hints": {"slack_s": 2.5},
    }
    more: dict[str, Any] = {"extra_body": {"headway": truth}}
    if by_header:
        more = {"extra_headers": {"x-headway-request": json.dumps(truth)}}
    for cached in (0, 320):
        answer = client(engine).chat.completions.create(model=MODEL, messages=SAID, **more)
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (330, 7)
        assert answer.usage.prompt_tokens_details.cached_tokens == cached
        assert answer.choices[0].finish_reason == "stop"


def calling(parameters: Any) -> dict[str, Any]:
    function = {"name": "f", "parameters": parameters}
    return {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}


def boxes(deep: int) -> dict[str, Any]:
    """Return a schema of nested arrays with 64 items each."""
    return {"type": "array", "minItems": 64, "items": boxes(deep - 1) if deep else {}}


@pytest.mark.parametrize(
    ("body", "status", "why"),
    [
        ({"messages": []}, 400, "no messages"),
        ({"messages": SAID, "n": 2}, 400, "one answer per request"),
        ({"messages": SAID, "max_tokens": "many"}, 400, "max_tokens"),
        ({"messages": SAID, "model": "other"}, 404, "does not exist"),
        ({"messages": SAID, "tools": [{"function": "f"}], "tool_choice": "required"}, 400, "the request has no tools"),
        ({"messages": SAID, **calling({"properties": {"a": {"anyOf": 5}}})}, 400, "are not a JSON schema"),
        (
            {"messages": SAID, **calling({"properties": {"a": {"type": "array", "minItems": "x"}}})},
            400,
            "are not a JSON schema",
        ),
        ({"messages": SAID, **calling({"required": 5})}, 400, "are not a JSON schema"),
        ({"messages": SAID, **calling(boxes(5))}, 400, "more than 4,096 values"),
        ({"messages": SAID, "extra_body": {"headway": {"lenght": 3}}}, 400, "lenght"),
        ({"messages": SAID, "extra_body": {"headway": {"path": {"keys": [1, 2], "ends": [9]}}}}, 400, "headway.path"),
    ],
)
def test_what_cannot_be_served_is_told_so(engine: Emulated, body: dict[str, Any], status: int, why: str) -> None:
    with pytest.raises(openai.APIStatusError, match=why) as told:
        client(engine).chat.completions.create(**{"model": MODEL, **body})
    assert told.value.status_code == status


def test_a_long_prompt_is_read_whole(engine: Emulated) -> None:
    """Unlike the gateway, an engine checks no key before it reads a long body."""
    said = [{"role": "user", "content": "word " * 40_000}]
    answer = client(engine).chat.completions.create(model=MODEL, messages=said, max_tokens=2)
    assert answer.usage.prompt_tokens == 50_003


def test_a_body_that_is_nested_too_deeply_is_refused(engine: Emulated) -> None:
    data = b'{"messages": [{"role": "user", "content": ' + b"[" * 100_000 + b"]" * 100_000 + b"}]}"
    request = urllib.request.Request(f"{engine.url()}/v1/chat/completions", data)
    with pytest.raises(urllib.error.HTTPError) as told:
        urllib.request.urlopen(request, timeout=300)
    assert told.value.code == 400


def test_a_prompt_that_is_too_long_is_refused(engine: Emulated) -> None:
    truth = {"prompt_tokens": 10_000_000, "path": {"keys": [1], "ends": [10_000_000]}}
    with pytest.raises(openai.BadRequestError, match="maximum context length"):
        client(engine).chat.completions.create(model=MODEL, messages=SAID, extra_body={"headway": truth})


def test_other_paths_are_not_found_and_other_methods_not_allowed(engine: Emulated) -> None:
    with pytest.raises(openai.NotFoundError):
        client(engine).post("/audio/speech", body={}, cast_to=object)
    with pytest.raises(openai.APIStatusError) as told:
        client(engine).get("/chat/completions", cast_to=object)
    assert told.value.status_code == 405
    assert json.loads(engine.get("/version"))["version"].startswith("0.32")


def test_a_client_that_goes_frees_its_place() -> None:
    one = Emulated({"max_batch_size": 1})
    try:
        stream = client(one).completions.create(model=MODEL, prompt="x", max_tokens=100_000, stream=True)
        next(iter(stream))
        instance = one.host.room.instances[0]
        assert len(instance.batch.running) == 1
        stream.close()
        one.until(lambda: not instance.batch.running)
        assert client(one).completions.create(model=MODEL, prompt="x", max_tokens=2).usage.completion_tokens == 2
        assert [outcome for _, outcome in one.ended] == ["abandoned", "completed"]
        one.do(partial(check_instance, instance))
    finally:
        one.stop()


def test_rows_are_used_again(engine: Emulated) -> None:
    recorder = engine.host.room.cluster.recorder
    client(engine).completions.create(model=MODEL, prompt="x", max_tokens=1)
    before = recorder.rows
    for number in range(5):
        client(engine).completions.create(model=MODEL, prompt=f"x{number}", max_tokens=1)
    assert recorder.rows == before
