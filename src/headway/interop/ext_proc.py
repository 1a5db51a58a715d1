"""The messages of Envoy's external processing that an endpoint picker needs: names, numbers and types of their fields.

The messages are in a separate protobuf pool, so that they cannot collide with another definition of the protocol.
protobuf skips fields that are not listed here.
"""

from typing import Any, Final

from google.protobuf import (  # type: ignore[import-untyped, unused-ignore]
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    struct_pb2,
)

SERVICE: Final = "envoy.service.ext_proc.v3.ExternalProcessor"
HEALTH: Final = "grpc.health.v1.Health"
PACKAGE: Final = "headway.ext_proc"

BUFFERED, FULL_DUPLEX = 2, 4  # modes in which a gateway sends bodies
OVERWRITE: Final = 2  # append action: replace an existing header field
SERVING, NOT_SERVING = 1, 2

_FIELD: Final = descriptor_pb2.FieldDescriptorProto
_TYPES: Final = {
    "bool": _FIELD.TYPE_BOOL,
    "bytes": _FIELD.TYPE_BYTES,
    "int32": _FIELD.TYPE_INT32,  # also used for enums, because both are varints on the wire
    "string": _FIELD.TYPE_STRING,
}
STRUCT: Final = "google.protobuf.Struct"

# Message -> its fields -> number and type of the field. `*` marks a repeated field, and `|` a member of a oneof.
MESSAGES: Final[dict[str, dict[str, tuple[int, str]]]] = {
    "HeaderValue": {"key": (1, "string"), "value": (2, "string"), "raw_value": (3, "bytes")},
    "HeaderMap": {"headers": (1, "*HeaderValue")},
    "HeaderValueOption": {"header": (1, "HeaderValue"), "append_action": (3, "int32")},
    "HeaderMutation": {"set_headers": (1, "*HeaderValueOption"), "remove_headers": (2, "*string")},
    "HttpHeaders": {"headers": (1, "HeaderMap"), "end_of_stream": (3, "bool")},
    "HttpBody": {"body": (1, "bytes"), "end_of_stream": (2, "bool")},
    "HttpTrailers": {"trailers": (1, "HeaderMap")},
    "ProtocolConfiguration": {"request_body_mode": (1, "int32"), "response_body_mode": (2, "int32")},
    "FilterMetadataEntry": {"key": (1, "string"), "value": (2, STRUCT)},
    "Metadata": {"filter_metadata": (1, "*FilterMetadataEntry")},
    "ProcessingRequest": {
        "request_headers": (2, "|HttpHeaders"),
        "response_headers": (3, "|HttpHeaders"),
        "request_body": (4, "|HttpBody"),
        "response_body": (5, "|HttpBody"),
        "request_trailers": (6, "|HttpTrailers"),
        "response_trailers": (7, "|HttpTrailers"),
        "metadata_context": (8, "Metadata"),
        "protocol_config": (11, "ProtocolConfiguration"),
    },
    "StreamedBodyResponse": {"body": (1, "bytes"), "end_of_stream": (2, "bool")},
    "BodyMutation": {
        "body": (1, "|bytes"),
        "clear_body": (2, "|bool"),
        "streamed_response": (3, "|StreamedBodyResponse"),
    },
    "CommonResponse": {
        "status": (1, "int32"),
        "header_mutation": (2, "HeaderMutation"),
        "body_mutation": (3, "BodyMutation"),
        "clear_route_cache": (5, "bool"),
    },
    "HeadersResponse": {"response": (1, "CommonResponse")},
    "BodyResponse": {"response": (1, "CommonResponse")},
    "TrailersResponse": {"header_mutation": (1, "HeaderMutation")},
    "HttpStatus": {"code": (1, "int32")},
    "ImmediateResponse": {
        "status": (1, "HttpStatus"),
        "headers": (2, "HeaderMutation"),
        "body": (3, "bytes"),
        "details": (5, "string"),
    },
    "ProcessingResponse": {
        "request_headers": (1, "|HeadersResponse"),
        "response_headers": (2, "|HeadersResponse"),
        "request_body": (3, "|BodyResponse"),
        "response_body": (4, "|BodyResponse"),
        "request_trailers": (5, "|TrailersResponse"),
        "response_trailers": (6, "|TrailersResponse"),
        "immediate_response": (7, "|ImmediateResponse"),
        "dynamic_metadata": (8, STRUCT),
    },
    "HealthCheckRequest": {"service": (1, "string")},
    "HealthCheckResponse": {"status": (1, "int32")},
}


def _file() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="headway/ext_proc.proto", package=PACKAGE, syntax="proto3")
    file.dependency.append(struct_pb2.DESCRIPTOR.name)
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, type_) in fields.items():
            entry = message.field.add(name=field, number=number, label=_FIELD.LABEL_OPTIONAL)
            if type_[0] == "*":
                entry.label = _FIELD.LABEL_REPEATED
            if type_[0] == "|":
                if not message.oneof_decl:
                    message.oneof_decl.add(name="one")
                entry.oneof_index = 0
            plain = type_.lstrip("*|")
            if plain in _TYPES:
                entry.type = _TYPES[plain]
            else:
                entry.type = _FIELD.TYPE_MESSAGE
                entry.type_name = f".{plain}" if "." in plain else f".{PACKAGE}.{plain}"
    return file


def _classes() -> dict[str, Any]:
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(struct_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(_file().SerializeToString())
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in MESSAGES}


_CLASSES: Final = _classes()
ProcessingRequest: Any = _CLASSES["ProcessingRequest"]
ProcessingResponse: Any = _CLASSES["ProcessingResponse"]
HealthCheckRequest: Any = _CLASSES["HealthCheckRequest"]
HealthCheckResponse: Any = _CLASSES["HealthCheckResponse"]
