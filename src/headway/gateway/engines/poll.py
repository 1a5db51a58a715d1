"""Small questions to engines beside the traffic: a page, or whether it lives. Bounded in time and size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headway.config.wording import one_line
from headway.errors import HeadwayError

if TYPE_CHECKING:
    from headway.gateway.engines.backend import Backend


class PollFailed(Exception):
    """No answer that could be used, and why."""


class Poller:
    """Connections are kept, one for each engine; no redirect is followed and no proxy asked."""

    def __init__(self, timeout_s: float, most_bytes: int) -> None:
        self.timeout_s, self.most_bytes = timeout_s, most_bytes
        self._session: Any = None

    async def start(self) -> None:
        try:
            import aiohttp
        except ImportError:
            raise HeadwayError(
                "signals and health checks need the package aiohttp; install headway with the extra `gateway`."
            ) from None
        self._lost = (aiohttp.ClientError, OSError, TimeoutError, UnicodeError, ValueError)
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=self.timeout_s),
            connector=aiohttp.TCPConnector(limit=0, limit_per_host=2),
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def stop(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def status(self, backend: Backend, path: str) -> int:
        """Of a GET; what it says beside that is not read."""
        try:
            async with self._get(backend, path) as answer:
                return int(answer.status)
        except self._lost as error:
            raise PollFailed(one_line(error)) from None

    async def text(self, backend: Backend, path: str) -> str:
        try:
            async with self._get(backend, path) as answer:
                if answer.status != 200:
                    raise PollFailed(f"status {answer.status}")
                found = bytearray()
                async for piece in answer.content.iter_any():
                    found += piece
                    if len(found) > self.most_bytes:
                        raise PollFailed(f"a page of more than {self.most_bytes:,} bytes")
        except self._lost as error:
            raise PollFailed(one_line(error)) from None
        return found.decode("utf-8", "replace")

    def _get(self, backend: Backend, path: str) -> Any:
        fields = {"accept": "text/plain, */*"}
        if backend.key:
            fields["authorization"] = f"Bearer {backend.key.decode('latin-1')}"
        url = backend.address.url + (path if path.startswith("/") else f"/{path}")
        return self._session.get(url, headers=fields, allow_redirects=False)
