"""The OpenAPI documents of the gateway's two addresses. They list the fields that the gateway itself reads. The gateway
forwards all other fields of a request to the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Raw, Struct, field

from headway.config.schema import json_schema
from headway.gateway.apis.api import AnthropicError
from headway.gateway.engines.member import BackendSpec
from headway.gateway.request_body import Body
from headway.http.replies import ErrorReply
from headway.types import Json

VERSION: Final = "3.1.0"
COMPONENTS: Final = "#/components/schemas/"
JSON: Final = "application/json"
OBJECT: Final[Json] = {"type": "object"}
TEXT: Final[Json] = {"type": "string"}
WHY: Final = {
    400: "The request is invalid.",
    401: "The key is missing or unknown.",
    403: "The key may not use this model.",
    404: "No engine serves the model, or nothing has this name.",
    408: "The request took too long to arrive.",
    409: "Another source defines this name, or the engine conflicts with others.",
    413: "The body is too large.",
    414: "The URL is too long.",
    429: "The key or the client address has reached its limit. Retry after the seconds in `Retry-After`.",
    431: "The header is too large.",
    501: "The body has a transfer coding other than chunked.",
    502: "The engine failed, and no other could be tried.",
    503: "Admission rejected the request, or no engine is available. Retry after the seconds in `Retry-After`.",
    504: "The deadline has passed.",
    505: "The version is neither HTTP/1.1 nor HTTP/1.0.",
}
BODY: Final[Json] = {
    known.name: msgspec.json.schema(known.type) for known in msgspec.structs.fields(Body) if known.type is not Raw
}
REQUEST_HEADERS: Final = {
    "x-headway-session": ("the session of the request", TEXT),
    "x-headway-tenant": ("the tenant of the request, unless its API key names one", TEXT),
    "x-headway-class": ("the SLO class of the request, at most as important as that of its API key", TEXT),
    "x-headway-deadline": (
        "time limit of the request, in seconds or as a duration such as 800ms",
        {"type": "string", "pattern": r"^(?=.*[1-9])[0-9]{1,5}(\.[0-9]{1,6})?(ms|s)?$"},
    ),
    "x-headway-buffer": (
        "for a cascade: the number of tokens of a stream that the gateway may hold back and judge, or all",
        TEXT,
    ),
    "traceparent": ("the trace of the request, as W3C Trace Context defines it", TEXT),
}
RESPONSE_ID: Final[Json] = {
    "name": "id",
    "in": "path",
    "required": True,
    "description": "id of a response",
    "schema": {"type": "string", "pattern": "^resp_[0-9A-Za-z_-]{1,150}$"},
}
REPLY_HEADERS: Final = {
    "x-headway-target": "the engine that answered",
    "x-headway-reason": "why the policy chose this engine, or the policy's name",
    "x-headway-request": "the number of the request in this process",
}
Handler = TypeVar("Handler", bound=Callable[..., Any])


class Operation(Struct, frozen=True, kw_only=True):
    """One operation of an API: a method of a path, with its description."""

    method: str = "GET"
    path: str
    name: str
    summary: str
    errors: tuple[int, ...] = ()
    replies: dict[int, str] = {}  # meaning of each status; if empty, the summary describes status 200
    schema: Json | bool = field(default_factory=OBJECT.copy)  # schema of the replies
    kind: str = JSON  # content type of the replies
    parameters: tuple[Json, ...] = ()
    body: Json | None = None
    error: str = "ErrorReply"  # name of the schema of its errors

    @property
    def error_schema(self) -> Json:
        """The schema of its errors. What the connection refuses has the form of OpenAI's API on every path."""
        names = dict.fromkeys((self.error, "ErrorReply"))
        references: list[Json] = [{"$ref": COMPONENTS + name} for name in names]
        return references[0] if len(references) == 1 else {"anyOf": references}

    def describe(self) -> Json:
        replies = self.replies or {200: self.summary}
        document: Json = {
            "operationId": self.name,
            "summary": self.summary,
            "responses": {
                **{str(status): _reply(words, self.schema, self.kind) for status, words in replies.items()},
                **{str(status): _reply(WHY[status], self.error_schema) for status in self.errors},
            },
        }
        if self.parameters:
            document["parameters"] = list(self.parameters)
        if self.body is not None:
            document["requestBody"] = {"required": True, "content": {JSON: {"schema": self.body}}}
        return document


def _reply(words: str, schema: Json | bool, kind: str = JSON) -> Json:
    return {"description": words, "content": {kind: {"schema": schema}}}


def _document(title: str, words: str, operations: Iterable[Operation]) -> Json:
    paths: dict[str, Json] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = operation.describe()
    _, schemas = msgspec.json.schema_components([ErrorReply, AnthropicError], ref_template=COMPONENTS + "{name}")
    return {
        "openapi": VERSION,
        "info": {"title": title, "version": "1", "description": words},
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
    }


# --- the address of clients ------------------------------------------------------------------------------------------


@cache
def data_plane() -> bytes:
    """Return the OpenAPI document of the address for clients, as JSON."""
    models = {
        "type": "object",
        "required": ["object", "data"],
        "properties": {"object": {"const": "list"}, "data": {"type": "array", "items": OBJECT}},
    }
    routed = {
        "/v1/chat/completions": ("chat", "messages", "a chat completion"),
        "/v1/completions": ("completion", "prompt", "a completion"),
        "/v1/embeddings": ("embedding", "input", "an embedding"),
        "/v1/responses": ("responses", "input", "a response"),
        "/v1/messages": ("messages", "messages", "a message of Anthropic's API"),
        "/v1/messages/count_tokens": ("count_tokens", "messages", "the number of tokens of a prompt"),
    }
    operations = [
        Operation(path="/v1/models", name="models", summary="The models of all engines.", errors=(401,), schema=models),
        Operation(path="/health", name="health", summary="Whether the gateway is running."),
        Operation(path="/openapi.json", name="openapi", summary="This document."),
    ]
    about = {
        ("GET", ""): ("response", "Read a response at the engine that gave it."),
        ("DELETE", ""): ("delete_response", "Delete a response at the engine that gave it."),
        ("POST", "/cancel"): ("cancel_response", "Cancel a response at the engine that gives it."),
        ("GET", "/input_items"): ("input_items", "Read the input of a response at the engine that gave it."),
    }
    operations += [
        Operation(
            method=method,
            path="/v1/responses/{id}" + part,
            name=name,
            summary=summary,
            errors=(400, 401, 404, 413, 429, 502, 503),
            replies={200: "The engine's answer, byte for byte."},
            schema=True,
            parameters=(RESPONSE_ID,),
        )
        for (method, part), (name, summary) in about.items()
    ]
    description = "OpenAI-compatible API in front of engines. The gateway passes on fields that are not listed here."
    document = _document("Headway gateway", description, operations)
    described = {path: {"post": _describe_routed(path, *words)} for path, words in routed.items()}
    document["paths"] = described | document["paths"]
    return msgspec.json.encode(document)


def _describe_routed(path: str, name: str, content: str, words: str) -> Json:
    """Describe a request that the gateway routes to an engine. `content` is the name of its required field."""
    anthropic = path.startswith("/v1/messages")
    any_content: Json | bool = True if content == "prompt" else {"not": {"type": "null"}}
    document = Operation(
        path="",
        name=name,
        summary=f"Route a request to an engine: {words}.",
        errors=(400, 401, 403, 404, 408, 413, 414, 429, 431, 501, 502, 503, 504, 505),
        replies={200: f"The engine's answer, byte for byte: {words}."},
        schema=True,
        error="AnthropicError" if anthropic else "ErrorReply",
        parameters=tuple(
            {"name": header, "in": "header", "required": False, "description": meaning, "schema": schema}
            for header, (meaning, schema) in REQUEST_HEADERS.items()
        ),
        body={"type": "object", "required": [content], "properties": {content: any_content, **BODY}},
    ).describe()
    answer = document["responses"]["200"]
    answer["content"]["text/event-stream"] = {}
    answer["headers"] = {header: {"description": meaning, "schema": TEXT} for header, meaning in REPLY_HEADERS.items()}
    document["responses"]["default"] = {"description": "Any other answer of the engine, byte for byte."}
    document["security"] = [{}, {"key": []}]
    return document


# --- the admin API ---------------------------------------------------------------------------------------------------

URL: Final[Json] = {"type": "string", "pattern": "^https?://[a-z0-9]{1,30}(:[1-9][0-9]{0,3})?(/[a-z0-9]*)?$"}


def endpoint(method: str, path: str, summary: str, *errors: int, **more: Any) -> Callable[[Handler], Handler]:
    """Return a decorator that declares a handler of the admin API, with its path and description."""

    def attach(handler: Handler) -> Handler:
        codes = tuple(sorted({401, *errors}))
        operation = Operation(method=method, path=path, name=handler.__name__, summary=summary, errors=codes, **more)
        setattr(handler, "operation", operation)  # noqa: B010  (mypy does not know this attribute)
        return handler

    return attach


def endpoints(api: object) -> Iterator[tuple[Operation, Any]]:
    """Yield the declared handlers of an object, in the order in which its class defines them."""
    for name, member in vars(type(api)).items():
        if (operation := getattr(member, "operation", None)) is not None:
            yield operation, getattr(api, name)


def admin_api(operations: Iterable[Operation]) -> Json:
    """Return the OpenAPI document of the admin API."""
    document = _document("Headway gateway, admin API", "Every path requires the admin key.", operations)
    return {**document, "security": [{"key": []}]}


def name_parameter(description: str, longest: int) -> Json:
    schema = {"type": "string", "minLength": 1, "maxLength": longest, "pattern": "^[ -~]+$"}
    return {"name": "name", "in": "path", "required": True, "description": description, "schema": schema}


def query_parameter(name: str, description: str, **schema: Any) -> Json:
    return {"name": name, "in": "query", "schema": schema, "description": description}


def engine_schema() -> Json:
    """Return the schema of an engine, with the same keys as in the gateway's file."""
    schema = {**json_schema(BackendSpec), "additionalProperties": False}
    # The names that `admin.engine_keys` allows are not known here, so the schema allows only null.
    keys = {"type": ["string", "null"], "description": "one of `admin.engine_keys`", "enum": [None]}
    properties = {**schema["properties"], "url": URL, "key_env": keys}
    models = {"type": "array", "items": TEXT, "minItems": 1, "description": "the first is the model of its KV events"}
    whole = {"properties": {"rank": {"type": "integer"}, "dp": {"minimum": 2}}, "required": ["rank", "dp"]}
    schema["not"] = whole  # one rank is not several
    silent = {**schema, "properties": {**properties, "events": {"type": "null"}}}
    publishing = {**schema, "properties": {**properties, "events": TEXT, "models": models}}
    return {
        "description": "A URL, or a mapping as in the gateway's file.",
        "anyOf": [URL, silent, {**publishing, "required": ["url", "models", "events"]}],
    }
