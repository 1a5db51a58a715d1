"""Troubles by a setting: limits at the router that are too tight, chunks of the wrong size, too few adapter slots."""

from typing import Final

from headway.testing.planted.sharing import CLUSTER, SHORT, SLOW_ENGINE, around
from headway.testing.planted.trouble import Trouble, changed
from headway.types import Json

BASE: Final[Json] = {
    "workload": {"requests": 1500, "rate": "16/s", **SHORT},
    "cluster": {**CLUSTER, "instances": 3},
    "policies": {"routing": "least-loaded"},
    "slo": {"ttft": "1s"},
}


def _concurrency(limit: int) -> Json:
    return {"policies": {"admission": {"name": "max-concurrency", "max_queue": limit}}}


SMALL_QUEUE: Final = Trouble(
    name="small-queue",
    text="Admission rejects requests above a few in flight, although the instances have room for more.",
    healthy=changed(BASE, _concurrency(200)),
    mild=_concurrency(13),
    medium=_concurrency(8),
    severe=_concurrency(4),
    causes=("tight_limit",),
)


def _bucket(rate: float) -> Json:
    return {"policies": {"admission": {"name": "token-bucket", "rate": rate, "burst": 20}}}


TIGHT_BUCKET: Final = Trouble(
    name="tight-bucket",
    text="A token bucket admits fewer requests than the instances could serve.",
    healthy=changed(BASE, {"workload": {"rate": "20/s"}}, _bucket(40)),
    mild=_bucket(19),
    medium=_bucket(14),
    severe=_bucket(7),
    causes=("tight_limit",),
)


def _held(limit: int, rate: float = 14) -> Json:
    flow = {"name": "bands", "saturation": "concurrency", "max_inflight": limit}
    return {"workload": {"rate": f"{rate}/s"}, "policies": {"flow": flow}}


FLOW_LIMIT: Final = Trouble(
    name="tight-flow",
    text="Flow control holds requests at the router, although the instances have room for more.",
    healthy=changed(BASE, {"workload": {"requests": 1200, "output_tokens": around(400, 80)}}, _held(64)),
    mild=_held(21, 14.2),
    medium=_held(20),
    severe=_held(18),
    causes=("tight_limit", "bottleneck:router"),
)


def _budget(tokens: int) -> Json:
    return {"cluster": {"max_batch_tokens": tokens}}


SMALL_CHUNKS: Final = Trouble(
    name="small-chunks",
    text="The token budget of a step is so small that prompts take many steps, each with the same overhead.",
    healthy={
        "workload": {
            "requests": 1200,
            "rate": "18/s",
            "prompt_tokens": around(700, 150),
            "output_tokens": around(60, 15),
        },
        "cluster": {**CLUSTER, "instances": 3, "max_batch_tokens": 2048},
        "policies": {"routing": "least-loaded"},
        "slo": {"ttft": "1s", "tpot": "60ms"},
    },
    mild=_budget(67),
    medium=_budget(63),
    severe=_budget(57),
    causes=("chunk_size",),
)


def _whole(rate: float) -> Json:
    return {"workload": {"rate": f"{rate}/s"}, "cluster": {"max_batch_tokens": 8192}}


LARGE_CHUNKS: Final = Trouble(
    name="large-chunks",
    text="A step computes whole prompts of 6,000 tokens, and requests that decode get no token meanwhile.",
    healthy={
        "workload": {
            "requests": 900,
            "rate": "5/s",
            "prompt_tokens": around(6000, 1000),
            "output_tokens": around(10, 2),
        },
        "cluster": {
            "instances": 3,
            "latency": {**SLOW_ENGINE, "step": "4ms"},
            "max_batch_tokens": 512,
            "kv": {"gpu_blocks": 20_000},
        },
        "policies": {"routing": "round-robin"},
        "slo": {"ttft": "10s", "tpot": "55ms"},
    },
    mild=_whole(2),
    medium=_whole(3.4),
    severe=_whole(5),
    causes=("chunk_size",),
)


def _drafts(tokens: int, acceptance: float) -> Json:
    return {"cluster": {"speculation": {"tokens": tokens, "acceptance": acceptance}}}


COSTLY_SPECULATION: Final = Trouble(
    name="costly-speculation",
    text="Decodes verify many drafts and accept few of them, so steps get longer and give hardly more tokens.",
    healthy={
        "workload": {
            "requests": 900,
            "rate": "16/s",
            "prompt_tokens": around(200, 40),
            "output_tokens": around(150, 40),
        },
        "cluster": {**CLUSTER, "instances": 2, **_drafts(2, 0.8)["cluster"]},
        "policies": {"routing": "least-loaded"},
        "slo": {"ttft": "1s", "tpot": "11.5ms"},
    },
    mild=_drafts(8, 0.23),
    medium=_drafts(8, 0.2),
    severe=_drafts(10, 0.2),
    causes=("costly_speculation",),
)


def _adapters(count: int) -> Json:
    return {"workload": {"adapters": [f"lora-{number}" for number in range(count)]}}


ADAPTER_THRASH: Final = Trouble(
    name="adapter-thrash",
    text="The requests use more adapters than an instance can hold, so instances load adapters again and again.",
    healthy={
        "workload": {
            "requests": 1200,
            "rate": "15/s",
            "prompt_tokens": around(300, 60),
            "output_tokens": around(20, 5),
            **_adapters(8)["workload"],
        },
        "cluster": {**CLUSTER, "instances": 3, "adapters": {"slots": 8, "load_time": "270ms"}},
        "policies": {"routing": "least-loaded"},
        "slo": {"ttft": "500ms"},
    },
    mild=_adapters(11),
    medium=_adapters(14),
    severe=_adapters(18),
    causes=("adapter_thrashing", "bottleneck:adapters"),
)
ADAPTER_SLOTS: Final = Trouble(
    name="few-adapter-slots",
    text="Running requests use all adapter slots, so requests for other adapters wait until one is free.",
    healthy={
        "workload": {
            "requests": 900,
            "rate": "10/s",
            "prompt_tokens": around(200, 50),
            "output_tokens": around(150, 50),
            **_adapters(4)["workload"],
        },
        "cluster": {**CLUSTER, "instances": 3, "adapters": {"slots": 4, "load_time": "10ms"}},
        "policies": {"routing": "least-loaded"},
        "slo": {"ttft": "1s"},
    },
    mild=_adapters(11),
    medium=_adapters(14),
    severe=_adapters(18),
    causes=("adapter_thrashing", "bottleneck:adapters"),
)

TROUBLES: Final = (
    SMALL_QUEUE, TIGHT_BUCKET, FLOW_LIMIT, SMALL_CHUNKS, LARGE_CHUNKS, COSTLY_SPECULATION, ADAPTER_THRASH,
    ADAPTER_SLOTS,
)  # fmt: skip
