"""Fetches blocks from other daemons."""

import asyncio
from collections import OrderedDict
from typing import Final

from headway.errors import HeadwayError
from headway.gateway.kvd.block_store import Store
from headway.gateway.kvd.channel import REFUSED, KvdError
from headway.gateway.kvd.kvd_client import KvdClient
from headway.gateway.kvd.settings import Settings

IDLE: Final = 16  # connections that stay open without users
TIMEOUT_S: Final = 30.0  # of each answer


class _Source:
    def __init__(self, client: KvdClient) -> None:
        self.client = client
        self.users = 0


class Sources:
    def __init__(self, store: Store, settings: Settings) -> None:
        self.fetched = 0
        self._store = store
        self._settings = settings
        self._turns = asyncio.Semaphore(settings.limits.fetches)
        self._known: OrderedDict[str, _Source] = OrderedDict()

    async def fetch(self, keys: list[bytes], address: str, ttl_s: float | None) -> int:
        """Take the leading blocks that are missing here from another daemon; return how many are here then."""
        self._check(address)
        async with self._turns:
            here = self._store.lookup(keys).leading
            if here == len(keys):
                return here
            source = self._source(address)
            source.users += 1
            try:
                return here + await self._take(keys[here:], source.client, ttl_s)
            finally:
                source.users -= 1

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
        """Refuse unlisted sources: a client must not make the daemon connect to any address it likes."""
        peers = self._settings.peers
        if address not in peers if peers else not address.startswith("quic://"):
            known = ", ".join(peers) if peers else "any quic:// address"
            raise KvdError(REFUSED, f"fetch: blocks may not come from {address!r}; allowed: {known}.")

    def _source(self, address: str) -> _Source:
        if address not in self._known:
            try:
                client = KvdClient(
                    address,
                    tls=self._settings.tls,
                    timeout_s=TIMEOUT_S,
                    channels=self._settings.limits.fetches,
                    frame_bytes=self._settings.limits.frame,
                )
            except HeadwayError as error:
                raise KvdError(REFUSED, str(error)) from None
            self._known[address] = _Source(client)
            idle = [name for name, source in self._known.items() if not source.users and name != address]
            for name in idle[:-IDLE]:
                self._known.pop(name).client.abandon()
        self._known.move_to_end(address)
        return self._known[address]

    async def close(self) -> None:
        for source in self._known.values():
            await source.client.close()
        self._known.clear()
