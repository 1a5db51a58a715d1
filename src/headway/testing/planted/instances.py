"""Troubles of single instances: slow ones, failing ones, and ones that the router prefers wrongly."""

from typing import Final

from headway.testing.planted.trouble import Trouble, changed
from headway.types import Json

BASE: Final[Json] = {
    "workload": {"requests": 1000, "rate": "30/s", "prompt_tokens": 512, "output_tokens": 128},
    "cluster": {"instances": 4, "latency": {"model": "linear"}},
    "policies": {"routing": "least-loaded"},
    "slo": {"ttft": "300ms", "tpot": "20ms"},
}


def _slow(instance: str, factor: float, duration: str) -> Json:
    fault = {"at": "2s", "instance": instance, "kind": "slow", "factor": factor, "duration": duration}
    return {"faults": [fault]}


STRAGGLER: Final = Trouble(
    name="straggler",
    text="One of three instances computes several times slower than the others.",
    healthy=changed(
        BASE,
        {
            "workload": {"rate": "140/s", "requests": 1800},
            "cluster": {"instances": 3},
            "slo": {"tpot": "35ms"},
        },
    ),
    mild=_slow("instance-1", 6, "1700ms"),
    medium=_slow("instance-1", 8, "5s"),
    severe=_slow("instance-1", 10, "12s"),
    causes=("slow_instance:instance=instance-1",),
)

STRAGGLER_PREFILL: Final = Trouble(
    name="straggler-prefill",
    text="One of three prefill instances computes several times slower than the others.",
    healthy=changed(
        BASE,
        {
            "workload": {"rate": "90/s", "prompt_tokens": 1024, "output_tokens": 64},
            "cluster": {
                "instances": 5, "architecture": "disaggregated",
                "prefill": {"instances": 3}, "decode": {"instances": 2},
            },
            "policies": {"routing": "least-loaded-pair"},
        },
    ),
    mild=_slow("prefill-1", 6, "2s"),
    medium=_slow("prefill-1", 6, "4s"),
    severe=_slow("prefill-1", 10, "20s"),
    causes=("slow_instance:instance=prefill-1",),
)  # fmt: skip


def _popular(weight: float) -> Json:
    return {"workload": {"prefix": {"popularity": [weight, *[1.0] * 15]}}}


HOT_PREFIX: Final = Trouble(
    name="hot-prefix",
    text="Routing by prefix sends all prompts of one popular prefix to one instance.",
    healthy=changed(
        BASE,
        {
            "workload": {
                "requests": 1200, "rate": "100/s", "prompt_tokens": 1280, "output_tokens": 128,
                "prefix": {"groups": 16, "tokens": 1024},
            },
            "policies": {"routing": {"name": "weighted", "scorers": {"prefix-affinity": 10, "queue-depth": 1}}},
        },
    ),
    mild=_popular(12.5),
    medium=_popular(14.5),
    severe=_popular(60),
    causes=("hot_prefix",),
)  # fmt: skip


def _crashes(every_s: float, count: int) -> Json:
    """An instance that crashes again and again, half a second after each restart."""
    times = [f"{2000 + round(1000 * every_s * nth)}ms" for nth in range(count)]
    return {"faults": [{"at": at, "instance": "instance-1", "kind": "crash", "duration": "100ms"} for at in times]}


BLACK_HOLE: Final = Trouble(
    name="black-hole",
    text="An instance crashes again and again; each time it is empty, and so the router prefers it.",
    healthy=changed(BASE, {"workload": {"rate": "50/s"}, "cluster": {"instances": 2}}),
    mild=_crashes(8, 2),
    medium=_crashes(2, 9),
    severe=_crashes(0.4, 44),
    causes=("black_hole:instance=instance-1", "instance_failure:instance=instance-1"),
)

HERD: Final = Trouble(
    name="herd",
    text="The router compares loads that are seconds old, and sends all requests to the same instance meanwhile.",
    healthy=changed(
        BASE,
        {
            "workload": {"rate": "100/s", "requests": 1500},
            "policies": {"routing": "least-kv"},
            "signals": {"poll_interval": "100ms"},
        },
    ),
    mild={"signals": {"poll_interval": "800ms"}},
    medium={"signals": {"poll_interval": "1100ms"}},
    severe={"signals": {"poll_interval": "4s"}},
    causes=("herding",),
)

TROUBLES: Final = (STRAGGLER, STRAGGLER_PREFILL, HOT_PREFIX, BLACK_HOLE, HERD)
