"""Where spans go, and of how many requests."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from msgspec import Meta, Struct

from headway.config.section import read
from headway.config.wording import shown
from headway.errors import HeadwayError


class _Keys(Struct):
    endpoint: str
    sample: Annotated[float, Meta(ge=0, le=1)] = 1.0
    service: str = "headway-gateway"


class OtelSettings(Struct, frozen=True):
    endpoint: str  # of OTLP over HTTP, as in http://127.0.0.1:4318
    sample: float = 1.0  # of those requests whose client does not say
    service: str = "headway-gateway"

    @classmethod
    def read(cls, data: object, where: str = "otel") -> OtelSettings:
        keys = read(_Keys, {"endpoint": data} if isinstance(data, str) else data, where)
        parts = urlsplit(keys.endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise HeadwayError(
                f"{where}.endpoint: expected a URL such as http://127.0.0.1:4318, got {shown(keys.endpoint)}."
            )
        path = parts.path.rstrip("/")
        endpoint = keys.endpoint.rstrip("/") if path else f"{keys.endpoint.rstrip('/')}/v1/traces"
        return cls(endpoint, keys.sample, keys.service)
