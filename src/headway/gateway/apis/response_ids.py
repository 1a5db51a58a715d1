"""Sessions of OpenAI's Responses API: a request that continues an earlier response belongs to the session of that
response, which its id identifies. This process remembers the last ids that it has forwarded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headway.gateway.apis.bodies import ResponsesBody
from headway.http.answer_tally import ResponsesTally

if TYPE_CHECKING:
    from headway.gateway.exchange import Exchange
    from headway.gateway.request_body import Body
    from headway.gateway.services import Services

MOST: Final = 65_536


class ResponseIds:
    def __init__(self, services: Services) -> None:
        self.services = services
        self.sessions: dict[str, str] = {}  # response id -> session, the oldest first
        self._listens = False

    def find_session(self, body: Body) -> None:
        """Replace the id of the response that a request continues by the session of that response. The first call
        begins to remember ids."""
        if not self._listens:
            self._listens = True
            self.services.on_end.append(self._record_end)
        if isinstance(body, ResponsesBody) and body.previous_response_id:
            previous = body.previous_response_id
            body.previous_response_id = self.sessions.get(previous, previous)

    def _record_end(self, exchange: Exchange, now_ps: int, outcome: str, why: str) -> None:
        tally = exchange.tally
        if isinstance(tally, ResponsesTally) and tally.response_id:
            name = tally.response_id.decode("ascii")
            self.sessions[name] = exchange.request.session or name
            if len(self.sessions) > MOST:
                del self.sessions[next(iter(self.sessions))]
