"""Addresses of HTTP servers."""

import errno
import socket
import ssl
from typing import Any
from urllib.parse import urlsplit

from headway.errors import HeadwayError


class Address:
    """The parts of a URL such as http://10.0.0.7:8000. The target of a request is appended to the URL's path."""

    def __init__(self, url: str, where: str) -> None:
        wrong = HeadwayError(f"{where}: expected a URL such as http://10.0.0.7:8000, got {url!r}.")
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise wrong from None
        plain = url.isascii() and url.isprintable() and " " not in url
        if parts.scheme not in ("http", "https") or not parts.hostname or not plain or parts.username is not None:
            raise wrong
        self.url = url.rstrip("/")
        self.tls = parts.scheme == "https"
        self.context: ssl.SSLContext | None = None  # for https: None trusts the authorities of the system
        self.server_name: str | None = None  # name that the server's certificate must have; None: `host`
        self.host = parts.hostname
        self.port = port or (443 if self.tls else 80)
        self.base = parts.path.rstrip("/").encode()
        host = f"[{self.host}]" if ":" in self.host else self.host
        self.host_line = f"host: {host}:{self.port}".encode()
        self.root = f"{parts.scheme}://{host}:{self.port}{parts.path.rstrip('/')}"


def why_not_listening(error: OSError) -> str:
    """Return why a socket could not listen and, for the usual reasons, what to do."""
    return {
        errno.EADDRINUSE: "the port is in use by another process. Stop that process, or choose another port",
        errno.EADDRNOTAVAIL: "this machine does not have the address. Use 0.0.0.0 for all addresses that it has",
        errno.EACCES: "this user may not use the port. Choose a port from 1024 on",
    }.get(error.errno or 0, str(error.strerror or error))


def send_at_once(transport: Any) -> None:
    """Turn off Nagle's algorithm, so that small writes are sent without delay."""
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
