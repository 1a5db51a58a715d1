"""docs/start/first-gateway.md, followed word for word in an empty folder."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")

from conftest import COMMAND
from free_ports import free_port
from waiting import until

PAGE = Path(__file__).resolve().parents[2] / "docs" / "start" / "first-gateway.md"
TIME = re.compile(r"^\S+Z ", re.MULTILINE)


class Terminal:
    """A terminal in which a command of the page runs. What it prints goes to a file."""

    def __init__(self, folder: Path, name: str, words: list[str]) -> None:
        self.output = folder / f"{name}.out"
        with self.output.open("wb") as out:
            self.process = subprocess.Popen([*COMMAND, *words], cwd=folder, stdout=out, stderr=out)

    def shows(self, expected: str) -> None:
        """Wait until every line has been printed, whatever its time."""
        wanted = TIME.sub("", expected).strip().splitlines()
        until(lambda: set(wanted) <= set(TIME.sub("", self.output.read_text()).splitlines()), expected, every=0.05)

    def end(self) -> None:
        self.process.send_signal(signal.SIGINT)
        self.process.wait(60)


@pytest.mark.full
def test_the_page_works_as_it_is_written(tmp_path: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    first = free_port()
    for shown, port in (("9100", first), ("9101", first + 1), ("8000", free_port())):
        page = page.replace(f"127.0.0.1:{shown}", f"127.0.0.1:{port}")
    blocks = re.findall(r"^```text\n(.*?)^```$", page.replace("\\\n", " "), re.MULTILINE | re.DOTALL)
    emulate, file, serve, curl, load, policies, reloaded, doctor = blocks
    command = emulate.splitlines()[0].split()[2:]
    terminals = [Terminal(tmp_path, "engines", [*command, "--listen", f"127.0.0.1:{first}"])]
    try:
        terminals[0].shows(emulate.split("\n", 1)[1])
        (tmp_path / "gateway.yaml").write_text(file)
        terminals.append(Terminal(tmp_path, "gateway", serve.splitlines()[0].split()[2:]))
        terminals[1].shows(serve.split("\n", 1)[1])

        def ask() -> str:
            line = curl.splitlines()[0].removeprefix("$ ")
            return subprocess.run(line, shell=True, capture_output=True, text=True, timeout=60, check=True).stdout

        answer = ask()
        for line in curl.splitlines()[1:5]:
            assert line in answer
        assert "near-tie, by work" in answer and '"text":"kel vot tag pab mit zag sel vas "' in answer
        words = load.splitlines()[0].split()[2:]
        measured = run(tmp_path, [word.replace("requests=50", "requests=3") for word in words])
        titles = re.compile(r"^ ([A-Za-z]+(?: met| hits)?) ", re.MULTILINE)
        assert titles.findall(measured.stdout) == titles.findall(load)
        with (tmp_path / "gateway.yaml").open("a") as opened:
            opened.write(policies)
        terminals[1].shows(reloaded)
        assert "x-headway-reason: lowest score" in ask()
        found = run(tmp_path, doctor.split()[1:])
        assert found.returncode == 0 and "0 errors" in found.stdout
    finally:
        for terminal in reversed(terminals):
            terminal.end()


def run(folder: Path, words: list[str]) -> Any:
    return subprocess.run([*COMMAND, *words], cwd=folder, capture_output=True, text=True, timeout=120, check=False)
