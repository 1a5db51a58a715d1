"""Several gateways before the same engines, or several processes of one: each decides alone, and tells the others now
and then what it has under way and where it has sent prompts. So each knows its own counts exactly, and the others' as
they were at most an interval and the way ago; `cluster.routers` with `sync` is the same in simulation.

Each sends to all the others and listens to all: a connection has one sender. Who connects proves that it knows the
shared key by an HMAC of what it was sent.
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
from headway.gateway.settings import address
from headway.types import Json, Path

if TYPE_CHECKING:
    from headway.gateway.engines.engine_fleet import Fleet
    from headway.gateway.live_clock import Clock
    from headway.gateway.orders import Orders
    from headway.gateway.plane import Counts, Plane
    from headway.gateway.waiting import Waiting

LONGEST: Final = 64 * 1024 * 1024
MOST_TOUCHES: Final = 20_000  # between two exchanges; of more the others do not hear
AGAIN_S: Final = 0.5  # until a lost connection is tried anew
FIGURES_S: Final = 1.0
HELLO_S: Final = 5.0
log = logging.getLogger("headway.gateway")
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


class PeerSettings(Struct, frozen=True):
    """The section `peers:` of a gateway's file."""

    listen: Annotated[str, "address and port, or unix:PATH"]
    to: Annotated[tuple[str, ...], "where the others listen"]
    key_env: Annotated[str, "the environment variable that holds a key of 16 signs at least, for all the same"]
    name: Annotated[str | None, Doc("by which the others know this one", default="host and `listen`")] = None
    interval_s: Annotated[PositiveSeconds, "from one exchange to the next"] = 0.05
    key: Annotated[bytes, INTERNAL] = b""
    orders: Annotated[bool, INTERNAL] = False  # what one is told by its operator goes for all: processes of one gateway

    def validate(self, where: str) -> PeerSettings:
        key = os.environ.get(self.key_env, "").encode()
        if len(key) < 16:
            raise HeadwayError(
                f"{where}.key_env: {self.key_env} must hold a key of 16 signs at least, for all the same."
            )
        for text in (self.listen, *self.to):
            if not text.startswith("unix:"):
                address(text, where)
        return replace(self, key=key, name=self.name or f"{os.uname().nodename}:{self.listen}")


class Message(Struct, omit_defaults=True):
    counts: dict[str, list[int]] = {}  # by engine: what has changed
    touches: list[tuple[str, list[int], list[int]]] = []  # engine, keys and ends of prompts sent
    figures: Json | None = None
    orders: list[list[Any]] = []


class Peers:
    def __init__(
        self, clock: Clock, plane: Plane, fleet: Fleet, waiting: Waiting, orders: Orders, settings: PeerSettings
    ) -> None:
        self.clock, self.plane, self.fleet, self.waiting = clock, plane, fleet, waiting
        self.operator, self.settings = orders, settings
        self.figures: dict[str, Json] = {}  # of the others, by name
        self.snapshot: Callable[[], Json] | None = None  # of this one's figures
        self.orders: list[list[Any]] = []  # that were given here since the last exchange
        self.connected: dict[str, asyncio.StreamWriter] = {}  # to the others, by where they listen
        self._heard: dict[str, asyncio.StreamWriter] = {}  # who is connected to this one, by name: the connection
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
            raise HeadwayError(f"peers.listen: {settings.listen} cannot be listened on: {error.strerror}.") from None
        self.plane.on_sent = self._sent
        self._tasks = [self.clock.create_task(self._connect(one)) for one in settings.to]
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

    def _sent(self, place: int, path: Path) -> None:
        if self.connected and len(self._touches) < MOST_TOUCHES:
            self._touches.append((place, path))

    # --- telling -----------------------------------------------------------------------------------------------------

    async def _connect(self, where: str) -> None:
        """One after another, as long as this runs."""
        while True:
            try:
                await self._tell(where)
            except (OSError, asyncio.IncompleteReadError, TimeoutError):
                pass
            finally:
                writer = self.connected.pop(where, None)
                if writer is not None:
                    writer.close()
            await asyncio.sleep(AGAIN_S)

    async def _tell(self, where: str) -> None:
        reader, writer = await asyncio.wait_for(_open(where), HELLO_S)
        try:
            nonce = await asyncio.wait_for(reader.readexactly(32), HELLO_S)
            name = (self.settings.name or "").encode()
            proof = hmac.digest(self.settings.key, nonce + name, "sha256")
            writer.write(len(name).to_bytes(2, "big") + name + proof)
            standing = self.operator.standing() if self.settings.orders else []
            everything = Message(self._counts({}), [], None, standing)
            writer.write(_framed(everything))
            self.connected[where] = writer
            await reader.read(1)  # nothing comes; its end is the other's
        finally:
            writer.close()

    def order(self, *order: Any) -> None:
        """An operator's word, for the other processes too."""
        if self.settings.orders:
            self.orders.append(list(order))

    async def _exchange(self) -> None:
        while True:
            await asyncio.sleep(self.settings.interval_s)
            if self.connected:
                self._say()

    def _say(self) -> None:
        counts = self._counts(self._last)
        names = {backend.place: backend.name for backend in self.fleet.members}
        touches = [(names[place], list(path.keys), list(path.ends)) for place, path in self._touches if place in names]
        self._touches.clear()
        orders, self.orders = self.orders, []
        now, figures = self.clock.seconds(), None
        if self.snapshot is not None and now >= self._due:
            self._due, figures = now + FIGURES_S, self.snapshot()
        if not (counts or touches or orders or figures):
            return
        data = _framed(Message(counts, touches, figures, orders))
        for where, writer in list(self.connected.items()):
            if writer.transport.get_write_buffer_size() > LONGEST:  # it does not read
                self.connected.pop(where).close()
            else:
                writer.write(data)

    def _counts(self, last: dict[str, Counts]) -> dict[str, list[int]]:
        """Those that are not as they were at last."""
        found = {}
        for name, backend in self.fleet.called.items():
            own = self.plane.places.own(backend.place)
            if last.get(name) != own and (any(own) or name in last):
                found[name] = list(own)
            last[name] = own
        return found

    # --- hearing -----------------------------------------------------------------------------------------------------

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
                if self._heard.get(name) is not writer:
                    return
                self._hear(name, message)
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            pass
        except msgspec.MsgspecError as error:
            log.warning("peers: %s said what cannot be read: %s", name, error)
        finally:
            del self._listening[writer]
            writer.close()
            if name and self._heard.get(name) is writer:
                del self._heard[name]
                self.figures.pop(name, None)
                self.plane.lost(self.clock.now_ps(), name)

    def _follow(self, name: str, writer: asyncio.StreamWriter) -> None:
        """A peer that comes again begins with all that it has, whether or not its former connection has ended."""
        former = self._heard.get(name)
        self._heard[name] = writer
        if former is not None:
            former.transport.abort()
            self.plane.lost(self.clock.now_ps(), name)

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
        nonce = secrets.token_bytes(32)
        writer.write(nonce)
        name = await reader.readexactly(int.from_bytes(await reader.readexactly(2), "big"))
        proof = await reader.readexactly(32)
        if not hmac.compare_digest(proof, hmac.digest(self.settings.key, nonce + name, "sha256")):
            log.warning("peers: somebody who does not know the key was turned away")
            return ""
        return name.decode("utf-8", "replace")

    def _hear(self, name: str, message: Message) -> None:
        for order in message.orders if self.settings.orders else ():
            try:
                self.operator.obey(order)
            except (HeadwayError, msgspec.MsgspecError, ValueError) as error:
                log.warning("peers: what %s was told cannot be done here: %s", name, error)
        places = {engine: backend.place for engine, backend in self.fleet.called.items()}
        counts = {
            places[engine]: (four[0], four[1], four[2], four[3])
            for engine, four in message.counts.items()
            if engine in places and len(four) == 4
        }
        touches = [
            (places[engine], Path(tuple(keys), tuple(ends)))
            for engine, keys, ends in message.touches
            if engine in places
        ]
        if counts or touches:
            self.plane.heard(self.clock.now_ps(), name, counts, touches)
            self.waiting.nudge()
        if message.figures is not None:
            self.figures[name] = message.figures


def _framed(message: Message) -> bytes:
    data = _encode(message)
    return len(data).to_bytes(4, "big") + data


async def _open(where: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if where.startswith("unix:"):
        return await asyncio.open_unix_connection(where[5:])
    host, port = address(where, "peers.to")
    return await asyncio.open_connection(host, port)
