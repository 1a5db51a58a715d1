"""One emulated engine: its HTTP interface, with vLLM's paths, and its faults."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Callable
from errno import EMFILE
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

import msgspec

from headway.emulator.agent_apis import StoredResponses, count_answer
from headway.emulator.content import Content
from headway.emulator.emulated_metrics import EmulatedMetrics
from headway.emulator.emulated_request import Flight
from headway.emulator.engine_request import FIELD, EngineRequest, Reader
from headway.emulator.faults import AMID_STREAMS, AT_ARRIVAL, NO_FAULT, Fault
from headway.emulator.kv_publisher import KvPublisher
from headway.errors import HeadwayError
from headway.http.client_limits import Limits
from headway.http.forwarding import RANK
from headway.http.replies import head_of
from headway.http.request_reader import Incoming
from headway.http.wire import ClientConnection
from headway.sim.front_end import FrontEnd
from headway.sim.instance import Instance
from headway.sim.job import Job
from headway.sim.setup import EngineSetup
from headway.types import Priority, Request

if TYPE_CHECKING:
    from headway.emulator.host import Host

KINDS: Final = {
    b"/v1/chat/completions": "chat",
    b"/v1/completions": "completion",
    b"/v1/embeddings": "embedding",
    b"/v1/responses": "responses",
    b"/v1/messages": "messages",
    b"/v1/messages/count_tokens": "count_tokens",
}
VERSION: Final = "0.32.0+headway"  # version of vLLM whose API the emulator implements
SWEEP_S: Final = 1.0
TYPES: Final = {400: "BadRequestError", 404: "NotFoundError", 405: "MethodNotAllowedError"}
log = logging.getLogger(__name__)


class Replica:
    """An emulated engine, and the owner of its clients' connections."""

    def __init__(self, host: Host, engine: EngineSetup, reader: Reader, models: tuple[str, ...]) -> None:
        """`engine` is the engine's first data-parallel rank."""
        self.host, self.room, self.reader, self.models = host, host.room, reader, models
        self.loop: asyncio.AbstractEventLoop = host.loop
        self.index, self.model = engine.view.index, models[0]  # index of the engine's first instance
        instances = self.room.instances[self.index : self.index + engine.ranks]
        self.instance = instances[0]
        self.name = self.instance.view.id.removesuffix("-rank-0" if engine.ranks > 1 else "")
        self.ranks = [Rank(instance, rank, self) for rank, instance in enumerate(instances)]
        servers = engine.servers or engine.ranks
        self.front = None if engine.ranks == 1 else FrontEnd(self.instance.view, instances, servers)
        self.figures = self.ranks[0].figures
        self.limits = Limits(address_connections=Limits().connections)  # a gateway opens all connections to an engine
        self.held_bytes = 0  # total size of the request bodies in memory, in bytes
        self.responses = StoredResponses()
        self.clients: dict[ClientConnection, None] = {}
        self.addresses: Counter[str] = Counter()
        self.half_closed = False  # as in vLLM and SGLang, a client that closes its sending half has disconnected
        self.draining = False
        # `left` is the number of requests that will still fail.
        # With `crash-after-tokens`, `left` is the number of tokens that will still be sent before the crash.
        self.fault, self.left = NO_FAULT, 0
        self.heal: asyncio.TimerHandle | None = None
        self.port = 0
        self.server: asyncio.Server | None = None
        self.on_end: Callable[[Flight, str], None] = lambda flight, outcome: None
        self._sweeper: asyncio.TimerHandle | None = None

    def seconds(self) -> float:
        return self.loop.time()

    def check_sender(self, named: dict[bytes, bytes]) -> None: ...  # accept every sender

    def count_refusal(self, status: int) -> None:
        """Count an error that the connection itself sent, such as for an invalid request."""
        self.figures.ended["error"] += 1

    def report_turned_away(self, address: str, why: str) -> None: ...  # an engine says nothing

    async def start(self, address: str, port: int) -> None:
        self.server = await self.loop.create_server(lambda: ClientConnection(self), address, port, backlog=4096)
        if not self.server.sockets:  # the event loop created no socket, but raised no error
            self.server.close()
            raise OSError(EMFILE, os.strerror(EMFILE))
        self.port = self.server.sockets[0].getsockname()[1]
        if self._sweeper is None:
            self._sweeper = self.loop.call_later(SWEEP_S, self._sweep)

    def stop(self) -> None:
        self.close()
        for timer in (self._sweeper, self.heal):
            if timer is not None:
                timer.cancel()
        for rank in self.ranks:
            if rank.publisher is not None:
                rank.publisher.close()

    @property
    def publisher(self) -> KvPublisher | None:
        """The publisher of the first rank. If it is None, no rank publishes."""
        return self.ranks[0].publisher

    def close(self) -> None:
        if self.server is not None:
            self.server.close()
            self.server = None
        for client in list(self.clients):
            client.transport.abort()

    def _sweep(self) -> None:
        now = self.seconds()
        for client in list(self.clients):
            client.overdue(now)
        self._sweeper = self.loop.call_later(SWEEP_S, self._sweep)

    def begin(self, client: ClientConnection, incoming: Incoming) -> None:
        path = incoming.target.partition(b"?")[0]
        kind = KINDS.get(path)
        if self.fault.mode == "freeze" and path != b"/faults":
            client.exchange = Unread(self, client, incoming)
            return
        if kind is None or incoming.method != b"POST":
            self.host.paths.answer(self, client, incoming, path)
            return
        if self.fault.mode in AT_ARRIVAL:
            self._fail(client, incoming)
            return
        number = self.room.number()
        header = next((value for name, value in incoming.fields if name == FIELD), None)
        try:
            request = self.reader.read(kind, incoming.body, header, number)
        except (msgspec.MsgspecError, HeadwayError, RecursionError) as error:
            self.refuse(client, incoming, 400, str(error))
            return
        model = request.body.model
        if model and model not in self.models:
            self.refuse(client, incoming, 404, f"The model `{model}` does not exist.")
            return
        if kind == "count_tokens":
            self.say(client, incoming, 200, count_answer(request))
            return
        self._fly(client, incoming, request, number)

    def _fly(self, client: ClientConnection, incoming: Incoming, request: EngineRequest, number: int) -> None:
        content, body = request.content, request.body
        simulated = Request(
            number,
            self.room.now_ps(),
            content.prompt_tokens,
            content.path,
            self.model,
            max_tokens=body.max_completion_tokens or body.max_tokens,
            adapter=request.truth.adapter,
        )
        job = self.room.job(simulated, request.script.tokens, content.output_key)
        client_id = next((value for name, value in incoming.fields if name == b"x-request-id"), b"")
        id = client_id.decode("latin-1") if client_id else f"{number:032x}"
        flight = Flight(self, client, incoming, request, job, id)
        flight.rank = self._rank(incoming, simulated)
        client.exchange = flight
        params, source = body.kv_transfer_params or {}, None
        if params.get("do_remote_prefill"):
            sender = self.host.find_replica(params.get("remote_engine_id"))
            source = -1 if sender is None else sender.index
        priority = Priority(request.priority, request.truth.hints)
        flight.enqueued_ps = self.room.submit(self.index + flight.rank, job, flight, priority, source)

    def _rank(self, incoming: Incoming, request: Request) -> int:
        """Return the data-parallel rank of a request: the one that its header names, or else the engine's choice. As in
        vLLM, a header that is no number is ignored."""
        if self.front is None:
            return 0
        asked = incoming.named.get(RANK, b"")
        if asked.isdigit() and int(asked) < len(self.ranks):
            return int(asked)
        now = self.room.catch_up()
        return self.front.choose(now, request).view.index - self.index

    def _fail(self, client: ClientConnection, incoming: Incoming) -> None:
        mode = self.fault.mode
        self._count_fault()
        if mode == "reset":
            client.transport.abort()
        else:
            self.refuse(client, incoming, int(mode), "the engine fails because of an injected fault")

    def _count_fault(self) -> None:
        if self.fault.requests is not None:
            self.left -= 1
            if self.left == 0:  # no further request fails
                self.set_fault(NO_FAULT)

    def breaks_stream(self, tokens: int) -> str:
        """Return how a stream breaks that is about to send its tokens up to this number; "" if it does not."""
        mode = self.fault.mode
        if mode not in AMID_STREAMS or tokens <= self.fault.tokens:
            return ""
        self._count_fault()
        return mode

    # --- reports of flights -------------------------------------------------------------------------------------------

    def on_first_token(self, flight: Flight, now: int) -> None:
        figures = self.ranks[flight.rank].figures
        figures.first_token.add(self.room.seconds(now - flight.enqueued_ps))
        figures.prompt_tokens += flight.request.content.prompt_tokens
        figures.cached_tokens += self.cached_tokens(flight.job)

    def grant_tokens(self, tokens: int) -> int:
        """Count tokens that are about to be sent. Return how many of them may be sent before a crash."""
        if self.fault.mode == "crash-after-tokens":
            due, tokens = tokens, min(tokens, max(self.left, 0))
            if due >= self.left >= 0:
                self.left = -1  # negative, so that the replica crashes only once
                self.loop.call_soon(self.crash)
            else:
                self.left -= tokens
        self.figures.generation_tokens += tokens
        return tokens

    def cached_tokens(self, job: Job) -> int:
        return self.room.cluster.recorder.cached_tokens[job.row]

    def on_finished(self, flight: Flight, now: int) -> None:
        room, script = self.room, flight.request.script
        started = room.cluster.recorder.started_ps[flight.job.row]
        queued = 0 if started < 0 else started - flight.enqueued_ps
        each = None if script.tokens < 2 else room.seconds(now - flight.first_ps) / (script.tokens - 1)
        whole = room.seconds(now - flight.enqueued_ps)
        content = flight.request.content
        rank = self.ranks[flight.rank]
        rank.figures.record_finish(content.prompt_tokens, script.tokens, room.seconds(queued), each, whole)
        rank.figures.ended["length" if script.reason == "length" else "stop"] += 1
        content.add_output(flight.job.generated)
        if rank.publisher is not None:
            rank.touched.append((flight.job, content))
        self.on_end(flight, "completed")

    def on_abandoned(self, flight: Flight) -> None:
        self.figures.ended["abort"] += 1
        self.room.cancel(self.index + flight.rank, flight.job)
        self.on_end(flight, "abandoned")

    def transfer_params(self, flight: Flight) -> dict[str, Any]:
        """Return the parameters by which a decode engine finds the prompt's KV blocks; {} if they are not requested."""
        params = flight.request.body.kv_transfer_params or {}
        if not params.get("do_remote_decode"):
            return {}
        blocks = -(-flight.request.content.prompt_tokens // self.room.cluster.block_tokens)
        return {
            "kv_transfer_params": {
                "do_remote_prefill": True,
                "do_remote_decode": False,
                "remote_engine_id": self.name,
                "remote_request_id": flight.id,
                "remote_block_ids": [list(range(blocks))],
                "remote_host": self.host.address,
                "remote_port": self.port,
                "tp_size": 1,
            }
        }

    def on_settled(self) -> None:
        for rank in self.ranks:
            rank.on_settled()

    # --- faults ------------------------------------------------------------------------------------------------------

    def set_fault(self, fault: Fault) -> None:
        if self.heal is not None:
            self.heal.cancel()
            self.heal = None
        self._recover(returns=fault.mode != "crash")  # if the new fault is a crash, a crashed replica stays down
        self.fault = fault
        self.left = fault.tokens if fault.mode == "crash-after-tokens" else fault.requests or 0
        if fault.mode == "slow":
            for instance in {rank.instance.planner: rank.instance for rank in self.ranks}.values():
                self.room.slow(instance.view.index, Fraction(fault.factor).limit_denominator(1000))
        elif fault.mode in ("hang", "freeze"):
            self.room.stuck.update(rank.instance.view.index for rank in self.ranks)
        elif fault.mode == "crash":
            self.crash()
        if fault.seconds is not None and fault.mode not in ("none", "crash", "crash-after-tokens"):
            self.heal = self.loop.call_later(fault.seconds, self._recover)

    def _recover(self, returns: bool = True) -> None:
        """End the fault. If the replica has crashed and `returns` is true, start it again."""
        before, self.fault = self.fault, NO_FAULT
        if before.mode in ("slow", "hang", "freeze"):
            for rank in self.ranks:
                self.room.restore_speed(rank.instance.view.index)
        for exchange in [client.exchange for client in self.clients]:
            if isinstance(exchange, Unread):
                exchange.read()
        if self.server is None and self.port and returns:
            self.host.spawn(self._return())

    async def _return(self) -> None:
        try:
            await self.start(self.host.address, self.port)
        except OSError as error:
            log.warning("%s: cannot listen on port %d after the crash: %s", self.name, self.port, error)

    def crash(self) -> None:
        """Break all connections and stop listening. If the fault has `seconds`, a new engine starts after that time."""
        for rank in self.ranks:
            for sink in self.room.crash(rank.instance.view.index):
                if isinstance(sink, Flight):
                    sink.over = True
                    rank.figures.ended["error"] += 1
                    self.on_end(sink, "lost")
            rank.touched = []
        self.close()
        self.responses = StoredResponses()
        for rank in self.ranks:
            if rank.publisher is not None:
                rank.publisher.restart()
        if self.fault.seconds is not None:
            self.heal = self.loop.call_later(self.fault.seconds, self._recover)

    def refuse(self, client: ClientConnection, incoming: Incoming, status: int, why: str) -> None:
        """Answer with an error in vLLM's format."""
        kind = TYPES.get(status, "InternalServerError")
        error = {"message": why, "type": kind, "param": None, "code": status}
        document: dict[str, Any] = {"error": error}
        if incoming.target.startswith(b"/v1/messages"):
            document = {"type": "error", "error": {"type": kind, "message": why}}
        body = msgspec.json.encode(document)
        self.say(client, incoming, status, body)

    def say(
        self,
        client: ClientConnection,
        incoming: Incoming,
        status: int,
        body: bytes,
        *,
        kind: str = "application/json",
        request_id: str | None = None,
    ) -> None:
        fields = [("x-engine", self.name)]
        if request_id is not None:
            fields.append(("x-request-id", request_id))
        head = head_of(status, len(body), tuple(fields), close=not incoming.keep_alive, kind=kind)
        client.transport.write(head + body)
        client.finish(incoming.keep_alive)


class Rank:
    """One data-parallel rank of a replica: its instance, its figures, and its KV events."""

    def __init__(self, instance: Instance, number: int, replica: Replica) -> None:
        setup, self.room = replica.host.setup, replica.room
        self.instance = instance
        self.figures = EmulatedMetrics(instance, replica.model, setup.block_tokens, setup.prefix_caching, number)
        self.publisher: KvPublisher | None = None
        self.touched: list[tuple[Job, Content]] = []  # requests that may have unpublished blocks

    def on_step(self) -> None:
        """Collect the requests whose prompt chunks were computed by the step that just ended."""
        if self.publisher is not None:
            for job, _ in self.instance.run.chunks:
                flight = self.room.sinks.get(job)
                if isinstance(flight, Flight):
                    self.touched.append((job, flight.request.content))

    def on_settled(self) -> None:
        if self.publisher is not None and (self.touched or self.publisher.log):
            touched, self.touched = self.touched, []
            self.publisher.settle(touched)


class Unread:
    """A request that a frozen engine has received but does not read before the fault ends."""

    def __init__(self, replica: Replica, client: ClientConnection, incoming: Incoming) -> None:
        self.replica, self.client, self.incoming = replica, client, incoming
        self.over = self.sent = False

    def read(self) -> None:
        self.client.exchange = None
        self.replica.begin(self.client, self.incoming)

    def client_gone(self) -> None:
        self.over = True

    def overdue(self, now: float) -> None: ...

    def hold(self) -> None: ...

    def go_on(self) -> None: ...
