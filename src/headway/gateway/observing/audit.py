"""Operators of the admin API, and the log of what they have changed."""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Struct

from headway.config.documents import read_yaml
from headway.config.section import read
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.gateway.settings import check_name, read_text

LONGEST: Final = 4096  # maximum length of a request's body in the audit log, in characters
MOST_REFUSED: Final = 100  # requests without a known key that are logged in a minute
LOOKS: Final = ("GET", "HEAD")
log = logging.getLogger("headway.gateway")


class OperatorSpec(Struct, frozen=True):
    """An entry of the file of operators."""

    sha256: Annotated[str, "hash of the operator's key: 64 hex digits, as `headway key` prints them"]
    read_only: Annotated[bool, "whether the operator may only look"] = False


class Operator(Struct, frozen=True):
    name: str
    digest: bytes
    read_only: bool = False

    def may(self, method: str) -> bool:
        return not self.read_only or method in LOOKS


class Operators:
    """The operators of a file."""

    def __init__(self, operators: Mapping[str, Operator]) -> None:
        self.operators = dict(operators)

    @classmethod
    def read(cls, file: Any, where: str) -> Operators:
        path = Path(read_text(file, where))
        data = read_yaml(path)
        if not isinstance(data, dict) or not data:
            raise HeadwayError(f"{path}: expected a mapping of operators to key hashes, got {shown(data)}.")
        operators = {}
        for name, value in data.items():
            check_name(str(name), str(path))
            spec = read(OperatorSpec, value, f"{path}: {name}")
            try:
                digest = bytes.fromhex(spec.sha256)
            except ValueError:
                digest = b""
            if len(digest) != 32:
                raise HeadwayError(f"{path}: {name}.sha256: expected 64 hex digits, as `headway key` prints them.")
            operators[str(name)] = Operator(str(name), digest, spec.read_only)
        return cls(operators)

    def renew(self, other: Operators) -> None:
        """Adopt the operators of a new version of the file."""
        self.operators = other.operators

    def find(self, digest: bytes) -> Operator | None:
        """Return the operator whose key has this hash."""
        found = None
        for operator in self.operators.values():
            if hmac.compare_digest(operator.digest, digest):
                found = operator
        return found


def digest_of(secret: str) -> bytes:
    return hashlib.sha256(secret.strip().encode("utf-8", "surrogateescape")).digest()


class AuditLog:
    """Writes a line for each request that changes something, and for each that is refused. The file only grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._refused, self._minute = 0, 0  # refused requests without a known key in this minute
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        except OSError as error:
            raise HeadwayError(f"admin.audit: {path} cannot be written ({error.strerror}).") from None

    def write(self, operator: str | None, address: str | None, method: str, path: str, body: str, status: int) -> None:
        now = datetime.now(UTC)
        if operator is None and not self._counts(int(now.timestamp() // 60)):
            return
        entry = {
            "time": now.isoformat(timespec="milliseconds"),
            "operator": operator,
            "address": address,
            "method": method,
            "path": path,
            "body": body[:LONGEST],
            "status": status,
        }
        line = msgspec.json.encode(entry) + b"\n"
        try:
            if os.write(self._file, line) != len(line):
                raise OSError(0, "the line is not complete")
        except OSError as error:
            log.error("admin: the audit log %s cannot be written (%s): %s", self.path, error.strerror, line.decode())

    def _counts(self, minute: int) -> bool:
        """Return whether to log a request without a known key: otherwise, strangers could fill the disk."""
        self._refused = self._refused + 1 if minute == self._minute else 1
        self._minute = minute
        return self._refused <= MOST_REFUSED

    def close(self) -> None:
        os.close(self._file)
