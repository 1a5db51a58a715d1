"""One process with many replicas. Each replica has a separate port; all share one event loop and one clock."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

import msgspec
from msgspec import Struct

from headway.emulator.content import Aliases
from headway.emulator.emulated_metrics import page_of
from headway.emulator.engine_request import Reader
from headway.emulator.faults import Fault
from headway.emulator.replica import KINDS, VERSION, Replica
from headway.emulator.room import Room
from headway.errors import HeadwayError
from headway.http.event_loop import end_signal
from headway.http.request_reader import Incoming
from headway.http.wire import ClientConnection
from headway.sim.setup import ClusterSetup, EngineSetup
from headway.types import Json

LAST_PORT: Final = 65535
GET, POST = b"GET", b"POST"


class Settings(Struct, frozen=True):
    address: str = "127.0.0.1"
    port: int = 9100  # port of the first replica; the other replicas use the following ports; 0: any free ports
    speed: float = 1.0  # simulated seconds per wall-clock second
    model: str | None = None  # another name under which clients may request the model
    mean_output: int = 128  # mean number of tokens in an answer if the request sets no length
    longest: int | None = None  # maximum number of tokens in prompt and answer together; None: the size of the KV cache
    events: str | None = None  # address for KV events, such as tcp://127.0.0.1; None: publish no events
    events_port: int = 5557  # first port; each replica uses one port for events and the next port for replays
    tick_s: float | None = None  # /metrics shows the state at the last multiple of `tick_s`; None: the current state


class Host:
    """Runs a replica for each engine of `setup`, all with the same scheduler."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, setup: ClusterSetup, scheduler: Any, settings: Settings
    ) -> None:
        self.loop, self.setup, self.settings = loop, setup, settings
        self.address = settings.address
        self.room = Room(loop, setup, scheduler, settings.speed, settings.tick_s)
        self.paths = Paths(self)
        self.aliases = Aliases()
        self.tasks: set[asyncio.Task[None]] = set()
        self.replicas = [self._replica(engine) for engine in setup.engines if not engine.rank]
        ranks = [rank for replica in self.replicas for rank in replica.ranks]
        for rank in ranks:
            self.room.on_tick.append(rank.figures.freeze)
        if settings.events is not None:
            self.room.on_step.append(lambda index, _: ranks[index].on_step())
            self.room.on_settled.append(self._on_settled)

    def _replica(self, engine: EngineSetup) -> Replica:
        settings, view = self.settings, engine.view
        models = tuple(dict.fromkeys(filter(None, (settings.model, *view.serves, view.model))))
        longest = view.kv_blocks * self.setup.block_tokens
        if settings.longest is not None:
            longest = min(longest, settings.longest)
        reader = Reader(view.model, self.setup.block_tokens, self.aliases, settings.mean_output, longest)
        return Replica(self, engine, reader, models)

    def _on_settled(self, now: int) -> None:
        for replica in self.replicas:
            replica.on_settled()

    async def start(self) -> None:
        settings = self.settings
        self._check_ports("--listen", settings.port, 1)
        events_port = settings.events_port
        if settings.events is not None:
            self._check_ports("--events", events_port, 2 * max(len(replica.ranks) for replica in self.replicas))
        for number, replica in enumerate(self.replicas):
            port = settings.port + number if settings.port else 0
            try:
                await replica.start(settings.address, port)
            except OSError as error:
                why = error.strerror or str(error)
                raise HeadwayError(f"--listen: cannot listen on {settings.address}:{port}: {why}.") from None
            if settings.events is not None:
                self._publish(replica, events_port)
                events_port += 2 * len(replica.ranks) if events_port else 0

    def _check_ports(self, option: str, first: int, each: int) -> None:
        most, count = (LAST_PORT + 1 - first) // each, len(self.replicas)
        if first and count > most:
            room = f"ports {first} to {LAST_PORT} are enough for {most} replicas, but there are {count}"
            raise HeadwayError(f"{option}: {room}. Use a lower port.")

    def _publish(self, replica: Replica, first: int) -> None:
        """Publish the KV events of each rank at port `first` plus the rank, and replays at the ports behind these."""
        from headway.emulator.kv_publisher import KvPublisher

        place, count = self.settings.events, len(replica.ranks)
        if count > 1 and not first:
            raise HeadwayError("--events: engines with data-parallel ranks need a port, as in tcp://127.0.0.1:5557.")
        for number, rank in enumerate(replica.ranks):
            ports = (first + number, first + count + number) if first else ("*", "*")
            endpoints = (f"{place}:{ports[0]}", f"{place}:{ports[1]}")
            rank.publisher = KvPublisher(rank.instance, self.loop, *endpoints, f"kv@{replica.name}", number)

    async def stop(self) -> None:
        for replica in self.replicas:
            replica.stop()
        self.room.close()
        for task in self.tasks:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(coroutine)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def find_replica(self, name: Any) -> Replica | None:
        """Return the replica with this name; None if there is no such replica. `name` may be any JSON value."""
        return next((replica for replica in self.replicas if replica.name == name), None)

    def describe(self, replica: Replica) -> Json:
        description: Json = {
            "name": replica.name,
            "url": f"http://{f'[{self.address}]' if ':' in self.address else self.address}:{replica.port}",
            "models": list(replica.models),
            "role": replica.instance.view.role,
            "fault": replica.fault.mode,
        }
        if replica.publisher is not None:
            description |= {"events": replica.publisher.endpoint, "events_replay": replica.publisher.replay}
        return description


class Paths:
    """Answers all requests except those for generation: models, health, metrics, faults and the cache."""

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
        stored = replica.responses.answer(incoming.method, path)
        if stored is not None:
            status, said = stored
            if isinstance(said, bytes):
                replica.say(client, incoming, status, said)
            else:
                replica.refuse(client, incoming, status, said)
            return
        method, answer = self.known.get(path, (POST, None))
        if answer is None and path not in KINDS:
            replica.refuse(client, incoming, 404, "Not Found")
        elif answer is None or method != incoming.method:
            replica.refuse(client, incoming, 405, "Method Not Allowed")
        else:
            answer(replica, client, incoming)

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
        self._say(replica, client, incoming, {"version": VERSION})

    def metrics(self, replica: Replica, client: ClientConnection, incoming: Incoming) -> None:
        replica.room.catch_up()
        page = page_of([rank.figures for rank in replica.ranks]).encode()
        replica.say(client, incoming, 200, page, kind="text/plain; version=0.0.4; charset=utf-8")

    def reset(self, replica: Replica, client: ClientConnection, incoming: Incoming) -> None:
        """Empty the prefix cache. If requests in flight use blocks of the cache, refuse."""
        if any(rank.instance.cache.held for rank in replica.ranks):
            replica.refuse(client, incoming, 503, "the cache was not emptied: requests in flight hold blocks of it")
            return
        for rank in replica.ranks:
            replica.room.empty_cache(rank.instance.view.index)
            if rank.publisher is not None:
                rank.publisher.on_cleared()
        replica.say(client, incoming, 200, b"")

    def replicas(self, replica: Replica, client: ClientConnection, incoming: Incoming) -> None:
        self._say(replica, client, incoming, {"replicas": list(map(self.host.describe, self.host.replicas))})

    def faults(self, replica: Replica, client: ClientConnection, incoming: Incoming) -> None:
        """List the fault of each replica (GET), or set the fault of one replica (POST)."""
        modes: dict[str, str] = {other.name: other.fault.mode for other in self.host.replicas}
        if incoming.method == POST:
            try:
                fault = Fault.read(msgspec.json.decode(incoming.body), "faults")
                target = replica if fault.replica is None else self.host.find_replica(fault.replica)
                if target is None:
                    raise HeadwayError(f"faults.replica: no replica {fault.replica!r}. Known: {', '.join(modes)}.")
            except (msgspec.MsgspecError, HeadwayError) as error:
                replica.refuse(client, incoming, 400, str(error))
                return
            self._say(replica, client, incoming, {"faults": modes | {target.name: fault.mode}})
            replica.loop.call_soon(target.set_fault, fault)
        elif incoming.method == GET:
            self._say(replica, client, incoming, {"faults": modes})
        else:
            replica.refuse(client, incoming, 405, "Method Not Allowed")

    def _say(self, replica: Replica, client: ClientConnection, incoming: Incoming, document: Any) -> None:
        replica.say(client, incoming, 200, msgspec.json.encode(document))


async def serve(setup: ClusterSetup, scheduler: Any, settings: Settings, started: Callable[[list[Json]], None]) -> None:
    """Serve until SIGTERM or Ctrl-C. When all replicas listen, call `started` with their descriptions."""
    host = Host(asyncio.get_running_loop(), setup, scheduler, settings)
    ended = end_signal()
    try:
        await host.start()
        started([host.describe(replica) for replica in host.replicas])
        await ended.wait()
    finally:
        await host.stop()
