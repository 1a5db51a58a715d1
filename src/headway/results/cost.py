"""What a run cost: GPUs are paid for, and draw power, for as long as they are held. Over the whole run, warm-up
included: hardware is paid for whether its requests count or not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import compress
from math import fsum

from headway.results.recorder import COMPLETED, InstanceStats, Recorder
from headway.results.sample import ratio
from headway.results.scaling import held_ps
from headway.types import PS_PER_SECOND, Json

PS_PER_HOUR = 3600 * PS_PER_SECOND
MILLION = 1_000_000


def costs(recorder: Recorder, instances: Sequence[InstanceStats], length_ps: int) -> Json:
    """The sections `cost` and `energy` of a summary."""
    completed = [code == COMPLETED for code in recorder.outcome]
    requests = completed.count(True)
    tokens = sum(compress(recorder.prompt_tokens, completed)) + sum(compress(recorder.output_tokens, completed))
    busy_ps = sum(stats.busy_ps * stats.gpus for stats in instances)
    held: Counter[float] = Counter()  # by price, so that equal ones are added up before anything is rounded
    for stats in instances:
        held[stats.usd_per_gpu_hour] += stats.gpus * held_ps(stats, length_ps)
    usd = fsum(time_ps / PS_PER_HOUR * price for price, time_ps in held.items())
    kwh = _kwh(instances, length_ps)
    return {
        "cost": {
            "gpu_seconds_per_request": ratio(busy_ps, requests * PS_PER_SECOND),
            "gpu_held_seconds": held.total() / PS_PER_SECOND,
            "usd": usd,
            "usd_per_1k_tokens": usd * 1000 / tokens if tokens else None,
            "usd_per_1m_tokens": usd * MILLION / tokens if tokens else None,
        },
        "energy": {
            "kwh": kwh,
            "wh_per_request": kwh * 1000 / requests if kwh is not None and requests else None,
            "kwh_per_1m_tokens": kwh * MILLION / tokens if kwh is not None and tokens else None,
        },
    }


def _kwh(instances: Sequence[InstanceStats], length_ps: int) -> float | None:
    """Busy watts while a step is under way, idle watts for the rest of the time that it is held; None where a GPU does
    not say what it draws."""
    if any(not stats.busy_watts for stats in instances):
        return None
    drawn: Counter[float] = Counter()  # by watts
    for stats in instances:
        drawn[stats.busy_watts] += stats.busy_ps
        drawn[stats.idle_watts] += held_ps(stats, length_ps) - stats.busy_ps
    return fsum(time_ps / PS_PER_HOUR * watts for watts, time_ps in drawn.items()) / 1000
