"""The page on exposing a gateway: its commands and its file, in front of engines of this test."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import shlex
import shutil
import ssl
import subprocess

import pytest
import yaml

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")

from asking import component, fetch

from conftest import ROOT
from headway.cli import status
from headway.gateway.app import App
from headway.gateway.config import Config

PAGE = (ROOT / "docs" / "questions" / "expose-a-gateway.md").read_text(encoding="utf-8")
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
