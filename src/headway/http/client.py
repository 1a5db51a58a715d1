"""The HTTP client for metrics pages, health checks, etcd and conformance checks.

It limits answers in time and size, reuses connections and uses no proxy. The gateway forwards clients' requests with
`upstream` instead. The load generator has separate connections, which record the arrival time of each piece before they
parse it.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from headway.config.wording import one_line
from headway.errors import missing_extra

if TYPE_CHECKING:
    from headway.http.address import Address


class Answer(Struct, frozen=True):
    status: int
    body: bytes


class NoAnswer(Exception):
    """The server gave no usable answer. `error` is the exception that shows why."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(one_line(error))
        self.error = error

    @classmethod
    def because(cls, message: str) -> NoAnswer:
        """Return a NoAnswer with this message, for a server that answers but cannot serve the request now."""
        return cls(load_aiohttp().ClientConnectionError(message))

    @property
    def timed_out(self) -> bool:
        return isinstance(self.error, TimeoutError)

    @property
    def why(self) -> str:
        """Return the reason. If no connection could be opened, return the operating system's message."""
        if self.timed_out:
            return "no answer in time"
        cause = getattr(self.error, "os_error", None)
        return str(self) if cause is None else one_line(cause, kind=False)


class TooLong(Exception):
    """The answer has more bytes than its reader accepts."""


class Stream:
    """An answer that is still arriving."""

    def __init__(self, response: Any, lost: type[Exception]) -> None:
        self._response, self._lost = response, lost
        self.status: int = response.status
        self.fields: dict[str, str] = {name.lower(): value for name, value in response.headers.items()}

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """Yield the body as it arrives. Raise NoAnswer if the connection is lost or silent for too long."""
        content = self._response.content
        while True:
            try:
                piece = await content.readany()
            except (self._lost, OSError, TimeoutError, ValueError) as error:
                raise NoAnswer(error) from None
            if not piece:
                return
            yield piece

    async def read(self, most_bytes: int | None = None) -> bytes:
        """Return the rest of the body. Raise NoAnswer if it is cut off, and TooLong if it exceeds `most_bytes`."""
        body = bytearray()
        async for piece in self.pieces():
            body += piece
            if most_bytes is not None and len(body) > most_bytes:
                raise TooLong
        return bytes(body)


class HttpClient:
    def __init__(
        self,
        timeout_s: float,
        *,
        headers: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
        per_host: int = 0,
        redirects: bool = True,
    ) -> None:
        """`timeout_s` limits a whole answer; `per_host` limits the connections to one server (0: no limit)."""
        self.timeout_s, self.headers, self.tls = timeout_s, headers, tls
        self.per_host, self.redirects = per_host, redirects
        self._session: Any = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def get(
        self,
        url: str,
        headers: Mapping[str, str] | None = None,
        most_bytes: int | None = None,
        address: Address | None = None,
    ) -> Answer:
        """Return the answer. Raise NoAnswer if the server does not answer, and TooLong if the body exceeds
        `most_bytes`."""
        async with self.stream("GET", url, headers=headers, address=address) as stream:
            return Answer(stream.status, await stream.read(most_bytes))

    async def get_status(
        self, url: str, headers: Mapping[str, str] | None = None, address: Address | None = None
    ) -> int:
        """Return the status without reading the body."""
        async with self.stream("GET", url, headers=headers, address=address) as stream:
            return stream.status

    async def post(self, url: str, body: bytes, headers: Mapping[str, str] | None = None) -> Answer:
        async with self.stream("POST", url, body, headers) as stream:
            return Answer(stream.status, await stream.read())

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        url: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        silence_s: float | None = None,
        address: Address | None = None,
    ) -> AsyncGenerator[Stream, None]:
        """Send a request, and yield its answer as a stream. With `silence_s`, the answer may last forever, but no pause
        may be longer than `silence_s`; the client's timeout then limits only the time to connect. With `address`, use
        its TLS context."""
        aiohttp = load_aiohttp()
        timeout = aiohttp.ClientTimeout(total=self.timeout_s)
        if silence_s is not None:
            timeout = aiohttp.ClientTimeout(total=None, connect=self.timeout_s, sock_read=silence_s)
        try:
            response = await self._open(aiohttp).request(
                method,
                url,
                data=body,
                headers=headers,
                timeout=timeout,
                allow_redirects=self.redirects,
                **_tls_options(address),
            )
        except (aiohttp.ClientError, OSError, TimeoutError, UnicodeError, ValueError) as error:
            raise NoAnswer(error) from None
        async with response:
            yield Stream(response, aiohttp.ClientError)

    def _open(self, aiohttp: Any) -> Any:
        if self._session is None:
            connector = aiohttp.TCPConnector(
                limit=0, limit_per_host=self.per_host, ssl=self.tls if self.tls is not None else True
            )
            self._session = aiohttp.ClientSession(
                connector=connector, headers=self.headers, cookie_jar=aiohttp.DummyCookieJar()
            )
        return self._session


def _tls_options(address: Address | None) -> dict[str, Any]:
    if address is None or address.context is None:
        return {}
    return {"ssl": address.context, "server_hostname": address.server_name}


def load_aiohttp() -> Any:
    """Import and return aiohttp. If it is not installed, raise an error that names the extra."""
    try:
        import aiohttp
    except ImportError:
        raise missing_extra("signals and health checks", "aiohttp", "gateway") from None
    return aiohttp
