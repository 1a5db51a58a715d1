"""Troubles of capacity: a link, prompts, decoding, batches, and replicas that start late or come and go."""

from typing import Final

from headway.testing.planted.trouble import DROP, Trouble, changed
from headway.types import Json

BASE: Final[Json] = {
    "workload": {"requests": 1000, "rate": "40/s", "prompt_tokens": 512, "output_tokens": 128},
    "cluster": {"instances": 2, "latency": {"model": "linear"}},
    "policies": {"routing": "least-loaded"},
    "slo": {"ttft": "300ms", "tpot": "25ms"},
}


# Arrivals become more frequent, so that a tighter limit binds earlier.
RAMP: Final[Json] = {"workload": {"profile": {"type": "ramp", "from": 0.3, "to": 1.3, "start": "0s", "end": "25s"}}}
LONG_RAMP: Final = changed(RAMP, {"workload": {"profile": {"end": "50s"}}})


def _link(bandwidth: str) -> Json:
    return {"cluster": {"transfer": {"bandwidth": bandwidth}}}


LINK: Final = Trouble(
    name="link-bound",
    text="The link from the prefill instances to the decode instances is too slow for the prompts.",
    healthy=changed(
        BASE,
        {
            "workload": {"prompt_tokens": 1024, "output_tokens": 64},
            "cluster": {
                "instances": 4, "architecture": "disaggregated",
                "prefill": {"instances": 2}, "decode": {"instances": 2},
                "transfer": {"first_token": "decode"},
            },
            "policies": {"routing": "least-loaded-pair"},
        },
        RAMP,
        _link("25GB/s"),
    ),
    mild=_link("3.8GB/s"),
    medium=_link("3.3GB/s"),
    severe=_link("2.5GB/s"),
    causes=("link_saturation", "bottleneck:link"),
)  # fmt: skip

DECODE: Final = Trouble(
    name="decode-bound",
    text="Batches are so large that each step takes longer than the target of a token.",
    healthy=changed(
        BASE,
        {
            "workload": {"rate": "14/s", "prompt_tokens": 128, "output_tokens": 400},
            "cluster": {"latency": {"sequence": "150us"}},
            "slo": {"ttft": "2s", "tpot": "25ms"},
        },
        LONG_RAMP,
    ),
    mild={"workload": {"rate": "18.6/s"}},
    medium={"workload": {"rate": "22/s"}},
    severe={"workload": {"rate": "32/s"}},
    causes=("bottleneck:decode",),
)


def _prompts(mean: int) -> Json:
    return {"workload": {"prompt_tokens": {"dist": "normal", "mean": mean, "std": mean // 5, "min": 64}}}


PREFILL: Final = Trouble(
    name="prefill-bound",
    text="Prompts are so long that the instances cannot compute them as fast as they arrive.",
    healthy=changed(
        BASE,
        LONG_RAMP,
        {"workload": {"rate": "20/s", "output_tokens": 32}, "slo": {"ttft": "1s", "tpot": "80ms"}},
        _prompts(1024),
    ),
    mild=_prompts(3250),
    medium=_prompts(3450),
    severe=_prompts(4600),
    causes=("bottleneck:prefill",),
)


def _slots(count: int) -> Json:
    return {"cluster": {"max_batch_size": count}}


SLOTS: Final = Trouble(
    name="few-slots",
    text="The largest batch is set so small that requests wait while the instances have room.",
    healthy=changed(BASE, RAMP),
    mild=_slots(32),
    medium=_slots(29),
    severe=_slots(20),
    causes=("bottleneck:slots",),
)

RISING: Final = changed(
    BASE,
    {
        "workload": {
            "requests": 2500, "rate": "60/s",
            "profile": {"type": "step", "levels": [{"at": "0s", "multiplier": 0.3}, {"at": "15s", "multiplier": 2.5}]},
        },
        "cluster": {"instances": 1, "min_replicas": 1, "max_replicas": 6},
        "policies": {"scaling": {"name": "hpa", "metric": "concurrency", "target": 15, "window_s": 5}},
        "scaling": {"interval": "2s", "model_load": "1s"},
        "slo": {"ttft": "2s", "tpot": "40ms"},
    },
)  # fmt: skip


def _loading(time: str) -> Json:
    return {"scaling": {"model_load": time}}


SLOW_START: Final = Trouble(
    name="slow-start",
    text="The autoscaler reacts to a higher load, but new replicas take long to load their model.",
    healthy=RISING,
    mild=_loading("7s"),
    medium=_loading("10s"),
    severe=_loading("20s"),
    causes=("slow_start", "bottleneck:replicas"),
)


def _flapping(window_s: float, load: str) -> Json:
    return {
        "policies": {"scaling": {"down_window_s": 0, "window_s": window_s, "down_percent": 100}},
        "scaling": {"model_load": load},
    }


FLAPPING: Final = Trouble(
    name="flapping",
    text="The autoscaler removes replicas in every short lull and starts them again soon after.",
    healthy=changed(
        RISING,
        {"workload": {"profile": DROP}},
        {
            "workload": {
                "requests": 3000, "rate": "90/s",
                "profile": {
                    "type": "segments", "repeat": "12s",
                    "segments": [{"start": "0s", "end": "6s", "multiplier": 0.1}],
                },
            },
            "cluster": {"instances": 4, "max_replicas": 4},
            "slo": {"ttft": "500ms", "tpot": "25ms"},
            "policies": {"scaling": {"down_window_s": 120}},
            "scaling": {"model_load": "2s"},
        },
    ),
    mild=_flapping(6, "1s"),
    medium=_flapping(4, "1s"),
    severe=_flapping(3, "2s"),
    causes=("scale_oscillation",),
)  # fmt: skip

TROUBLES: Final = (LINK, DECODE, PREFILL, SLOTS, SLOW_START, FLAPPING)
