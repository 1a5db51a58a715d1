"""Responses of OpenAI's Responses API that engines keep. A request that continues an earlier response belongs to the
session of that response, and a request about a response goes to the engine that gave it. This process remembers the
last ids that it has forwarded."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from headway.gateway.apis.bodies import ResponsesBody
from headway.gateway.apis.routes import Routed
from headway.http.answer_tally import ResponsesTally

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headway.gateway.api_keys import Key
    from headway.gateway.engines.engine_fleet import Backend
    from headway.gateway.exchange import Exchange
    from headway.gateway.request_body import Body
    from headway.gateway.services import Services

MOST: Final = 65_536
PATH: Final = re.compile(rb"/v1/responses/(resp_[0-9A-Za-z_-]{1,150})(/cancel|/input_items)?")
METHODS: Final = {None: ("GET", "DELETE"), b"/cancel": ("POST",), b"/input_items": ("GET",)}


class Response(Struct, frozen=True, gc=False):
    """A response that an engine has given."""

    session: str
    engine: str
    tenant: str | None  # tenant of the API key; None without a key


class ResponseIds:
    def __init__(self, services: Services) -> None:
        self.services = services
        self.known: dict[str, Response] = {}  # by id, the oldest first
        self._listens = False

    def find_session(self, body: Body) -> None:
        """Replace the id of the response that a request continues by the session of that response. The first call
        begins to remember ids."""
        if not self._listens:
            self._listens = True
            self.services.on_end.append(self._record_end)
        if isinstance(body, ResponsesBody) and body.previous_response_id:
            known = self.known.get(body.previous_response_id)
            if known is not None:
                body.previous_response_id = known.session

    def engine(self, name: str, key: Key | None, exchanges: Iterable[object]) -> Backend | None:
        """Return the engine that gave a response; None if the response is unknown or of another tenant, or if the
        engine has left. `exchanges` are those in flight, because a stream may be cancelled before it ends."""
        response = self.known.get(name)
        if response is None:
            found = (_response(exchange) for exchange in exchanges)
            response = next((each for number, each in found if number == name), None)
        if response is None or response.tenant != (None if key is None else key.tenant):
            return None
        return self.services.fleet.names.get(response.engine)

    def _record_end(self, exchange: Exchange, now_ps: int, outcome: str, why: str) -> None:
        name, response = _response(exchange)
        if response is not None:
            self.known.setdefault(name, response)  # a client that may choose ids takes no response from its owner
            if len(self.known) > MOST:
                del self.known[next(iter(self.known))]


def _response(exchange: object) -> tuple[str, Response | None]:
    """Return the response that an exchange has begun to forward, and its id; ("", None) if there is none."""
    tally = getattr(exchange, "tally", None)
    if not isinstance(tally, ResponsesTally) or not tally.response_id:
        return "", None
    backend, key = exchange.backend, exchange.key  # type: ignore[attr-defined]
    if backend is None:
        return "", None
    name = tally.response_id.decode("ascii")
    session = exchange.request.session or name  # type: ignore[attr-defined]
    return name, Response(session, backend.name, None if key is None else key.tenant)


class AboutResponse(Routed):
    """A request about a response that an engine keeps. Policies do not decide on it, and no record or metric of
    requests counts it."""

    def begin_at(self, backend: Backend) -> None:
        self.backend, self.attempts = backend, 1
        self.send_to(backend)

    def record_first_token(self) -> None: ...

    def _may_retry(self) -> bool:
        return False

    def leave(self, outcome: str, why: str) -> None: ...
