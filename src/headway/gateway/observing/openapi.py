"""What the gateway's two addresses answer, as OpenAPI documents. They say what the gateway itself looks at; any other
field of a request goes to the engine untouched."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import msgspec

from headway.config.tables import json_schema
from headway.gateway.engines import member
from headway.types import Json

VERSION: Final = "3.1.0"
# What only OpenAI's own answers are bound to; an engine's are passed on as they are.
WHY: Final = {
    400: "The request cannot be read.",
    401: "The key is missing or not known.",
    404: "Nobody serves the model, or there is nothing of that name.",
    405: "Another method is wanted.",
    408: "The request took too long to come.",
    409: "Somebody else names the engine, or it does not go with the others.",
    413: "The body is too long.",
    429: "The key has asked too often; `Retry-After` says when to come again.",
    431: "The head is too long.",
    502: "The engine was lost, and no other could be tried.",
    503: "Turned away by admission, or no engine is there; `Retry-After` says when to come again.",
    504: "The deadline is over.",
}
ERROR: Final[Json] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": ["string", "null"]},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "integer", "null"]},
            },
        }
    },
}
COUNT: Final[Json] = {"type": ["number", "null"]}
BODY: Final[Json] = {
    "model": {"type": "string"},
    "stream": {"type": "boolean"},
    "max_tokens": COUNT,
    "max_completion_tokens": COUNT,
    "user": {"type": ["string", "null"]},
}
TEXT: Final[Json] = {"type": "string"}
FIELDS: Final = {
    "x-headway-session": ("the session that the request belongs to", TEXT),
    "x-headway-tenant": ("whose it is, where no key says so", TEXT),
    "x-headway-class": ("its SLO class", TEXT),
    "x-headway-deadline": (
        "seconds from now on, or a duration such as 800ms",
        {"type": "string", "pattern": r"^(?=.*[1-9])[0-9]{1,5}(\.[0-9]{1,6})?(ms|s)?$"},
    ),
    "traceparent": ("the trace that it belongs to, by the W3C", TEXT),
}
TOLD: Final = {
    "x-headway-target": "the engine that answered",
    "x-headway-reason": "why it was chosen: the policy's reason or its name",
    "x-headway-request": "the request's number in this process",
}


def _errors(*codes: int) -> Json:
    return {str(code): _answer(WHY[code], {"$ref": "#/components/schemas/Error"}) for code in codes}


def _answer(words: str, schema: Any = True, kind: str = "application/json") -> Json:
    return {"description": words, "content": {kind: {"schema": schema}}}


def _asked(what: str, content: str, words: str) -> Json:
    """A request that is routed. `content` is the field that it needs."""
    answer = _answer(f"The engine's answer, byte for byte: {words}.")
    answer["content"]["text/event-stream"] = {}
    answer["headers"] = {name: {"description": said, "schema": {"type": "string"}} for name, said in TOLD.items()}
    body = {"type": "object", "required": [content], "properties": {content: True, **BODY}}
    return {
        "post": {
            "operationId": what,
            "summary": f"Routed to an engine: {words}.",
            "security": [{}, {"key": []}],
            "parameters": [
                {"name": name, "in": "header", "required": False, "description": said, "schema": schema}
                for name, (said, schema) in FIELDS.items()
            ],
            "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
            "responses": {
                "200": answer,
                **_errors(400, 401, 404, 408, 413, 429, 431, 502, 503, 504),
                "default": {"description": "What the engine answers instead, byte for byte."},
            },
        }
    }


@cache
def data_plane() -> bytes:
    """Of the address that clients ask."""
    models = {
        "type": "object",
        "required": ["object", "data"],
        "properties": {"object": {"const": "list"}, "data": {"type": "array", "items": {"type": "object"}}},
    }
    return msgspec.json.encode(
        _document(
            "Headway gateway",
            "OpenAI's API before any engines. Fields that are not named here are passed on.",
            {
                "/v1/chat/completions": _asked("chat", "messages", "a chat completion"),
                "/v1/completions": _asked("completion", "prompt", "a completion"),
                "/v1/embeddings": _asked("embedding", "input", "an embedding"),
                "/v1/models": {"get": _get("models", "The models that some engine names.", models, (401,))},
                "/health": {"get": _get("health", "Whether the gateway lives.", {"type": "object"})},
                "/openapi.json": {"get": _get("openapi", "This document.", {"type": "object"})},
            },
        )
    )


def _get(what: str, words: str, schema: Any, codes: tuple[int, ...] = (), **more: Any) -> Json:
    return {
        "operationId": what,
        "summary": words,
        "responses": {"200": _answer(words, schema), **_errors(*codes)},
        **more,
    }


def _document(title: str, words: str, paths: Json) -> Json:
    return {
        "openapi": VERSION,
        "info": {"title": title, "version": "1", "description": words},
        "paths": paths,
        "components": {
            "schemas": {"Error": ERROR},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


# --- the admin API ---------------------------------------------------------------------------------------------------

NAME: Final[Json] = {
    "name": "name",
    "in": "path",
    "required": True,
    "description": "an engine's",
    "schema": {"type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[ -~]+$"},
}
OBJECT: Final[Json] = {"type": "object"}
NONE: Final[Json] = {"enum": [None]}  # which of them there are, the file says
URL: Final[Json] = {"type": "string", "pattern": "^https?://[a-z0-9]{1,30}(:[1-9][0-9]{0,3})?(/[a-z0-9]*)?$"}


def _engine() -> Json:
    """As in the gateway's file, and as strict."""
    more = {"url": URL, "key_env": {"type": ["string", "null"], "description": "one of `admin.engine_keys`", **NONE}}
    schema = json_schema(member.BackendSpec)
    silent = {**schema, "properties": {**schema["properties"], **more, "events": {"type": "null"}}}
    models = {"type": "array", "items": TEXT, "minItems": 1}
    told = {"events": {"type": "string"}, "models": {**models, "description": "the first is that of its KV events"}}
    tells = {**schema, "properties": {**schema["properties"], **more, **told}, "required": ["url", "models", "events"]}
    strict = {"additionalProperties": False}
    return {
        "description": "A URL, or a mapping as in the gateway's file.",
        "anyOf": [URL, {**silent, **strict}, {**tells, **strict}],
    }


def admin_api() -> Json:
    """Of the address that only those with the admin key may ask."""
    last = {
        "name": "last",
        "in": "query",
        "schema": {"type": "integer", "minimum": 1, "maximum": 512, "default": 20},
        "description": "how many, the newest first",
    }
    every = {
        "name": "every",
        "in": "query",
        "schema": {"type": "boolean", "default": False},
        "description": "also those without a scorecard",
    }
    not_ready = _answer("No engine takes requests, or the gateway is about to end.", OBJECT)
    healthz = _get("healthz", "Whether some engine takes requests.", OBJECT, (401,))
    healthz["responses"]["503"] = not_ready
    held = {word: {"post": _act(word, words)} for word, words in HELD.items()}
    made = _document(
        "Headway gateway, admin API",
        "Every path wants the admin key.",
        {
            "/": {"get": _get("page", "The status page.", {"type": "string"}, (401,))},
            "/status": {"get": _get("status", "How the gateway stands.", OBJECT, (401,))},
            "/events": {"get": _get("events", "The same every second, as server-sent events.", True, (401, 503))},
            "/metrics": {"get": _get("metrics", "The page that Prometheus reads.", {"type": "string"}, (401,))},
            "/healthz": {"get": healthz},
            "/openapi.json": {"get": _get("openapi", "This document.", OBJECT, (401,))},
            "/debug/decisions": {
                "get": _get("decisions", "The last decisions.", OBJECT, (400, 401), parameters=[last, every])
            },
            "/backends": {"get": _get("backends", "The engines.", OBJECT, (401,))},
            "/backends/{name}": {"put": _put_backend(), "delete": _delete_backend()},
            **{f"/backends/{{name}}/{word}": operation for word, operation in held.items()},
            "/policies": {"get": _get("policies", "The policies in force.", OBJECT, (401,)), "put": _put_policies()},
            "/canary": {
                "get": _get("canary", "How the canary and the others fare.", OBJECT, (401,)),
                "put": _put("put_canary", "A candidate decides on a share of the requests from now on.", CANARY),
                "delete": _delete("delete_canary", "The canary ends; the policies in force go on.", (401, 404)),
            },
            "/shadows": {"get": _get("shadows", "The candidates that are asked.", OBJECT, (401,))},
            "/shadows/{name}": {"put": _put_shadow(), "delete": _delete_shadow()},
        },
    )
    made["security"] = [{"key": []}]
    for path, kind in (("/", "text/html"), ("/metrics", "text/plain"), ("/events", "text/event-stream")):
        answer = made["paths"][path]["get"]["responses"]["200"]
        answer["content"] = {kind: {"schema": {"type": "string"}}}
    return made


HELD: Final = {
    "cordon": "The engine takes no new requests until that is lifted.",
    "drain": "The same; `inflight` of the answer tells when it has none left.",
    "uncordon": "The engine takes requests again.",
}


def _act(what: str, words: str) -> Json:
    return {
        "operationId": what,
        "summary": words,
        "parameters": [NAME],
        "responses": {"200": _answer("The engine as it stands then.", OBJECT), **_errors(401, 404)},
    }


def _put_backend() -> Json:
    return {
        "operationId": "put_backend",
        "summary": "An engine joins, or is changed.",
        "parameters": [NAME],
        "requestBody": {"required": True, "content": {"application/json": {"schema": _engine()}}},
        "responses": {
            "200": _answer("It was known, and is so now.", OBJECT),
            "201": _answer("It has joined.", OBJECT),
            **_errors(400, 401, 404, 409, 413),
        },
    }


def _delete_backend() -> Json:
    return {
        "operationId": "delete_backend",
        "summary": "The engine takes no more requests, and goes when it has none left.",
        "parameters": [NAME],
        "responses": {"200": _answer("It goes.", OBJECT), **_errors(401, 404, 409)},
    }


def _put_policies() -> Json:
    schema = {"type": "object", "description": "The `policies` of a scenario, or a bundle."}
    return _put("put_policies", "Other policies from now on; where they are wrong, those in force stay.", schema)


CANARY: Final[Json] = {"type": "object", "description": "As `canary` in the gateway's file.", "required": ["policies"]}
CANDIDATE: Final[Json] = {**NAME, "description": "a candidate's", "schema": {**NAME["schema"], "maxLength": 100}}


def _put(what: str, words: str, schema: Json) -> Json:
    return {
        "operationId": what,
        "summary": words,
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "responses": {"200": _answer("The policies in force.", OBJECT), **_errors(400, 401, 413)},
    }


def _delete(what: str, words: str, codes: tuple[int, ...]) -> Json:
    return {
        "operationId": what,
        "summary": words,
        "responses": {"200": _answer("It is gone.", OBJECT), **_errors(*codes)},
    }


def _put_shadow() -> Json:
    schema = {"type": "object", "description": "Policies, a bundle, or `policies` with `sample` and `budget`."}
    made = _put("put_shadow", "A candidate is asked about live decisions from now on.", schema)
    answers = {"200": _answer("It was known, and is so now.", OBJECT), "201": _answer("It is asked.", OBJECT)}
    return {**made, "parameters": [CANDIDATE], "responses": {**answers, **_errors(400, 401, 404, 409, 413)}}


def _delete_shadow() -> Json:
    return {**_delete("delete_shadow", "It is asked no more.", (401, 404, 409)), "parameters": [CANDIDATE]}
