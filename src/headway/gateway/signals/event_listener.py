"""Receives the KV events of engines over ZMQ, and reports them to the plane.

Either the gateway connects to the `events` endpoint of an engine, or the engine connects to the gateway's address
(`bind`). In the second case the topic identifies the engine: it is `kv@NAME`, or the engine's `events_topic`. An engine
may also have a socket that replays old batches (`events_replay`).

The gateway reads events in short slices of time. Unread events wait in ZMQ's queue, which is bounded. If the queue is
full, publishers drop batches, and the gateway detects the gap in the batch numbers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

from msgspec import Meta, Struct, to_builtins

from headway.config.keys import PositiveDuration, PositiveSeconds
from headway.config.wording import shown
from headway.errors import HeadwayError, missing_extra
from headway.gateway.signals.kv_batches import LONGEST, Counts, read_batch
from headway.gateway.signals.kv_ledger import Ledger, Run
from headway.gateway.signals.kv_stream import Stream
from headway.types import PS_PER_SECOND, Belief

if TYPE_CHECKING:
    from headway.gateway.engines.engine_fleet import Backend, Fleet
    from headway.gateway.live_clock import Clock
    from headway.gateway.plane import Plane
    from headway.gateway.prompt_tokens import Hasher

SLICE_S: Final = 0.0005
QUEUED: Final = 10_000  # maximum number of batches in ZMQ's queue
LOOK_S: Final = 1.0  # interval at which all sockets are read, even if ZMQ signals no messages
END: Final = (-1).to_bytes(8, "big", signed=True)
TRANSPORTS: Final = ("tcp://", "ipc://")

log = logging.getLogger(__name__)


class EventSettings(Struct, frozen=True):
    """The section `events:` of a gateway's file."""

    bind: Annotated[str | None, "ZMQ address that engines connect to, as in tcp://0.0.0.0:5557"] = None
    ttl_ps: Annotated[
        PositiveDuration, "how long a sent prompt is believed cached, if the engine publishes no or not all KV events"
    ] = 120 * PS_PER_SECOND
    speculative_ps: Annotated[
        PositiveDuration, "the same, if the engine publishes all KV events but has not reported the prompt as stored"
    ] = 30 * PS_PER_SECOND
    belief: Annotated[
        Belief,
        "the blocks that the gateway believes cached. `routed`: the blocks of prompts that it sent, without KV events; "
        "`stored`: the blocks that engines report; `both`: the blocks of either kind",
    ] = "both"
    max_blocks: Annotated[int, Meta(ge=1, le=10**8), "most reported blocks of an engine; more are ignored"] = 65_536
    replay_s: Annotated[PositiveSeconds, "how long the gateway waits for each batch of a replay"] = 2.0

    def validate(self, where: str) -> EventSettings:
        if self.bind is not None and not self.bind.startswith(TRANSPORTS):
            raise HeadwayError(f"{where}.bind: expected an address such as tcp://0.0.0.0:5557, got {shown(self.bind)}.")
        return self


class Inlet:
    """A ZMQ socket, and whether it may have messages."""

    def __init__(self, listener: Listener, socket: Any, take: Callable[[Sequence[bytes]], None]) -> None:
        self.listener, self.socket, self.take = listener, socket, take
        self.ready = True
        self.fd = socket.getsockopt(listener.zmq.FD)
        listener.loop.add_reader(self.fd, self.wake)
        listener.inlets[self] = None
        self.wake()

    def wake(self) -> None:
        self.ready = True
        self.listener.wake()

    def read(self) -> bool:
        """Read and handle one message. If the socket has no message, return False."""
        try:
            frames = self.socket.recv_multipart(self.listener.zmq.NOBLOCK)
        except self.listener.zmq.Again:
            self.ready = False
            return False
        self.take(frames)
        return True

    def close(self) -> None:
        if self.listener.inlets.pop(self, self) is None:
            self.listener.loop.remove_reader(self.fd)
            self.socket.close(linger=0)


class Engine:
    """An engine that publishes KV events. Its ledger tells this object which blocks were stored and removed, and this
    object reports them to the plane."""

    def __init__(self, listener: Listener, backend: Backend) -> None:
        spec, settings = backend.spec, listener.settings
        self.listener, self.name, self.place = listener, spec.name, backend.place
        self.rank = spec.rank
        self.topic = (spec.events_topic or f"kv@{spec.name}").encode()
        self.ranks = spec.publishers
        self.replay = spec.events_replay
        self.counts = Counts()
        self.ledger = Ledger(self, listener.hasher, spec.models[0], settings.max_blocks, self.counts)
        self.stream = Stream(self.ledger, self.ask, self.drop)
        self.inlets: list[Inlet] = []  # one for each rank, unless the engine connects to the gateway
        # For each rank with a running replay: the replay's socket and the timer of its timeout.
        self.questions: dict[int, tuple[Inlet, asyncio.TimerHandle]] = {}
        if spec.events is not None:
            for rank in self.ranks:
                socket = listener.connect(listener.zmq.SUB, with_rank(spec.events, rank))
                self.inlets.append(Inlet(listener, socket, self.on_message))
        for rank in self.ranks:
            self.stream.begin(rank)

    # --- the wire ----------------------------------------------------------------------------------------------------

    def on_message(self, frames: Sequence[bytes]) -> None:
        if len(frames) == 3 and len(frames[1]) == 8:
            self.stream.on_batch(int.from_bytes(frames[1], "big"), frames[2])
        else:
            self.counts.malformed += 1

    def ask(self, rank: int, first: int) -> bool:
        """Request a replay of the batches from number `first` on. Return whether the engine can replay batches."""
        if self.replay is None:
            return False
        self.drop(rank)
        try:
            socket = self.listener.connect(self.listener.zmq.DEALER, with_rank(self.replay, rank))
        except HeadwayError as error:
            log.warning("%s: %s", self.name, error)
            return False
        socket.send_multipart((b"", first.to_bytes(8, "big")))
        inlet = Inlet(self.listener, socket, lambda frames: self.on_answer(rank, frames))
        self.questions[rank] = (inlet, self._patience(rank))
        return True

    def _patience(self, rank: int) -> asyncio.TimerHandle:
        return self.listener.loop.call_later(self.listener.settings.replay_s, self.end_replay, rank)

    def on_answer(self, rank: int, frames: Sequence[bytes]) -> None:
        # The frames are: an empty frame, the topic (only in newer versions), the number and the batch.
        if len(frames) not in (3, 4) or len(frames[-2]) != 8 or rank not in self.questions:
            return
        if frames[-2] == END:
            self.end_replay(rank)
            return
        inlet, timer = self.questions[rank]
        timer.cancel()
        self.questions[rank] = (inlet, self._patience(rank))
        self.stream.on_replayed(rank, int.from_bytes(frames[-2], "big"), frames[-1])

    def end_replay(self, rank: int) -> None:
        """End a replay of old batches, because the engine has sent all of them or was silent for too long."""
        self.drop(rank)
        self.stream.end_replay(rank)
        self.listener.wake()

    def drop(self, rank: int) -> None:
        if rank in self.questions:
            inlet, timer = self.questions.pop(rank)
            timer.cancel()
            inlet.close()

    def close(self) -> None:
        for rank in list(self.questions):
            self.drop(rank)
        for inlet in self.inlets:
            inlet.close()

    # --- the ledger's sink -------------------------------------------------------------------------------------------

    def stored(self, runs: list[Run]) -> None:
        self.listener.plane.stored(self.listener.clock.now_ps(), self.place, runs)

    def moved(self, keys: list[int], level: int) -> None:
        self.listener.plane.moved(self.listener.clock.now_ps(), self.place, keys, level)

    def removed(self, keys: list[int]) -> None:
        self.listener.plane.removed(self.listener.clock.now_ps(), self.place, keys)

    def cleared(self, trust: str) -> None:
        self.listener.plane.cleared(self.listener.clock.now_ps(), self.place, trust)


class Listener:
    def __init__(self, clock: Clock, fleet: Fleet, plane: Plane, settings: EventSettings, hasher: Hasher) -> None:
        """`hasher` computes the keys of prompts."""
        self.clock, self.fleet, self.plane, self.settings, self.hasher = clock, fleet, plane, settings, hasher
        self.loop = clock.loop
        self.context: Any = None
        self.inlets: dict[Inlet, None] = {}
        self.engines: dict[str, Engine] = {}
        self.topics: dict[tuple[bytes, int | None], Engine] = {}  # by topic, and by rank if it is one rank
        self.unknown = 0  # number of messages with an unknown topic
        self._waking = False
        self._timer: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        try:
            import zmq
        except ImportError:
            raise missing_extra("events", "pyzmq", "gateway") from None
        self.zmq: Any = zmq
        self.context = zmq.Context()
        if self.settings.bind is not None:
            Inlet(self, self._bind(self.settings.bind), self._dispatch)
        for backend in self.fleet.backends:
            if backend is not None:
                self.on_change(backend, "joined")
        self.fleet.on_change.append(self.on_change)
        self._timer = self.loop.call_later(LOOK_S, self._look)

    async def stop(self) -> None:
        if self.context is None:
            return
        self.fleet.on_change.remove(self.on_change)
        if self._timer is not None:
            self._timer.cancel()
        for engine in list(self.engines.values()):
            engine.close()
        for inlet in list(self.inlets):
            inlet.close()
        self.engines.clear()
        self.topics.clear()
        self.context.term()
        self.context = None

    def on_change(self, backend: Backend, what: str) -> None:
        """Follow the events of an engine that joined, or stop following an engine that left."""
        engine = self.engines.pop(backend.spec.name, None)
        if engine is not None:
            self.topics.pop((engine.topic, engine.rank), None)
            engine.close()
        spec = backend.spec
        if what == "left" or (spec.events is None and self.settings.bind is None):
            return
        if not spec.models:  # block keys cannot be computed without the model's name
            log.warning("%s: its KV events are ignored, because it lists no `models`", spec.name)
            return
        try:
            engine = Engine(self, backend)
        except HeadwayError as error:
            log.warning("%s: %s Its KV events are ignored.", spec.name, error)
            return
        self.engines[spec.name] = engine
        if not engine.inlets:
            self.topics[engine.topic, engine.rank] = engine

    def event_counts(self, backend: Backend) -> dict[str, int]:
        """Return the non-zero counts of an engine's events. `events` and `gaps` are always included."""
        engine = self.engines.get(backend.spec.name)
        if engine is None:
            return {}
        counts: dict[str, int] = to_builtins(engine.counts)
        return {name: count for name, count in counts.items() if count or name in ("events", "gaps")}

    # --- sockets -----------------------------------------------------------------------------------------------------

    def _socket(self, kind: int) -> Any:
        zmq = self.zmq
        socket = self.context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVHWM, QUEUED)
        socket.setsockopt(zmq.MAXMSGSIZE, LONGEST)
        if kind == zmq.SUB:
            socket.setsockopt(zmq.SUBSCRIBE, b"")
        return socket

    def _bind(self, address: str) -> Any:
        socket = self._socket(self.zmq.SUB)
        try:
            socket.bind(address)
        except self.zmq.ZMQError as error:
            socket.close()
            self.context.term()
            self.context = None
            raise HeadwayError(f"events.bind: cannot listen on {address}: {error}.") from None
        self.address: str = socket.getsockopt_string(self.zmq.LAST_ENDPOINT)
        return socket

    def connect(self, kind: int, address: str) -> Any:
        socket = self._socket(kind)
        try:
            socket.connect(address)
        except self.zmq.ZMQError as error:
            socket.close()
            raise HeadwayError(f"events: cannot connect to {address}: {error}.") from None
        return socket

    def _dispatch(self, frames: Sequence[bytes]) -> None:
        engine = self.topics.get((frames[0], None))
        if engine is None and len(frames) == 3 and (batch := read_batch(frames[2])) is not None:
            engine = self.topics.get((frames[0], batch.rank or 0))
        if engine is None:
            self.unknown += 1
        else:
            engine.on_message(frames)

    # --- the work ----------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        if not self._waking:
            self._waking = True
            self.loop.call_soon(self._work)

    def _look(self) -> None:
        for inlet in self.inlets:
            inlet.ready = True
        self.wake()
        self._timer = self.loop.call_later(LOOK_S, self._look)

    def _work(self) -> None:
        """Read and apply events for one time slice. Continue in the next iteration of the event loop."""
        self._waking = False
        until = self.loop.time() + SLICE_S
        busy = True
        while busy:
            busy = False
            for engine in self.engines.values():
                while engine.stream.step():
                    if self.loop.time() > until:
                        self.wake()
                        return
            for inlet in list(self.inlets):
                if inlet.ready and inlet.read():
                    busy = True
            if busy and self.loop.time() > until:
                self.wake()
                return


def with_rank(endpoint: str, rank: int) -> str:
    """Return the endpoint of a rank. Its port is the port of rank 0 plus the rank."""
    base, _, port = endpoint.rpartition(":")
    return f"{base}:{int(port) + rank}" if rank and port.isdecimal() else endpoint
