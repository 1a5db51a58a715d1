"""Both addresses answer as their OpenAPI documents say, whatever is asked: Schemathesis makes up the questions."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")
pytest.importorskip("aiohttp", reason="the extra `gateway` is not installed")
if find_spec("schemathesis") is None:
    pytest.skip("schemathesis is not installed; headway[dev] has it", allow_module_level=True)

from asking import ADMIN, KEY, component

pytestmark = pytest.mark.full


def questions(url: str, *more: str, examples: int = 15) -> str:
    """What came of them, where anything was not as it should be."""
    command = [sys.executable, "-c", "import sys, schemathesis.cli as cli; sys.exit(cli.schemathesis())", "run", url]
    command += ["--max-examples", str(examples), "--phases", "examples,coverage,fuzzing", "--seed", "1", *more]
    command += ["--generation-database", "none"]
    process = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert "generated" in process.stdout, process.stdout + process.stderr
    return "" if process.returncode == 0 else process.stdout


def test_the_address_of_clients_is_as_its_document_says(live):
    gateway = live(2, policies={"routing": "kv-aware"})
    assert questions(f"http://127.0.0.1:{gateway.port}/openapi.json", examples=40) == ""
    gateway.until(gateway.idle)


def test_the_admin_api_is_as_its_document_says(live, monkeypatch):
    monkeypatch.setenv("TEST_ADMIN_KEY", KEY)
    gateway = live(2, admin=ADMIN)
    url = f"http://127.0.0.1:{component(gateway, 'Admin').port}/openapi.json"
    left = ("/events", "/policies", "/canary", "/shadows/{name}")  # a stream, and what is a language of its own
    excluded = [word for path in left for word in ("--exclude-path", path)]
    assert questions(url, "-H", f"Authorization: Bearer {KEY}", *excluded) == ""
