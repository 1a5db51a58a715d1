"""Random situations on which two rules are compared without a simulation: by their decisions."""

from __future__ import annotations

from functools import cache
from random import Random
from types import SimpleNamespace
from typing import Final

from msgspec import Struct

from headway.evolve.expression import leaves_of
from headway.policies.code import Program
from headway.policies.code.language import STEPS
from headway.policies.code.stages import FAILURES
from headway.streams import stream
from headway.views.instance import SIGNALS
from headway.views.signals import Kind

SITUATIONS: Final = 200
KV_BLOCKS: Final = 4096
SLOTS: Final = 128
# The largest value of a signal that only some rules read, by its kind.
LARGEST: Final[dict[Kind, float]] = {"count": 60, "tokens": 60_000, "blocks": KV_BLOCKS, "rate": 2000, "power": 700}


class Situation(Struct, frozen=True):
    request: SimpleNamespace
    instances: tuple[SimpleNamespace, ...]
    cached: list[int]  # number of prompt tokens that the router assumes each instance has cached


@cache
def situations() -> tuple[Situation, ...]:
    """Return random requests and instances on which rules are tried without a simulation. They are the same in every
    search."""
    draw = stream(0, "evolve.situations")
    return tuple(_situation(draw) for _ in range(SITUATIONS))


def _situation(draw: Random) -> Situation:
    prompt = int(draw.lognormvariate(7.5, 1.2)) + 16
    prefix = int(prompt * draw.random())
    cached = [prefix // 16 * 16 if draw.random() < 0.5 else 0 for _ in range(draw.choice((2, 4, 4, 8)))]
    crowd = draw.choice((2, 8, 30))
    views = tuple(_instance(draw, index, crowd) for index in range(len(cached)))
    request = SimpleNamespace(
        prompt_tokens=prompt,
        shared_prefix_tokens=prefix,
        max_tokens=None if prompt % 3 else prompt // 2 + 1,
        turn=prompt % 4,
        slo_class="standard",
        tenant="default",
    )
    return Situation(request, views, cached)


def _instance(draw: Random, index: int, crowd: int) -> SimpleNamespace:
    inflight = draw.randrange(crowd + 1)
    queued = draw.randrange(inflight // 2 + 1)
    waiting = draw.randrange(inflight // 2 + 1)
    used = int(KV_BLOCKS * min(1.0, inflight / SLOTS + 0.6 * draw.random()))
    pending = int(waiting * draw.lognormvariate(7, 0.8))
    seconds = 1e-5 * (1 + inflight / SLOTS)  # for each token to compute
    signals = {name: draw.random() * LARGEST.get(SIGNALS[name].kind, 1.0) for name in leaves_of("routing", False)}
    view = SimpleNamespace(**signals)
    view.index, view.role = index, ("decode", "prefill")[index % 2]
    view.estimated_ttft = lambda tokens: seconds * (pending + tokens)
    view.estimated_wait = seconds * pending
    view.inflight, view.queued = inflight, queued
    view.effective_load = max(0, inflight + draw.choice((-1, 0, 0, 0, 1)))
    view.pending_prefill_tokens = pending
    view.decode_tokens = int((inflight - waiting) * draw.lognormvariate(7.5, 0.5))
    view.kv_utilization = used / KV_BLOCKS
    return view


def decisions(program: Program) -> bytes | None:
    """Return the index of the instance that a rule chooses in each situation: for a decider, whether it splits; for an
    estimator, a number that grows with the estimate. If the rule fails in any situation, return None."""
    running = program.start()
    scores, entrance = program.entrance == "score", running.entrance
    choices = bytearray()
    for situation in situations():
        cluster = SimpleNamespace(instances=situation.instances)
        running.begin(STEPS, situation.cached, None)
        try:
            if program.stage == "decider":
                choices.append(entrance(situation.request, situation.instances[0], cluster))
            elif program.stage == "estimator":
                choices.append(min(255, max(0, int(entrance(situation.request, cluster)) // 8)))
            elif scores:
                values = [entrance(situation.request, view, cluster) for view in situation.instances]
                choices.append(values.index(max(values)))
            else:
                choices.append(entrance(situation.request, situation.instances, cluster).index)
        except FAILURES:
            return None
    return bytes(choices)
