"""API keys, of which only the hashes are kept, each with its limits."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from headway.config.documents import read_yaml
from headway.config.keys import Doc, Unit
from headway.config.section import read
from headway.config.units import rate
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.gateway.settings import read_text

PREFIX: Final = "hw-"
BEARER: Final = b"bearer "
LONGEST: Final = 100  # name


def _read_rate(value: Any, where: str) -> float:
    return float(rate(value, where))


Many = Annotated[int, Meta(ge=1, le=10**6)]


class ApiKey(Struct):
    """An entry of the file of keys."""

    sha256: Annotated[str, "64 hex digits, as `headway key` writes them"]
    rate: Annotated[Annotated[float, Unit("rate", _read_rate, "{:g}/s".format)] | None, "requests in the long run"] = (
        None
    )
    burst: Annotated[Many | None, Doc("requests at once", default="those of a second")] = None
    concurrency: Annotated[Many | None, "requests under way"] = None
    tenant: Annotated[str | None, Doc("that policies see", default="the name of the key")] = None
    slo_class: Annotated[str | None, Doc("of its requests", default="what they say")] = None


class Refusal(Struct, frozen=True):
    status: int
    why: str
    retry_after: int = 1  # seconds


UNKNOWN: Final = Refusal(401, "the API key is missing or not known")


class Key:
    """A key's owner, and what it has used of its limits."""

    def __init__(self, name: str, keys: ApiKey) -> None:
        self.name = name
        self.rate = keys.rate
        self.burst = float(keys.burst or max(1.0, self.rate or 1.0))
        self.concurrency = keys.concurrency
        self.tenant = keys.tenant or name
        self.slo_class = keys.slo_class
        self.tokens, self.stamp, self.inflight = self.burst, 0.0, 0

    def take(self, now: float) -> Refusal | None:
        """Count a request until `release`, or return why it is refused."""
        if self.concurrency is not None and self.inflight >= self.concurrency:
            return Refusal(429, f"the key has {self.concurrency} requests under way, as many as it may")
        if self.rate is not None:
            self.tokens = min(self.burst, self.tokens + (now - self.stamp) * self.rate)
            self.stamp = now
            if self.tokens < 1.0:
                wait = (1.0 - self.tokens) / self.rate
                return Refusal(429, f"the key may ask {self.rate:g} times a second", max(1, int(wait + 0.999)))
            self.tokens -= 1.0
        self.inflight += 1
        return None

    def release(self) -> None:
        self.inflight -= 1

    def renew(self, other: Key) -> None:
        """Take the limits of another version of the key; what it has used stays."""
        for name in ("name", "rate", "burst", "concurrency", "tenant", "slo_class"):
            setattr(self, name, getattr(other, name))
        self.tokens = min(self.burst, self.tokens)


class Keyring:
    def __init__(self, keys: Mapping[bytes, Key]) -> None:
        self.keys = dict(keys)  # by the hash's bytes

    @classmethod
    def read(cls, file: Any, where: str) -> Keyring:
        path = Path(read_text(file, where))
        return cls.of(read_yaml(path), str(path))

    @classmethod
    def of(cls, data: Any, where: str) -> Keyring:
        if not isinstance(data, dict):
            raise HeadwayError(f"{where}: expected names and their keys' hashes, got {shown(data)}.")
        owners: dict[bytes, Key] = {}
        for name, value in data.items():
            check_name(str(name), where)
            place = f"{where}: {name}"
            keys = read(ApiKey, value, place)
            try:
                digest = bytes.fromhex(keys.sha256)
            except ValueError:
                digest = b""
            if len(digest) != 32:
                raise HeadwayError(f"{place}.sha256: expected 64 hex digits, as `headway key` writes them.")
            if digest in owners:
                raise HeadwayError(f"{place}.sha256: is that of {owners[digest].name}; every name has its own key.")
            owners[digest] = Key(str(name), keys)
        return cls(owners)

    def renew(self, other: Keyring) -> None:
        """Take the keys and limits of a new version of the file."""
        for digest, key in other.keys.items():
            self.keys.setdefault(digest, key).renew(key)
        for digest in [digest for digest in self.keys if digest not in other.keys]:
            del self.keys[digest]

    def owner(self, fields: Mapping[bytes, bytes]) -> Key | None:
        """Return the key of a head with a field such as `authorization: Bearer hw-...`, if it is known."""
        bearer = fields.get(b"authorization", b"")
        if bearer[:7].lower() != BEARER:
            return None
        return self.keys.get(hashlib.sha256(bearer[7:].strip()).digest())


def check_name(name: Any, where: str) -> None:
    """Raise unless a name can stand on a line of logs, metrics and the file of keys."""
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST or not name.isprintable():
        raise HeadwayError(f"{where}: a name has 1 to {LONGEST} signs that can be printed, got {shown(name)}.")


def new_key() -> tuple[str, str]:
    """Return a new key and its hash."""
    key = PREFIX + secrets.token_urlsafe(32)
    return key, hashlib.sha256(key.encode()).hexdigest()
