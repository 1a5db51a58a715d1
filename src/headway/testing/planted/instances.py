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


def _slow(instance: str, factor: float, at: str = "5s") -> Json:
    return {"faults": [{"at": at, "instance": instance, "kind": "slow", "factor": factor}]}


STRAGGLER: Final = Trouble(
    name="straggler",
    text="One of four instances computes several times slower than the others.",
    healthy=changed(BASE, {"workload": {"rate": "90/s"}}),
    mild=_slow("instance-2", 2.5),
    medium=_slow("instance-2", 6),
    severe=_slow("instance-2", 20),
    causes=("slow_instance:instance=instance-2",),
)

TROUBLES: Final = (STRAGGLER,)
