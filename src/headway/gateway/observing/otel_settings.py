"""Where spans go, and of how many requests."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlsplit

from msgspec import Meta, Struct
from msgspec.structs import replace

from headway.config.wording import shown
from headway.errors import HeadwayError


class OtelSettings(Struct, frozen=True):
    """The section `otel:` of a gateway's file."""

    endpoint: Annotated[str, "URL of OTLP over HTTP, as in http://127.0.0.1:4318; may stand alone for the section"]
    sample: Annotated[float, Meta(ge=0, le=1), "of those requests whose client does not say"] = 1.0
    service: Annotated[str, "by which the gateway goes"] = "headway-gateway"

    @classmethod
    def expand(cls, data: Any, where: str) -> Any:
        return {"endpoint": data} if isinstance(data, str) else data

    def validate(self, where: str) -> OtelSettings:
        parts = urlsplit(self.endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise HeadwayError(
                f"{where}.endpoint: expected a URL such as http://127.0.0.1:4318, got {shown(self.endpoint)}."
            )
        path = parts.path.rstrip("/")
        return replace(self, endpoint=self.endpoint.rstrip("/") if path else f"{self.endpoint.rstrip('/')}/v1/traces")
