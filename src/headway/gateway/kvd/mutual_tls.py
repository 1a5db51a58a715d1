"""Mutual TLS for QUIC. aioquic's server can request a client's certificate, but does not verify the certificate. This
module verifies it.

This module uses private names of aioquic. If aioquic changes them, no certificate counts as verified and the daemon
refuses every connection.
"""

import ssl
from typing import Any, Final

from aioquic import tls
from aioquic.quic.configuration import QuicConfiguration
from cryptography import x509

from headway.errors import HeadwayError
from headway.gateway.kvd.channel import TlsFiles

ALPN: Final = "headway-kvd/1"
IDLE_S: Final = 60.0


class VerifyingContext(tls.Context):
    """The server's side of a TLS handshake. If the client's certificate is invalid, the handshake fails before the
    server reads any data."""

    verified = False

    def _server_handle_certificate(self, *arguments: Any) -> None:
        super()._server_handle_certificate(*arguments)
        if self._peer_certificate is None:
            raise tls.AlertHandshakeFailure("a client's certificate is required")

    def _server_handle_certificate_verify(self, *arguments: Any) -> None:
        super()._server_handle_certificate_verify(*arguments)
        certificate = self._peer_certificate
        if certificate is None:
            raise tls.AlertHandshakeFailure("a client's certificate is required")
        tls.verify_certificate(certificate, self._peer_certificate_chain, cadata=self._cadata)
        _check_purpose(certificate)
        self.verified = True


def demand(context: Any) -> None:
    """Make a server's context require a verified client certificate. Call this before the handshake."""
    context.__class__ = VerifyingContext
    context._request_client_certificate = True


def is_verified(context: Any) -> bool:
    return isinstance(context, VerifyingContext) and context.verified and not context.session_resumed


def _check_purpose(certificate: x509.Certificate) -> None:
    """Refuse a certificate that lists its purposes, but does not list client authentication."""
    try:
        uses = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return
    if x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH not in uses:
        raise tls.AlertUnsupportedCertificate("the certificate is not for clients")


def configuration(files: TlsFiles | None, address: str, server_name: str | None) -> QuicConfiguration:
    """Return the QUIC configuration of a client that connects to `server_name`. If `server_name` is None, return the
    configuration of a server."""
    if files is None:
        raise HeadwayError(
            f"{address}: QUIC needs 'tls' with ca, certificate and key; for a test, `headway kvd certs` creates them."
        )
    quic = QuicConfiguration(
        alpn_protocols=[ALPN],
        is_client=server_name is not None,
        server_name=server_name,
        verify_mode=ssl.CERT_REQUIRED,
        idle_timeout=IDLE_S,
        congestion_control_algorithm="cubic",
    )
    for name in ("ca", "certificate", "key"):
        file = getattr(files, name)
        try:
            content = file.read_bytes()
            if name == "ca":
                tls.load_pem_x509_certificates(content)
                quic.load_verify_locations(cadata=content)
            elif name == "certificate":
                quic.certificate, *quic.certificate_chain = tls.load_pem_x509_certificates(content)
            else:
                quic.private_key = tls.load_pem_private_key(content)
        except OSError as error:
            raise HeadwayError(f"tls.{name}: {file} cannot be read ({error.strerror}).") from None
        except (ValueError, TypeError):
            raise HeadwayError(f"tls.{name}: {file} is not in PEM.") from None
    if quic.private_key.public_key() != quic.certificate.public_key():
        raise HeadwayError(f"tls.key: {files.key} is not the key of {files.certificate}.")
    return quic
