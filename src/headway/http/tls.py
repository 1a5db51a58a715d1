"""TLS of listening sockets and of connections to engines: certificates from PEM files, checked when they are read."""

from __future__ import annotations

import hashlib
import logging
import ssl
import time
from pathlib import Path
from typing import Annotated, Any, Final, Self

from msgspec import Struct
from msgspec.structs import replace

from headway.config.keys import INTERNAL, Doc, Form, Unit
from headway.config.wording import shown
from headway.errors import HeadwayError

VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
SERVER_FILES: Final = ("certificate", "key", "client_ca")
ENGINE_FILES: Final = ("ca", "certificate", "key")
log = logging.getLogger("headway.gateway")


def _read_version(value: Any, where: str) -> str:
    """Return the version. YAML reads 1.3 as a number."""
    if isinstance(value, bool) or str(value) not in VERSIONS:
        raise HeadwayError(f"{where}: expected 1.2 or 1.3, got {shown(value)}.")
    return str(value)


Version = Annotated[str, Unit("1.2 or 1.3", _read_version, str, form=Form.of({"enum": [1.2, 1.3, "1.2", "1.3"]}))]


class ServerTls(Struct, frozen=True):
    """The section `tls:` of a listening socket."""

    certificate: Annotated[
        str, Doc("PEM file of the certificate and of the authorities between it and the root", type="file")
    ]
    key: Annotated[str, Doc("PEM file of the certificate's private key, without a password", type="file")]
    client_ca: Annotated[
        str | None,
        Doc("PEM file of the authorities whose certificates clients must show", default="no certificate", type="file"),
    ] = None
    minimum: Annotated[Version, "lowest version of TLS"] = "1.2"
    digest: Annotated[str, INTERNAL] = ""  # of the content of the files, so that new content is a change

    def validate(self, where: str) -> ServerTls:
        self.context(where)
        return replace(self, digest=digest_of(self, SERVER_FILES))

    def context(self, where: str = "tls") -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = VERSIONS[self.minimum]
        context.options |= ssl.OP_NO_RENEGOTIATION
        context.set_alpn_protocols(["http/1.1"])
        load_pair(context, self.certificate, self.key, where)
        if self.client_ca is not None:
            load_authorities(context, self.client_ca, f"{where}.client_ca")
            context.verify_mode = ssl.CERT_REQUIRED
        return context


class EngineTls(Struct, frozen=True):
    """The key `tls` of a backend."""

    ca: Annotated[
        str | None,
        Doc(
            "PEM file of the authorities that sign the engine's certificate", default="those of the system", type="file"
        ),
    ] = None
    certificate: Annotated[
        str | None, Doc("PEM file of the certificate that the gateway shows to the engine", type="file")
    ] = None
    key: Annotated[str | None, Doc("PEM file of that certificate's private key", type="file")] = None
    server_name: Annotated[
        str | None, Doc("name that the engine's certificate must have", default="the host in `url`")
    ] = None
    digest: Annotated[str, INTERNAL] = ""  # of the content of the files, so that new content is a change

    def validate(self, where: str) -> EngineTls:
        if (self.certificate is None) != (self.key is None):
            lacking = "certificate" if self.certificate is None else "key"
            raise HeadwayError(f"{where}.{lacking}: is missing; set both certificate and key.")
        self.context(where)
        return replace(self, digest=digest_of(self, ENGINE_FILES))

    def context(self, where: str = "tls") -> ssl.SSLContext:
        context = ssl.create_default_context() if self.ca is None else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.ca is not None:
            load_authorities(context, self.ca, f"{where}.ca")
        if self.certificate is not None and self.key is not None:
            load_pair(context, self.certificate, self.key, where)
        return context


class LiveContext(ssl.SSLContext):
    """The TLS context of a listening socket. After `use`, new connections have the new certificates, authorities and
    versions, and the others go on: each connection belongs to the context that was current when it began."""

    current: ssl.SSLContext
    settings: ServerTls
    expiry: float  # Unix time at which the first certificate of the chain expires

    def __new__(cls, settings: ServerTls) -> Self:
        return super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)

    def __init__(self, settings: ServerTls) -> None:
        self._adopt(settings)

    def use(self, settings: ServerTls) -> None:
        if settings != self.settings:
            self._adopt(settings)

    def _adopt(self, settings: ServerTls) -> None:
        self.current, self.settings = settings.context(), settings
        self.expiry = expiry_of(settings.certificate)
        if self.expiry < time.time():
            log.warning("tls: %s has expired, so clients refuse it; renew it", settings.certificate)

    def wrap_bio(self, *arguments: Any, **named: Any) -> ssl.SSLObject:
        return self.current.wrap_bio(*arguments, **named)


def expiry_of(file: str) -> float:
    """Return the Unix time at which the first certificate of a PEM file expires."""
    from cryptography import x509

    certificates = x509.load_pem_x509_certificates(Path(file).read_bytes())
    return min(certificate.not_valid_after_utc.timestamp() for certificate in certificates)


def load_pair(context: ssl.SSLContext, certificate: str, key: str, where: str) -> None:
    for name, file in (("certificate", certificate), ("key", key)):
        _check_readable(file, f"{where}.{name}")
    try:
        # Without a password, OpenSSL would ask for one at the terminal.
        context.load_cert_chain(certificate, key, password=lambda: b"")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise HeadwayError(f"{where}.key: {key} is not the key of {certificate}.") from None
        _check_kinds(certificate, key, where)
        raise HeadwayError(
            f"{where}: {certificate} and {key} cannot be used ({error.reason or error}). Both must be in PEM, and the "
            "key must have no password."
        ) from None
    except (OSError, ValueError) as error:
        raise HeadwayError(f"{where}: {certificate} and {key} cannot be used ({error}).") from None


def _check_kinds(certificate: str, key: str, where: str) -> None:
    """Raise if the files have something else than a certificate and a private key, for example if they are swapped."""
    if b"BEGIN CERTIFICATE" not in _check_readable(certificate, where):
        raise HeadwayError(f"{where}.certificate: {certificate} has no certificate in PEM. Name the certificate here.")
    if b"PRIVATE KEY" not in _check_readable(key, where):
        raise HeadwayError(f"{where}.key: {key} has no private key in PEM. Name the key of {certificate} here.")


def load_authorities(context: ssl.SSLContext, file: str, where: str) -> None:
    _check_readable(file, where)
    try:
        context.load_verify_locations(file)
    except (ssl.SSLError, OSError) as error:
        why = getattr(error, "reason", None) or error
        raise HeadwayError(f"{where}: {file} cannot be used ({why}). It must have certificates in PEM.") from None


def digest_of(section: Struct, names: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for name in names:
        file = getattr(section, name)
        if file is not None:
            digest.update(_check_readable(file, name) + b"\0")
    return digest.hexdigest()


def _check_readable(file: str, where: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        remedy = "Correct the path, which starts at the folder of the file that names it, or the rights of the file."
        raise HeadwayError(f"{where}: {file} cannot be read ({error.strerror}). {remedy}") from error
