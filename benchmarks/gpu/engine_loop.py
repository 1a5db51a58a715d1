"""The engine's side of a run over HTTP: one loop, in a process without a server, computes the steps of all replicas.

With dilation D, a step of d seconds ends D·d seconds after it began, by the wall clock. So several replicas take turns
on one GPU while each runs at the pace that it would have alone, and every other part of the system sees clocks that are
D times slower. With D = 1, one replica runs in real time: a step ends when its tokens are on the host.

The server talks to the loop through a socket, and reads the replicas' state from shared memory.
"""

from __future__ import annotations

import pickle
import select
import socket
from collections import deque
from collections.abc import Callable
from statistics import fmean
from time import monotonic
from typing import Any

import numpy as np

from benchmarks.gpu.scheduler import Backend, Job, Limits, Replica, Row

LONGEST = 1 << 18  # bytes of a message
RESET = "reset"  # message of the server: the measured requests begin
# What a replica shows on the board, in this order.
SHOWN = ("waiting", "running", "held", "preemptions", "queries", "hits")


class Line:
    """One end of a socket between two processes that keeps messages apart."""

    def __init__(self, end: socket.socket) -> None:
        self.end, self.buffer, self.closed = end, bytearray(LONGEST), False

    def send(self, message: Any) -> None:
        self.end.sendall(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))

    def receive(self) -> Any:
        """Return the next message, or None if there is none yet or the other end is closed."""
        try:
            count = self.end.recv_into(self.buffer, 0, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        except ConnectionError:
            count = 0
        if not count:
            self.closed = True
            return None
        return pickle.loads(memoryview(self.buffer)[:count])

    def wait(self, seconds: float | None) -> None:
        select.select([self.end], [], [], seconds)


def line_pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class Lane:
    """A replica, and the times of its steps by the wall clock."""

    def __init__(self, backend: Backend, limits: Limits, place: int, board: Any) -> None:
        self.backend, self.replica = backend, Replica(self, limits, place * limits.blocks)
        self.place, self.board, self.first = place, board, place * len(SHOWN)
        self.inbox: deque[tuple[float, Job]] = deque()  # requests, with the times at which the server sent them
        self.due, self.busy = 0.0, False  # end of the last step; whether it is still to come
        self.sent: dict[int, tuple[float, float]] = {}  # request id -> when it was sent, when its first token was due
        self.queries = self.hits = 0
        self.reset()

    def reset(self) -> None:
        """Forget the measured times."""
        self.steps = self.followed = 0
        self.between_s = self.late_s = self.worst_s = 0.0
        self.times: list[tuple[float, float, int]] = []  # of ended requests: TTFT, E2E, tokens

    def run(self, rows: list[Row]) -> list[int]:
        self.show()
        return self.backend.run(rows)

    def show(self) -> None:
        replica = self.replica
        values = len(replica.waiting) + len(self.inbox), len(replica.running), replica.blocks.held, replica.preemptions
        for number, value in enumerate((*values, self.queries, self.hits), self.first):
            self.board[number] = value

    @property
    def ready(self) -> bool:
        return not self.busy and bool(self.inbox or not self.replica.idle)

    def starts(self, dilation: float) -> float:
        """Return when the next step begins. Dilated steps begin when the last one ends, or when a request arrives."""
        if dilation == 1:
            return monotonic()
        return self.due if not self.replica.idle else max(self.due, self.inbox[0][0])

    def note(self, first: list[Job], ended: list[Job], dilation: float) -> None:
        """Note the times of requests whose first or last token the last step computed."""
        for job in first:
            self.sent[job.id] = self.sent[job.id][0], self.due
        for job in ended:
            sent, token = self.sent.pop(job.id)
            self.times.append(((token - sent) / dilation, (self.due - sent) / dilation, job.generated))
            self.queries += job.prompt
            self.hits += job.cached

    def report(self) -> dict[str, float]:
        """Return the means over the measured requests, in milliseconds of the replica's clock.

        `between` is the time between steps in real time, `late` the time by which dilated steps ended late."""
        times = self.times or [(0.0, 0.0, 2)]
        found = {
            "ttft": fmean(ttft for ttft, _, _ in times),
            "tpot": fmean((e2e - ttft) / (tokens - 1) for ttft, e2e, tokens in times if tokens > 1),
            "e2e": fmean(e2e for _, e2e, _ in times),
            "between": self.between_s / max(1, self.followed),
            "late": self.late_s / max(1, self.steps),
            "latest": self.worst_s,
        }
        counts = {"steps": self.steps, "requests": len(self.times), "preemptions": self.replica.preemptions}
        return {f"{name}_ms": value * 1e3 for name, value in found.items()} | counts


class EngineLoop:
    def __init__(self, lanes: list[Lane], line: Line, dilation: float, clock: Callable[[Replica], float]) -> None:
        """`clock` computes a step of a replica, and returns how long it took."""
        self.lanes, self.line, self.dilation, self.clock = lanes, line, dilation, clock

    def run(self) -> None:
        """Serve until the server closes its end."""
        while not self.line.closed:
            self._end_steps()
            self._receive()
            ready = [lane for lane in self.lanes if lane.ready]
            if ready:
                self._step(min(ready, key=lambda lane: lane.starts(self.dilation)))
            else:
                dues = [lane.due for lane in self.lanes if lane.busy]
                self.line.wait(max(0.0, min(dues) - monotonic()) if dues else None)

    def _end_steps(self) -> None:
        now = monotonic()
        for lane in self.lanes:
            if lane.busy and lane.due <= now:
                lane.busy = False
                lane.show()

    def _receive(self) -> None:
        while (message := self.line.receive()) is not None:
            if message == RESET:
                for lane in self.lanes:
                    lane.reset()
                continue
            place, id, sent, tokens, names, output = message
            lane = self.lanes[place]
            known = np.zeros(len(tokens) // 4 + output, np.int32)
            known[:-output] = np.frombuffer(tokens, np.int32)
            prompt = len(known) - output
            lane.inbox.append((sent, Job(id, known, prompt, prompt, output, names)))
            lane.sent[id] = (sent, 0.0)
            lane.board[lane.first] += 1

    def _step(self, lane: Lane) -> None:
        replica, dilation = lane.replica, self.dilation
        begin = lane.starts(dilation)
        if dilation == 1 and not replica.idle:
            lane.between_s += begin - lane.due
            lane.followed += 1
        while lane.inbox and lane.inbox[0][0] <= begin:
            replica.add(lane.inbox.popleft()[1])
        seconds = self.clock(replica)
        now = monotonic()
        if dilation == 1:
            lane.due = now
        else:
            late = max(0.0, now - begin - seconds * dilation)
            lane.due = begin + seconds * dilation + late
            lane.late_s, lane.worst_s = lane.late_s + late / dilation, max(lane.worst_s, late / dilation)
            lane.busy = True
        lane.steps += 1
        rows = [row.job.id for row in replica.rows if row.samples]
        first, ended = replica.finish(0)
        done = [(job.id, job.cached, job.tokens[job.prompt :].tobytes()) for job in ended]
        self.line.send((lane.due, rows, done))
        lane.note(first, ended, dilation)
        if not lane.busy:
            lane.show()
