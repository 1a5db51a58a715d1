"""What a routing rule decides in situations that are made up: whether two rules differ can so be told before either is
simulated."""

from __future__ import annotations

from functools import cache
from random import Random
from types import SimpleNamespace
from typing import Final

from msgspec import Struct

from headway.policies.code import Program
from headway.policies.code.language import STEPS
from headway.policies.code.stages import FAILURES
from headway.streams import stream

SITUATIONS: Final = 200
KV_BLOCKS: Final = 4096
SLOTS: Final = 128


class Situation(Struct, frozen=True):
    """A request, the candidates, and what each of them is believed to have cached of it."""

    request: SimpleNamespace
    instances: tuple[SimpleNamespace, ...]
    cached: list[int]


@cache
def situations() -> tuple[Situation, ...]:
    """The same for every search."""
    draw = stream(0, "evolve.situations")
    return tuple(_situation(draw) for _ in range(SITUATIONS))


def _situation(draw: Random) -> Situation:
    prompt = int(draw.lognormvariate(7.5, 1.2)) + 16
    prefix = int(prompt * draw.random())
    cached = [prefix // 16 * 16 if draw.random() < 0.5 else 0 for _ in range(draw.choice((2, 4, 4, 8)))]
    crowd = draw.choice((2, 8, 30))
    views = tuple(_instance(draw, index, crowd) for index in range(len(cached)))
    request = SimpleNamespace(prompt_tokens=prompt, shared_prefix_tokens=prefix)
    return Situation(request, views, cached)


def _instance(draw: Random, index: int, crowd: int) -> SimpleNamespace:
    inflight = draw.randrange(crowd + 1)
    queued = draw.randrange(inflight // 2 + 1)
    waiting = draw.randrange(inflight // 2 + 1)
    used = int(KV_BLOCKS * min(1.0, inflight / SLOTS + 0.6 * draw.random()))
    return SimpleNamespace(
        index=index,
        inflight=inflight,
        queued=queued,
        effective_load=max(0, inflight + draw.choice((-1, 0, 0, 0, 1))),
        pending_prefill_tokens=int(waiting * draw.lognormvariate(7, 0.8)),
        decode_tokens=int((inflight - waiting) * draw.lognormvariate(7.5, 0.5)),
        kv_utilization=used / KV_BLOCKS,
    )


def decisions(program: Program) -> bytes | None:
    """The instance that a rule chooses in each situation; None where it fails in one."""
    running = program.start()
    scores, entrance = program.entrance == "score", running.entrance
    found = bytearray()
    for one in situations():
        cluster = SimpleNamespace(instances=one.instances)
        running.begin(STEPS, one.cached, None)
        try:
            if scores:
                values = [entrance(one.request, view, cluster) for view in one.instances]
                found.append(values.index(max(values)))
            else:
                found.append(entrance(one.request, one.instances, cluster).index)
        except FAILURES:
            return None
    return bytes(found)
