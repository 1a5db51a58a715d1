"""Troubles of caches: wrong beliefs about them, tiers and stores that are too slow, and too few blocks."""

from typing import Final

from headway.testing.planted.trouble import Trouble, changed
from headway.types import Json

BASE: Final[Json] = {
    "workload": {"requests": 1000, "rate": "30/s", "prompt_tokens": 512, "output_tokens": 128},
    "cluster": {"instances": 4, "latency": {"model": "linear"}},
    "policies": {"routing": "least-loaded"},
    "slo": {"ttft": "300ms", "tpot": "25ms"},
}

# Arrivals become more frequent, so that a tighter limit binds earlier.
RAMP: Final[Json] = {"workload": {"profile": {"type": "ramp", "from": 0.3, "to": 1.3, "start": "0s", "end": "25s"}}}

# At first a few requests arrive, one at a time, and each finds the first instance as idle as the others. So this
# instance has computed most prefixes, but its cache holds only a fifth of them.
PREFIXES: Final = changed(
    BASE,
    {
        "workload": {
            "requests": 1300, "rate": "70/s", "prompt_tokens": 1664, "output_tokens": 64,
            "profile": {"type": "step", "levels": [{"at": "0s", "multiplier": 0.01}, {"at": "300s", "multiplier": 1}]},
            "prefix": {"groups": 100, "tokens": 1536},
        },
        "cluster": {"kv": {"gpu_blocks": 2000}},
        "slo": {"ttft": "500ms"},
    },
)  # fmt: skip


def _index(blocks: int | str) -> Json:
    scorers = [{"name": "prefix-affinity", "weight": 3, "lru_blocks": blocks}, {"name": "queue-depth", "weight": 1}]
    return {"policies": {"routing": {"name": "weighted", "scorers": scorers}}}


DRIFT: Final = Trouble(
    name="drift",
    text="The router's prefix index remembers far more blocks than the instances can hold.",
    healthy=changed(PREFIXES, _index("auto")),
    mild=_index(4300),
    medium=_index(4900),
    severe=_index(31250),
    causes=("shadow_divergence",),
)


def _events(delay: str) -> Json:
    return {"signals": {"kv_event_delay": delay}}


DRIFT_EVENTS: Final = Trouble(
    name="drift-events",
    text="The router learns of evictions long after they happened.",
    healthy=changed(PREFIXES, _index(31250), _events("50ms"), {"signals": {"belief": "routed"}}),
    mild=_events("84s"),
    medium=_events("100s"),
    severe=_events("300s"),
    causes=("shadow_divergence",),
)


def _gpu(blocks: int) -> Json:
    return {"cluster": {"kv": {"gpu_blocks": blocks}}}


THRASHING: Final = Trouble(
    name="thrashing-tiers",
    text="The GPU cache is too small for the prefixes in use, so that the same blocks move out and back in.",
    healthy=changed(
        BASE,
        {
            "workload": {
                "rate": "40/s", "prompt_tokens": 2176, "output_tokens": 32, "prefix": {"groups": 12, "tokens": 2048},
                **RAMP["workload"],
            },
            "cluster": {
                "instances": 2,
                "kv": {"gpu_blocks": 4000, "tiers": {"cpu": {"blocks": 8000, "bandwidth": "4GB/s"}}},
            },
        },
    ),
    mild=_gpu(1720),
    medium=_gpu(1600),
    severe=_gpu(1450),
    causes=("cache_thrashing",),
)  # fmt: skip


def _store(bandwidth: str) -> Json:
    return {"cluster": {"kv": {"tiers": {"storage": {"bandwidth": bandwidth}}}}}


STORE: Final = Trouble(
    name="store-bound",
    text="All instances load cached prompts from one store that is too slow.",
    healthy=changed(
        BASE,
        {
            "workload": {
                "rate": "40/s", "prompt_tokens": 2176, "output_tokens": 32, "prefix": {"groups": 200, "tokens": 2048},
            },
            "cluster": {"kv": {"gpu_blocks": 1500, "tiers": {"storage": {"blocks": 40000, "shared": True}}}},
        },
        RAMP,
        _store("50GB/s"),
    ),
    mild=_store("14GB/s"),
    medium=_store("13GB/s"),
    severe=_store("9GB/s"),
    causes=("bottleneck:store",),
)  # fmt: skip

KV: Final = Trouble(
    name="kv-bound",
    text="The instances have too few KV blocks, so that requests wait although batches have room.",
    healthy=changed(BASE, {"workload": {"rate": "80/s"}}, _gpu(4000), RAMP),
    mild=_gpu(760),
    medium=_gpu(690),
    severe=_gpu(500),
    causes=("bottleneck:kv", "preemption_storm"),
)


def _outputs(mean: int) -> Json:
    return {"workload": {"output_tokens": {"dist": "normal", "mean": mean, "std": mean // 4, "min": 16}}}


LONG_OUTPUTS: Final = Trouble(
    name="long-outputs",
    text="Answers are much longer than the KV cache has room for, so that instances preempt requests.",
    healthy=changed(BASE, {"workload": {"rate": "40/s", "prompt_tokens": 128}}, _outputs(128), _gpu(800), RAMP),
    mild=_outputs(385),
    medium=_outputs(430),
    severe=_outputs(600),
    causes=("preemption_storm", "bottleneck:kv"),
)

TROUBLES: Final = (DRIFT, DRIFT_EVENTS, THRASHING, STORE, KV, LONG_OUTPUTS)
