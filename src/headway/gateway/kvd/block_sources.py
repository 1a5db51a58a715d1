"""Fetches blocks from other daemons."""

import asyncio
from collections import Counter, OrderedDict
from typing import Final

from headway.errors import HeadwayError
from headway.gateway.kvd.block_store import Store
from headway.gateway.kvd.channel import REFUSED, KvdError
from headway.gateway.kvd.kvd_client import KvdClient
from headway.gateway.kvd.settings import Settings

IDLE: Final = 16  # maximum number of idle clients that stay connected


class Sources:
    def __init__(self, store: Store, settings: Settings) -> None:
        self.fetched = 0
        self._store = store
        self._settings = settings
        self._turns = asyncio.Semaphore(settings.limits.fetches)
        self._clients: OrderedDict[str, KvdClient] = OrderedDict()  # clients by address, least recently used first
        self._users: Counter[str] = Counter()  # number of fetches in flight, by address

    async def fetch(self, keys: list[bytes], address: str, ttl_s: float | None) -> int:
        """Copy blocks that this daemon lacks from another daemon, in the order of `keys`. Return how many blocks this
        daemon then has, counted from the first key to the first missing block."""
        self._check(address)
        async with self._turns:
            here = self._store.lookup(keys).leading
            if here == len(keys):
                return here
            client = self._client(address)
            self._users[address] += 1
            try:
                return here + await self._take(keys[here:], client, ttl_s)
            finally:
                self._users[address] -= 1

    async def _take(self, keys: list[bytes], client: KvdClient, ttl_s: float | None) -> int:
        there = await client.lookup(keys)
        count = 0
        async for key, data in client.blocks(keys[:there]):
            if data is None or not self._store.put(key, data, ttl_s):
                break
            count += 1
            self.fetched += 1
        return count + self._store.lookup(keys[count:]).leading

    def _check(self, address: str) -> None:
        """Refuse a source that `peers` does not allow, because clients must not choose where the daemon connects."""
        peers = self._settings.peers
        if address not in peers if peers else not address.startswith("quic://"):
            known = ", ".join(peers) if peers else "any quic:// address"
            raise KvdError(REFUSED, f"fetch: the daemon may not fetch from {address!r}. Its `peers` allow {known}.")

    def _client(self, address: str) -> KvdClient:
        if address not in self._clients:
            try:
                client = KvdClient(
                    address,
                    tls=self._settings.tls,
                    stall_s=self._settings.limits.stall_s,
                    channels=self._settings.limits.fetches,
                    frame_bytes=self._settings.limits.frame,
                )
            except HeadwayError as error:
                raise KvdError(REFUSED, str(error)) from None
            self._clients[address] = client
            idle = [name for name in self._clients if not self._users[name] and name != address]
            for name in idle[:-IDLE]:
                self._clients.pop(name).abandon()
                del self._users[name]
        self._clients.move_to_end(address)
        return self._clients[address]

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()
        self._clients.clear()
