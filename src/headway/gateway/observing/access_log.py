"""The access log: a line for a share of the requests, with what the gateway decided and how the request ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from headway.http.server_log import ACCESS
from headway.types import PS_PER_SECOND

if TYPE_CHECKING:
    from headway.gateway.exchange import Exchange
    from headway.gateway.services import EndListener
    from headway.http.request_reader import Incoming

LONGEST = 200  # maximum length of a value that a client chooses, in characters


class AccessLog:
    """Logs a share of the requests, evenly spaced. It never logs prompts, answers or keys."""

    def __init__(self, on_end: list[EndListener]) -> None:
        self.on_end = on_end  # listeners of ended requests; the access log is one of them while its share is above 0
        self.share, self._count = 0.0, 0

    def set_share(self, share: float) -> None:
        if share and not self.share:
            self.on_end.append(self.record_end)
        elif self.share and not share:
            self.on_end.remove(self.record_end)
        self.share, self._count = share, 0

    def record_end(self, exchange: Exchange, now_ps: int, outcome: str, why: str) -> None:
        if not self._sampled():
            return
        request, arrival_ps, tally = exchange.request, exchange.request.arrival_ps, exchange.tally
        self._write(
            exchange.incoming,
            exchange.status,
            client=_address(exchange.client),
            request=request.id,
            outcome=outcome,
            reason=why,
            model=request.model,
            tenant=request.tenant,
            slo_class=request.slo_class,
            engine=None if exchange.backend is None else exchange.backend.name,
            attempts=exchange.attempts,
            prompt_tokens=request.prompt_tokens,
            output_tokens=tally.tokens,
            first_token_ms=_ms(exchange.first_ps - arrival_ps) if exchange.first_ps >= 0 else None,
            total_ms=_ms(now_ps - arrival_ps),
        )

    def record_refusal(self, client: Any, incoming: Incoming, status: int, why: str) -> None:
        """Log a request that the gateway refused before the policies saw it."""
        if self.share and self._sampled():
            self._write(incoming, status, client=_address(client), outcome="rejected", reason=why)

    def _sampled(self) -> bool:
        self._count += 1
        return int(self._count * self.share) > int((self._count - 1) * self.share)

    def _write(self, incoming: Incoming, status: int, **more: object) -> None:
        path = incoming.target.partition(b"?")[0]
        fields = {"method": incoming.method.decode("latin-1"), "path": path.decode("latin-1"), "status": status, **more}
        fields = {name: value[:LONGEST] if isinstance(value, str) else value for name, value in fields.items()}
        words = [f"{name}={_word(value)}" for name, value in fields.items() if value not in (None, "")]
        ACCESS.info("request %s", " ".join(words), extra={"fields": fields})


def _address(client: Any) -> str | None:
    """Return the client's IP address; None for a client that has no connection of its own, as behind Envoy."""
    transport = getattr(client, "transport", None)
    peer = None if transport is None else transport.get_extra_info("peername")
    return str(peer[0]) if peer else None


def _ms(duration_ps: int) -> float:
    return round(1000 * duration_ps / PS_PER_SECOND, 1)


def _word(value: object) -> str:
    """Return the value as one word, in quotes if it has a space, a quote or a control character."""
    text = str(value)
    return text if text.isprintable() and " " not in text and '"' not in text else msgspec.json.encode(text).decode()
