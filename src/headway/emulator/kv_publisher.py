"""Publishes a replica's KV events over ZMQ, in vLLM's format: stored blocks with their tokens, and removed blocks, in
numbered batches. Listeners can request the last batches again.

The events follow the simulator's cache: prompt blocks are published at the end of the step that computed them,
generated blocks when their request ends, and removed blocks when they are evicted. Blocks in stores below the GPU are
published when they leave the GPU, with their hashes alone, which is the default of vLLM's offloading connector.
"""

import asyncio
import time
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from headway.emulator.content import Content
from headway.errors import HeadwayError, missing_extra
from headway.policies.prefix_tiers import GPU
from headway.sim.instance import Instance
from headway.sim.job import Job

END: Final = (-1).to_bytes(8, "big", signed=True)
KEPT: Final = 10_000  # number of last batches that listeners can request again
LOOK_S: Final = 0.5  # interval of checks for replay requests, because ZMQ may not signal every request
pack: Final = msgspec.msgpack.Encoder().encode


class KvPublisher:
    """Publishes one replica's events. `published` has the hashes of published blocks, by cache key and block index."""

    def __init__(
        self,
        instance: Instance,
        loop: asyncio.AbstractEventLoop,
        endpoint: str,
        replay: str,
        topic: str,
        rank: int = 0,
    ) -> None:
        try:
            import zmq
        except ImportError:
            raise missing_extra("--events", "pyzmq", "gateway") from None
        self.zmq, self.instance, self.loop = zmq, instance, loop
        self.size, self.topic, self.rank = instance.size, topic.encode(), rank
        self.log: list[Any] = []
        if instance.tiers is None:
            instance.cache.log = self.log
        else:
            self.log = instance.tiers.hear()
        self.published: dict[int, dict[int, int]] = {}
        # For each store below the GPU: published blocks, as in `published`.
        self.below: dict[str, dict[int, dict[int, int]]] = {}
        self.loaded: set[int] = set()  # cache keys with blocks that a request has loaded for its next step
        self.number = 0
        self.sent: deque[tuple[int, bytes]] = deque(maxlen=KEPT)
        self.events: list[dict[str, Any]] = []
        self.context = zmq.Context()
        self.pub = self._bind(zmq.PUB, endpoint)
        self.router = self._bind(zmq.ROUTER, replay)
        self.endpoint: str = self.pub.getsockopt_string(zmq.LAST_ENDPOINT)
        self.replay: str = self.router.getsockopt_string(zmq.LAST_ENDPOINT)
        self.fd = self.router.getsockopt(zmq.FD)
        loop.add_reader(self.fd, self._answer_replays)
        self.timer = loop.call_later(LOOK_S, self._look)

    def _bind(self, kind: int, endpoint: str) -> Any:
        socket = self.context.socket(kind)
        socket.setsockopt(self.zmq.LINGER, 0)
        socket.setsockopt(self.zmq.SNDHWM, 100_000)
        try:
            socket.bind(endpoint)
        except self.zmq.ZMQError as error:
            raise HeadwayError(f"--events: cannot listen on {endpoint}: {error}.") from None
        return socket

    def close(self) -> None:
        self.timer.cancel()
        self.loop.remove_reader(self.fd)
        self.pub.close()
        self.router.close()
        self.context.term()

    def settle(self, computed: Iterable[tuple[Job, Content]]) -> None:
        """Publish evicted blocks as removed. Publish the cached blocks of these requests as stored, if they are not yet
        published."""
        if self.log and self.instance.tiers is None:
            self._add_removed()
        elif self.log:
            self.loaded.update(entry[2] for entry in self.log if entry[5] == GPU)
            self._add_moved(dict.fromkeys(entry[2] for entry in self.log if entry[2] not in self.loaded))
            self.log.clear()
        for job, content in computed:
            self._add_stored(job, content)
            if self.loaded:
                self._add_moved([key for key in content.path.keys if key in self.loaded])
                self.loaded.difference_update(content.path.keys)
        self._send()

    def on_cleared(self) -> None:
        self._forget()
        self.events = [{"type": "AllBlocksCleared"}]
        self._send()

    def restart(self) -> None:
        """Continue as a new engine: forget what was published, and number batches from 0 again."""
        self._forget()
        self.events.clear()
        self.sent.clear()
        self.number = 0

    def _forget(self) -> None:
        self.log.clear()
        self.published.clear()
        self.below.clear()
        self.loaded.clear()

    def _add_removed(self) -> None:
        cache, hashes = self.instance.cache, []
        for key in dict.fromkeys(key for _, _, key, _ in self.log):
            known = self.published.get(key)
            if known is None:
                continue
            for block in sorted(known, reverse=True):
                if not has_block(cache.pieces.get(key), block):
                    hashes.append(known.pop(block))
            if not known:
                del self.published[key]
        self.log.clear()
        if hashes:
            self.events.append({"type": "BlockRemoved", "block_hashes": hashes, "medium": "GPU"})

    def _add_moved(self, keys: Iterable[int]) -> None:
        """Publish moves of blocks between the GPU and the stores below it. A block is added to a store before it is
        removed from the GPU, so that listeners do not forget its tokens."""
        tiers, pieces, below = self.instance.tiers, self.instance.cache.pieces, self.below
        removed: dict[str, list[int]] = {}
        for key in keys:
            on_gpu = self.published.get(key, {})
            known = dict(on_gpu)
            for blocks in below.values():
                known |= blocks.get(key, {})
            for tier in tiers.tiers if tiers is not None else ():
                held = below.setdefault(tier.name, {}).setdefault(key, {})
                added = []
                for block in sorted(known):
                    if tier.store.covered_to(key, block) == block:
                        if block in held:
                            removed.setdefault(tier.name, []).append(held.pop(block))
                    elif block not in held:
                        held[block] = known[block]
                        added.append(known[block])
                if added:
                    self._add_names(added, tier.name)
                if not held:
                    del below[tier.name][key]
            for block in sorted(on_gpu, reverse=True):
                if not has_block(pieces.get(key), block):
                    removed.setdefault("gpu", []).append(on_gpu.pop(block))
            if not on_gpu:
                self.published.pop(key, None)
        for name, hashes in removed.items():
            self.events.append({"type": "BlockRemoved", "block_hashes": hashes, "medium": name.upper()})

    def _add_names(self, hashes: list[int], tier: str) -> None:
        self.events.append(
            {
                "type": "BlockStored",
                "block_hashes": hashes,
                "parent_block_hash": None,
                "token_ids": [],
                "block_size": 0,
                "lora_id": None,
                "medium": tier.upper(),
                "lora_name": None,
            }
        )

    def _add_stored(self, job: Job, content: Content) -> None:
        pieces, size = self.instance.cache.pieces, self.size
        if job.computed > content.prompt_tokens:
            content.add_output(job.generated)
        blocks: list[int] = []
        for block in range(job.computed // size):
            key = content.key(block)
            known = self.published.get(key)
            if (known is None or block not in known) and has_block(pieces.get(key), block):
                if blocks and blocks[-1] != block - 1:
                    self._add_blocks(blocks, content, job)
                    blocks = []
                blocks.append(block)
                self.published.setdefault(key, {})[block] = content.hash(block)
        if blocks:
            self._add_blocks(blocks, content, job)

    def _add_blocks(self, blocks: list[int], content: Content, job: Job) -> None:
        self.events.append(
            {
                "type": "BlockStored",
                "block_hashes": [content.hash(block) for block in blocks],
                "parent_block_hash": content.hash(blocks[0] - 1) if blocks[0] else None,
                "token_ids": [token for block in blocks for token in content.tokens(block)],
                "block_size": self.size,
                "lora_id": None,
                "medium": "GPU",
                "lora_name": job.request.adapter,
            }
        )

    def _send(self) -> None:
        if not self.events:
            return
        payload = pack([time.time(), self.events, self.rank])
        self.events = []
        self.pub.send_multipart((self.topic, self.number.to_bytes(8, "big"), payload))
        self.sent.append((self.number, payload))
        self.number += 1

    def _look(self) -> None:
        self._answer_replays()
        self.timer = self.loop.call_later(LOOK_S, self._look)

    def _answer_replays(self) -> None:
        while True:
            try:
                frames = self.router.recv_multipart(self.zmq.NOBLOCK)
            except self.zmq.Again:
                return
            if len(frames) != 3 or len(frames[2]) != 8:
                continue
            first = int.from_bytes(frames[2], "big")
            for number, payload in self.sent:
                if number >= first:
                    self.router.send_multipart((frames[0], b"", self.topic, number.to_bytes(8, "big"), payload))
            self.router.send_multipart((frames[0], b"", b"", END, b""))


def has_block(piece: Any, block: int) -> bool:
    while piece is not None:
        if piece.start <= block < piece.end:
            return True
        piece = piece.next
    return False
