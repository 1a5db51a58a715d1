"""What API keys have used of their limits: requests, tokens, and requests in flight.

An account counts for one key. Worker processes of one gateway share their accounts through a file in memory, so limits
are exact for all of them together. Gateways that are peers tell each other what their keys have used.
"""

from __future__ import annotations

import logging
import mmap
import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import Annotated, Final

from msgspec import Meta, Struct

from headway.config.keys import RATE, Doc, Unit
from headway.config.units import rate

Rate = Annotated[float, Unit("rate", lambda value, where: float(rate(value, where)), "{:g}/s".format, form=RATE)]
Many = Annotated[int, Meta(ge=1, le=10**6)]
ManyTokens = Annotated[int, Meta(ge=1, le=10**12)]
MINUTE_S: Final = 60.0
SLOTS: Final = 1 << 16  # keys for which the file of worker processes has room
HEAD: Final = struct.Struct("32sddd")  # digest of the key, requests left, tokens left, time of these numbers
COUNT: Final = struct.Struct("q")  # requests in flight of one worker
FREE: Final = bytes(32)
log = logging.getLogger("headway.gateway")

Usage = tuple[int, int, int]  # requests and tokens since the last message, and requests in flight


class KeyLimits(Struct, kw_only=True):
    """The limits of a key. Those of `rate` and `token_rate` refill continuously, up to their burst."""

    rate: Annotated[Rate | None, "mean request rate allowed"] = None
    burst: Annotated[Many | None, Doc("requests allowed at once", default="one second's worth of `rate`")] = None
    token_rate: Annotated[Rate | None, "mean rate of tokens allowed, of prompts and answers, as in 100000/min"] = None
    token_burst: Annotated[
        ManyTokens | None, Doc("tokens allowed at once", default="one minute's worth of `token_rate`")
    ] = None
    concurrency: Annotated[Many | None, "requests allowed in flight"] = None

    @property
    def most_requests(self) -> float:
        return inf if self.rate is None else float(self.burst or max(1.0, self.rate))

    @property
    def most_tokens(self) -> float:
        return inf if self.token_rate is None else float(self.token_burst or max(1.0, self.token_rate * MINUTE_S))


class Refusal(Struct, frozen=True):
    status: int
    why: str
    retry_after: int = 1  # number of seconds after which the client may retry


class Account:
    """The usage of one key in this process."""

    def __init__(self, limits: KeyLimits, digest: bytes = b"", changed: dict[bytes, Account] | None = None) -> None:
        """`changed` collects the accounts that the peers must hear of; None: there are no peers."""
        self.limits, self.digest, self.changed = limits, digest, changed
        self.requests, self.tokens, self.stamp = limits.most_requests, limits.most_tokens, 0.0  # what is left
        self.inflight = 0  # counted only if `concurrency` is limited
        self.elsewhere: dict[str, int] = {}  # requests in flight at peers, by the peer's name
        self.new_requests, self.new_tokens = 0, 0  # since the last message to the peers

    def change(self, limits: KeyLimits) -> None:
        """Adopt other limits, and keep the usage."""
        if (limits.concurrency is None) != (self.limits.concurrency is None):
            self.forget_inflight()
        self.limits = limits

    def forget_inflight(self) -> None:
        self.inflight = 0

    def take(self, now: float) -> Refusal | None:
        """Count a request until `release`. If a limit forbids the request, return the refusal instead."""
        limits = self.limits
        if limits.concurrency is not None and self.inflight + sum(self.elsewhere.values()) >= limits.concurrency:
            return Refusal(429, f"the API key has {limits.concurrency} requests in flight, its limit; retry later")
        if limits.rate is not None:
            self._refill(now)
            if self.requests < 1.0:
                text = f"the API key is limited to {limits.rate:g} requests per second"
                return Refusal(429, text, _whole_seconds((1.0 - self.requests) / limits.rate))
            self.requests -= 1.0
            self.new_requests += 1
            self._note_change()
        if limits.concurrency is not None:
            self.inflight += 1
            self._note_change()
        return None

    def release(self) -> None:
        if self.limits.concurrency is not None:
            self.inflight = max(0, self.inflight - 1)
            self._note_change()

    def reserve(self, tokens: int, now: float) -> Refusal | None:
        """Take the tokens that a request may use. A request that may use more than the burst passes if the whole burst
        is left."""
        limits = self.limits
        if limits.token_rate is None:
            return None
        self._refill(now)
        needed = min(float(tokens), limits.most_tokens)
        if self.tokens < needed:
            text = f"the API key is limited to {limits.token_rate * MINUTE_S:g} tokens per minute"
            return Refusal(429, text, _whole_seconds((needed - self.tokens) / limits.token_rate))
        self.settle(0, tokens)
        return None

    def settle(self, reserved: int, used: int) -> None:
        """Replace the tokens that were reserved for a request by those that it has used."""
        self.tokens = min(self.tokens + reserved - used, self.limits.most_tokens)
        self.new_tokens += used - reserved
        self._note_change()

    def _refill(self, now: float) -> None:
        """Add what the time since the last call allows. The clocks of processes may differ by some milliseconds."""
        limits, seconds = self.limits, now - self.stamp
        if seconds > 0.0:
            self.stamp = now
            self.requests = min(limits.most_requests, self.requests + seconds * (limits.rate or 0.0))
            self.tokens = min(limits.most_tokens, self.tokens + seconds * (limits.token_rate or 0.0))

    # --- peers -------------------------------------------------------------------------------------------------------

    def _note_change(self) -> None:
        if self.changed is not None:
            self.changed[self.digest] = self

    def news(self) -> Usage:
        """Return the usage since the last message to the peers."""
        usage = self.new_requests, self.new_tokens, self.inflight
        self.new_requests = self.new_tokens = 0
        return usage

    def hear(self, peer: str, usage: Usage, now: float) -> None:
        requests, tokens, inflight = usage
        self._refill(now)
        self.requests -= requests
        self.tokens -= tokens
        self.elsewhere[peer] = inflight


class SharedAccount(Account):
    """The usage of one key in all worker processes of a gateway."""

    def __init__(self, limits: KeyLimits, file: UsageFile, slot: int) -> None:
        super().__init__(limits)
        self.file, self.slot = file, slot

    def forget_inflight(self) -> None:
        with self._held():
            self.inflight = 0

    def take(self, now: float) -> Refusal | None:
        if self.limits.rate is None and self.limits.concurrency is None:
            return None
        with self._held():
            return super().take(now)

    def release(self) -> None:
        if self.limits.concurrency is not None:
            with self._held():
                super().release()

    def reserve(self, tokens: int, now: float) -> Refusal | None:
        if self.limits.token_rate is None:
            return None
        with self._held():
            return super().reserve(tokens, now)

    def settle(self, reserved: int, used: int) -> None:
        with self._held():
            super().settle(reserved, used)

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Read the numbers from the file, and write them back. No other process can do so meanwhile."""
        with self.file.locked():
            self.requests, self.tokens, self.stamp, self.inflight, own = self.file.read(self.slot)
            before = self.inflight
            yield
            own = max(0, own + self.inflight - before)
            self.file.write(self.slot, self.requests, self.tokens, self.stamp, own)


class UsageFile:
    """A table of accounts that worker processes share. The kernel releases the lock of a process that dies."""

    def __init__(self, path: Path, worker: int, workers: int) -> None:
        import fcntl  # imported here, because not every system has it; without it, a gateway has one process

        self._flock, self._lock, self._unlock = fcntl.flock, fcntl.LOCK_EX, fcntl.LOCK_UN
        self.worker, self.workers = worker, workers
        self.size = HEAD.size + COUNT.size * workers
        self.file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        with self.locked():
            if os.fstat(self.file).st_size < SLOTS * self.size:
                os.ftruncate(self.file, SLOTS * self.size)
            self.table = mmap.mmap(self.file, SLOTS * self.size)
            self._forget_own()

    def _forget_own(self) -> None:
        """Drop the requests in flight of a former process with this number: they have ended with it."""
        for slot in range(SLOTS):
            at = slot * self.size
            if self.table[at] or self.table[at : at + 32] != FREE:
                COUNT.pack_into(self.table, at + HEAD.size + COUNT.size * self.worker, 0)

    @contextmanager
    def locked(self) -> Iterator[None]:
        self._flock(self.file, self._lock)
        try:
            yield
        finally:
            self._flock(self.file, self._unlock)

    def account(self, digest: bytes, limits: KeyLimits) -> Account:
        """Return the account of a key. If the table is full, each process counts for itself."""
        first = int.from_bytes(digest[:4], "big")
        with self.locked():
            for step in range(SLOTS):
                slot = (first + step) % SLOTS
                at = slot * self.size
                owner = self.table[at : at + 32]
                if owner == FREE:
                    HEAD.pack_into(self.table, at, digest, limits.most_requests, limits.most_tokens, 0.0)
                if owner in (FREE, digest):
                    return SharedAccount(limits, self, slot)
        log.error("keys: more than %d keys; each process limits the others for itself", SLOTS)
        return Account(limits)

    def read(self, slot: int) -> tuple[float, float, float, int, int]:
        """Return requests and tokens left, their time, the requests in flight of all workers, and those of this one."""
        at = slot * self.size
        _, requests, tokens, stamp = HEAD.unpack_from(self.table, at)
        counts = struct.unpack_from(f"{self.workers}q", self.table, at + HEAD.size)
        return requests, tokens, stamp, sum(counts), counts[self.worker]

    def write(self, slot: int, requests: float, tokens: float, stamp: float, own: int) -> None:
        at = slot * self.size
        HEAD.pack_into(self.table, at, self.table[at : at + 32], requests, tokens, stamp)
        COUNT.pack_into(self.table, at + HEAD.size + COUNT.size * self.worker, own)


class Ledger:
    """The accounts of all keys, by the hash of the key."""

    def __init__(self, file: UsageFile | None = None, peers: bool = False) -> None:
        """`peers`: other gateways hear of the usage."""
        self.file = file
        self.accounts: dict[bytes, Account] = {}
        self.changed: dict[bytes, Account] | None = {} if peers else None

    def account(self, digest: bytes, limits: KeyLimits) -> Account:
        account = self.accounts.get(digest)
        if account is None:
            file = self.file
            account = Account(limits, digest, self.changed) if file is None else file.account(digest, limits)
            self.accounts[digest] = account
        account.change(limits)
        return account

    def inflight(self) -> dict[bytes, Usage]:
        """Return what a peer must know of all accounts when it connects. Worker processes share the accounts."""
        if self.changed is None:
            return {}
        return {digest: (0, 0, account.inflight) for digest, account in self.accounts.items() if account.inflight}

    def news(self) -> dict[bytes, Usage]:
        """Return the usage since the last call."""
        if not self.changed:
            return {}
        news = {digest: account.news() for digest, account in self.changed.items()}
        self.changed.clear()
        return news

    def hear(self, peer: str, usage: Mapping[bytes, Usage], now: float) -> None:
        for digest, each in usage.items():
            if digest in self.accounts:
                self.accounts[digest].hear(peer, each, now)

    def lose(self, peer: str) -> None:
        for account in self.accounts.values():
            account.elsewhere.pop(peer, None)


def _whole_seconds(seconds: float) -> int:
    return max(1, int(seconds + 0.999))
