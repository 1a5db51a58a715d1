"""A gateway before replicas of vLLM that hears all they tell, and what it believes of them."""

from __future__ import annotations

import itertools
from typing import Any, Final

import msgspec
import tiny_model
from openai import OpenAI
from vllm_engine import BATCH, BLOCK, Vllm

from headway.gateway.request_body import read_body

FRESH: Final = itertools.count(1_000_000)  # prompts that no engine has seen


def before(live: Any, engines: list[Vllm], routing: Any = "kv-aware", **more: Any) -> Any:
    """`more` is said of each backend."""
    backends = {
        engine.name: {
            "url": engine.url,
            "models": [tiny_model.NAME],
            "engine": "vllm",
            "max_batch_size": BATCH,
            "events": engine.events,
            "events_replay": engine.replay,
            **{key: value(engine) for key, value in more.items()},
        }
        for engine in engines
    }
    return live(0, backends=backends, policies={"routing": routing}, tokens={"path": str(engines[0].model)})


def hearing(gateway: Any, engines: list[Vllm]) -> Any:
    """Once it hears them: whoever subscribes misses what is told before the publisher knows of it."""
    for engine in engines:
        counts = gateway.app.listener.engines[engine.name].counts

        def heard(engine: Vllm = engine, counts: Any = counts) -> bool:
            if not counts.batches:
                engine.prefill(tiny_model.text(BLOCK, next(FRESH)))
            return bool(counts.batches)

        gateway.until(heard)
    return gateway


def client(gateway: Any) -> OpenAI:
    return OpenAI(base_url=gateway.url, api_key="none", max_retries=0, timeout=120)


def sent(gateway: Any, prompt: str) -> str:
    """The engine that a prompt goes to."""
    answer = client(gateway).completions.with_raw_response.create(model=tiny_model.NAME, prompt=prompt, max_tokens=1)
    return str(answer.headers["x-headway-target"])


def believed(gateway: Any, engine: Vllm, prompt: str) -> int:
    """Tokens of a prompt that an engine is believed to hold."""

    async def look() -> int:  # in the gateway's own thread
        body = read_body(msgspec.json.encode({"model": tiny_model.NAME, "prompt": prompt}))
        path, _ = gateway.app.tokens.of(tiny_model.NAME).path(body)
        index = gateway.app.plane.control.indexes[0]
        return int(index.matches(path)[gateway.app.fleet.names.get(engine.name).place] * index.block_tokens)

    return int(gateway.call(look()))
