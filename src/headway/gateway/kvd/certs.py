"""Certificates for tests of mutual TLS: a CA, and a certificate for each node, which the CA signs."""

import ipaddress
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from headway.errors import HeadwayError
from headway.gateway.kvd.channel import TlsFiles

CA: Final = "ca"
SLACK: Final = timedelta(hours=1)  # certificates are valid from this long before their creation, because clocks differ


def make(folder: Path, name: str, hosts: Sequence[str], days: int) -> TlsFiles:
    """Create a node's key and certificate in a folder, signed by the folder's CA. If the CA is missing, create it."""
    if not name or name == CA or not all(sign.isalnum() or sign in "-_." for sign in name):
        raise HeadwayError(f"--name: use letters, digits, '-', '_' and '.', and not the name 'ca'; got {name!r}.")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    files = TlsFiles(folder / f"{CA}.pem", folder / f"{name}.pem", folder / f"{name}.key")
    for file in (files.certificate, files.key):
        if file.exists():
            raise HeadwayError(f"{file}: exists already; choose another node name with --name.")
    life = timedelta(days=days)
    if not files.ca.exists():
        key = ec.generate_private_key(ec.SECP256R1())
        _write(folder / f"{CA}.key", _private(key))
        _write(files.ca, authority(key, life).public_bytes(serialization.Encoding.PEM), 0o644)
    ca, ca_key = _authority_of(folder)
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = node(name, hosts, key.public_key(), ca, ca_key, life)
    _write(files.key, _private(key))
    _write(files.certificate, certificate.public_bytes(serialization.Encoding.PEM), 0o644)
    return files


def authority(key: ec.EllipticCurvePrivateKey, life: timedelta, name: str = "headway kvd") -> x509.Certificate:
    return (
        _builder(name, None, key.public_key(), life)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )


def node(
    name: str,
    hosts: Sequence[str],
    key: ec.EllipticCurvePublicKey,
    ca: x509.Certificate,
    ca_key: ec.EllipticCurvePrivateKey,
    life: timedelta,
    since: datetime | None = None,
) -> x509.Certificate:
    """Return a certificate that is valid for servers and for clients, because a daemon that fetches blocks is also a
    client."""
    uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    return (
        _builder(name, ca, key, life, since)
        .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .sign(ca_key, hashes.SHA256())
    )


def _builder(
    name: str,
    issuer: x509.Certificate | None,  # None: the certificate is self-signed
    key: ec.EllipticCurvePublicKey,
    life: timedelta,
    since: datetime | None = None,
) -> x509.CertificateBuilder:
    begin = (datetime.now(UTC) if since is None else since) - SLACK
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + SLACK + life)
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _authority_of(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    try:
        certificate = x509.load_pem_x509_certificate((folder / f"{CA}.pem").read_bytes())
        key = serialization.load_pem_private_key((folder / f"{CA}.key").read_bytes(), None)
    except (OSError, ValueError) as error:
        raise HeadwayError(f"{folder}: cannot load the authority from ca.pem and ca.key ({error}).") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise HeadwayError(f"{folder / 'ca.key'}: expected an elliptic-curve key, such as `headway kvd certs` creates.")
    return certificate, key


def _write(file: Path, content: bytes, mode: int = 0o600) -> None:
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as stream:
        stream.write(content)
