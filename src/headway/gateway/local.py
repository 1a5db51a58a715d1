"""Requests that the gateway answers itself: models, health, its OpenAPI document, and errors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

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
        """`chains` are the model names that select a cascade."""
        self.fleet, self.chains, self.metrics, self.keyring = fleet, chains, metrics, keyring

    def answer(self, client: ClientConnection, incoming: Incoming, path: bytes) -> None:
        """Answer a request that needs no engine."""
        if path in ROUTED:
            self.refuse(client, incoming, 405, "this path needs the method POST")
        elif path not in LOCAL:
            self.refuse(client, incoming, 404, f"unknown path {path.decode('latin-1')}")
        elif incoming.method != b"GET":
            self.refuse(client, incoming, 405, "this path needs the method GET")
        elif path == b"/health":
            client.answer(incoming, 200, b"{}")
        elif path == b"/openapi.json":
            client.answer(incoming, 200, data_plane())
        elif self.keyring is not None and self.keyring.owner(incoming.named) is None:
            self.refuse(client, incoming, UNKNOWN.status, UNKNOWN.why)
        else:
            names = dict.fromkeys([*self.fleet.models, *self.chains])
            models = [{"id": name, "object": "model", "created": 0, "owned_by": "headway"} for name in names]
            client.answer(incoming, 200, msgspec.json.encode({"object": "list", "data": models}))

    def refuse(self, client: ClientConnection, incoming: Incoming, status: int, why: str, retry_after: int = 1) -> None:
        self.metrics.count_refusal(status)
        fields = (("retry-after", str(retry_after)),) if status in (429, 503) else ()
        if status == 405:
            fields = (("allow", "POST" if incoming.target.partition(b"?")[0] in ROUTED else "GET"),)
        client.answer(incoming, status, error_body(status, why), fields)
