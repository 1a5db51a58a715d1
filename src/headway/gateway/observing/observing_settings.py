"""The sections `admin:`, `otel:` and `records:` of a gateway's file."""

from __future__ import annotations

import os
from typing import Annotated, Any, ClassVar
from urllib.parse import urlsplit

from msgspec import Meta, Struct
from msgspec.structs import replace

from headway.config.keys import Doc, Form, PositiveSeconds, Unit
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.gateway.observing.audit import Operators
from headway.gateway.settings import File, Folder, Listen
from headway.http.tls import ServerTls


class AdminSettings(Struct, frozen=True):
    """The section `admin:` of a gateway's file."""

    key_env: Annotated[
        str | None, Doc("environment variable with the admin key", default="required, unless `operators` is set")
    ] = None
    operators: Annotated[
        Operators | None,
        Unit("file", Operators.read, str, form=Form.of(str)),
        "file of operators with a key each; see [Security](security.md)",
    ] = None
    audit: Annotated[File | None, "file for a line about each change; see [Security](security.md)"] = None
    listen: Annotated[Listen, "address and port"] = ("127.0.0.1", 8001)
    tls: Annotated[ServerTls | None, "TLS of the admin API; see [Security](security.md)"] = None
    open_metrics: Annotated[bool, "whether /metrics is open to clients without the key"] = False
    engine_keys: Annotated[
        tuple[str, ...], "environment variables that engines added through the API may name as `key_env`"
    ] = ()

    def validate(self, where: str) -> AdminSettings:
        if self.key_env is None and self.operators is None:
            raise HeadwayError(f"{where}: 'key_env' is missing. Name the environment variable of the admin key.")
        if self.key_env is not None and not self.key():
            raise HeadwayError(
                f"{where}.key_env: the environment variable {self.key_env} is not set; set it to the admin key."
            )
        return self

    def key(self) -> str:
        return "" if self.key_env is None else os.environ.get(self.key_env, "").strip()


class OtelSettings(Struct, frozen=True):
    """The section `otel:` of a gateway's file."""

    endpoint: Annotated[str, "OTLP/HTTP URL, as in http://127.0.0.1:4318; the section may be this value alone"]
    sample: Annotated[float, Meta(ge=0, le=1), "share of requests traced, if the client does not decide"] = 1.0
    service: Annotated[str, "the gateway's service name in traces"] = "headway-gateway"
    short_form: ClassVar[Any] = str  # `endpoint`

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

    folder: Annotated[Folder, "folder for the run folders; the section may be this value alone"]
    roll_s: Annotated[PositiveSeconds, "longest time that one run folder covers"] = 3600.0
    requests: Annotated[int, Meta(ge=1, le=10**6), "most requests in one run folder"] = 100_000
    decisions: Annotated[bool, "whether to record each decision with the signals and scores behind it"] = True
    prompts: Annotated[bool, "whether to record the block keys of prompts, which a replay needs"] = True
    short_form: ClassVar[Any] = str  # `folder`

    @classmethod
    def expand(cls, data: Any, where: str) -> Any:
        return {"folder": data} if isinstance(data, str) else data
