"""Troubles among requests that share instances: heavy tenants, sessions, classes and prompts."""

from typing import Final

from headway.testing.planted.trouble import Trouble, changed
from headway.types import Json

# A slow engine: a small cluster of it is busy with few requests, so that the scenarios run fast.
SLOW_ENGINE: Final[Json] = {
    "model": "linear",
    "step": "8ms",
    "prefill_token": "80us",
    "prefill_pair": "1ns",
    "sequence": "30us",
    "context_token": "40ns",
}
CLUSTER: Final[Json] = {"latency": SLOW_ENGINE, "max_batch_size": 64, "kv": {"gpu_blocks": 8000}}


def around(mean: int, std: int) -> Json:
    """Return the distribution of a length."""
    return {"dist": "normal", "mean": mean, "std": std, "min": 2}


SHORT: Final[Json] = {"prompt_tokens": around(300, 60), "output_tokens": around(60, 15)}


def _coder(turn_tokens: int) -> Json:
    kind = {"kind": "chat", "turns": 60, "turn_tokens": turn_tokens, "think_time": "300ms"}
    return {"workload": {"tenants": {"coder": {"kind": kind}}}}


RUNAWAY_SESSION: Final = Trouble(
    name="runaway-session",
    text="One session's context grows with every turn, until its prompts occupy an instance for seconds.",
    healthy={
        "workload": {
            "duration": "60s",
            "tenants": {
                "chat": {"rate": "38/s", "prompt_tokens": around(400, 100), "output_tokens": around(60, 15)},
                "coder": {
                    "closed_loop": {"concurrency": 1, "think_time": "300ms"},
                    "prompt_tokens": 1000,
                    "output_tokens": 40,
                    **_coder(200)["workload"]["tenants"]["coder"],
                },
            },
        },
        "cluster": changed(CLUSTER, {"instances": 2, "kv": {"gpu_blocks": 30_000}}),
        "policies": {"routing": "least-loaded"},
        "slo": {"ttft": "1s", "tpot": "80ms"},
    },
    mild=_coder(3500),
    medium=_coder(6000),
    severe=_coder(20_000),
    causes=("runaway_session",),
)


def _rate_of(tenant: str, rate: float) -> Json:
    return {"workload": {"tenants": {tenant: {"rate": f"{rate}/s"}}}}


NOISY_PROMPTS: Final = Trouble(
    name="noisy-prompts",
    text="One tenant sends long prompts at a steady rate that leaves no room for the other tenant.",
    healthy={
        "workload": {
            "duration": "60s",
            "tenants": {
                "shop": {"rate": "18/s", **SHORT},
                "crawler": {
                    "rate": "1/s",
                    "prompt_tokens": around(3500, 500),
                    "output_tokens": around(30, 8),
                    "slo": {"ttft": "20s"},
                },
            },
        },
        "cluster": {**CLUSTER, "instances": 3},
        "policies": {"routing": "least-loaded"},
        "slo": {"ttft": "1s"},
    },
    mild=_rate_of("crawler", 6.8),
    medium=_rate_of("crawler", 7.8),
    severe=_rate_of("crawler", 10),
    causes=("noisy_neighbour:tenant=crawler",),
)
NOISY_OUTPUTS: Final = Trouble(
    name="noisy-outputs",
    text="One tenant's long answers hold most places of the batches at a steady rate.",
    healthy={
        "workload": {
            "duration": "90s",
            "tenants": {
                "shop": {"rate": "12/s", **SHORT},
                "writer": {
                    "rate": "0.3/s",
                    "prompt_tokens": around(200, 50),
                    "output_tokens": around(1200, 150),
                    "slo": {"ttft": "60s"},
                },
            },
        },
        "cluster": {**CLUSTER, "instances": 2, "max_batch_size": 16},
        "policies": {"routing": "least-loaded"},
        "slo": {"ttft": "1s"},
    },
    mild=_rate_of("writer", 1.7),
    medium=_rate_of("writer", 1.9),
    severe=_rate_of("writer", 2.5),
    causes=("noisy_neighbour:tenant=writer",),
)


CLASS_CROWDING: Final = Trouble(
    name="class-crowding",
    text="Requests of the batch class fill the batches in order of arrival, and realtime requests wait behind them.",
    healthy={
        "workload": {
            "duration": "60s",
            "tenants": {
                "app": {"rate": "16/s", "priority": "realtime", **SHORT},
                "reports": {
                    "rate": "0.3/s",
                    "priority": "batch",
                    "prompt_tokens": around(800, 100),
                    "output_tokens": around(400, 80),
                    "slo": {"ttft": "60s"},
                },
            },
        },
        "cluster": {**CLUSTER, "instances": 2, "max_batch_size": 24},
        "policies": {"routing": "least-loaded"},
        "slo": {"ttft": "1s"},
    },
    mild=_rate_of("reports", 5.2),
    medium=_rate_of("reports", 6),
    severe=_rate_of("reports", 8),
    causes=("priority_inversion", "noisy_neighbour:tenant=reports"),
)


def _long_share(share: float) -> Json:
    parts = [{**around(300, 60), "weight": 1 - share}, {**around(14_000, 2000), "weight": share}]
    return {"workload": {"prompt_tokens": {"dist": "mixture", "parts": parts}}}


LONG_PROMPTS: Final = Trouble(
    name="long-prompts",
    text="A few prompts of 14,000 tokens hold up the short prompts that arrive behind them.",
    healthy={
        "workload": {
            "requests": 1500,
            "rate": "15/s",
            "output_tokens": around(50, 10),
            **_long_share(0.001)["workload"],
        },
        "cluster": changed(CLUSTER, {"instances": 3, "kv": {"gpu_blocks": 20_000}}),
        "policies": {"routing": "round-robin"},
        "slo": {"ttft": "1s"},
    },
    mild=_long_share(0.025),
    medium=_long_share(0.075),
    severe=_long_share(0.125),
    causes=("head_of_line_blocking",),
)

TROUBLES: Final = (RUNAWAY_SESSION, NOISY_PROMPTS, NOISY_OUTPUTS, CLASS_CROWDING, LONG_PROMPTS)
