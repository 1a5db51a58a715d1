"""API keys and their limits. The gateway stores only the hashes of keys."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from headway.config.documents import read_yaml
from headway.config.keys import Doc
from headway.config.section import read
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.gateway.settings import check_name, read_text
from headway.gateway.usage import Account, KeyLimits, Ledger, Refusal

PREFIX: Final = "hw-"
BEARER: Final = b"bearer "
OTHER_HEADERS: Final = (b"x-api-key", b"api-key")  # of Anthropic's clients, and of Azure's


class ApiKey(KeyLimits, kw_only=True):
    """An entry of the key file."""

    sha256: Annotated[str, "hash of the key: 64 hex digits, as `headway key` prints them"]
    tenant: Annotated[str | None, Doc("tenant of its requests", default="name of the key")] = None
    slo_class: Annotated[str, "most important SLO class of its requests; a request may ask for a later one"] = (
        "standard"
    )
    models: Annotated[
        tuple[str, ...] | None,
        Doc("names of models that its requests may ask for, aliases and cascades among them", default="any"),
    ] = None


UNKNOWN: Final = Refusal(401, "the API key is missing or unknown")
FORBIDDEN: Final = Refusal(403, "the API key may not use this model")


class Key:
    """Who sends a request: its name, its tenant, what it may ask for, and the account of its limits."""

    def __init__(
        self, name: str, tenant: str, slo_class: str, models: Collection[str] | None, account: Account
    ) -> None:
        self.name, self.tenant, self.slo_class, self.account = name, tenant, slo_class, account
        self.models = None if models is None else frozenset(models)

    @property
    def inflight(self) -> int:
        return self.account.inflight

    def take(self, now: float) -> Refusal | None:
        """Count a request until `release`. If a limit forbids the request, return the refusal instead."""
        return self.account.take(now)

    def release(self) -> None:
        self.account.release()

    def renew(self, other: Key) -> None:
        """Adopt the limits of a new version of the key, but keep the current usage."""
        for name in ("name", "tenant", "slo_class", "models"):
            setattr(self, name, getattr(other, name))
        self.account.change(other.account.limits)


class Keyring:
    def __init__(self, keys: Mapping[bytes, Key]) -> None:
        self.keys = dict(keys)  # keys by their hash
        self.ledger: Ledger | None = None  # accounts that outlive a reload, and that processes or gateways share

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
            tenant = limits.tenant or str(name)
            owners[digest] = Key(str(name), tenant, limits.slo_class, limits.models, Account(limits, digest))
        return cls(owners)

    def use(self, ledger: Ledger) -> None:
        """Count the usage of all keys in this ledger."""
        self.ledger = ledger
        for digest, key in self.keys.items():
            key.account = ledger.account(digest, key.account.limits)

    def renew(self, other: Keyring) -> None:
        """Adopt the keys and limits of a new version of the file."""
        for digest, key in other.keys.items():
            self.keys.setdefault(digest, key).renew(key)
        self.keys = {digest: self.keys[digest] for digest in other.keys}
        if self.ledger is not None:
            self.use(self.ledger)

    def owner(self, fields: Mapping[bytes, bytes]) -> Key | None:
        """Return the key in the header `authorization: Bearer KEY`, `x-api-key: KEY` or `api-key: KEY`; None if no
        header has a known key."""
        bearer = fields.get(b"authorization", b"")
        if bearer[:7].lower() == BEARER and (key := self._find(bearer[7:])) is not None:
            return key
        for name in OTHER_HEADERS:
            if name in fields and (key := self._find(fields[name])) is not None:
                return key
        return None

    def _find(self, secret: bytes) -> Key | None:
        return self.keys.get(hashlib.sha256(secret.strip()).digest())


def new_key() -> tuple[str, str]:
    """Return a new key and its hash."""
    key = PREFIX + secrets.token_urlsafe(32)
    return key, hashlib.sha256(key.encode()).hexdigest()
