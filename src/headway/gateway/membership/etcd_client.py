"""A client of etcd over its JSON gateway (3.4 and later): keys, leases and watches.

Endpoints are tried in turn, and the one that answered is asked first the next time. Keys and values travel in base64,
as msgspec writes and reads bytes, and numbers of 64 bits as text.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct, field

from headway.config.wording import one_line
from headway.errors import HeadwayError
from headway.gateway.membership.etcd_settings import EtcdSettings
from headway.http.client import HttpClient, NoAnswer

SILENCE_S: Final = 60.0  # of a watch, after which it is opened again: its connection may be dead
FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 2.0  # before a lost server is tried again
LONGEST_LINE: Final = 64 * 1024 * 1024
NO_TOKEN: Final = ("invalid auth token", "auth store is old")  # in the server's words
ELSEWHERE: Final = ("no leader", "request timed out", "server stopped", "leader changed", "not synced")
NO_LEASE: Final = "requested lease not found"


class EtcdError(HeadwayError):
    """etcd answered, and not as wished."""


class EtcdDown(EtcdError):
    """No endpoint answers."""


class LeaseLost(EtcdError):
    """It has expired, or the server has lost it."""


class HistoryLost(EtcdError):
    """The revision that a watch is to begin at is compacted away, or never was."""


class Item(Struct, frozen=True):
    raw_key: bytes = field(name="key")
    revision: int = field(name="mod_revision")  # of its last change
    value: bytes = b""
    lease: int = 0

    @property
    def key(self) -> str:
        return self.raw_key.decode(errors="replace")


class Snapshot(Struct, frozen=True):
    """All keys of a prefix."""

    revision: int
    items: dict[str, Item]


class Change(Struct, frozen=True):
    item: Item = field(name="kv")
    type: Literal["PUT", "DELETE"] = "PUT"

    @property
    def value(self) -> bytes | None:
        """None if the key was deleted."""
        return None if self.type == "DELETE" else self.item.value


class Changes(Struct, frozen=True):
    """Changes of one revision."""

    revision: int
    changes: list[Change]


class Down(Struct, frozen=True):
    """The server is lost for now."""

    why: str


class _Reply(Struct):
    """Every answer of etcd: each has some of these fields, and leaves out those that are empty."""

    header: dict[str, Any] | None = None
    result: _Reply | None = None  # in answers without an end
    error: Any = None
    token: str = ""
    kvs: list[Item] = []
    prev_kv: Item | None = None
    deleted: int = 0
    succeeded: bool = False
    responses: list[dict[str, _Reply]] = []
    lease: int = field(name="ID", default=0)
    ttl: int = field(name="TTL", default=0)
    created: bool = False
    canceled: bool = False
    cancel_reason: str = "without a reason"
    compact_revision: int = 0
    events: list[Change] = []

    @property
    def revision(self) -> int:
        return int((self.header or {}).get("revision", 0))


class Etcd:
    def __init__(self, settings: EtcdSettings) -> None:
        self.settings = settings
        self.endpoints = settings.endpoints
        self._at = 0  # the endpoint asked first
        self._token: str | None = None
        self._client = HttpClient(settings.timeout_s, tls=settings.tls())

    async def __aenter__(self) -> Etcd:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._client.close()

    # --- keys --------------------------------------------------------------------------------------------------------

    async def put(self, key: str, value: bytes, lease: int = 0) -> tuple[int, bytes | None]:
        """Return the revision, and the value that stood there before."""
        body: dict[str, Any] = {"key": key.encode(), "value": value, "prev_kv": True}
        if lease:
            body["lease"] = str(lease)
        reply = await self._call("kv/put", body)
        return reply.revision, None if reply.prev_kv is None else reply.prev_kv.value

    async def get(self, key: str) -> Item | None:
        return next(iter((await self._call("kv/range", {"key": key.encode()})).kvs), None)

    async def range(self, prefix: str) -> Snapshot:
        reply = await self._call("kv/range", _range_of(prefix))
        return Snapshot(reply.revision, {item.key: item for item in reply.kvs})

    async def create(self, key: str, value: bytes) -> bytes:
        """Put a value unless the key has one already; return the value that it has then."""
        place = {"key": key.encode()}
        reply = await self._call(
            "kv/txn",
            {
                "compare": [{**place, "target": "CREATE", "result": "EQUAL", "create_revision": "0"}],
                "success": [{"request_put": {**place, "value": value}}],
                "failure": [{"request_range": place}],
            },
        )
        return value if reply.succeeded else reply.responses[0]["response_range"].kvs[0].value

    async def delete(self, key: str) -> bool:
        """Return whether it was there."""
        return (await self._call("kv/deleterange", {"key": key.encode()})).deleted > 0

    # --- leases ------------------------------------------------------------------------------------------------------

    async def grant(self, seconds: int) -> int:
        return (await self._call("lease/grant", {"TTL": str(seconds)})).lease

    async def keep_alive(self, lease: int) -> None:
        reply = await self._call("lease/keepalive", {"ID": str(lease)})
        if reply.result is None or reply.result.ttl <= 0:
            raise LeaseLost("etcd: the lease is no more.")

    async def revoke(self, lease: int) -> None:
        """End a lease; etcd deletes its keys."""
        await self._call("lease/revoke", {"ID": str(lease)})

    # --- watches -----------------------------------------------------------------------------------------------------

    async def watch(self, prefix: str, revision: int, silence_s: float = SILENCE_S) -> AsyncGenerator[Changes, None]:
        """Yield the changes under a prefix from a revision on, until the server is silent for long. Raises EtcdDown if
        the connection is lost, and HistoryLost if the server no longer has that revision."""
        body = {"create_request": {**_range_of(prefix), "start_revision": str(revision)}}
        at = self._at
        try:
            async with aclosing(self._lines(self.endpoints[at], body, silence_s)) as lines:
                async for line in lines:
                    changes = _read_changes(line, revision)
                    if changes is not None:
                        yield changes
        except NoAnswer as error:
            if error.timed_out:
                return
            self._leave(at)
            raise EtcdDown(f"etcd: the watch at {self.endpoints[at]} is lost ({_why(error)}).") from None
        self._leave(at)
        raise EtcdDown(f"etcd: {self.endpoints[at]} ended the watch.")

    async def follow(
        self, prefix: str, silence_s: float = SILENCE_S
    ) -> AsyncGenerator[Snapshot | Changes | Down, None]:
        """Yield all keys under a prefix, then their changes, without an end. After a lost connection, a compacted
        history or a long silence all keys are read again: a server that comes back may have lost its data."""
        wait = FIRST_WAIT_S
        while True:
            try:
                snapshot = await self.range(prefix)
                yield snapshot
                async with aclosing(self.watch(prefix, snapshot.revision + 1, silence_s)) as changes:
                    async for change in changes:
                        wait = FIRST_WAIT_S
                        yield change
                continue
            except HistoryLost:
                pass
            except EtcdError as error:
                yield Down(str(error))
            await asyncio.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT_S)

    async def _lines(self, endpoint: str, body: Any, silence_s: float) -> AsyncGenerator[bytes, None]:
        """Yield the lines of an endless answer."""
        # A member without a leader gets no changes; this header makes it say so.
        headers = {**await self._headers(endpoint), "Grpc-Metadata-hasleader": "true"}
        url, data = f"{endpoint}/v3/watch", msgspec.json.encode(body)
        async with self._client.stream("POST", url, data, headers, silence_s) as stream:
            if stream.status != 200:
                raise self._refusal(endpoint, "watch", stream.status, await stream.read())
            rest = bytearray()
            async for data in stream.pieces():
                rest += data
                if b"\n" in data:
                    *whole, last = bytes(rest).split(b"\n")
                    rest = bytearray(last)
                    for line in whole:
                        if line.strip():
                            yield line
                elif len(rest) > LONGEST_LINE:
                    raise EtcdError(f"etcd: {endpoint} sends a line without an end.")

    # --- calls -------------------------------------------------------------------------------------------------------

    async def _call(self, path: str, body: Any) -> _Reply:
        """Ask the endpoints in turn until one answers."""
        failures = []
        for _ in self.endpoints:
            at = self._at
            endpoint = self.endpoints[at]
            try:
                return await self._ask(endpoint, path, body)
            except NoAnswer as error:
                failures.append(f"{endpoint}: {_why(error)}")
                self._leave(at)
        raise EtcdDown(f"etcd: no endpoint answers ({'; '.join(failures)}).")

    async def _ask(self, endpoint: str, path: str, body: Any) -> _Reply:
        status, answer = await self._post(endpoint, path, body, await self._headers(endpoint))
        if status != 200 and self._token is not None and any(word in _message(answer) for word in NO_TOKEN):
            self._token = None  # it has expired
            status, answer = await self._post(endpoint, path, body, await self._headers(endpoint))
        if status != 200:
            raise self._refusal(endpoint, path, status, answer)
        return _read_reply(endpoint, path, answer)

    async def _post(self, endpoint: str, path: str, body: Any, headers: dict[str, str]) -> tuple[int, bytes]:
        answer = await self._client.post(f"{endpoint}/v3/{path}", msgspec.json.encode(body), headers)
        return answer.status, answer.body

    async def _headers(self, endpoint: str) -> dict[str, str]:
        settings = self.settings
        if settings.user is None:
            return {}
        if self._token is None:
            body = {"name": settings.user, "password": settings.password()}
            status, answer = await self._post(endpoint, "auth/authenticate", body, {})
            if status != 200:
                raise self._refusal(endpoint, "auth/authenticate", status, answer)
            self._token = _read_reply(endpoint, "auth/authenticate", answer).token or None
            if self._token is None:
                raise EtcdError(f"etcd: {endpoint} answered /v3/auth/authenticate with what is none of its answers.")
        return {"Authorization": self._token}

    def _refusal(self, endpoint: str, path: str, status: int, answer: bytes) -> Exception:
        """Return the error to raise: a NoAnswer if another endpoint may do better."""
        message = _message(answer)
        if NO_LEASE in message:
            return LeaseLost("etcd: the lease is no more.")
        if status >= 500 or any(word in message for word in ELSEWHERE):
            return NoAnswer.because(message or f"status {status}")
        if not message:
            return EtcdError(
                f"etcd: {endpoint} answered {status} to /v3/{path}; an etcd of 3.4 or later with its JSON gateway is "
                "wanted there."
            )
        return EtcdError(f"etcd: {endpoint} refused /v3/{path}: {one_line(message, kind=False)}.")

    def _leave(self, at: int) -> None:
        """Ask the next endpoint first from now on, unless another call has moved on already."""
        if self._at == at:
            self._at = (at + 1) % len(self.endpoints)


def _read_reply(endpoint: str, path: str, answer: bytes) -> _Reply:
    """Refuse what a proxy in front of etcd may answer in its place."""
    try:
        reply = msgspec.json.decode(answer, type=_Reply, strict=False)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        reply = _Reply()
    if reply.header is None and reply.result is None:
        raise EtcdError(f"etcd: {endpoint} answered /v3/{path} with what is none of its answers.")
    return reply


def _range_of(prefix: str) -> dict[str, bytes]:
    """The range of all keys that begin with a prefix."""
    raw = prefix.encode()
    return {"key": raw, "range_end": raw[:-1] + bytes([raw[-1] + 1])}


def _read_changes(line: bytes, revision: int) -> Changes | None:
    """Read a line of a watch that began at `revision`; None if it reports no change."""
    try:
        reply = msgspec.json.decode(line, type=_Reply, strict=False)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise EtcdDown(f"etcd: the watch said what cannot be read ({_why(error)}).") from None
    if reply.error is not None:
        raise EtcdDown(f"etcd: the watch is refused ({one_line(_message(line), kind=False)}).")
    news = reply.result
    if news is None:
        raise EtcdDown("etcd: the watch said what cannot be read (neither a result nor an error).")
    if news.compact_revision:
        raise HistoryLost(f"etcd: revision {revision} is compacted away.")
    if news.canceled:
        raise EtcdDown(f"etcd: the watch is ended ({news.cancel_reason}).")
    if news.created and news.revision < revision - 1:  # it would wait for a revision that is far ahead
        raise HistoryLost(f"etcd: revision {revision - 1} was never reached by this server.")
    return Changes(news.revision, news.events) if news.events else None


def _message(answer: bytes) -> str:
    """Return the error message of an answer; empty if it is none of etcd's."""
    try:
        document = msgspec.json.decode(answer)
    except msgspec.MsgspecError:
        return ""
    error = document.get("error", document) if isinstance(document, dict) else ""
    return str(error.get("message", "") if isinstance(error, dict) else error)


def _why(error: Exception) -> str:
    if not isinstance(error, NoAnswer):
        return one_line(error)
    return "no answer in time" if error.timed_out else error.why
