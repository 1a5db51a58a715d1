"""A client of etcd over its JSON gateway (3.4 and later): keys, leases and watches.

Endpoints are tried in turn, and the one that answered is asked first the next time. Keys and values travel in base64,
numbers of 64 bits as text; both are dealt with here.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode, b64encode
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import TracebackType
from typing import Any, Final

import msgspec
from msgspec import Struct

from headway.config.wording import one_line
from headway.errors import HeadwayError
from headway.gateway.membership.etcd_settings import EtcdSettings
from headway.http.client import HttpClient, NoAnswer

SILENCE_S: Final = 60.0  # of a watch, after which it is made anew: its connection may be dead without saying so
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
    key: str
    value: bytes
    revision: int  # of its last change
    lease: int = 0


class Snapshot(Struct, frozen=True):
    """All keys of a prefix."""

    revision: int
    items: dict[str, Item]


class Change(Struct, frozen=True):
    key: str
    value: bytes | None  # None: deleted
    revision: int


class Changes(Struct, frozen=True):
    """What happened together."""

    revision: int
    changes: tuple[Change, ...]


class Down(Struct, frozen=True):
    """The server is lost for now."""

    why: str


class Etcd:
    def __init__(self, settings: EtcdSettings) -> None:
        self.settings = settings
        self.endpoints = settings.endpoints
        self._at = 0  # the endpoint asked first
        self._token: str | None = None
        self._client = HttpClient(settings.timeout_s, tls=settings.tls())

    async def __aenter__(self) -> Etcd:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        await self._client.close()

    # --- keys --------------------------------------------------------------------------------------------------------

    async def put(self, key: str, value: bytes, lease: int = 0) -> tuple[int, bytes | None]:
        """The revision, and what stood there before."""
        body: dict[str, Any] = {"key": _text(key), "value": _text(value), "prev_kv": True}
        if lease:
            body["lease"] = str(lease)
        found = await self._call("kv/put", body)
        before = found.get("prev_kv")
        return _revision(found), None if before is None else _bytes(before.get("value", ""))

    async def get(self, key: str) -> Item | None:
        found = await self._call("kv/range", {"key": _text(key)})
        return next((_item(one) for one in found.get("kvs", ())), None)

    async def range(self, prefix: str) -> Snapshot:
        found = await self._call("kv/range", _under(prefix))
        items = [_item(one) for one in found.get("kvs", ())]
        return Snapshot(_revision(found), {one.key: one for one in items})

    async def create(self, key: str, value: bytes) -> bytes:
        """Put it where nothing stands; what stands there then."""
        compare = {"key": _text(key), "target": "CREATE", "result": "EQUAL", "create_revision": "0"}
        found = await self._call(
            "kv/txn",
            {
                "compare": [compare],
                "success": [{"request_put": {"key": _text(key), "value": _text(value)}}],
                "failure": [{"request_range": {"key": _text(key)}}],
            },
        )
        if found.get("succeeded"):
            return value
        return _bytes(found["responses"][0]["response_range"]["kvs"][0].get("value", ""))

    async def delete(self, key: str) -> bool:
        """Whether it was there."""
        found = await self._call("kv/deleterange", {"key": _text(key)})
        return int(found.get("deleted", 0)) > 0

    async def compact(self, revision: int) -> None:
        await self._call("kv/compaction", {"revision": str(revision), "physical": True})

    # --- leases ------------------------------------------------------------------------------------------------------

    async def grant(self, seconds: int) -> int:
        return int((await self._call("lease/grant", {"TTL": str(seconds)}))["ID"])

    async def keep_alive(self, lease: int) -> None:
        found = await self._call("lease/keepalive", {"ID": str(lease)})
        if int(found.get("result", {}).get("TTL", 0)) <= 0:
            raise LeaseLost("etcd: the lease is no more.")

    async def revoke(self, lease: int) -> None:
        """Its keys go with it."""
        await self._call("lease/revoke", {"ID": str(lease)})

    # --- watches -----------------------------------------------------------------------------------------------------

    async def watch(self, prefix: str, revision: int, silence_s: float = SILENCE_S) -> AsyncGenerator[Changes, None]:
        """What happens under a prefix, from a revision on. Ends after a long silence; EtcdDown where the connection is
        lost, HistoryLost where the server cannot begin there."""
        body = {"create_request": {**_under(prefix), "start_revision": str(revision)}}
        at = self._at
        try:
            async with aclosing(self._lines(self.endpoints[at], body, silence_s)) as lines:
                async for line in lines:
                    changes = _changes(line, revision)
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
        """Everything under a prefix, then what changes, without an end. Whenever the server is lost, its history is
        compacted away or it is silent for long, all is read anew: a server that comes back may have lost everything."""
        wait = FIRST_WAIT_S
        while True:
            try:
                snapshot = await self.range(prefix)
                yield snapshot
                async with aclosing(self.watch(prefix, snapshot.revision + 1, silence_s)) as changes:
                    async for one in changes:
                        wait = FIRST_WAIT_S
                        yield one
                continue
            except HistoryLost:
                pass
            except EtcdError as error:
                yield Down(str(error))
            await asyncio.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT_S)

    async def _lines(self, endpoint: str, body: Any, silence_s: float) -> AsyncGenerator[bytes, None]:
        """Of an answer without an end."""
        # Without a leader this member would hear of nothing and stay silent.
        headers = {**await self._headers(endpoint), "Grpc-Metadata-hasleader": "true"}
        url, data = f"{endpoint}/v3/watch", msgspec.json.encode(body)
        async with self._client.stream("POST", url, data, headers, silence_s) as stream:
            if stream.status != 200:
                raise self._refused(endpoint, "watch", stream.status, await stream.read())
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

    # --- a question --------------------------------------------------------------------------------------------------

    async def _call(self, path: str, body: Any) -> Any:
        """The first answer of an endpoint that can be had."""
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

    async def _ask(self, endpoint: str, path: str, body: Any) -> Any:
        status, answer = await self._post(endpoint, path, body, await self._headers(endpoint))
        if status != 200 and self._token is not None and any(word in _message(answer) for word in NO_TOKEN):
            self._token = None  # it has expired
            status, answer = await self._post(endpoint, path, body, await self._headers(endpoint))
        if status != 200:
            raise self._refused(endpoint, path, status, answer)
        return _document(endpoint, path, answer, ("header", "result"))

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
                raise self._refused(endpoint, "auth/authenticate", status, answer)
            self._token = str(_document(endpoint, "auth/authenticate", answer, ("token",))["token"])
        return {"Authorization": self._token}

    def _refused(self, endpoint: str, path: str, status: int, answer: bytes) -> Exception:
        """An error of ours, or one of the connection where another endpoint may do better."""
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
        """The next endpoint is asked first, unless another question has moved on already."""
        if self._at == at:
            self._at = (at + 1) % len(self.endpoints)


def _document(endpoint: str, path: str, answer: bytes, wanted: tuple[str, ...]) -> Any:
    """Whatever stands before etcd may answer for it, and that is no answer."""
    try:
        found = msgspec.json.decode(answer)
    except msgspec.MsgspecError:
        found = None
    if not isinstance(found, dict) or not any(name in found for name in wanted):
        raise EtcdError(f"etcd: {endpoint} answered /v3/{path} with what is none of its answers.")
    return found


def _text(value: str | bytes) -> str:
    return b64encode(value.encode() if isinstance(value, str) else value).decode()


def _bytes(text: str) -> bytes:
    return b64decode(text)


def _under(prefix: str) -> dict[str, str]:
    """The range of all keys that begin so."""
    raw = prefix.encode()
    return {"key": _text(raw), "range_end": _text(raw[:-1] + bytes([raw[-1] + 1]))}


def _item(found: Any) -> Item:
    key = _bytes(found["key"]).decode(errors="replace")
    return Item(key, _bytes(found.get("value", "")), int(found["mod_revision"]), int(found.get("lease", 0)))


def _revision(found: Any) -> int:
    return int(found["header"].get("revision", 0))


def _changes(line: bytes, wanted: int) -> Changes | None:
    """Of a line of a watch; None where it tells no change."""
    try:
        document = msgspec.json.decode(line)
        if "error" in document:
            raise EtcdDown(f"etcd: the watch is refused ({one_line(_message(line), kind=False)}).")
        found = document["result"]
        if int(found.get("compact_revision", 0)):
            raise HistoryLost(f"etcd: revision {wanted} is compacted away.")
        if found.get("canceled"):
            raise EtcdDown(f"etcd: the watch is ended ({found.get('cancel_reason', 'without a reason')}).")
        revision = _revision(found)
        if found.get("created") and revision < wanted - 1:  # it would wait for a revision that is far ahead
            raise HistoryLost(f"etcd: revision {wanted - 1} was never reached by this server.")
        events = tuple(_change(one) for one in found.get("events", ()))
    except (msgspec.MsgspecError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise EtcdDown(f"etcd: the watch said what cannot be read ({_why(error)}).") from None
    return Changes(revision, events) if events else None


def _change(event: Any) -> Change:
    item = _item(event["kv"])
    return Change(item.key, None if event.get("type") == "DELETE" else item.value, item.revision)


def _message(answer: bytes) -> str:
    """What an answer says of an error; nothing where it is none of etcd's."""
    try:
        found = msgspec.json.decode(answer)
    except msgspec.MsgspecError:
        return ""
    found = found.get("error", found) if isinstance(found, dict) else ""
    return str(found.get("message", "") if isinstance(found, dict) else found)


def _why(error: Exception) -> str:
    if not isinstance(error, NoAnswer):
        return one_line(error)
    return "no answer in time" if error.timed_out else error.why
