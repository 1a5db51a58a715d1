"""The client with which an agent asks its engine for readiness, models and load."""

import logging
import os
from typing import Any, Final

import msgspec

from headway.errors import HeadwayError
from headway.gateway.signals.scrape import parse
from headway.http.client import HttpClient, NoAnswer, TooLong

TIMEOUT_S: Final = 2.0
LARGEST: Final = 8 * 1024 * 1024  # maximum size of an answer, in bytes
WHOLE: Final = ("queued", "running", "kv_blocks")  # values of the metrics page that need no conversion to signals
log = logging.getLogger("headway.agent")


class Engine:
    def __init__(self, url: str, key_env: str | None = None, metrics: str = "/metrics", timeout_s: float = TIMEOUT_S):
        self.url, self.metrics = url.rstrip("/"), metrics
        key = None if key_env is None else os.environ.get(key_env, "")
        self._client = HttpClient(timeout_s, headers={"Authorization": f"Bearer {key}"} if key else {})
        self._hits: tuple[float, float] | None = None  # the engine's counters of hits and queries at the last poll
        self._problem = ""  # the last problem that was logged

    async def close(self) -> None:
        await self._client.close()

    async def unready(self) -> str:
        """Return why the engine is not ready; "" if ready. An engine without /health is ready if /v1/models answers."""
        try:
            status, _ = await self._get("/health")
            if status == 404:
                status, _ = await self._get("/v1/models")
        except HeadwayError as error:
            return str(error)
        return "" if status == 200 else f"the engine's /health returned status {status}"

    async def models(self) -> list[str]:
        """Return the models that the engine lists. If it does not answer, return an empty list."""
        try:
            status, body = await self._get("/v1/models")
            if status != 200:
                return []
            return [str(model["id"]) for model in msgspec.json.decode(body)["data"]]
        except (HeadwayError, msgspec.MsgspecError, KeyError, TypeError):
            return []

    async def figures(self) -> dict[str, float]:
        """Return the load signals on the engine's metrics page; an empty mapping if the page cannot be read."""
        try:
            status, body = await self._get(self.metrics)
        except HeadwayError:
            return {}
        if status != 200:
            self._warn(f"{self.url}{self.metrics} returned status {status}")
            return {}
        page = parse(body.decode(errors="replace"))
        signals: dict[str, float] = {name: page[name] for name in WHOLE if name in page}
        if "kv_usage" in page and "kv_blocks" in page:
            signals["kv_used"] = round(page["kv_usage"] * page["kv_blocks"])
        if (rate := self._hit_rate(page)) is not None:
            signals["hit_rate"] = rate
        self._warn("" if signals else f"{self.url}{self.metrics} has no known metrics")
        return signals

    def _hit_rate(self, page: dict[str, Any]) -> float | None:
        """Return the hit rate that the engine reports, else the rate since the last poll; None if it is unknown."""
        if "hit_rate" in page:
            return float(page["hit_rate"])
        if "hits" not in page or "queries" not in page:
            return None
        before, self._hits = self._hits, (page["hits"], page["queries"])
        if before is None or page["queries"] <= before[1]:  # no new prompts, or the engine has restarted
            return None
        share: float = (page["hits"] - before[0]) / (page["queries"] - before[1])
        return min(1.0, max(0.0, share))

    def _warn(self, problem: str) -> None:
        if problem and problem != self._problem:
            log.warning("the engine's load is unknown: %s", problem)
        self._problem = problem

    async def _get(self, path: str) -> tuple[int, bytes]:
        try:
            answer = await self._client.get(f"{self.url}{path}", most_bytes=LARGEST)
        except TooLong:
            raise HeadwayError(f"{self.url}{path} returned more than {LARGEST:,} bytes") from None
        except NoAnswer as error:
            if error.timed_out:
                raise HeadwayError(f"{self.url}{path} did not answer in {self._client.timeout_s:g} s") from None
            raise HeadwayError(f"{self.url} cannot be reached ({error.why})") from None
        return answer.status, answer.body
