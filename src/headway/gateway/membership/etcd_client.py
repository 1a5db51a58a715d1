"""A client of etcd for keys, leases and watches. It uses etcd's JSON gateway, so it needs etcd 3.4 or later.

The client tries endpoints in turn, and prefers the endpoint that answered last. In the JSON, keys and values are in
base64, as msgspec encodes bytes. 64-bit numbers are strings.
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

SILENCE_S: Final = 60.0  # a watch that is silent for longer is reopened, because its connection may be dead
FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 2.0  # first and maximum pause between attempts to connect
LONGEST_LINE: Final = 64 * 1024 * 1024
# Phrases in etcd's own error messages.
NO_TOKEN: Final = ("invalid auth token", "auth store is old")
ELSEWHERE: Final = ("no leader", "request timed out", "server stopped", "leader changed", "not synced")
NO_LEASE: Final = "requested lease not found"
LEASE_LOST: Final = "etcd: the lease has expired or was lost."


class EtcdError(HeadwayError):
    """No endpoint answers, etcd refused a request, or etcd's answer is invalid."""


class LeaseLost(EtcdError):
    """The lease has expired, or the server has lost it."""


class HistoryLost(EtcdError):
    """The watch cannot start at its revision: etcd has compacted that revision, or has never reached it."""


class Item(Struct, frozen=True):
    raw_key: bytes = field(name="key")
    revision: int = field(name="mod_revision")  # revision of the key's last change
    value: bytes = b""
    lease: int = 0

    @property
    def key(self) -> str:
        return self.raw_key.decode(errors="replace")


class Snapshot(Struct, frozen=True):
    """All keys of a prefix."""

    revision: int
    items: dict[str, Item]

    def under(self, prefix: str) -> dict[str, Item]:
        """Return the items whose keys begin with `prefix`, by the rest of the key."""
        return {key.removeprefix(prefix): item for key, item in self.items.items() if key.startswith(prefix)}


class Change(Struct, frozen=True):
    item: Item = field(name="kv")
    type: Literal["PUT", "DELETE"] = "PUT"

    @property
    def value(self) -> bytes | None:
        """The new value; None if the key was deleted."""
        return None if self.type == "DELETE" else self.item.value


class Changes(Struct, frozen=True):
    """The changes of one revision."""

    revision: int
    changes: list[Change]


class _Reply(Struct):
    """Any answer of etcd. Each type of answer has some of these fields, and etcd omits empty fields."""

    header: dict[str, Any] | None = None
    result: _Reply | None = None  # only in streamed answers: the answer itself, which etcd wraps in this field
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
    cancel_reason: str = "no reason given"
    compact_revision: int = 0
    events: list[Change] = []

    @property
    def revision(self) -> int:
        return int((self.header or {}).get("revision", 0))


class Etcd:
    def __init__(self, settings: EtcdSettings) -> None:
        self.settings = settings
        self.endpoints = settings.endpoints
        self._at = 0  # index of the endpoint to try first
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
        """Set a key. Return the new revision and the key's previous value; None if the key is new."""
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
        """Set the key if it does not exist. Return the value that the key has afterwards."""
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
        """Delete a key. Return whether it existed."""
        return (await self._call("kv/deleterange", {"key": key.encode()})).deleted > 0

    # --- leases ------------------------------------------------------------------------------------------------------

    async def grant(self, seconds: int) -> int:
        return (await self._call("lease/grant", {"TTL": str(seconds)})).lease

    async def keep_alive(self, lease: int) -> None:
        reply = await self._call("lease/keepalive", {"ID": str(lease)})
        if reply.result is None or reply.result.ttl <= 0:
            raise LeaseLost(LEASE_LOST)

    async def revoke(self, lease: int) -> None:
        """End a lease. etcd then deletes the keys of the lease."""
        await self._call("lease/revoke", {"ID": str(lease)})

    # --- watches -----------------------------------------------------------------------------------------------------

    async def watch(self, prefix: str, revision: int, silence_s: float = SILENCE_S) -> AsyncGenerator[Changes, None]:
        """Yield the changes under a prefix, starting at a revision. Return when the server has been silent for
        `silence_s` seconds. Raise EtcdError if the connection is lost, and HistoryLost if the server lacks the
        revision."""
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
            raise EtcdError(f"etcd: lost the watch at {self.endpoints[at]} ({error.why}).") from None
        self._leave(at)
        raise EtcdError(f"etcd: {self.endpoints[at]} ended the watch.")

    async def follow(
        self, prefix: str, silence_s: float = SILENCE_S
    ) -> AsyncGenerator[Snapshot | Changes | EtcdError, None]:
        """Yield all keys under a prefix, then their changes, forever. While no server answers, yield errors. After a
        lost connection, a compacted history or a long silence, yield all keys again, because the server may have lost
        data."""
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
                yield error
            await asyncio.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT_S)

    async def _lines(self, endpoint: str, body: Any, silence_s: float) -> AsyncGenerator[bytes, None]:
        """Yield the lines of a streamed answer."""
        # A member of an etcd cluster without a leader gets no changes. With this header it returns an error instead.
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
                    raise EtcdError(f"etcd: {endpoint} sent a line of more than {LONGEST_LINE:,} bytes.")

    # --- calls -------------------------------------------------------------------------------------------------------

    async def _call(self, path: str, body: Any) -> _Reply:
        """Call the endpoints in turn until one answers."""
        failures = []
        for _ in self.endpoints:
            at = self._at
            endpoint = self.endpoints[at]
            try:
                return await self._ask(endpoint, path, body)
            except NoAnswer as error:
                failures.append(f"{endpoint}: {error.why}")
                self._leave(at)
        raise EtcdError(f"etcd: no endpoint answers ({'; '.join(failures)}).")

    async def _ask(self, endpoint: str, path: str, body: Any) -> _Reply:
        status, answer = await self._post(endpoint, path, body, await self._headers(endpoint))
        if status != 200 and self._token is not None and any(word in _message(answer) for word in NO_TOKEN):
            self._token = None  # the token has expired
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
                raise EtcdError(f"etcd: {endpoint} returned no token for the user {settings.user}.")
        return {"Authorization": self._token}

    def _refusal(self, endpoint: str, path: str, status: int, answer: bytes) -> Exception:
        """Return the exception to raise for an error status. If another endpoint may succeed, the exception is a
        NoAnswer, after which `_call` tries the next endpoint."""
        message = _message(answer)
        if NO_LEASE in message:
            return LeaseLost(LEASE_LOST)
        if status >= 500 or any(word in message for word in ELSEWHERE):
            return NoAnswer.because(message or f"status {status}")
        if not message:
            return EtcdError(
                f"etcd: {endpoint} returned status {status} for /v3/{path}; expected etcd 3.4 or later with its JSON "
                "gateway."
            )
        return EtcdError(f"etcd: {endpoint} refused /v3/{path}: {one_line(message, kind=False)}.")

    def _leave(self, at: int) -> None:
        """Prefer the next endpoint from now on, unless another call has already changed the preferred endpoint."""
        if self._at == at:
            self._at = (at + 1) % len(self.endpoints)


def _read_reply(endpoint: str, path: str, answer: bytes) -> _Reply:
    """Return an answer of etcd. If the answer is not from etcd but, for example, from a proxy, raise EtcdError."""
    try:
        reply = msgspec.json.decode(answer, type=_Reply, strict=False)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        reply = _Reply()
    if reply.header is None and reply.result is None:
        raise EtcdError(f"etcd: {endpoint} returned an invalid answer to /v3/{path}. Check that etcd listens there.")
    return reply


def _range_of(prefix: str) -> dict[str, bytes]:
    """Return the range of all keys that begin with a prefix."""
    raw = prefix.encode()
    return {"key": raw, "range_end": raw[:-1] + bytes([raw[-1] + 1])}


def _read_changes(line: bytes, revision: int) -> Changes | None:
    """Read a line of a watch that began at `revision`. If the line reports no change, return None."""
    try:
        reply = msgspec.json.decode(line, type=_Reply, strict=False)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise EtcdError(f"etcd: the watch sent an invalid line ({one_line(error)}).") from None
    if reply.error is not None:
        raise EtcdError(f"etcd: the watch was refused ({one_line(_message(line), kind=False)}).")
    news = reply.result
    if news is None:
        raise EtcdError("etcd: the watch sent an invalid line (neither a result nor an error).")
    if news.compact_revision:
        raise HistoryLost(f"etcd: revision {revision} was compacted.")
    if news.canceled:
        raise EtcdError(f"etcd: the watch was canceled ({news.cancel_reason}).")
    if news.created and news.revision < revision - 1:  # without this error, the watch would wait silently
        raise HistoryLost(f"etcd: this server never reached revision {revision - 1}.")
    return Changes(news.revision, news.events) if news.events else None


def _message(answer: bytes) -> str:
    """Return the error message of an answer. If the answer has no message, return an empty string."""
    try:
        document = msgspec.json.decode(answer)
    except msgspec.MsgspecError:
        return ""
    error = document.get("error", document) if isinstance(document, dict) else ""
    return str(error.get("message", "") if isinstance(error, dict) else error)
