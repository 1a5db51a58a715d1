"""The KV daemons of the engines: a client for each address, and whether the daemon answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from headway.config.wording import one_line

if TYPE_CHECKING:
    from headway.gateway.kvd.channel import TlsFiles
    from headway.gateway.kvd.kvd_client import KvdClient
    from headway.gateway.live_clock import Clock

log = logging.getLogger("headway.gateway")


class KvDaemons:
    """Checks the daemons that hand-overs have used so far, so that a hand-over knows beforehand whether its daemon
    answers."""

    def __init__(
        self,
        clock: Clock,
        addresses: Callable[[], Iterable[str]],
        *,
        tls: TlsFiles | None,
        timeout_s: float,
        check_s: float,
    ) -> None:
        """`addresses` returns the daemons of the current engines. `timeout_s` limits each call, and `check_s` is both
        the time between two checks of a daemon and the time limit of a check."""
        self.clock, self.addresses = clock, addresses
        self.tls, self.timeout_s, self.check_s = tls, timeout_s, check_s
        self._clients: dict[str, KvdClient] = {}
        self._answers: dict[str, bool] = {}  # result of the last check by address
        # The hand-overs whose prefill is in flight: the daemon's address, and what to call if the daemon is lost.
        self._users: dict[object, tuple[str, Callable[[], None]]] = {}
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = self.clock.create_task(self._check_all())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
        for client in self._clients.values():
            await client.close()

    def client(self, address: str) -> KvdClient:
        """Return the client of a daemon. If its transport is not available, raise HeadwayError."""
        if address not in self._clients:
            from headway.gateway.kvd.kvd_client import KvdClient

            self._clients[address] = KvdClient(address, tls=self.tls, timeout_s=self.timeout_s)
        return self._clients[address]

    def answers(self, address: str) -> bool | None:
        """Return whether the daemon answered when it was last asked; None if it was never asked."""
        return self._answers.get(address)

    async def check(self, address: str) -> bool:
        """Ask the daemon for a sign of life. Return whether it answers."""
        try:
            await asyncio.wait_for(self.client(address).ping(), self.check_s)
        except Exception as error:  # every failure means that a hand-over through this daemon would fail
            late = isinstance(error, TimeoutError)
            self.record(address, False, f"no answer within {self.check_s:g} s" if late else one_line(error))
            return False
        self.record(address, True)
        return True

    def add_user(self, user: object, address: str, lost: Callable[[], None]) -> None:
        """Call `lost` as soon as the daemon does not answer, until `remove_user`."""
        self._users[user] = (address, lost)

    def remove_user(self, user: object) -> None:
        self._users.pop(user, None)

    def record(self, address: str, answers: bool, why: str = "") -> None:
        """Record whether a daemon answers. Log it when this changes."""
        before = self._answers.get(address, True)
        self._answers[address] = answers
        if before and not answers:
            log.warning("KV daemon %s does not answer (%s): hand-overs do without it", address, why)
            for used, lost in [*self._users.values()]:
                if used == address:
                    lost()
        elif answers and not before:
            log.warning("KV daemon %s answers again", address)

    async def _check_all(self) -> None:
        while True:
            await asyncio.sleep(self.check_s)
            current = set(self.addresses())
            for address in [address for address in self._answers if address not in current]:
                del self._answers[address]
                client = self._clients.pop(address, None)
                if client is not None:
                    client.abandon()
            await asyncio.gather(*(self.check(address) for address in self._answers))
