"""Routes of the gateway's file: further paths that pass through to engines, such as those of audio, images, rerank and
files. The gateway reads only the model in their bodies."""

from __future__ import annotations

import re
from math import inf
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal
from urllib.parse import unquote_to_bytes

import msgspec
from msgspec import Raw, Struct

from headway.config.keys import Bytes, Doc, Form, Unit
from headway.config.section import read
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.gateway.apis.api import APIS, Api
from headway.gateway.apis.forms import KIND as FORM
from headway.gateway.apis.forms import find_form_model
from headway.gateway.exchange import Exchange
from headway.gateway.model_names import MODEL, find_model, replace_model
from headway.gateway.request_body import (
    EXTRA,
    KV_FIELDS,
    LONGEST_MODEL,
    Body,
    asks_for,
    decode_safely,
    names_kv,
    read_fields,
)
from headway.gateway.settings import check_name
from headway.types import SERVING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headway.gateway.engines.engine_pace import Pace
    from headway.http.known_heads import Fields
    from headway.http.request_reader import Incoming
    from headway.http.upstream import Upstream

METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE")
TAKEN: Final = (*APIS, b"/v1/models", b"/health", b"/openapi.json")
SLASHES: Final = re.compile(rb"/+")
PATH: Final = re.compile(r"/[!-)+-~]*\*?")
ROUTE: Final = Api("route", generates=False, plain=False)


def _read_methods(value: Any, where: str) -> tuple[str, ...]:
    methods = [value] if isinstance(value, str) else value
    if not isinstance(methods, list) or not methods or not all(method in METHODS for method in methods):
        raise HeadwayError(f"{where}: expected {', '.join(METHODS)}, or a list of these, got {shown(value)}.")
    return tuple(dict.fromkeys(methods))


class RouteSpec(Struct, frozen=True):
    """An entry of the section `routes:` of a gateway's file."""

    path: Annotated[str, "path of the requests; `*` at its end stands for any rest"]
    methods: Annotated[
        tuple[str, ...],
        Unit("text or list of texts", _read_methods, list, form=Form.of(Literal[METHODS], list[Literal[METHODS]])),
        Doc("methods of the requests", default="POST"),
    ] = ("POST",)
    body_limit: Annotated[
        Bytes | None, Doc("size of a body, at most `body` of `limits`", default="`body` of `limits`")
    ] = None
    balance: Annotated[
        Literal["policies", "first"],
        "policies: the policies choose the engine. first: the first engine that can serve, for paths whose engine "
        "keeps something between requests, such as files",
    ] = "policies"
    model: Annotated[str | None, Doc("model of requests that name none", default="the first model of the engines")] = (
        None
    )

    def validate(self, where: str) -> RouteSpec:
        if not PATH.fullmatch(self.path) or "?" in self.path:
            raise HeadwayError(
                f"{where}.path: expected a path such as /v1/rerank or /v1/files*, got {shown(self.path)}."
            )
        if self.path.encode() in TAKEN:
            raise HeadwayError(f"{where}.path: the gateway itself serves {self.path}. Remove the route.")
        if self.model is not None:
            check_name(self.model, f"{where}.model", LONGEST_MODEL)
        return self

    def matches(self, path: bytes) -> bool:
        own = self.path.encode()
        return path.startswith(own[:-1]) if own.endswith(b"*") else path == own


def read_routes(data: Any, where: str = "routes") -> tuple[RouteSpec, ...]:
    if not isinstance(data, list | None):
        raise HeadwayError(f"{where}: expected a list of routes, as in [{{path: /v1/rerank}}].")
    return tuple(read(RouteSpec, value, f"{where}[{number}]") for number, value in enumerate(data or []))


def find_routes(routes: Sequence[RouteSpec], path: bytes) -> list[RouteSpec]:
    """Return the routes with this path, whatever their methods. A path that an engine could read as another one has no
    routes: with two dots, with a fragment, or another spelling of a path of the gateway itself."""
    if b".." in path or b"%2e" in path.lower() or b"#" in path:
        return []
    plain = SLASHES.sub(b"/", unquote_to_bytes(path.partition(b";")[0])).rstrip(b"/")
    if plain != path and plain in TAKEN:
        return []
    return [route for route in routes if route.matches(path)]


def read_routed(
    route: RouteSpec, incoming: Incoming, aliases: Mapping[str, str], models: Sequence[str]
) -> tuple[str, Body]:
    """Return the model that the client names, or an empty string, and the body as policies need it. If the name is an
    alias, change it in the body."""
    if sum(name == b"content-type" for name, _ in incoming.fields) > 1:
        raise HeadwayError("the request has more than one Content-Type")
    kind = incoming.named.get(b"content-type", b"")
    asked = ""
    if b"json" in kind.lower() and incoming.body:
        fields = read_fields(incoming.body)
        if any(asks_for(fields, name) for name in KV_FIELDS) or names_kv(fields.get(EXTRA, Raw())):
            raise HeadwayError("a client may not set the fields of KV transfer, such as kv_transfer_params")
        if MODEL in fields:
            find_model(incoming.body)  # raises if the client names it twice
            asked = _text(bytes(fields[MODEL]))
        if asked in aliases:
            incoming.body = replace_model(incoming.body, aliases[asked])
    elif kind.lower().startswith(FORM) and incoming.body:
        body = incoming.body
        start, end = find_form_model(kind, body) or (0, 0)
        asked = body[start:end].decode("utf-8", "replace")
        if asked in aliases:
            incoming.body = b"".join((body[:start], aliases[asked].encode(), body[end:]))
    model = aliases.get(asked, asked) or route.model or next(iter(models), "")
    return asked or route.model or "", Body(model=model, max_tokens=1)


def _text(raw: bytes) -> str:
    value = decode_safely(msgspec.json.decode, raw)
    return value if isinstance(value, str) else ""


class Routed(Exchange):
    """A request of a route. Its times say nothing about generation, so they do not count for the engine's pace."""

    route: RouteSpec

    def begin(self, now_ps: int) -> None:
        if self.route.balance == "policies":
            super().begin(now_ps)
            return
        model = self.request.model
        places = [
            backend.place
            for backend in self.services.fleet.names.values()
            if backend.view.state in SERVING and (not backend.spec.models or model in backend.spec.models)
        ]
        with self.services.plane.confine(now_ps, self.request, places[:1]):
            super().begin(now_ps)

    def on_head(self, upstream: Upstream | None, status: int, fields: Fields) -> None:
        kind = next((value for name, value in fields if name == b"content-type"), b"")
        self.tally.stream = kind.lower().startswith(b"text/event-stream")
        super().on_head(upstream, status, fields)

    def record_first_byte(self) -> None:
        now = self.services.clock.seconds()
        self.first_byte_s, self.since = now - self.since, now

    def record_answer(self) -> None:
        assert self.backend is not None
        self.backend.pace.moved = True
        self.services.health.record_status(self.backend, self.status)

    def expected_s(self, pace: Pace) -> float:
        return inf

    def _may_retry(self) -> bool:
        return self.route.balance == "policies" and super()._may_retry()
