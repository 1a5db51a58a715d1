"""OpenAI's own client, pointed at a server on loopback."""

from __future__ import annotations

from typing import Any

import pytest

openai = pytest.importorskip("openai", reason="the openai package is not installed")


def openai_client(url: str, key: str = "sk-test", timeout: float = 300, **more: Any) -> Any:
    """Return a client that never retries. It loads no certificate authorities, which cost 90 ms of CPU a client."""
    transport = openai.DefaultHttpxClient(verify=False, timeout=timeout)
    return openai.OpenAI(base_url=url, api_key=key, max_retries=0, timeout=timeout, http_client=transport, **more)
