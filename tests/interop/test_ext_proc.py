"""The encoded messages against bytes from Envoy's own definitions (xds-protos 1.85.0)."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("google.protobuf", reason="the extra `gateway` is not installed")

from headway.interop.ext_proc import ProcessingRequest, ProcessingResponse

REQUEST = (
    "12280a240a180a053a706174681a0f2f76312f636f6d706c6574696f6e730a080a03782d61120162180142590a570a14656e766f792e6c622e"
    "7375627365745f68696e74123f0a3d0a25782d676174657761792d64657374696e6174696f6e2d656e64706f696e742d737562736574121432"
    "120a101a0e3132372e302e302e323a383030305a0408041001"
)
ROUTED = (
    "0a4b0a4912450a340a300a1e782d676174657761792d64657374696e6174696f6e2d656e64706f696e741a0e3132372e302e302e323a383030"
    "301802120d617574686f72697a6174696f6e280142440a420a08656e766f792e6c6212362a340a320a1e782d676174657761792d6465737469"
    "6e6174696f6e2d656e64706f696e7412101a0e3132372e302e302e323a38303030"
)
TARGET = "x-gateway-destination-endpoint"


def read(text: str) -> Any:
    return ProcessingRequest.FromString(bytes.fromhex(text))


def written(message: Any) -> str:
    return str(message.SerializeToString(deterministic=True).hex())


def test_a_requests_head_reads_as_envoy_writes_it() -> None:
    result = read(REQUEST)
    fields = [(one.key, one.raw_value or one.value) for one in result.request_headers.headers.headers]
    assert fields == [(":path", b"/v1/completions"), ("x-a", "b")]
    assert result.request_headers.end_of_stream
    assert (result.protocol_config.request_body_mode, result.protocol_config.response_body_mode) == (4, 1)
    (entry,) = result.metadata_context.filter_metadata
    assert (entry.key, list(entry.value[f"{TARGET}-subset"])) == ("envoy.lb.subset_hint", ["127.0.0.2:8000"])


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("22060a0268691001", "request_body"),
        ("2a060a0268691001", "response_body"),
        ("1a120a100a0e0a073a7374617475731a03323030", "response_headers"),
        ("320a0a080a060a01611a0162", "request_trailers"),
        ("3a0a0a080a060a01611a0162", "response_trailers"),
    ],
)
def test_each_phase_reads_as_envoy_writes_it(text: str, kind: str) -> None:
    result = read(text)
    assert result.WhichOneof("one") == kind
    if kind.endswith("_body"):
        assert (getattr(result, kind).body, getattr(result, kind).end_of_stream) == (b"hi", True)
    assert written(result) == text


def test_an_endpoint_is_written_as_envoy_reads_it() -> None:
    reply = ProcessingResponse()
    response = reply.request_headers.response
    option = response.header_mutation.set_headers.add(append_action=2)
    option.header.key, option.header.raw_value = TARGET, b"127.0.0.2:8000"
    response.header_mutation.remove_headers.append("authorization")
    response.clear_route_cache = True
    reply.dynamic_metadata.get_or_create_struct("envoy.lb")[TARGET] = "127.0.0.2:8000"
    assert written(reply) == ROUTED


@pytest.mark.parametrize(
    ("phase", "text"),
    [("request_body", "1a0c0a0a1a081a060a0268691001"), ("response_body", "220c0a0a1a081a060a0268691001")],
)
def test_a_piece_of_a_body_is_written_as_envoy_reads_it(phase: str, text: str) -> None:
    reply = ProcessingResponse()
    streamed = getattr(reply, phase).response.body_mutation.streamed_response
    streamed.body, streamed.end_of_stream = b"hi", True
    assert written(reply) == text


def test_an_answer_of_its_own_is_written_as_envoy_reads_it() -> None:
    reply = ProcessingResponse()
    reply.immediate_response.status.code, reply.immediate_response.body = 429, b"{}"
    option = reply.immediate_response.headers.set_headers.add(append_action=2)
    option.header.key, option.header.raw_value = "retry-after", b"1"
    assert written(reply) == "3a210a0308ad0312160a140a100a0b72657472792d61667465721a013118021a027b7d"


@pytest.mark.parametrize(
    ("phase", "text"), [("response_headers", "1200"), ("request_trailers", "2a00"), ("response_trailers", "3200")]
)
def test_to_go_on_is_written_as_envoy_reads_it(phase: str, text: str) -> None:
    reply = ProcessingResponse()
    getattr(reply, phase).SetInParent()
    assert written(reply) == text
