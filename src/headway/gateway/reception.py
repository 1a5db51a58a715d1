"""Reception of requests: begins an exchange for each request that needs an engine, and answers the others itself."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from headway.errors import HeadwayError
from headway.gateway.api_keys import FORBIDDEN, UNKNOWN, Key
from headway.gateway.apis.api import APIS, RESPONSES, api_of
from headway.gateway.apis.response_ids import METHODS, PATH, AboutResponse, ResponseIds
from headway.gateway.apis.routes import ROUTE, Routed, find_routes, read_routed
from headway.gateway.cascade.cascade import Cascade
from headway.gateway.exchange import SHUTTING_DOWN, Exchange
from headway.gateway.intake import NOT_YET
from headway.gateway.model_fallbacks import Fallback, next_models
from headway.gateway.model_names import permit, replace_model, visible_models
from headway.gateway.observing.openapi import data_plane
from headway.gateway.services import Services
from headway.gateway.usage import Refusal
from headway.http.client_limits import Limits
from headway.http.replies import TRY_LATER, error_body
from headway.http.request_reader import Incoming
from headway.http.server_log import Occasional
from headway.http.wire import ClientConnection
from headway.types import SERVING, Path, Request

if TYPE_CHECKING:
    from headway.gateway.api_keys import Keyring
    from headway.gateway.apis.routes import RouteSpec
    from headway.gateway.cascade.chains import Chain
    from headway.gateway.intake import Intake
    from headway.gateway.json_web_tokens import WebTokens
    from headway.gateway.model_fallbacks import FallbackModels
    from headway.gateway.observing.gateway_metrics import GatewayMetrics

BYTES_PER_TOKEN: Final = 4  # of a long prompt, whose tokens are not yet counted
NO_REQUEST: Final = Request(-1, 0, 1, Path((), ()))  # for exchanges that policies do not see
LOCAL: Final = (b"/v1/models", b"/health", b"/openapi.json")
log = logging.getLogger("headway.gateway")


class Reception:
    def __init__(
        self,
        limits: Limits,
        intake: Intake,
        services: Services,
        metrics: GatewayMetrics,
        keyring: Keyring | None,
        chains: Mapping[str, Chain],
        exchange_type: type[Exchange] = Exchange,
    ) -> None:
        """`chains` maps model names to cascades."""
        self.limits, self.intake, self.services = limits, intake, services
        self.keyring, self.chains, self.exchange_type = keyring, chains, exchange_type
        self.web_tokens: WebTokens | None = None
        self.aliases: Mapping[str, str] = {}
        self.fallbacks: Mapping[str, FallbackModels] = {}
        self.routes: Sequence[RouteSpec] = ()
        self.response_ids = ResponseIds(services)
        self.seconds, self.count_refusal = services.clock.seconds, metrics.count_refusal
        self.on_refusal: Callable[[ClientConnection, Incoming, int, str], None] | None = None
        self.clients: dict[ClientConnection, None] = {}
        self.addresses: Counter[str] = Counter()
        self.half_closed = True
        self.held_bytes = 0  # total size of the request bodies in memory
        self.draining = False
        self.ending = False  # whether the time that requests in flight had to end is over
        self._turned_away = Occasional(log, "refused a connection from %s: %s")

    def begin(self, client: ClientConnection, incoming: Incoming) -> None:
        path = incoming.target
        if (query := path.find(b"?")) >= 0:
            path = path[:query]
        if self.ending:
            self._refuse(client, incoming, 503, SHUTTING_DOWN)
            return
        api = APIS.get(path)
        if api is None or incoming.method != b"POST":
            self._answer(client, incoming, path)
            return
        key = self._take_key(client, incoming)
        if key is False:
            return
        try:
            body = api.read(incoming.body)
            if api is RESPONSES:
                self.response_ids.find_session(body)
            if not (body.messages or body.prompt or body.input):
                raise HeadwayError("the request has no messages, prompt or input")
            if body.sets_kv_transfer:
                raise HeadwayError("a client may not set the fields of KV transfer, such as kv_transfer_params")
            if key is not None and not permit(key, body.model, incoming.body):
                key.release()
                self._refuse(client, incoming, FORBIDDEN.status, FORBIDDEN.why)
                return
            asked = body.model
            if asked in self.aliases:
                body.model = self.aliases[body.model]
                incoming.body = replace_model(incoming.body, body.model)
            chain = self.chains.get(body.model)
            fallback = self.fallbacks.get(asked) or self.fallbacks.get(body.model) if self.fallbacks else None
            if chain is not None and api.plain:
                body.model = chain.models[0]
            request = self.intake.request(api.kind, incoming, body, key)
            exchange: Exchange
            if fallback is not None:
                fallback = next_models(fallback, self.aliases, key)
                exchange = Fallback(self.services, self.intake, client, incoming, request, body, key, api, fallback)
            elif chain is not None and api.plain:
                exchange = Cascade(self.services, self.intake, client, incoming, request, body, key, chain)
            else:
                stream = bool(body.stream)
                exchange = self.exchange_type(self.services, client, incoming, request, stream, key, api)
            if key is not None and (refusal := self._reserve(key, exchange)) is not None:
                key.release()
                self._refuse(client, incoming, refusal.status, refusal.why, refusal.retry_after)
                return
        except Exception as error:
            if key is not None:
                key.release()
            if not isinstance(error, msgspec.MsgspecError | HeadwayError):
                raise  # the connection answers 500
            self._refuse(client, incoming, 400, f"invalid request: {error}")
            return
        client.exchange = exchange
        self.intake.begin(exchange, body, exchange.begin)

    def _take_key(self, client: ClientConnection, incoming: Incoming) -> Key | Literal[False] | None:
        """Return the key or token of a request, and count the request. If the key is missing or a limit forbids the
        request, refuse it and return False. If requests need no key, return None."""
        if self.keyring is None and self.web_tokens is None:
            return None
        key, refusal = self._owner(incoming.named)
        if key is not None:
            refusal = key.take(self.seconds())
        if refusal is None:
            return key
        self._refuse(client, incoming, refusal.status, refusal.why, refusal.retry_after)
        return False

    def _begin_routed(self, client: ClientConnection, incoming: Incoming, routes: Sequence[RouteSpec]) -> None:
        """Begin a request of a route of the gateway's file."""
        method = incoming.method.decode("latin-1")
        route = next((route for route in routes if method in route.methods), None)
        if route is None:
            allow = ", ".join(dict.fromkeys(name for route in routes for name in route.methods))
            self._refuse(client, incoming, 405, f"this path needs one of the methods {allow}", allow=allow)
            return
        if route.body_limit is not None and len(incoming.body) > route.body_limit:
            self._refuse(client, incoming, 413, f"the body is larger than {route.body_limit:,} bytes")
            return
        key = self._take_key(client, incoming)
        if key is False:
            return
        try:
            asked, body = read_routed(route, incoming, self.aliases, self.services.fleet.models)
            if key is not None and key.models is not None and (asked or incoming.body) and asked not in key.models:
                key.release()
                self._refuse(client, incoming, FORBIDDEN.status, FORBIDDEN.why)
                return
            request = self.intake.request(ROUTE.kind, incoming, body, key)
        except Exception as error:
            if key is not None:
                key.release()
            if not isinstance(error, msgspec.MsgspecError | HeadwayError):
                raise  # the connection answers 500
            self._refuse(client, incoming, 400, f"invalid request: {error}")
            return
        exchange = Routed(self.services, client, incoming, request, False, key, ROUTE)
        exchange.route = route
        if key is not None and (refusal := self._reserve(key, exchange)) is not None:
            key.release()
            self._refuse(client, incoming, refusal.status, refusal.why, refusal.retry_after)
            return
        client.exchange = exchange
        self.intake.begin(exchange, body, exchange.begin)

    def _ask_about(self, client: ClientConnection, incoming: Incoming, name: bytes, part: bytes | None) -> None:
        """Forward a request about a response to the engine that gave the response."""
        methods = METHODS[part]
        if incoming.method.decode("latin-1") not in methods:
            allow = ", ".join(methods)
            self._refuse(client, incoming, 405, f"this path needs one of the methods {allow}", allow=allow)
            return
        key = self._take_key(client, incoming)
        if key is False:
            return
        response = name.decode("ascii")
        backend = self.response_ids.engine(response, key, (other.exchange for other in self.clients))
        if backend is not None and backend.view.state in SERVING:
            exchange = AboutResponse(self.services, client, incoming, NO_REQUEST, False, key, ROUTE)
            client.exchange = exchange
            exchange.begin_at(backend)
            return
        if key is not None:
            key.release()
        if backend is None:
            self._refuse(client, incoming, 404, f"Response with id '{response}' not found.")
        else:
            self._refuse(client, incoming, 503, "the engine that has this response is not available")

    def _reserve(self, key: Key, exchange: Exchange) -> Refusal | None:
        """Take the tokens that the request may use from the key's account. If they exceed its limit, return the
        refusal."""
        account, request = key.account, exchange.request
        if account.limits.token_rate is None:
            return None
        prompt = len(exchange.body) // BYTES_PER_TOKEN if request.path is NOT_YET else request.prompt_tokens
        exchange.reserved = max(1, prompt + (request.max_tokens or 0))
        return account.reserve(exchange.reserved, self.seconds())

    def _owner(self, named: dict[bytes, bytes]) -> tuple[Key | None, Refusal | None]:
        """Return the owner of a request's API key or token, or why there is none."""
        key = None if self.keyring is None else self.keyring.owner(named)
        if key is not None or self.web_tokens is None:
            return key, None if key is not None else UNKNOWN
        owner = self.web_tokens.owner(named) or UNKNOWN
        return (None, owner) if isinstance(owner, Refusal) else (owner, None)

    def check_sender(self, named: dict[bytes, bytes]) -> tuple[int, str] | None:
        if self.keyring is None and self.web_tokens is None:
            return None
        refusal = self._owner(named)[1]
        return None if refusal is None else (refusal.status, refusal.why)

    def report_turned_away(self, address: str, why: str) -> None:
        self._turned_away.note(address, why)

    # --- requests without an engine ----------------------------------------------------------------------------------

    def _answer(self, client: ClientConnection, incoming: Incoming, path: bytes) -> None:
        if path in APIS:
            self._refuse(client, incoming, 405, "this path needs the method POST", allow="POST")
        elif self.routes and (routes := find_routes(self.routes, path)):
            self._begin_routed(client, incoming, routes)
        elif (about := PATH.fullmatch(path)) is not None:
            self._ask_about(client, incoming, *about.groups())
        elif path not in LOCAL:
            self._refuse(client, incoming, 404, f"unknown path {path.decode('latin-1')}")
        elif incoming.method != b"GET":
            self._refuse(client, incoming, 405, "this path needs the method GET", allow="GET")
        elif path == b"/health" and self.draining:
            client.answer(incoming, 503, error_body(503, SHUTTING_DOWN), (("retry-after", "1"),))
        elif path == b"/health":
            client.answer(incoming, 200, b"{}")
        elif path == b"/openapi.json":
            client.answer(incoming, 200, data_plane())
        elif (refusal := self.check_sender(incoming.named)) is not None:
            self._refuse(client, incoming, *refusal)
        else:
            key = self._owner(incoming.named)[0]
            names = visible_models([*self.services.fleet.models, *self.chains], self.aliases, key)
            models = [{"id": name, "object": "model", "created": 0, "owned_by": "headway"} for name in names]
            client.answer(incoming, 200, msgspec.json.encode({"object": "list", "data": models}))

    def _refuse(
        self, client: ClientConnection, incoming: Incoming, status: int, why: str, retry_after: int = 1, allow: str = ""
    ) -> None:
        self.count_refusal(status)
        if self.on_refusal is not None:
            self.on_refusal(client, incoming, status, why)
        fields = (("retry-after", str(retry_after)),) if status in TRY_LATER else ()
        if allow:
            fields = (("allow", allow),)
        client.answer(incoming, status, api_of(incoming.target).error_body(status, why), fields)

    # --- all connections ---------------------------------------------------------------------------------------------

    def sweep(self, now: float) -> None:
        """Close the connections of clients that have exceeded a time limit. Called periodically."""
        for client in list(self.clients):
            client.overdue(now)

    @property
    def busy(self) -> int:
        """The number of connections with a request that arrives or is not yet answered."""
        return sum(not (client.idle or client.closing) for client in self.clients)

    def close_idle(self) -> None:
        for client in list(self.clients):
            client.close_idle()

    def shut_down(self) -> None:
        """End every request with an error that its client can read, also those that wait behind another request of
        their connection."""
        self.ending = True
        for client in list(self.clients):
            if isinstance(client.exchange, Exchange):
                client.exchange.shut_down()
            elif not client.idle:
                client.refuse(503, SHUTTING_DOWN)

    def close(self) -> None:
        for client in list(self.clients):
            client.transport.abort()
