"""Ports of 127.0.0.1 for servers that tests start and that cannot choose a port themselves."""

from __future__ import annotations

import random
import socket
from typing import Final

# Below the ports from which Linux and macOS connect: no connection takes such a port before the server listens.
FIRST, LAST = 15_000, 32_000
DRAWS: Final = random.SystemRandom()


def free_port() -> int:
    while True:
        port = DRAWS.randrange(FIRST, LAST)
        with socket.socket() as sock:
            try:
                sock.bind(("", port))
            except OSError:
                continue
            return port
