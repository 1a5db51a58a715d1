"""An endpoint that returns the same bytes to every request, and stores the requests."""

from __future__ import annotations

import json
import re
import socket
import threading
from typing import Any

STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def stream(*pieces: bytes) -> bytes:
    return STREAM + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def whole(document: Any) -> bytes:
    body = json.dumps(document).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


def event(**delta: Any) -> bytes:
    return b"data: " + json.dumps({"choices": [{"delta": delta}]}).encode() + b"\n\n"


class Canned:
    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.asked: list[Any] = []
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, client.makefile("rb") as file:
            length = 0
            for line in file:  # of consecutive heads
                if line != b"\r\n":
                    result = re.match(rb"content-length: (\d+)", line, re.IGNORECASE)
                    length = length if result is None else int(result[1])
                    continue
                self.asked.append(json.loads(file.read(length)))
                client.sendall(self.answer)

    def stop(self) -> None:
        self._socket.close()
