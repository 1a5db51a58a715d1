"""Troubles of pools: unequal or badly divided instances, lost and cold ones, and sessions that stay in one place."""

from typing import Final

from headway.testing.planted.sharing import CLUSTER, SLOW_ENGINE, around
from headway.testing.planted.trouble import Trouble, changed
from headway.types import Json


def _sides(prefill: int, decode: int, rate: float) -> Json:
    return {
        "workload": {"rate": f"{rate}/s"},
        "cluster": {"prefill": {"instances": prefill}, "decode": {"instances": decode}},
    }


DISAGGREGATED: Final[Json] = {
    "cluster": {**CLUSTER, "max_batch_size": 32, "architecture": "disaggregated"},
    "policies": {"routing": "least-loaded-pair"},
    "slo": {"ttft": "1s", "tpot": "60ms"},
}
FEW_PREFILL: Final = Trouble(
    name="few-prefill",
    text="One of four instances computes all prompts, and the three decode instances are mostly idle.",
    healthy=changed(
        DISAGGREGATED,
        {"workload": {"requests": 1200, "prompt_tokens": around(1000, 200), "output_tokens": around(60, 15)}},
        _sides(2, 2, 12.5),
    ),
    mild=_sides(1, 3, 10.5),
    medium=_sides(1, 3, 11),
    severe=_sides(1, 3, 12.5),
    causes=("bottleneck:prefill",),
)
FEW_DECODE: Final = Trouble(
    name="few-decode",
    text="One of four instances generates all tokens, and computed prompts wait for a place there.",
    healthy=changed(
        DISAGGREGATED,
        {
            "workload": {"requests": 1200, "prompt_tokens": around(300, 60), "output_tokens": around(300, 60)},
            "slo": {"tpot": "40ms"},
        },
        _sides(2, 2, 16),
    ),
    mild=_sides(3, 1, 11.9),
    medium=_sides(3, 1, 12.3),
    severe=_sides(3, 1, 14),
    causes=("pd_backpressure", "bottleneck:decode", "bottleneck:slots", "bottleneck:handover"),
)


def _incoming(limit: int, latency: str) -> Json:
    return {"cluster": {"transfer": {"max_incoming": limit, "latency": latency}}}


SMALL_HANDOVER: Final = Trouble(
    name="small-handover",
    text="A decode instance accepts so few requests at once that the prefill instances must wait for it.",
    healthy=changed(
        DISAGGREGATED,
        {
            "workload": {"requests": 1200, "prompt_tokens": around(500, 100), "output_tokens": around(80, 20)},
            "cluster": {"transfer": {"bandwidth": "20GB/s"}},
        },
        _sides(2, 2, 14),
        _incoming(100, "440ms"),
    ),
    mild=_incoming(3, "440ms"),
    medium=_incoming(2, "380ms"),
    severe=_incoming(2, "420ms"),
    causes=("pd_backpressure", "bottleneck:handover", "tight_limit"),
)


def _prefixes(groups: int) -> Json:
    return {"workload": {"prefix": {"groups": groups, "tokens": 3000}}}


PREFIXES: Final[Json] = {
    "warmup": 900,
    "workload": {
        "duration": "150s",
        "rate": "9/s",
        "prompt_tokens": around(3300, 60),
        "output_tokens": around(20, 5),
        **_prefixes(120)["workload"],
    },
    "cluster": changed(CLUSTER, {"kv": {"gpu_blocks": 60_000}}),
    "policies": {"routing": "least-loaded"},
    "slo": {"ttft": "200ms"},
}
SIX_MORE: Final[Json] = {
    "cluster": {"max_replicas": 8},
    "policies": {"scaling": {"name": "hpa", "metric": "concurrency", "target": 0.02, "up_pods": 20}},
    "scaling": {"interval": "103s"},
}
COLD_REPLICAS: Final = Trouble(
    name="cold-replicas",
    text="The autoscaler adds instances, whose empty caches make them compute prefixes that the others have cached.",
    healthy=changed(PREFIXES, {"cluster": {"instances": 2}, "policies": {"routing": "round-robin"}}),
    mild=changed(SIX_MORE, _prefixes(6)),
    medium=changed(SIX_MORE, _prefixes(24)),
    severe=changed(SIX_MORE, _prefixes(150)),
    causes=("cold_cache",),
)


def _restarts(groups: int, times: int) -> Json:
    faults = [
        {"at": f"{103 + 6 * number}s", "instance": f"instance-{number}", "kind": "crash", "duration": "2s"}
        for number in range(times)
    ]
    return {**_prefixes(groups), "faults": faults}


COLD_RESTART: Final = Trouble(
    name="cold-restart",
    text="Instances crash and are back two seconds later, without the prefixes that they had cached.",
    healthy=changed(PREFIXES, {"retries": 3, "cluster": {"instances": 3}}, _prefixes(60)),
    mild=_restarts(25, 1),
    medium=_restarts(60, 2),
    severe=_restarts(150, 3),
    causes=("cold_cache", "instance_failure"),
)


def _crash(rate: float, at: str) -> Json:
    return {
        "workload": {"rate": f"{rate}/s"},
        "faults": [{"at": at, "instance": "instance-1", "kind": "crash"}],
    }


CRASH: Final = Trouble(
    name="crash",
    text="One of three instances crashes for good, and the other two cannot serve the load.",
    healthy={
        "retries": 3,
        "workload": {
            "duration": "60s",
            "rate": "45/s",
            "prompt_tokens": around(500, 100),
            "output_tokens": around(60, 15),
        },
        "cluster": {**CLUSTER, "instances": 3},
        "policies": {"routing": "least-loaded"},
        "slo": {"ttft": "1s", "tpot": "80ms"},
    },
    mild=_crash(39, "40s"),
    medium=_crash(41, "30s"),
    severe=_crash(45, "15s"),
    causes=("instance_failure:instance=instance-1",),
)


def _sticky(rate: float) -> Json:
    return {"workload": {"rate": f"{rate}/s"}, "policies": {"routing": "sticky"}}


STICKY: Final = Trouble(
    name="sticky-overload",
    text="Sessions begin while nothing is in flight, so the router binds most of them to the first instance.",
    healthy={
        "workload": {
            "duration": "100s",
            "rate": "15/s",
            "profile": {"type": "segments", "segments": [{"start": "10s", "end": "5000s", "multiplier": 0}]},
            "prompt_tokens": 40,
            "output_tokens": 4,
            "kind": {"kind": "chat", "turns": 9, "turn_tokens": around(1500, 300), "think_time": "10s"},
        },
        "cluster": changed(CLUSTER, {"instances": 6, "kv": {"gpu_blocks": 60_000}}),
        "policies": {"routing": "weighted"},
        "slo": {"ttft": "1s"},
    },
    mild=_sticky(9.5),
    medium=_sticky(11),
    severe=_sticky(17),
    causes=("hot_spot",),
)


def _old(prefill_token: str) -> Json:
    latency = {"prefill_token": prefill_token}
    return {"cluster": {"deployments": {"old": {"latency": latency}}}, "policies": {"routing": "round-robin"}}


UNEQUAL: Final = Trouble(
    name="unequal-instances",
    text="The router sends old and new instances the same number of requests, but the old ones are slower.",
    healthy={
        "workload": {
            "requests": 1200,
            "rate": "25/s",
            "prompt_tokens": around(500, 100),
            "output_tokens": around(60, 15),
        },
        "cluster": {
            **CLUSTER,
            "deployments": {
                "new": {"instances": 2},
                "old": {"instances": 3, "latency": {**SLOW_ENGINE, "step": "20ms", "prefill_token": "400us"}},
            },
        },
        "policies": {"routing": "least-loaded"},
        "slo": {"ttft": "1s", "tpot": "150ms"},
    },
    mild=_old("310us"),
    medium=_old("335us"),
    severe=_old("420us"),
    causes=("uneven_load", "hot_spot", "slow_instance"),
)

TROUBLES: Final = (
    FEW_PREFILL, FEW_DECODE, SMALL_HANDOVER, COLD_REPLICAS, COLD_RESTART, CRASH, STICKY, UNEQUAL,
)  # fmt: skip
