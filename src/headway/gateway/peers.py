"""Peers: several gateways in front of the same engines, or several processes of one gateway.

Each peer decides alone. At intervals, a peer tells the other peers its counts of requests in flight, and which prompts
it sent to which engines. In a scenario, `routers` with `sync_interval` models this exchange. On each connection, only
the side that opened the connection sends messages. The sender proves with an HMAC of a nonce that it knows the shared
key.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from headway.config.keys import INTERNAL, Doc, PositiveSeconds
from headway.errors import HeadwayError
from headway.gateway.deciding.places import Counts
from headway.gateway.settings import address
from headway.gateway.usage import Ledger, Usage
from headway.types import Json, Path

if TYPE_CHECKING:
    from headway.gateway.engines.engine_fleet import Fleet
    from headway.gateway.live_clock import Clock
    from headway.gateway.orders import Orders
    from headway.gateway.plane import Plane
    from headway.gateway.waiting import Waiting

LONGEST: Final = 64 * 1024 * 1024  # maximum size of a message, in bytes
MOST_TOUCHES: Final = 20_000  # maximum number of prompts in a message; further prompts are dropped
RETRY_S: Final = 0.5  # pause before a new attempt to connect
FIGURES_S: Final = 1.0
HELLO_S: Final = 5.0
log = logging.getLogger("headway.gateway")
_encode = msgspec.msgpack.Encoder().encode


class PeerSettings(Struct, frozen=True):
    """The section `peers:` of a gateway's file."""

    listen: Annotated[str, "own address and port, or unix:PATH"]
    to: Annotated[tuple[str, ...], "addresses of the other gateways"]
    key_env: Annotated[str, "environment variable with the shared key, at least 16 characters"]
    name: Annotated[str | None, Doc("name of this gateway among its peers", default="host and `listen`")] = None
    interval_s: Annotated[PositiveSeconds, "time between two messages to the peers"] = 0.05
    key: Annotated[bytes, INTERNAL] = b""
    orders: Annotated[bool, INTERNAL] = False  # True: the peers are processes of one gateway and obey its orders

    def validate(self, where: str) -> PeerSettings:
        key = os.environ.get(self.key_env, "").encode()
        if len(key) < 16:
            raise HeadwayError(f"{where}.key_env: {self.key_env} must hold a shared key of at least 16 characters.")
        for text in (self.listen, *self.to):
            if not text.startswith("unix:"):
                address(text, where)
        return replace(self, key=key, name=self.name or f"{os.uname().nodename}:{self.listen}")


class Message(Struct, omit_defaults=True):
    counts: dict[str, Counts] = {}  # engine's name -> its counts, if they changed since the last message
    touches: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = []  # for each sent prompt: engine, keys and ends
    figures: Json | None = None
    orders: list[list[Any]] = []
    usage: dict[bytes, Usage] = {}  # what keys have used since the last message, by the hash of the key

    @property
    def frame(self) -> bytes:
        data = _encode(self)
        return len(data).to_bytes(4, "big") + data


class Peers:
    def __init__(
        self,
        clock: Clock,
        plane: Plane,
        fleet: Fleet,
        waiting: Waiting,
        orders: Orders,
        settings: PeerSettings,
        ledger: Ledger,
    ) -> None:
        self.clock, self.plane, self.fleet, self.waiting = clock, plane, fleet, waiting
        self.operator, self.settings, self.ledger = orders, settings, ledger
        self.figures: dict[str, Json] = {}  # metrics of the peers, by the peer's name
        self.snapshot: Callable[[], Json] | None = None  # function that returns this process's metrics
        self.orders: list[list[Any]] = []  # orders to send with the next message
        self.connected: dict[str, asyncio.StreamWriter] = {}  # outgoing connections, by address
        self._senders: dict[str, asyncio.StreamWriter] = {}  # incoming connections, by the peer's name
        self._last: dict[str, Counts] = {}
        self._touches: list[tuple[int, Path]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._listening: dict[asyncio.StreamWriter, asyncio.Task[Any]] = {}
        self._server: asyncio.Server | None = None
        self._due = 0.0

    async def start(self) -> None:
        settings = self.settings
        try:
            if settings.listen.startswith("unix:"):
                self._server = await asyncio.start_unix_server(self._listen, settings.listen[5:])
            else:
                host, port = address(settings.listen, "peers.listen")
                self._server = await asyncio.start_server(self._listen, host, port)
        except OSError as error:
            raise HeadwayError(f"peers.listen: cannot listen on {settings.listen}: {error.strerror}.") from None
        self.plane.on_sent = self._note_prompt
        self._tasks = [self.clock.create_task(self._connect(peer)) for peer in settings.to]
        self._tasks.append(self.clock.create_task(self._exchange()))

    async def stop(self) -> None:
        self.plane.on_sent = None
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        listening = dict(self._listening)
        for writer in listening:
            writer.transport.abort()
        await asyncio.gather(*self._tasks, *listening.values(), return_exceptions=True)

    def _note_prompt(self, place: int, path: Path) -> None:
        if self.connected and len(self._touches) < MOST_TOUCHES:
            self._touches.append((place, path))

    # --- sending -----------------------------------------------------------------------------------------------------

    async def _connect(self, where: str) -> None:
        """Keep a connection to a peer open. Reconnect whenever it is lost."""
        while True:
            try:
                await self._open_and_hold(where)
            except (OSError, asyncio.IncompleteReadError, TimeoutError):
                pass
            finally:
                self.connected.pop(where, None)
            await asyncio.sleep(RETRY_S)

    async def _open_and_hold(self, where: str) -> None:
        reader, writer = await asyncio.wait_for(_open(where), HELLO_S)
        try:
            nonce = await asyncio.wait_for(reader.readexactly(32), HELLO_S)
            name = (self.settings.name or "").encode()
            proof = hmac.digest(self.settings.key, nonce + name, "sha256")
            writer.write(len(name).to_bytes(2, "big") + name + proof)
            orders = self.operator.in_effect() if self.settings.orders else []
            writer.write(Message(self._counts({}), [], None, orders, self.ledger.inflight()).frame)
            self.connected[where] = writer
            await reader.read(1)  # the peer sends nothing, so this returns when the peer closes the connection
        finally:
            writer.close()

    def order(self, *order: Any) -> None:
        """Send an operator's order to the other processes."""
        if self.settings.orders:
            self.orders.append(list(order))

    async def _exchange(self) -> None:
        while True:
            await asyncio.sleep(self.settings.interval_s)
            if self.connected:
                self._send()
            else:  # a gateway that is alone applies the limits alone
                self.ledger.news()

    def _send(self) -> None:
        counts = self._counts(self._last)
        names = {backend.place: backend.name for backend in self.fleet.members}
        touches = [(names[place], path.keys, path.ends) for place, path in self._touches if place in names]
        self._touches.clear()
        orders, self.orders = self.orders, []
        now, figures = self.clock.seconds(), None
        if self.snapshot is not None and now >= self._due:
            self._due, figures = now + FIGURES_S, self.snapshot()
        usage = self.ledger.news()
        if not (counts or touches or orders or figures or usage):
            return
        data = Message(counts, touches, figures, orders, usage).frame
        for where, writer in list(self.connected.items()):
            if writer.transport.get_write_buffer_size() > LONGEST:  # the peer does not read its messages
                self.connected.pop(where).close()
            else:
                writer.write(data)

    def _counts(self, last: dict[str, Counts]) -> dict[str, Counts]:
        """Return the engines' counts that differ from `last`, by engine name, and update `last`."""
        changes = {}
        for name, backend in self.fleet.by_name.items():
            own = self.plane.places.own(backend.place)
            if last.get(name) != own and (any(own) or name in last):
                changes[name] = own
            last[name] = own
        return changes

    # --- receiving ---------------------------------------------------------------------------------------------------

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        name = ""
        task = asyncio.current_task()
        assert task is not None
        self._listening[writer] = task
        try:
            name = await asyncio.wait_for(self._greet(reader, writer), HELLO_S)
            if not name:
                return
            self._follow(name, writer)
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                if size > LONGEST:
                    return
                message = msgspec.msgpack.decode(await reader.readexactly(size), type=Message)
                if self._senders.get(name) is not writer:
                    return
                self._hear(name, message)
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            pass
        except msgspec.MsgspecError as error:
            log.warning("peers: invalid message from %s: %s", name, error)
        finally:
            del self._listening[writer]
            writer.close()
            if name and self._senders.get(name) is writer:
                del self._senders[name]
                self.figures.pop(name, None)
                self.plane.lost(self.clock.now_ps(), name)
                self.ledger.lose(name)

    def _follow(self, name: str, writer: asyncio.StreamWriter) -> None:
        """Replace the former connection of a peer by a new one. Drop the peer's counts, because the peer sends all its
        counts at the beginning of a connection."""
        former = self._senders.get(name)
        self._senders[name] = writer
        if former is not None:
            former.transport.abort()
            self.plane.lost(self.clock.now_ps(), name)
            self.ledger.lose(name)

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
        nonce = secrets.token_bytes(32)
        writer.write(nonce)
        name = await reader.readexactly(int.from_bytes(await reader.readexactly(2), "big"))
        proof = await reader.readexactly(32)
        if not hmac.compare_digest(proof, hmac.digest(self.settings.key, nonce + name, "sha256")):
            log.warning("peers: rejected a connection whose sender does not know the shared key")
            return ""
        return name.decode("utf-8", "replace")

    def _hear(self, name: str, message: Message) -> None:
        for order in message.orders if self.settings.orders else ():
            try:
                self.operator.obey(order)
            except (HeadwayError, msgspec.MsgspecError, ValueError, KeyError) as error:
                log.warning("peers: cannot carry out an order from %s: %s", name, error)
        places = {engine: backend.place for engine, backend in self.fleet.by_name.items()}
        counts = {places[engine]: counts for engine, counts in message.counts.items() if engine in places}
        touches = [(places[engine], Path(keys, ends)) for engine, keys, ends in message.touches if engine in places]
        if counts or touches:
            self.plane.heard(self.clock.now_ps(), name, counts, touches)
            self.waiting.nudge()
        self.ledger.hear(name, message.usage, self.clock.seconds())
        if message.figures is not None:
            self.figures[name] = message.figures


async def _open(where: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if where.startswith("unix:"):
        return await asyncio.open_unix_connection(where[5:])
    host, port = address(where, "peers.to")
    return await asyncio.open_connection(host, port)
