"""Ten groups of five prompts that begin alike, two requests at a time, before several gateways in turn."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any, Final

import tiny_model
from openai import OpenAI
from vllm_engine import Vllm

GROUPS: Final = 10
EACH: Final = 5
SHARED, OWN = 1200, 100  # words of a prompt, each of which is a token
CONCURRENCY: Final = 2
HITS, QUERIES = "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"


class Outcome:
    """Of one gateway."""

    def __init__(self) -> None:
        self.ttft_s: list[float] = []
        self.targets: dict[str, int] = {}
        self.hits = self.queries = 0.0  # tokens, as the engines count them

    @property
    def hit_rate(self) -> float:
        return self.hits / self.queries

    @property
    def mean_ttft_s(self) -> float:
        return math.fsum(self.ttft_s) / len(self.ttft_s)

    def __str__(self) -> str:
        return f"hit rate {self.hit_rate:.3f}, mean TTFT {self.mean_ttft_s * 1000:.0f} ms, {self.targets}"


def prompts(seed: int, salt: int) -> list[str]:
    """In an order without a pattern, so that taking turns does not keep a group together by luck. Another salt gives
    other texts in the same order."""
    pairs = [(group, turn) for group in range(GROUPS) for turn in range(EACH)]
    Random(seed).shuffle(pairs)
    first = (seed * 100 + salt) * 10_000
    return [
        f"{tiny_model.text(SHARED, first + group)} {tiny_model.text(OWN, first + 1000 + group * EACH + turn)}"
        for group, turn in pairs
    ]


def run(urls: Mapping[str, str], engines: list[Vllm], seed: int) -> dict[str, Outcome]:
    """From empty caches on. The gateways take turns after every few requests, so that whatever else the machine does
    meanwhile slows all of them."""
    for engine in engines:
        engine.forget()
    outcomes = {name: Outcome() for name in urls}
    clients = {name: OpenAI(base_url=url, api_key="none", max_retries=0, timeout=120) for name, url in urls.items()}
    texts = {name: prompts(seed, salt) for salt, name in enumerate(urls)}
    with ThreadPoolExecutor(CONCURRENCY) as pool:
        for at in range(0, GROUPS * EACH, CONCURRENCY):
            for name, outcome in outcomes.items():
                before = _counted(engines)
                asking = [pool.submit(_ask, clients[name], text) for text in texts[name][at : at + CONCURRENCY]]
                for one in asking:
                    seconds, target = one.result()
                    outcome.ttft_s.append(seconds)
                    outcome.targets[target] = outcome.targets.get(target, 0) + 1
                after = _counted(engines)
                outcome.hits += after[0] - before[0]
                outcome.queries += after[1] - before[1]
    return outcomes


def _ask(client: OpenAI, prompt: str) -> tuple[float, str]:
    """Seconds until the first piece of the answer, and who gave it."""
    messages: Any = [{"role": "user", "content": prompt}]
    start = time.monotonic()
    with client.chat.completions.with_streaming_response.create(
        model=tiny_model.NAME, messages=messages, max_tokens=4, stream=True
    ) as answer:
        lines = (line for line in answer.iter_lines() if line)
        next(lines)
        seconds = time.monotonic() - start
        assert list(lines)[-1] == "data: [DONE]"
        return seconds, answer.headers["x-headway-target"]


def _counted(engines: list[Vllm]) -> tuple[float, float]:
    hits = queries = 0.0
    for engine in engines:
        hits += engine.counter(HITS)
        queries += engine.counter(QUERIES)
    return hits, queries
