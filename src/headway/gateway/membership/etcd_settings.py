"""How etcd is reached: endpoints, the prefix of Headway's keys, user and certificates."""

from __future__ import annotations

import os
import ssl
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec import Struct

from headway.config.section import read
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.gateway.settings import seconds

PREFIX: Final = "/headway"


class _Keys(Struct):
    endpoints: str | list[str]
    prefix: str = PREFIX
    user: str | None = None
    password_env: str | None = None
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    timeout: Any = "3s"
    engine_key_env: str | None = None
    gateway: str | None = None


class EtcdSettings(Struct, frozen=True):
    endpoints: tuple[str, ...]  # tried in turn
    prefix: str = PREFIX  # without a stroke at its end
    user: str | None = None
    password_env: str | None = None  # the variable that holds it: a password in here might be printed
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    timeout_s: float = 3.0  # of one question to one endpoint
    engine_key_env: str | None = None  # the variable with the key that engines of etcd want
    gateway: str | None = None  # by which this gateway says what it made of a policy

    @classmethod
    def read(cls, data: object, where: str = "etcd") -> EtcdSettings:
        """From a section of the gateway's file, or from the endpoints alone."""
        keys = read(_Keys, {"endpoints": data} if isinstance(data, str | list) else data, where)
        given = keys.endpoints.split(",") if isinstance(keys.endpoints, str) else keys.endpoints
        secure = keys.ca is not None or keys.cert is not None
        endpoints = tuple(_endpoint(one.strip(), secure, f"{where}.endpoints") for one in given if one.strip())
        if not endpoints:
            raise HeadwayError(f"{where}.endpoints: name at least one, as in http://10.0.0.5:2379.")
        if not keys.prefix.startswith("/") or not keys.prefix.strip("/"):
            raise HeadwayError(f"{where}.prefix: expected a prefix such as {PREFIX}, got {shown(keys.prefix)}.")
        if (keys.user is None) != (keys.password_env is None):
            lacking = "password_env" if keys.password_env is None else "user"
            raise HeadwayError(f"{where}.{lacking}: is missing; user and password_env go together.")
        if keys.key is not None and keys.cert is None:
            raise HeadwayError(f"{where}.cert: is missing; a private key goes with its certificate.")
        for name, variable in (("password_env", keys.password_env), ("engine_key_env", keys.engine_key_env)):
            if variable is not None and not os.environ.get(variable):
                raise HeadwayError(f"{where}.{name}: the environment variable {variable} is not set.")
        return cls(
            endpoints,
            keys.prefix.rstrip("/"),
            keys.user,
            keys.password_env,
            keys.ca,
            keys.cert,
            keys.key,
            seconds(keys.timeout, f"{where}.timeout"),
            keys.engine_key_env,
            keys.gateway,
        )

    def password(self) -> str:
        return os.environ.get(self.password_env or "", "")

    def tls(self) -> ssl.SSLContext | None:
        """None where no endpoint wants it."""
        if not any(one.startswith("https:") for one in self.endpoints):
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
    except ValueError:  # a port that is no number
        good = False
    if not good or parts.path.strip("/") or parts.username is not None:
        raise HeadwayError(f"{where}: expected an address such as http://10.0.0.5:2379, got {shown(text)}.")
    return url.rstrip("/") if parts.port is not None else f"{url.rstrip('/')}:2379"
