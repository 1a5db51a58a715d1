"""The paths beside those that generate: models, health, metrics, faults, the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from headway.emulator.faults import Fault
from headway.errors import HeadwayError

if TYPE_CHECKING:
    from headway.emulator.host import Host
    from headway.emulator.replica import Replica
    from headway.http.wire import ClientConnection, Incoming

GET, POST = b"GET", b"POST"


class Paths:
    def __init__(self, host: Host) -> None:
        self.host = host
        self.known = {
            b"/v1/models": (GET, self.models),
            b"/health": (GET, self.health),
            b"/ping": (GET, self.health),
            b"/version": (GET, self.version),
            b"/metrics": (GET, self.metrics),
            b"/reset_prefix_cache": (POST, self.reset),
            b"/replicas": (GET, self.replicas),
        }

    def answer(self, replica: Replica, client: ClientConnection, incoming: Incoming, path: bytes) -> None:
        if path == b"/faults":
            self.faults(replica, client, incoming)
            return
        found = self.known.get(path)
        if found is None and not path.startswith(b"/v1/"):
            replica.refuse(client, incoming, 404, "Not Found")
        elif found is None:
            status = 405 if path in (b"/v1/chat/completions", b"/v1/completions", b"/v1/embeddings") else 404
            replica.refuse(client, incoming, status, "Method Not Allowed" if status == 405 else "Not Found")
        elif found[0] != incoming.method:
            replica.refuse(client, incoming, 405, "Method Not Allowed")
        else:
            found[1](replica, client, incoming)

    def models(self, replica: Replica, client: ClientConnection, incoming: Incoming) -> None:
        data: list[Any] = [
            {
                "id": name,
                "object": "model",
                "created": 0,
                "owned_by": "headway",
                "root": replica.model,
                "parent": None,
                "max_model_len": replica.reader.longest,
                "permission": [],
            }
            for name in replica.models
        ]
        self._say(replica, client, incoming, {"object": "list", "data": data})

    def health(self, replica: Replica, client: ClientConnection, incoming: Incoming) -> None:
        status = 503 if replica.fault.mode == "unhealthy" else 200
        replica.say(client, incoming, status, b"")

    def version(self, replica: Replica, client: ClientConnection, incoming: Incoming) -> None:
        from headway.emulator.replica import VERSION

        self._say(replica, client, incoming, {"version": VERSION})

    def metrics(self, replica: Replica, client: ClientConnection, incoming: Incoming) -> None:
        replica.room.catch_up()
        page = replica.figures.page().encode()
        replica.say(client, incoming, 200, page, kind="text/plain; version=0.0.4; charset=utf-8")

    def reset(self, replica: Replica, client: ClientConnection, incoming: Incoming) -> None:
        """Empties the prefix cache, unless requests hold some of it."""
        if not replica.room.forget(replica.index):
            replica.refuse(client, incoming, 503, "requests hold blocks of the cache; it stays as it is")
            return
        if replica.publisher is not None:
            replica.publisher.cleared()
        replica.say(client, incoming, 200, b"")

    def replicas(self, replica: Replica, client: ClientConnection, incoming: Incoming) -> None:
        self._say(replica, client, incoming, {"replicas": [self.host.describe(one) for one in self.host.replicas]})

    def faults(self, replica: Replica, client: ClientConnection, incoming: Incoming) -> None:
        """GET tells what is wrong with whom; POST makes it so, for the replica that is asked or another by its name."""
        if incoming.method == POST:
            try:
                fault = Fault.read(msgspec.json.decode(incoming.body), "faults")
                struck = replica if fault.replica is None else self.host.named(fault.replica)
            except (msgspec.MsgspecError, HeadwayError) as error:
                replica.refuse(client, incoming, 400, str(error))
                return
            told: dict[str, Any] = {one.name: one.fault.mode for one in self.host.replicas} | {struck.name: fault.mode}
            self._say(replica, client, incoming, {"faults": told})
            replica.loop.call_soon(struck.strike, fault)
            return
        if incoming.method != GET:
            replica.refuse(client, incoming, 405, "Method Not Allowed")
            return
        self._say(replica, client, incoming, {"faults": {one.name: one.fault.mode for one in self.host.replicas}})

    def _say(self, replica: Replica, client: ClientConnection, incoming: Incoming, document: Any) -> None:
        replica.say(client, incoming, 200, msgspec.json.encode(document))
