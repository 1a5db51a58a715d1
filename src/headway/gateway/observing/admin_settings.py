"""Where the admin API listens, and who may use it."""

from __future__ import annotations

import os

from msgspec import Struct

from headway.config.section import read
from headway.errors import HeadwayError
from headway.gateway.settings import address


class _Keys(Struct):
    key_env: str
    listen: str = "127.0.0.1:8001"
    open_metrics: bool = False
    engine_keys: list[str] = []


class AdminSettings(Struct, frozen=True):
    host: str
    port: int
    key_env: str  # the variable that holds it: a key in here might be printed
    open_metrics: bool = False  # whether /metrics wants no key
    engine_keys: tuple[str, ...] = ()  # variables that engines named by the admin API may have their keys in

    @classmethod
    def read(cls, data: object, where: str = "admin") -> AdminSettings:
        keys = read(_Keys, data, where)
        host, port = address(keys.listen, f"{where}.listen")
        if not os.environ.get(keys.key_env, "").strip():
            raise HeadwayError(
                f"{where}.key_env: the environment variable {keys.key_env} is not set; it holds the admin API's key."
            )
        return cls(host, port, keys.key_env, keys.open_metrics, tuple(keys.engine_keys))

    def key(self) -> str:
        return os.environ.get(self.key_env, "").strip()
