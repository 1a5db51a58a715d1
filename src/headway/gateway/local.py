"""Answers that the gateway gives itself: its models, health and OpenAPI document, and errors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from headway.gateway.api_keys import UNKNOWN
from headway.gateway.observing.openapi import data_plane
from headway.http.replies import error_body

if TYPE_CHECKING:
    from headway.gateway.api_keys import Keyring
    from headway.gateway.engines.engine_fleet import Fleet
    from headway.gateway.observing.gateway_metrics import GatewayMetrics
    from headway.http.wire import ClientConnection, Incoming

ROUTED: Final = {b"/v1/chat/completions": "chat", b"/v1/completions": "completion", b"/v1/embeddings": "embedding"}
LOCAL: Final = (b"/v1/models", b"/health", b"/openapi.json")


class Local:
    def __init__(
        self, fleet: Fleet, chains: Iterable[str], metrics: GatewayMetrics, keyring: Keyring | None = None
    ) -> None:
        """`chains` are the names of models that stand for several."""
        self.fleet, self.chains, self.metrics, self.keyring = fleet, chains, metrics, keyring

    def answer(self, client: ClientConnection, incoming: Incoming, path: bytes) -> None:
        """Answer a request that is not routed."""
        if path in ROUTED:
            self.say(client, incoming, 405, "this is asked by POST")
        elif path not in LOCAL:
            self.say(client, incoming, 404, f"there is nothing at {path.decode('latin-1')}")
        elif incoming.method != b"GET":
            self.say(client, incoming, 405, "this is asked by GET")
        elif path == b"/health":
            client.answer(incoming, 200, b"{}")
        elif path == b"/openapi.json":
            client.answer(incoming, 200, data_plane())
        elif self.keyring is not None and self.keyring.owner(incoming.named) is None:
            self.say(client, incoming, UNKNOWN.status, UNKNOWN.why)
        else:
            client.answer(incoming, 200, msgspec.json.encode({"object": "list", "data": self.models()}))

    def say(self, client: ClientConnection, incoming: Incoming, status: int, why: str, retry_after: int = 1) -> None:
        self.metrics.count_refusal(status)
        fields = (("retry-after", str(retry_after)),) if status in (429, 503) else ()
        if status == 405:
            fields = (("allow", "POST" if incoming.target.partition(b"?")[0] in ROUTED else "GET"),)
        client.answer(incoming, status, error_body(status, why), fields)

    def models(self) -> list[dict[str, Any]]:
        """Return the models that engines serve, and the chains of models."""
        names = dict.fromkeys([*self.fleet.models, *self.chains])
        return [{"id": name, "object": "model", "created": 0, "owned_by": "headway"} for name in names]
