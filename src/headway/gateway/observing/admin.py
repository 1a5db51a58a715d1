"""The admin API, on its own address. It shows and changes engines and policies, and shows the gateway's state.

Every request needs the key, as `Authorization: Bearer KEY`. A GET may also send the key as the password of HTTP Basic,
so that a browser can show the status page. Other methods may not use Basic, because a browser stores the password, and
pages of other sites could then misuse it.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
from collections.abc import Callable
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

import msgspec

from headway.errors import HeadwayError, missing_extra
from headway.gateway.engines.member import read_member
from headway.gateway.observing import exposition
from headway.gateway.observing.audit import LOOKS, AuditLog, Operator, digest_of
from headway.gateway.observing.openapi import (
    TEXT,
    Operation,
    admin_api,
    endpoint,
    endpoints,
    engine_schema,
    name_parameter,
    query_parameter,
)
from headway.gateway.observing.policy_api import Handler, PolicyApi, Wrong, read_json
from headway.http.address import why_not_listening
from headway.http.replies import RETRY_AFTER_S, TRY_LATER, error_body

if TYPE_CHECKING:
    import ssl

    from aiohttp.web import Request, Response, StreamResponse

    from headway.gateway.observing.observing_settings import AdminSettings
    from headway.gateway.observing.status import StatusBoard
    from headway.gateway.orders import Orders

STREAM: Final = "text/event-stream"
MOST_DECISIONS: Final = 512
MOST_WATCHERS: Final = 64
MOST_BYTES: Final = 1 << 20
EVERY_S: Final = 1.0
SOURCE: Final = "admin"
PAGE_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
NAME: Final = name_parameter("name of the engine", 200)
ENGINE: Final = engine_schema()
JOIN: Final = "Add or change an engine."
JOINED: Final = {200: "The engine was changed.", 201: "The engine was added."}
LEAVE: Final = "Remove an engine. It gets no more requests, and leaves when those in flight have ended."
REMOVED: Final = {200: "Whether requests are still in flight there."}
LAST: Final = query_parameter(
    "last", "number of decisions, the newest first", type="integer", minimum=1, maximum=MOST_DECISIONS, default=20
)
EVERY: Final = query_parameter("every", "include decisions without a scorecard", type="boolean", default=False)
HEALTHZ: Final = {
    200: "At least one engine takes requests.",
    503: "No engine takes requests, or the gateway is shutting down.",
}


def _engine_action(action: str, summary: str) -> Callable[[Any], Any]:
    replies = {200: "The state of the engine after the change."}
    return endpoint("POST", f"/backends/{{name}}/{action}", summary, 404, replies=replies, parameters=(NAME,))


class Admin:
    """The admin API of one process."""

    def __init__(
        self, board: StatusBoard, orders: Orders, settings: AdminSettings, tls: ssl.SSLContext | None = None
    ) -> None:
        self.board, self.orders, self.settings, self.tls = board, orders, settings, tls
        self.clock, self.fleet, self.reception = board.clock, board.fleet, board.reception
        self.policy_api = PolicyApi(board.plane, board.failures, board.canary, board.shadows, orders, self._json)
        self.owner = Operator("admin", digest_of(settings.key())) if settings.key() else None  # of the key in `key_env`
        self.audit: AuditLog | None = None
        self.watchers = 0
        self.port = self.settings.listen[1]
        self._runner: Any = None
        self._latest = (-1.0, b"")

    async def start(self) -> None:
        try:
            from aiohttp import web
        except ImportError:
            raise missing_extra("admin", "aiohttp", "gateway") from None
        self.web = web
        if self.settings.audit is not None:
            self.audit = AuditLog(self.settings.audit)

        @web.middleware
        async def guard(request: Request, handler: Handler) -> StreamResponse:
            return await self._guard(request, handler)

        application = web.Application(middlewares=[guard], client_max_size=MOST_BYTES)
        routes = [web.route(operation.method, operation.path, handler) for operation, handler in self.operations()]
        application.add_routes(routes)
        self._runner = web.AppRunner(application, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        await self._runner.setup()
        host, port = self.settings.listen
        site = web.TCPSite(self._runner, host, port, ssl_context=self.tls)
        try:
            await site.start()
        except OSError as error:
            raise HeadwayError(f"admin.listen: cannot listen on {host}:{port}: {why_not_listening(error)}.") from None
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
        if self.audit is not None:
            self.audit.close()
            self.audit = None

    def operations(self) -> list[tuple[Operation, Handler]]:
        return [*endpoints(self), *endpoints(self.policy_api)]

    # --- authorisation -----------------------------------------------------------------------------------------------

    async def _guard(self, request: Request, handler: Handler) -> StreamResponse:
        operator = self._operator(request)
        if operator is None and not (request.path == "/metrics" and self.settings.open_metrics):
            answer: StreamResponse = self._error(401, "the key of the admin API is missing or wrong")
            answer.headers["WWW-Authenticate"] = 'Basic realm="headway", charset="UTF-8"'
        elif operator is not None and not operator.may(request.method):
            answer = self._error(403, f"the operator {operator.name} may only look")
        else:
            answer = await self._answer(request, handler)
        if self.audit is not None and (request.method not in LOOKS or answer.status in (401, 403)):
            name = None if operator is None else operator.name
            body = "" if operator is None else await self._body(request)
            self.audit.write(name, request.remote, request.method, request.path_qs, body, answer.status)
        return answer

    async def _body(self, request: Request) -> str:
        """Return the body of a request for the audit log, after its answer."""
        try:
            return (await request.read()).decode("utf-8", "replace")
        except (self.web.HTTPException, OSError):  # too large, or the client has gone
            return ""

    async def _answer(self, request: Request, handler: Handler) -> StreamResponse:
        try:
            return await handler(request)
        except Wrong as error:
            return self._error(error.status, str(error))
        except HeadwayError as error:
            return self._error(400, str(error))
        except self.web.HTTPException as error:
            answer = self._error(error.status, error.reason)
            if "Allow" in error.headers:
                answer.headers["Allow"] = error.headers["Allow"]
            return answer

    def _operator(self, request: Request) -> Operator | None:
        """Return whose key the request has; None if it has no known key."""
        kind, _, rest = request.headers.get("Authorization", "").partition(" ")
        if kind.lower() == "basic" and request.method in LOOKS:
            try:
                rest = base64.b64decode(rest.strip(), validate=True).decode().partition(":")[2]
            except (binascii.Error, UnicodeDecodeError):
                return None
        elif kind.lower() != "bearer":
            return None
        digest, operators = digest_of(rest), self.settings.operators
        if self.owner is not None and hmac.compare_digest(digest, self.owner.digest):
            return self.owner
        return None if operators is None else operators.find(digest)

    def _error(self, code: int, why: str) -> Response:
        return self._reply(code, error_body(code, why), {})

    def _json(self, document: Any, code: int = 200) -> Response:
        return self._reply(code, msgspec.json.encode(document), {"Cache-Control": "no-store"})

    def _reply(self, code: int, body: bytes, headers: dict[str, str]) -> Response:
        if code in TRY_LATER:
            headers["Retry-After"] = str(RETRY_AFTER_S)
        return self.web.Response(status=code, body=body, content_type="application/json", headers=headers)

    # --- reading -----------------------------------------------------------------------------------------------------

    @endpoint("GET", "/", "The status page.", schema=TEXT, kind="text/html")
    async def page(self, request: Request) -> StreamResponse:
        page = resources.files("headway.gateway.observing").joinpath("status_page", "page.html")
        headers = {
            "Content-Security-Policy": PAGE_POLICY,
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
        }
        return self.web.Response(text=page.read_text("utf-8"), content_type="text/html", headers=headers)

    @endpoint("GET", "/status", "The state of the gateway.")
    async def status(self, request: Request) -> StreamResponse:
        return self._json(self.board.status())

    @endpoint("GET", "/events", "The same every second, as server-sent events.", 503, schema=TEXT, kind=STREAM)
    async def events(self, request: Request) -> StreamResponse:
        if self.watchers >= MOST_WATCHERS:
            raise Wrong(503, f"{MOST_WATCHERS} clients are watching already; try later")
        answer = self.web.StreamResponse(headers={"Content-Type": STREAM, "Cache-Control": "no-store"})
        self.watchers += 1
        try:
            await answer.prepare(request)
            while not self.reception.draining:
                await answer.write(self._event())
                await asyncio.sleep(EVERY_S)
        except ConnectionError:
            pass
        finally:
            self.watchers -= 1
        return answer

    def _event(self) -> bytes:
        """Return the status as a server-sent event. Encode it only once for all watchers."""
        now = self.clock.seconds()
        if now - self._latest[0] > EVERY_S / 2:
            self._latest = now, b"data: " + msgspec.json.encode(self.board.status()) + b"\n\n"
        return self._latest[1]

    @endpoint("GET", "/metrics", "Metrics for Prometheus.", schema=TEXT, kind="text/plain")
    async def metrics(self, request: Request) -> StreamResponse:
        figures, accept = self.board.figures(), request.headers.get("Accept", "")
        # Render in a thread, because a page with many models and engines takes seconds and must not delay requests.
        body, kind = await asyncio.to_thread(lambda: exposition.render(exposition.together(figures), accept))
        return self.web.Response(body=body, headers={"Content-Type": kind})

    @endpoint("GET", "/healthz", "Whether an engine takes requests.", replies=HEALTHZ)
    async def healthz(self, request: Request) -> StreamResponse:
        serving = self.fleet.serving
        ready = serving > 0 and not self.reception.draining
        return self._json(
            {"ready": ready, "serving": serving, "draining": self.reception.draining}, 200 if ready else 503
        )

    @endpoint("GET", "/openapi.json", "This document.")
    async def openapi(self, request: Request) -> StreamResponse:
        return self._json(admin_api(operation for operation, _ in self.operations()))

    @endpoint("GET", "/debug/decisions", "The last decisions.", 400, parameters=(LAST, EVERY))
    async def decisions(self, request: Request) -> StreamResponse:
        last = request.query.get("last", "20")
        if not (last.isascii() and last.isdecimal() and len(last) < 10 and 1 <= int(last) <= MOST_DECISIONS):
            raise Wrong(400, f"last: expected a number from 1 to {MOST_DECISIONS}")
        every = request.query.get("every", "false")
        if every not in ("true", "false"):
            raise Wrong(400, "every: expected true or false")
        decisions = self.board.decisions.last(int(last), every == "true")
        shadows = self.board.shadows
        if not shadows.candidates:
            return self._json({"decisions": decisions})
        judged = [{**decision, "shadow": shadows.opinions.get(decision["request"], {})} for decision in decisions]
        return self._json({"decisions": judged, "scorecards": shadows.scorecards()})

    # --- engines -----------------------------------------------------------------------------------------------------

    @endpoint("GET", "/backends", "The engines.")
    async def backends(self, request: Request) -> StreamResponse:
        return self._json({"backends": [self.board.backend_status(backend) for backend in self.fleet.members]})

    @endpoint("PUT", "/backends/{name}", JOIN, 400, 404, 409, 413, replies=JOINED, parameters=(NAME,), body=ENGINE)
    async def put_backend(self, request: Request) -> StreamResponse:
        fleet, name = self.fleet, request.match_info["name"]
        owner = self.board.source_of(name)
        if owner not in (None, SOURCE):
            raise Wrong(409, f"backends.{name}: is defined in {_owner(owner)}; change it there")
        document = _whole(await read_json(request))
        if isinstance(document, dict) and document.get("tls") is not None:
            raise Wrong(400, f"backends.{name}.tls: only the gateway's file may name certificates")
        spec = read_member(name, document, f"backends.{name}")
        # Without this check, the holder of the admin key could send any environment variable to any address.
        allowed = (*self.settings.engine_keys, *(spec.key_env for spec in fleet.sources["file"].values()))
        if spec.key_env is not None and spec.key_env not in allowed:
            raise Wrong(400, f"backends.{name}.key_env: {spec.key_env} is not in `admin.engine_keys` of the file")
        known = name in fleet.names
        try:
            self.orders.give(SOURCE, msgspec.to_builtins({**fleet.sources[SOURCE], name: spec}))
        except HeadwayError as error:  # the engine conflicts with other engines
            raise Wrong(409, str(error)) from None
        backend = fleet.names.get(name)
        status = {"name": name, "state": "waiting"} if backend is None else self.board.backend_status(backend)
        return self._json(status, 200 if known else 201)

    @endpoint("DELETE", "/backends/{name}", LEAVE, 404, 409, replies=REMOVED, parameters=(NAME,))
    async def delete_backend(self, request: Request) -> StreamResponse:
        fleet, name = self.fleet, request.match_info["name"]
        owner = self.board.source_of(name)
        if owner is None:
            raise Wrong(404, f"there is no engine {name!r}")
        if owner != SOURCE:
            raise Wrong(409, f"backends.{name}: is defined in {_owner(owner)}; remove it there, or cordon it here")
        left = {other: spec for other, spec in fleet.sources[SOURCE].items() if other != name}
        self.orders.give(SOURCE, msgspec.to_builtins(left))
        return self._json({"name": name, "leaving": any(backend.name == name for backend in fleet.leaving)})

    @_engine_action("cordon", "Send the engine no new requests until `uncordon`. Those in flight go on.")
    async def cordon(self, request: Request) -> StreamResponse:
        return self._order("cordon", request)

    @_engine_action("drain", "The same as `cordon`. Repeat it until `inflight` of the reply is 0.")
    async def drain(self, request: Request) -> StreamResponse:
        return self._order("cordon", request)

    @_engine_action("uncordon", "Send the engine requests again.")
    async def uncordon(self, request: Request) -> StreamResponse:
        return self._order("uncordon", request)

    def _order(self, order: str, request: Request) -> Response:
        name = str(request.match_info["name"])
        if name not in self.fleet.names and name not in self.fleet.cordoned:
            raise Wrong(404, f"there is no engine {name!r}")
        self.orders.give(order, name)
        backend = self.fleet.names.get(name)
        held = name in self.fleet.cordoned
        return self._json({"name": name, "cordoned": held} if backend is None else self.board.backend_status(backend))


def _owner(source: str | None) -> str:
    return "the gateway's file" if source == "file" else str(source)


def _whole(document: Any) -> Any:
    """Convert floats without a fraction to integers: in JSON, 8998.0 and 8998 are the same number, but a setting may
    require an integer."""
    if not isinstance(document, dict):
        return document
    return {
        key: int(value) if isinstance(value, float) and value.is_integer() else value for key, value in document.items()
    }
