"""Settings of the connection to etcd: endpoints, the prefix of Headway's keys, user and certificates."""

from __future__ import annotations

import os
import ssl
from typing import Annotated, Any, ClassVar, Final
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace

from headway.config.keys import Doc, Form, PositiveSeconds, Unit
from headway.config.wording import shown
from headway.errors import HeadwayError

PREFIX: Final = "/headway"


def _read_endpoints(value: Any, where: str) -> tuple[str, ...]:
    """Return the endpoints in a list, or in a string that separates them by commas."""
    endpoints = value.split(",") if isinstance(value, str) else value
    if not isinstance(endpoints, list) or not all(isinstance(endpoint, str) for endpoint in endpoints):
        raise HeadwayError(f"{where}: expected text or a list of texts, got {shown(value)}.")
    return tuple(endpoints)


Endpoints = Annotated[tuple[str, ...], Unit("text or list", _read_endpoints, list, form=Form.of(str, list[str]))]


class EtcdSettings(Struct, frozen=True):
    """The section `etcd:` of a gateway's file."""

    endpoints: Annotated[Endpoints, "http or https addresses, tried in turn; the section may be this value alone"]
    prefix: Annotated[str, "prefix of all keys; with different prefixes, several fleets can share one etcd"] = PREFIX
    user: Annotated[str | None, "user name for etcd"] = None
    password_env: Annotated[str | None, "environment variable with the user's password"] = None
    ca: Annotated[str | None, Doc("certificate of the authority that signs etcd's certificate", type="file")] = None
    cert: Annotated[str | None, Doc("client certificate for etcd", type="file")] = None
    key: Annotated[str | None, Doc("private key of the client certificate", type="file")] = None
    timeout_s: Annotated[PositiveSeconds, "time limit of one request to one endpoint"] = 3.0
    engine_key_env: Annotated[
        str | None, "environment variable with the API key of all engines from etcd; a node cannot name its own"
    ] = None
    gateway: Annotated[
        str | None, Doc("name under which this gateway reports whether it accepted policies", default="host and port")
    ] = None
    short_form: ClassVar[Any] = Endpoints

    @classmethod
    def expand(cls, data: Any, where: str) -> Any:
        return {"endpoints": data} if isinstance(data, str | list) else data

    def validate(self, where: str) -> EtcdSettings:
        secure = self.ca is not None or self.cert is not None
        texts = [text.strip() for text in self.endpoints if text.strip()]
        endpoints = tuple(_endpoint(text, secure, f"{where}.endpoints") for text in texts)
        if not endpoints:
            raise HeadwayError(f"{where}.endpoints: give at least one address, as in http://10.0.0.5:2379.")
        if not self.prefix.startswith("/") or not self.prefix.strip("/"):
            raise HeadwayError(f"{where}.prefix: expected a prefix such as {PREFIX}, got {shown(self.prefix)}.")
        if (self.user is None) != (self.password_env is None):
            lacking = "password_env" if self.password_env is None else "user"
            raise HeadwayError(f"{where}.{lacking}: is missing; set both user and password_env.")
        if self.key is not None and self.cert is None:
            raise HeadwayError(f"{where}.cert: is missing; a private key needs its certificate.")
        for name, variable in (("password_env", self.password_env), ("engine_key_env", self.engine_key_env)):
            if variable is not None and not os.environ.get(variable):
                raise HeadwayError(f"{where}.{name}: the environment variable {variable} is not set.")
        return replace(self, endpoints=endpoints, prefix=self.prefix.rstrip("/"))

    def password(self) -> str:
        return os.environ.get(self.password_env or "", "")

    def tls(self) -> ssl.SSLContext | None:
        """Return the TLS context. If no endpoint uses TLS, return None."""
        if not any(endpoint.startswith("https:") for endpoint in self.endpoints):
            return None
        file = self.ca
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.cert is not None:
                file = self.cert
                context.load_cert_chain(self.cert, self.key)
        except (OSError, ssl.SSLError) as error:
            why = error.strerror or error
            raise HeadwayError(f"etcd: the certificate {file} cannot be used ({why}).") from None
        return context


def _endpoint(text: str, secure: bool, where: str) -> str:
    url = text if "://" in text else f"{'https' if secure else 'http'}://{text}"
    parts = urlsplit(url)
    try:
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is not a number
        good = False
    if not good or parts.path.strip("/") or parts.username is not None:
        raise HeadwayError(f"{where}: expected an address such as http://10.0.0.5:2379, got {shown(text)}.")
    return url.rstrip("/") if parts.port is not None else f"{url.rstrip('/')}:2379"
