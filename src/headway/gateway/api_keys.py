"""API keys and their limits. The gateway stores only the hashes of keys."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from headway.config.documents import read_yaml
from headway.config.keys import RATE, Doc, Unit
from headway.config.section import read
from headway.config.units import rate
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.gateway.settings import check_name, read_text

PREFIX: Final = "hw-"
BEARER: Final = b"bearer "


Rate = Annotated[float, Unit("rate", lambda value, where: float(rate(value, where)), "{:g}/s".format, form=RATE)]
Many = Annotated[int, Meta(ge=1, le=10**6)]


class ApiKey(Struct):
    """An entry of the key file."""

    sha256: Annotated[str, "hash of the key: 64 hex digits, as `headway key` prints them"]
    rate: Annotated[Rate | None, "mean request rate allowed"] = None
    burst: Annotated[Many | None, Doc("requests allowed at once", default="one second's worth of `rate`")] = None
    concurrency: Annotated[Many | None, "requests allowed in flight"] = None
    tenant: Annotated[str | None, Doc("tenant of its requests", default="name of the key")] = None
    slo_class: Annotated[str, "most important SLO class of its requests; a request may ask for a later one"] = (
        "standard"
    )
    models: Annotated[
        tuple[str, ...] | None,
        Doc("names of models that its requests may ask for, aliases and cascades among them", default="any"),
    ] = None


class Refusal(Struct, frozen=True):
    status: int
    why: str
    retry_after: int = 1  # number of seconds after which the client may retry


UNKNOWN: Final = Refusal(401, "the API key is missing or unknown")
FORBIDDEN: Final = Refusal(403, "the API key may not use this model")


class Key:
    """A key with its owner, its limits and its current usage."""

    def __init__(self, name: str, limits: ApiKey) -> None:
        self.name, self.tenant, self.slo_class = name, limits.tenant or name, limits.slo_class
        self.rate, self.concurrency = limits.rate, limits.concurrency
        self.burst = float(limits.burst or max(1.0, self.rate or 1.0))
        self.models = None if limits.models is None else frozenset(limits.models)
        self.tokens, self.stamp, self.inflight = self.burst, 0.0, 0

    def take(self, now: float) -> Refusal | None:
        """Count a request as in flight until `release`. If a limit forbids the request, return the refusal instead."""
        if self.concurrency is not None and self.inflight >= self.concurrency:
            return Refusal(429, f"the API key has {self.concurrency} requests in flight, its limit; retry later")
        if self.rate is not None:
            self.tokens = min(self.burst, self.tokens + (now - self.stamp) * self.rate)
            self.stamp = now
            if self.tokens < 1.0:
                wait = (1.0 - self.tokens) / self.rate
                text = f"the API key is limited to {self.rate:g} requests per second"
                return Refusal(429, text, max(1, int(wait + 0.999)))
            self.tokens -= 1.0
        self.inflight += 1
        return None

    def release(self) -> None:
        self.inflight -= 1

    def renew(self, other: Key) -> None:
        """Adopt the limits of a new version of the key, but keep the current usage."""
        for name in ("name", "rate", "burst", "concurrency", "tenant", "slo_class", "models"):
            setattr(self, name, getattr(other, name))
        self.tokens = min(self.burst, self.tokens)


class Keyring:
    def __init__(self, keys: Mapping[bytes, Key]) -> None:
        self.keys = dict(keys)  # keys by their hash

    @classmethod
    def read(cls, file: Any, where: str) -> Keyring:
        path = Path(read_text(file, where))
        return cls.of(read_yaml(path), str(path))

    @classmethod
    def of(cls, data: Any, where: str) -> Keyring:
        if not isinstance(data, dict):
            raise HeadwayError(f"{where}: expected a mapping of names to key hashes and limits, got {shown(data)}.")
        owners: dict[bytes, Key] = {}
        for name, value in data.items():
            check_name(str(name), where)
            place = f"{where}: {name}"
            limits = read(ApiKey, value, place)
            try:
                digest = bytes.fromhex(limits.sha256)
            except ValueError:
                digest = b""
            if len(digest) != 32:
                raise HeadwayError(f"{place}.sha256: expected 64 hex digits, as `headway key` prints them.")
            if digest in owners:
                other = owners[digest].name
                raise HeadwayError(f"{place}.sha256: {other} has the same hash. Create a separate key for each name.")
            owners[digest] = Key(str(name), limits)
        return cls(owners)

    def renew(self, other: Keyring) -> None:
        """Adopt the keys and limits of a new version of the file."""
        for digest, key in other.keys.items():
            self.keys.setdefault(digest, key).renew(key)
        self.keys = {digest: self.keys[digest] for digest in other.keys}

    def owner(self, fields: Mapping[bytes, bytes]) -> Key | None:
        """Return the key in a header `authorization: Bearer hw-...`; None if the key is missing or unknown."""
        bearer = fields.get(b"authorization", b"")
        if bearer[:7].lower() != BEARER:
            return None
        return self.keys.get(hashlib.sha256(bearer[7:].strip()).digest())


def new_key() -> tuple[str, str]:
    """Return a new key and its hash."""
    key = PREFIX + secrets.token_urlsafe(32)
    return key, hashlib.sha256(key.encode()).hexdigest()
