"""OpenTelemetry spans: every shape of file, current and former names, sessions, and files that are wrong."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drawing import draws
from headway.errors import HeadwayError
from headway.workload.traces import open_trace
from headway.workload.traces.otel import FORMAT
from headway.workload.traces.record import Options, Record
from headway.workload.traces.source import head

START = 1_779_163_048_815_000_000
MS = 10**6  # ns
TIMED_OUT: dict[str, Any] = {"error.type": "timeout"}


def span(at_ms: float = 0, took_ms: float = 10, **attributes: Any) -> dict[str, Any]:
    """A span as most tools write it; None leaves an attribute out."""
    names = {
        "operation": "gen_ai.operation.name",
        "conversation": "gen_ai.conversation.id",
        "tokens_in": "gen_ai.usage.input_tokens",
        "tokens_out": "gen_ai.usage.output_tokens",
    }
    source = {"operation": "chat", "tokens_in": 100, "tokens_out": 20, **attributes}
    return {
        "name": "chat m",
        "spanId": f"{at_ms}",
        "startTimeUnixNano": str(START + round(at_ms * MS)),
        "endTimeUnixNano": str(START + round((at_ms + took_ms) * MS)),
        "attributes": {names.get(name, name): value for name, value in source.items() if value is not None},
    }


def otlp(*spans: dict[str, Any]) -> dict[str, Any]:
    """The same spans as OTLP: lists of keys and values, whole numbers as text."""

    def value(record: Any) -> dict[str, Any]:
        if isinstance(record, list):
            return {"arrayValue": {"values": [value(item) for item in record]}}
        kinds = {bool: "boolValue", int: "intValue", float: "doubleValue", str: "stringValue"}
        return {kinds[type(record)]: str(record) if type(record) is int else record}

    converted = []
    for record in spans:
        pairs = [{"key": key, "value": value(item)} for key, item in record["attributes"].items()]
        converted.append({**record, "attributes": pairs})
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "shop"}}]}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": {}, "spans": converted}]}]}


def write_file(folder: Path, *objects: Any, indent: int | None = None) -> Path:
    path = folder / "spans.json"
    path.write_text("\n".join(json.dumps(record, indent=indent) for record in objects))
    return path


def read(path: Path, **options: Any) -> list[Record]:
    return list(open_trace(path, FORMAT.name, Options(**options)).records)


def refusal(folder: Path, *objects: Any) -> str:
    with pytest.raises(HeadwayError) as error:
        read(write_file(folder, *objects))
    return str(error.value)


# --- shapes -----------------------------------------------------------------------------------------------------

PLAIN = [span(0, conversation="c"), span(50, 5, conversation="c", tokens_in=130), span(20, operation="text_completion")]


def test_all_shapes_of_a_file_say_the_same(tmp_path: Path) -> None:
    expected = read(write_file(tmp_path, *PLAIN))
    assert [(record.at_ps, record.prompt_tokens, record.kind) for record in expected] == [
        (0, 100, "chat"),
        (20 * 10**9, 100, "completion"),
        (50 * 10**9, 130, "chat"),
    ]
    assert read(write_file(tmp_path, {"spans": PLAIN})) == expected
    assert read(write_file(tmp_path, {"spans": PLAIN}, indent=2)) == expected
    assert read(write_file(tmp_path, PLAIN)) == expected
    assert read(write_file(tmp_path, {"spans": PLAIN[:1]}, {"spans": PLAIN[1:]})) == expected
    for shape in ([otlp(*PLAIN)], [otlp(PLAIN[0]), otlp(*PLAIN[1:])]):
        records = read(write_file(tmp_path, *shape))
        assert {record.extra.pop("service") for record in records} == {"shop"}
        assert records == expected
    packed = tmp_path / "packed"
    packed.write_bytes(gzip.compress(json.dumps({"spans": PLAIN}).encode()))
    assert read(packed) == expected


def test_the_format_is_told_where_it_is_safe(tmp_path: Path) -> None:
    for objects, indent in (([{"spans": PLAIN}], 2), ([otlp(*PLAIN)], None), (PLAIN, None)):
        path = write_file(tmp_path, *objects, indent=indent)
        assert FORMAT.tell(path, head(path))
    assert not FORMAT.tell(tmp_path, [b'{"timestamp": 1, "hash_ids": [1]}'])
    assert not FORMAT.tell(tmp_path, [])


@pytest.mark.parametrize(
    ("start", "end"),
    [
        ({"startTimeUnixNano": START}, {"endTimeUnixNano": START + 5 * MS}),
        ({"start_time_unix_nano": str(START)}, {"end_time_unix_nano": str(START + 5 * MS)}),
        ({"start_time": "2026-05-19T03:57:28.815000Z"}, {"end_time": "2026-05-19T05:57:28.820+02:00"}),
        ({"startTime": [1_779_163_048, 815_000_000]}, {"endTime": [1_779_163_048, 820_000_000]}),
    ],
)
def test_stamps_are_read_in_every_writing(tmp_path: Path, start: dict[str, Any], end: dict[str, Any]) -> None:
    attributes = span()["attributes"]
    path = write_file(tmp_path, {**start, **end, "attributes": attributes}, span(7))
    record, two = read(path)
    assert (record.at_ps, record.extra["duration"], two.at_ps) == (0, 0.005, 7 * 10**9)


# --- what a span says -------------------------------------------------------------------------------------------


def test_a_spans_attributes_are_a_requests_fields(tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "gen_ai.request.model": "m",
        "gen_ai.response.model": "m-2026",
        "gen_ai.request.max_tokens": 512,
        "gen_ai.usage.cache_read.input_tokens": 64,
        "gen_ai.usage.reasoning.output_tokens": 7,
        "gen_ai.response.time_to_first_chunk": 0.25,
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.provider.name": "p",
        "server.address": "host",
    }
    for shape in (span(conversation="c", **values), otlp(span(conversation="c", **values))):
        (record,) = read(write_file(tmp_path, shape))
        record.extra.pop("service", None)
        assert (record.model, record.max_tokens, record.session, record.turn) == ("m", 512, "c", 0)
        assert (record.prompt_tokens, record.output_tokens, record.kind, record.blocks) == (100, 20, "chat", None)
        assert record.extra == {
            "ttft": 0.25,
            "cached_tokens": 64,
            "reasoning_tokens": 7,
            "finish_reasons": ["stop"],
            "provider": "p",
            "server": "host",
            "duration": 0.01,
        }


def test_the_former_names_are_read_as_well(tmp_path: Path) -> None:
    old: dict[str, Any] = {
        "gen_ai.usage.prompt_tokens": 30,
        "gen_ai.usage.completion_tokens": 4,
        "llm.request.type": "completion",
    }
    (record,) = read(write_file(tmp_path, span(operation=None, tokens_in=None, tokens_out=None, **old)))
    assert (record.prompt_tokens, record.output_tokens, record.kind) == (30, 4, "completion")


def test_a_span_without_an_operation_is_a_call_where_it_tells_tokens(tmp_path: Path) -> None:
    path = write_file(tmp_path, span(operation=None), span(1, operation=None, tokens_in=None, tokens_out=None))
    assert [record.kind for record in read(path)] == [None]


def test_tools_agents_and_failures_are_counted_and_not_requests(tmp_path: Path) -> None:
    path = write_file(
        tmp_path,
        span(0),
        span(1, operation="invoke_agent", tokens_in=900),
        span(2, operation="execute_tool", tokens_in=None),
        span(3, operation="embeddings"),
        span(4, tokens_in=None, tokens_out=None, **TIMED_OUT),
        {**span(5, tokens_in=None, tokens_out=None), "status": {"code": 2}},
        {**span(6, tokens_out=None), "status": {"status_code": "ERROR"}},
    )
    reader = FORMAT.read(path, Options())
    assert reader.info.extra == {"spans": 7, "requests": 2, "errors": 3, "passed_over": 3}
    assert [(record.output_tokens, record.extra.get("error")) for record in reader.records] == [
        (20, None),
        (0, "_OTHER"),
    ]


def test_a_conversation_goes_on_after_its_previous_call_ended(tmp_path: Path) -> None:
    path = write_file(
        tmp_path,
        span(30, 5, conversation="c"),
        span(0, 10, conversation="c"),
        span(32, 1, conversation="c"),
        span(5, 1),
    )
    reader = FORMAT.read(path, Options())
    assert reader.info.sessions and reader.info.clock == "trace" and reader.info.block_tokens is None
    records = list(reader.records)
    assert [record.session for record in records] == ["c", None, "c", "c"]
    assert [record.turn for record in records] == [0, None, 1, 2]
    assert [record.delay_ps for record in records] == [0, None, 20 * 10**9, 0]


def test_spans_without_conversations_are_no_sessions(tmp_path: Path) -> None:
    assert not FORMAT.read(write_file(tmp_path, span()), Options()).info.sessions


# --- what is wrong ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (span(tokens_in=None), "gen_ai.usage.input_tokens must be above 0"),
        (span(tokens_in=-5), "gen_ai.usage.input_tokens must be a whole number between 0"),
        (span(tokens_in=1.5), "gen_ai.usage.input_tokens must be a whole number"),
        (span(tokens_out="many"), "gen_ai.usage.output_tokens must be a whole number"),
        (span(tokens_in=True), "gen_ai.usage.input_tokens must be a whole number"),
        (span(operation=7), "gen_ai.operation.name must be text, got 7"),
        (span() | {"startTimeUnixNano": None}, "startTimeUnixNano is missing"),
        (span() | {"startTimeUnixNano": 1_779_163_048}, "startTimeUnixNano '1779163048' is not a time like"),
        (span() | {"endTimeUnixNano": "soon"}, "endTimeUnixNano 'soon' is not a time like"),
        (span() | {"attributes": 3}, "attributes must be an object or a list of keys and values"),
        (span() | {"attributes": [{"value": 3}]}, "attributes[0] must have a key and a value"),
        ({"name": "x"}, "attributes is missing; the file holds spans"),
        ("text", "must be a JSON object"),
    ],
)
def test_a_wrong_span_is_refused_where_it_is_wrong(tmp_path: Path, wrong: Any, problem: str) -> None:
    message = refusal(tmp_path, span(), wrong)
    assert message.startswith("spans.json line 2: ") and problem in message


def test_a_wrong_span_inside_a_document_is_named(tmp_path: Path) -> None:
    assert refusal(tmp_path, {"spans": [span(), span(tokens_in=-1)]}).startswith("spans.json line 1 spans[1]: gen_ai")
    message = refusal(tmp_path, otlp(span(), span(tokens_in=-1)))
    assert message.startswith("spans.json line 1 resourceSpans[0].scopeSpans[0].spans[1]: gen_ai")
    assert "resourceSpans: must be a list" in refusal(tmp_path, {"resourceSpans": {}})


def test_files_without_calls_and_block_sizes_are_refused(tmp_path: Path) -> None:
    assert "none of the 1 spans is a model call" in refusal(tmp_path, span(operation="execute_tool"))
    with pytest.raises(HeadwayError, match=r"has no blocks\. Remove block_tokens"):
        read(write_file(tmp_path, span()), block_tokens=16)


def test_a_call_months_after_the_first_is_refused(tmp_path: Path) -> None:
    message = refusal(tmp_path, span(), span(200 * 86_400_000))
    assert "line 2: the start " in message and "is too late: after 200 days; the limit is 100 days" in message


LEAVES = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=5)
JSON = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner))
PLACES = [
    ("attributes",),
    ("status",),
    ("context",),
    ("spanId",),
    ("startTimeUnixNano",),
    ("endTimeUnixNano",),
    *(("attributes", name) for name in span(conversation="c")["attributes"]),
    ("attributes", "gen_ai.request.max_tokens"),
    ("attributes", "error.type"),
    ("attributes", "gen_ai.response.finish_reasons"),
]


@draws(60)
@given(place=st.sampled_from(PLACES), value=JSON, nested=st.booleans())
def test_any_value_anywhere_is_read_or_refused_in_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, place: tuple[str, ...], value: Any, nested: bool
) -> None:
    changed = span(5, conversation="c")
    inner = changed if len(place) == 1 else changed["attributes"]
    inner[place[-1]] = value
    spans = [span(0, conversation="c"), changed, span(50, conversation="c")]
    path = write_file(tmp_path_factory.getbasetemp(), *([{"spans": spans}] if nested else spans))
    try:
        read(path)
    except HeadwayError as error:
        assert "spans.json" in str(error)


@draws(60)
@given(name=st.sampled_from(["resourceSpans", "resource", "scopeSpans", "spans", "attributes"]), value=JSON)
def test_any_value_in_the_frame_is_read_or_refused_in_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, name: str, value: Any
) -> None:
    document = otlp(span())
    resource = document["resourceSpans"][0]
    scope = resource["scopeSpans"][0]
    places = {"resourceSpans": document, "resource": resource, "scopeSpans": resource, "spans": scope}
    places.get(name, scope["spans"][0])[name] = value
    try:
        read(write_file(tmp_path_factory.getbasetemp(), document))
    except HeadwayError as error:
        assert "spans.json" in str(error)


@draws(60)
@given(cut=st.integers(0, 600), junk=st.binary(max_size=20), packed=st.booleans(), indent=st.sampled_from([None, 1]))
def test_any_bytes_are_read_or_refused_in_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, cut: int, junk: bytes, packed: bool, indent: int | None
) -> None:
    text = json.dumps({"spans": PLAIN}, indent=indent).encode()
    text = text[:cut] + junk + text[cut + len(junk) :]
    path = tmp_path_factory.getbasetemp() / "bytes.json"
    path.write_bytes(gzip.compress(text)[:-5] if packed else text)
    try:
        FORMAT.tell(path, head(path))
        read(path)
    except HeadwayError as error:
        assert "bytes.json" in str(error)
