"""Raw bytes: engines with invalid answers, and clients with invalid requests."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any

BODY = {"model": "m", "messages": [{"role": "user", "content": "hello there"}]}
EVENTS = b"".join(
    b"%x\r\n%b\r\n" % (len(event), event)
    for event in (b'data: {"choices":[{"index":0,"delta":{"content":"t%d"}}]}\n\n' % number for number in range(3))
)
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n" + EVENTS
WHOLE_STREAM = STREAM + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
ANSWER = b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 17\r\n\r\n{"choices": null}'


def http_post(body: object = BODY, fields: bytes = b"", path: bytes = b"/v1/chat/completions") -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n%b\r\n%b" % (path, len(data), fields, data)


def connect(live: Any) -> socket.socket:
    return socket.create_connection(("127.0.0.1", live.port), timeout=300)


def read_all(sock: socket.socket) -> bytes:
    """Return all bytes up to the end of the connection, even after a reset."""
    data = b""
    try:
        while piece := sock.recv(65536):
            data += piece
    except ConnectionError:
        pass
    return data


def send(live: Any, data: bytes) -> bytes:
    """Return all bytes until the gateway closes the connection."""
    with connect(live) as sock:
        sock.sendall(data)
        return read_all(sock)


def reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


Act = Callable[[socket.socket, bytes], None]


class RoughEngine:
    """Reads a request and leaves the rest to `act`, which is given the connection and the request; `headed` may take
    its time before the body is read."""

    def __init__(self, act: Act, headed: Act | None = None) -> None:
        self.act, self.headed = act, headed
        self.connections = 0  # with something other than a GET
        self.server = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.url = f"http://127.0.0.1:{self.server.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                sock, _ = self.server.accept()
            except OSError:
                return
            threading.Thread(target=self._one, args=(sock,), daemon=True).start()

    def _one(self, sock: socket.socket) -> None:
        """Answer GET requests for health and metrics correctly."""
        count = 0
        with sock:
            try:
                while request := read_request(sock, self.headed):
                    if request.startswith(b"GET "):
                        status = b"200 OK" if request.startswith(b"GET /health ") else b"404 Not Found"
                        sock.sendall(b"HTTP/1.1 " + status + b"\r\ncontent-length: 0\r\n\r\n")
                        continue
                    count += 1
                    self.connections += count == 1
                    self.act(sock, request)
            except OSError:
                pass

    def close(self) -> None:
        self.server.close()


def read_request(sock: socket.socket, headed: Act | None = None) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        piece = sock.recv(65536)
        if not piece:
            return b""
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    size = next((int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"content-length:")), 0)
    if size and headed is not None:
        headed(sock, head)
    while len(body) < size:
        body += sock.recv(65536)
    return head + b"\r\n\r\n" + body


def says(data: bytes, then: str = "keep") -> Act:
    """Return an engine that answers these bytes, and keeps, closes or resets the connection."""

    def act(sock: socket.socket, request: bytes) -> None:
        sock.sendall(data)
        if then == "reset":
            reset(sock)
        elif then == "close":
            sock.shutdown(socket.SHUT_RDWR)

    return act
