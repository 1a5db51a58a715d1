"""Between an engine and whoever listens to its KV events: passes batches on, keeps them, and loses some when told."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

import msgspec
import zmq

from waiting import until

Batch = tuple[bytes, int, Any]  # topic, sequence number, payload
END: Final = -1  # the sequence number after the last batch of a replay


class EventRelay:
    def __init__(self, source: str, endpoint: str) -> None:
        self.source, self.endpoint = source, endpoint
        self.batches: list[Batch] = []
        self.lost: list[Batch] = []
        self._losing = 0
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def lose(self, batches: int) -> None:
        """The next ones are not passed on."""
        self._losing = batches

    @property
    def lossless(self) -> bool:
        """Whether all that was to be lost has been."""
        return not self._losing

    @property
    def events(self) -> list[dict[str, Any]]:
        return [event for _, _, (_, events, *_) in list(self.batches) for event in events]

    def until(self, holds: Callable[[], bool]) -> None:
        until(holds, "the event did not come")

    def stop(self) -> None:
        self._ending.set()
        self._thread.join(10)

    def _run(self) -> None:
        context = zmq.Context.instance()
        with context.socket(zmq.SUB) as inward, context.socket(zmq.PUB) as outward:
            inward.linger = outward.linger = 0
            inward.connect(self.source)
            inward.subscribe(b"")
            outward.bind(self.endpoint)
            while not self._ending.is_set():
                if inward.poll(50):
                    frames = inward.recv_multipart()
                    if not self._keep(frames):
                        outward.send_multipart(frames)

    def _keep(self, frames: list[bytes]) -> bool:
        """Whether it is to be lost."""
        topic, number, payload = frames
        batch = (topic, int.from_bytes(number, "big"), msgspec.msgpack.decode(payload))
        self.batches.append(batch)
        if not self._losing:
            return False
        self._losing -= 1
        self.lost.append(batch)
        return True


def replayed(endpoint: str, first: int) -> list[Batch]:
    """What the engine still has, from a sequence number on. One question has many answers: nothing for a REQ socket."""
    with zmq.Context.instance().socket(zmq.DEALER) as asking:
        asking.linger = 0
        asking.rcvtimeo = 60_000
        asking.connect(endpoint)
        asking.send_multipart([b"", first.to_bytes(8, "big")])
        found: list[Batch] = []
        while True:
            _, topic, number, payload = asking.recv_multipart()
            if int.from_bytes(number, "big", signed=True) == END:
                return found
            found.append((topic, int.from_bytes(number, "big"), msgspec.msgpack.decode(payload)))
