"""Emulated engines behind proxies that break their answers."""

from __future__ import annotations

import asyncio
import signal
import socket
import struct
import subprocess
import sys
from collections import Counter
from pathlib import Path

from free_ports import free_port

MODEL = "llama-3.1-8b"


class Engine:
    """An emulated engine in a process of its own, and the proxy through which the gateway reaches it. `mode` is what
    the proxy does with answers to POST requests: pass, cut, reset, garbage or slow."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self.port, self.inner = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.mode = "pass"
        self.broken: Counter[str] = Counter()  # answers that the proxy has broken, by mode
        self.process: subprocess.Popen[bytes] | None = None
        self.server: asyncio.Server | None = None

    async def start(self) -> None:
        self.launch()
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    def launch(self) -> None:
        command = [sys.executable, "-m", "headway.cli", "emulate", "--replicas", "1", "--output-tokens", "12"]
        command += ["--listen", f"127.0.0.1:{self.inner}", "--speed", "20"]
        with (self.folder / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    async def wait_ready(self) -> None:
        for _ in range(600):
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", self.inner)
            except OSError:
                await asyncio.sleep(0.1)
                continue
            writer.close()
            return
        raise RuntimeError(f"The emulated engine {self.name} did not start.")

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def freeze(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    async def stop(self) -> None:
        if self.server is not None:
            self.server.close()
        if self.process is not None and self.process.poll() is None:
            self.thaw()
            self.kill()

    # --- the proxy ----------------------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self.inner)
        except OSError:
            _reset(writer)
            return
        state = {"post": False}
        ways = (self._requests(reader, inner_writer, state), self._answers(inner_reader, writer, state))
        tasks = [asyncio.create_task(way) for way in ways]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:  # the run has ended
            pass
        finally:
            for task in tasks:
                task.cancel()
            for end in (writer, inner_writer):
                end.close()

    async def _requests(
        self, reader: asyncio.StreamReader, inner: asyncio.StreamWriter, state: dict[str, bool]
    ) -> None:
        try:
            while piece := await reader.read(65536):
                if piece[:5] in (b"POST ", b"GET /"):
                    state["post"] = piece.startswith(b"POST ")
                inner.write(piece)
                await inner.drain()
        except OSError:
            pass

    async def _answers(self, inner: asyncio.StreamReader, writer: asyncio.StreamWriter, state: dict[str, bool]) -> None:
        try:
            while piece := await inner.read(65536):
                if state["post"] and self.mode != "pass" and not await self._break(piece, writer):
                    return
                if not (state["post"] and self.mode == "garbage"):
                    writer.write(piece)
                    await writer.drain()
        except OSError:
            pass

    async def _break(self, piece: bytes, writer: asyncio.StreamWriter) -> bool:
        """Treat a piece of an answer as the mode says. Return whether the connection goes on."""
        self.broken[self.mode] += 1
        if self.mode == "reset":
            _reset(writer)
            return False
        if self.mode == "garbage":
            writer.write(b"\x00\xffthis is no HTTP\r\n\r\n" * 3)
            return False
        if self.mode == "cut":
            writer.write(piece[: max(1, len(piece) - 7)])
            await writer.drain()
            return False
        await asyncio.sleep(0.3)  # slow
        return True


def _reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
