"""Where the admin API listens, and who may use it."""

from __future__ import annotations

import os
from typing import Annotated

from msgspec import Struct

from headway.errors import HeadwayError
from headway.gateway.settings import Listen


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
