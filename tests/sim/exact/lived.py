"""Small clusters whose instances come and go as a test says, run in all modes, which must agree. A token of a prompt
takes 0.1 ms, a step that decodes 10 ms."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import headway
from headway.types import PS_PER_SECOND, Scale
from headway.views.pool import PoolView

Json = dict[str, Any]
MS = PS_PER_SECOND // 1000
BLOCK = 16
LEAPS: tuple[bool | str, ...] = (True, False, "random-cuts")
LATENCY = {"model": "fixed", "prefill_tokens_per_s": 10_000, "decode_tokens_per_s": 100}


def requests(folder: Path, *given: tuple[float, int, int] | tuple[float, int, int, int]) -> Json:
    """Requests as (ms of arrival, prompt tokens, output tokens), and which prompt it is where some are alike."""
    lines: list[Json] = [{"headway_trace": 1, "origin": "made", "block_tokens": BLOCK}]
    for number, (at, prompt, output, *which) in enumerate(given):
        blocks = [(1000 * ((which[0] if which else number) + 1), -(-prompt // BLOCK))]
        lines.append({"prompt_tokens": prompt, "output_tokens": output, "at_ps": round(at * MS), "blocks": blocks})
    file = folder / "requests.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return {"trace": {"path": str(file), "sessions": "none"}}


def scenario(workload: Json, instances: int = 1, **more: Any) -> Json:
    """What is not a key of a scenario is one of the cluster."""
    top = {key: more.pop(key) for key in list(more) if key in ("faults", "scaling", "retries", "horizon", "routers")}
    top |= {key: more.pop(key) for key in list(more) if key in ("signals", "policies", "slo")}
    cluster = {"instances": instances, "latency": LATENCY, "kv": {"gpu_blocks": 1000}, **more}
    given = {"workload": workload, "cluster": cluster, "policies": {"routing": "least-loaded"}, "warmup": 0, **top}
    return deepcopy(given)


class Told:
    """Has so many replicas from each of its times (in ms) on, whatever is asked of it."""

    def __init__(self, *orders: tuple[float, int], **pools: list[tuple[float, int]]) -> None:
        self.orders = orders
        self.pools = pools

    def scale(self, pool: PoolView) -> Scale | None:
        wanted = None
        for at, replicas in self.pools.get(pool.id, self.orders):
            if pool.now_ps >= at * MS:
                wanted = replicas
        return None if wanted is None else Scale(wanted, "as told")


def lived(given: Json, make: Callable[[], Any] | None = None, **policies: Any) -> headway.Result:
    """The scenario in all modes, with a scaling policy made afresh for each."""
    found: list[headway.Result] = []
    for leap in LEAPS:
        own = {**policies, **({} if make is None else {"scaling": make()})}
        found.append(headway.simulate({**given, "leap": leap}, **own))
        first, last = found[0], found[-1]
        for name, column in first.requests.items():
            assert last.requests[name] == column, f"{name} differs with leap: {leap}"
        assert last.to_json() == first.to_json(), f"leap: {leap}"
        assert (last.states, last.scaling_events) == (first.states, first.scaling_events), f"leap: {leap}"
    whole = found[0].requests
    gaps = total = 0
    for outcome, tokens, came, ended in zip(
        *(whole[name] for name in ("outcome", "output_tokens", "first_token_ps", "finished_ps")), strict=True
    ):
        if outcome == "completed":
            gaps += tokens - 1
            total += ended - came
    mean = found[0].summary()["latency"]["itl"]["mean"]
    assert mean == (total / (gaps * MS) if gaps else None)  # the gaps of those that completed, and nobody else's
    return found[0]


def ms(result: headway.Result, column: str) -> list[float]:
    return [at / MS if at >= 0 else -1 for at in result.requests[column]]


def rows(result: headway.Result) -> list[Json]:
    return list(result.requests.rows())


def states(result: headway.Result, instance: int) -> list[tuple[float, str]]:
    return [(change.at_ps / MS, change.state) for change in result.states if change.instance == instance]
