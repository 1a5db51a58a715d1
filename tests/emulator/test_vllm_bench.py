"""vLLM's own benchmark client reads an emulated engine's answers: in its own process, from the environment that
`make live` builds."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from emulated import Emulated

HOME = Path(__file__).resolve().parents[2] / ".venv-live"
SCRIPT = """
import asyncio, importlib.util, json, sys
from pathlib import Path

home = Path(sys.argv[1])
file = next(home.glob("lib/python*/site-packages/vllm/benchmarks/lib/endpoint_request_func.py"))
spec = importlib.util.spec_from_file_location("request_func", file)  # only this file: all of vLLM takes long to load
client = importlib.util.module_from_spec(spec)
sys.modules["request_func"] = client
spec.loader.exec_module(client)
import aiohttp

async def main():
    found = []
    async with aiohttp.ClientSession() as session:
        for name, path in (("openai", "completions"), ("openai-chat", "chat/completions")):
            for logprobs in (None, 3):
                if logprobs and name == "openai-chat":
                    continue
                asked = client.RequestFuncInput(
                    prompt="some words " * 40, api_url=f"{sys.argv[2]}/v1/{path}", prompt_len=110, output_len=12,
                    model="llama-3.1-8b", logprobs=logprobs, ignore_eos=True)
                out = await client.ASYNC_REQUEST_FUNCS[name](asked, session)
                found.append([out.success, out.error, out.output_tokens, out.prompt_len, out.ttft, out.itl,
                              out.generated_text])
    print(json.dumps(found))

asyncio.run(main())
"""


@pytest.mark.live
def test_the_benchmark_client_of_vllm_reads_its_answers() -> None:
    if not (HOME / ".installed").is_file():
        pytest.skip("vLLM on the CPU is not installed (`make live`)")
    one = Emulated()
    try:
        command = [str(HOME / "bin" / "python"), "-c", SCRIPT, str(HOME), one.url()]
        completed = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    finally:
        one.stop()
    assert completed.returncode == 0, completed.stderr[-2000:]
    result = json.loads(completed.stdout.splitlines()[-1])
    for (success, error, output, prompt, ttft, gaps, text), opening in zip(result, (0, 0, 1), strict=True):
        assert success, error
        assert (output, prompt) == (12, 110 + 3 * opening)  # a chat has role and end tokens
        assert ttft > 0 and len(gaps) == 11 + opening and len(text.split()) == 12
