"""The page on exposing a gateway: its commands and its file, in this process, and word for word in terminals."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import shlex
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest
import yaml

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")

from asking import component, fetch
from test_first_gateway_page import Terminal

from conftest import COMMAND, ROOT
from free_ports import free_port
from headway.cli import status
from headway.gateway.app import App
from headway.gateway.config import Config
from waiting import until

PAGE = (ROOT / "docs" / "questions" / "expose-a-gateway.md").read_text(encoding="utf-8")
PORTS = ("9100", "9101", "8443", "8081")
BLOCKS = re.findall(r"^```(shell|text)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def run(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command of the page in the current folder. Return what `headway key` prints on the terminal."""
    words = shlex.split(command)
    if words[0] != "headway":
        subprocess.run(words, check=True, capture_output=True, timeout=60)
        return ""
    *words, arrow, file = words[1:]
    assert arrow == ">>" and status(words) == 0
    printed = capsys.readouterr()
    with open(file, "a", encoding="utf-8") as keys:  # noqa: PTH123
        keys.write(printed.out)
    return printed.err


def test_a_newcomer_who_follows_the_page_has_a_gateway(live, tmp_path, monkeypatch, capsys):
    if shutil.which("openssl") is None:
        pytest.skip("the command openssl is not installed")
    monkeypatch.chdir(tmp_path)
    shown = "".join(run(line, capsys) for kind, text in BLOCKS if kind == "shell" for line in text.splitlines())
    ann, bob = re.findall(r"hw-\S+", shown)
    engines = live(2)
    document = yaml.safe_load(next(text for _, text in BLOCKS if text.startswith("listen:")))
    for engine, backend in zip(engines.engines, document["backends"].values(), strict=True):
        backend["url"] = f"http://127.0.0.1:{engine.port}"
    document.update(listen="127.0.0.1:0", probes="127.0.0.1:0")
    (tmp_path / "gateway.yaml").write_text(yaml.safe_dump(document))

    async def start() -> App:
        app = App(asyncio.get_running_loop(), Config.load("gateway.yaml"))
        await app.start()
        return app

    first, engines.app = engines.app, engines.call(start())
    port = engines.app.server.sockets[0].getsockname()[1]
    context = ssl.create_default_context(cafile="server.pem")

    def ask(key: str) -> tuple[int, str | None, str | None]:
        connection = http.client.HTTPSConnection("localhost", port, context=context, timeout=60)
        body = json.dumps({"model": "best", "messages": [{"role": "user", "content": "Hello"}]})
        connection.request("POST", "/v1/chat/completions", body, {"Authorization": f"Bearer {key}"})
        answer = connection.getresponse()
        return answer.status, answer.getheader("x-headway-target"), answer.getheader("x-headway-fallback")

    assert ask(ann) == ask(bob) == (200, "large", None)
    assert ask("hw-wrong")[0] == 401
    engines.engines[0].mode = "reset"
    code, target, fallback = ask(ann)
    assert (code, target) == (200, "small") and fallback is not None and fallback.startswith("small-model; from=")
    assert fetch(f"http://127.0.0.1:{component(engines, 'Probes').port}/readyz").status == 200
    engines.call(engines.app.drain(0))
    engines.app = first


@pytest.mark.full
def test_the_page_works_as_it_is_written(tmp_path: Path) -> None:
    if shutil.which("openssl") is None or shutil.which("curl") is None:
        pytest.skip("the commands openssl and curl are not installed")
    page = PAGE
    for shown in PORTS:
        page = page.replace(f":{shown}", f":{free_port()}")
    blocks = re.findall(r"^```(shell|text)\n(.*?)^```$", page.replace("\\\n", " "), re.MULTILINE | re.DOTALL)
    emulate, limits, file, serve, asked, refused, fallen_back, ready = (text for kind, text in blocks if kind == "text")
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    (tmp_path / "headway").write_text(f'#!/bin/sh\nexec {shlex.join(COMMAND)} "$@"\n')
    (tmp_path / "headway").chmod(0o755)

    def shell(command: str) -> str:
        done = subprocess.run(
            command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=True
        )
        return done.stdout + done.stderr

    terminals: list[Terminal] = []
    try:
        for number, line in enumerate(emulate.splitlines()):
            terminals.append(Terminal(tmp_path, f"engine{number}", line.split()[1:]))
        shown = "".join(shell(text) for kind, text in blocks if kind == "shell")
        key = re.findall(r"hw-\S+", shown)[0]
        (tmp_path / "gateway.yaml").write_text(file)
        hashed = (tmp_path / "keys.yaml").read_text()
        limited = limits.split("sha256")[0] + hashed.removeprefix("ann: {")
        assert "rate" in limited
        (tmp_path / "keys.yaml").write_text(limited)
        for terminal in terminals:
            until(lambda terminal=terminal: "stop with Ctrl-C" in terminal.output.read_text(), every=0.05)
        terminals.append(Terminal(tmp_path, "gateway", serve.splitlines()[0].split()[2:]))
        terminals[-1].shows(serve.split("\n", 1)[1])
        first, *headers = asked.replace("hw-...", key).replace("$ KEY", "KEY").split("\n$ ")
        command, *headers = headers[0].splitlines()
        answer = shell(f"{first}; {command}")
        assert set(headers) <= set(answer.splitlines()) and '"model":"large-model"' in answer
        line, expected = refused.removeprefix("$ ").splitlines()
        assert shell(line) == expected
        assert "0 errors" in shell("headway doctor gateway.yaml")
        terminals[0].end()
        answer = shell(f"{first}; {command}")
        assert set(fallen_back.splitlines()) <= set(answer.splitlines())
        line, expected = ready.removeprefix("$ ").splitlines()
        assert shell(line) == expected
    finally:
        for terminal in reversed(terminals):
            terminal.end()
