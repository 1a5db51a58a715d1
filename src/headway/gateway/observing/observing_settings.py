"""The sections `admin:`, `otel:` and `records:` of a gateway's file."""

from __future__ import annotations

import os
from typing import Annotated, Any
from urllib.parse import urlsplit

from msgspec import Meta, Struct
from msgspec.structs import replace

from headway.config.keys import PositiveSeconds
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.gateway.settings import Folder, Listen


class AdminSettings(Struct, frozen=True):
    """The section `admin:` of a gateway's file."""

    key_env: Annotated[str, "the environment variable that holds its key; without one it does not start"]
    listen: Annotated[Listen, "address and port"] = ("127.0.0.1", 8001)
    open_metrics: Annotated[bool, "whether /metrics wants no key"] = False
    engine_keys: Annotated[
        tuple[str, ...], "environment variables that engines named through it may have their own keys in"
    ] = ()

    def validate(self, where: str) -> AdminSettings:
        if not self.key():
            raise HeadwayError(
                f"{where}.key_env: the environment variable {self.key_env} is not set; it holds the admin API's key."
            )
        return self

    def key(self) -> str:
        return os.environ.get(self.key_env, "").strip()


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


class RecordSettings(Struct, frozen=True):
    """The section `records:` of a gateway's file."""

    folder: Annotated[Folder, "where the run folders lie; may stand alone for the section"]
    roll_s: Annotated[PositiveSeconds, "a run folder holds so long"] = 3600.0
    requests: Annotated[int, Meta(ge=1, le=10**6), "or so many requests, whichever is less"] = 100_000
    decisions: Annotated[bool, "whether what each decision rested on is written too"] = True
    prompts: Annotated[bool, "whether the blocks of prompts are, by which the traffic can be replayed"] = True

    @classmethod
    def expand(cls, data: Any, where: str) -> Any:
        return {"folder": data} if isinstance(data, str) else data
