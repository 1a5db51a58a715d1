"""Random clusters in which prompts are computed apart, for the exactness tests: any other with its instances split,
alone or beside instances that do both, under policies that choose pairs and under those that do not."""

from __future__ import annotations

from typing import Any

from draw_sources import Draws, pick

Json = dict[str, Any]
ORDINARY = ("least-loaded", "round-robin", "weighted", "random", "least-kv", "lmetric", "sticky", "session-affinity")
PAIRS = ("least-loaded-pair", "prefix-pair", "pair")
DECIDERS = (
    *("always", "never", "prompt-threshold", "uncached-threshold"),
    *("estimated-ttft", "drift-plus-penalty", "lend"),
)


def half(draws: Draws, cluster: Json) -> Json:
    found: Json = {"instances": draws.between(1, 3)}
    if pick(draws, False, True):
        found["max_batch_tokens"] = pick(draws, draws.between(1, 3), draws.between(4, 64), 2048)
    if pick(draws, False, True):
        found["max_batch_size"] = pick(draws, 1, 2, 5)
    if pick(draws, False, True):
        found["kv"] = {"gpu_blocks": cluster["kv"]["gpu_blocks"] * pick(draws, 2, 3, 4) // 2}
    return found


def transfer(draws: Draws) -> Json:
    return {
        "latency": pick(draws, "0s", "1ms", "500us", "20ms"),
        "bandwidth": pick(draws, "50GB/s", "1GB/s", "20MB/s"),
        "granularity": pick(draws, "block", "chunk", "stream"),
        "keep_prefill_copy": pick(draws, False, True),
        "first_token": pick(draws, "prefill", "decode"),
        "pipelined": pick(draws, False, True),
        "max_incoming": pick(draws, None, None, 1, 2),
    }


def decider(draws: Draws) -> Any:
    name = pick(draws, "always", *DECIDERS)
    if name.endswith("threshold"):
        return {"name": name, "colocate_below_tokens": pick(draws, 5, 20)}
    if name == "lend":
        return {"name": name, "wait": pick(draws, "1ps", "5ms", "200ms"), "share": pick(draws, 0.3, 1)}
    if name == "drift-plus-penalty":
        return {"name": name, "v": pick(draws, 0, 0.01, 1), "itl": pick(draws, "1ms", "50ms")}
    return name


def split(draws: Draws, found: Json) -> Json:
    """The scenario with its cluster split, and mostly with a policy that chooses pairs."""
    cluster = found["cluster"]
    count = cluster.pop("instances")
    apart = {"architecture": "disaggregated", "prefill": half(draws, cluster), "decode": half(draws, cluster)}
    apart["transfer"] = transfer(draws)
    if pick(draws, False, False, True):
        cluster["deployments"] = {"apart": apart, "both": {"instances": count}}
    else:
        cluster |= apart
    found["policies"]["decider"] = decider(draws)
    if pick(draws, False, True, True):
        name = pick(draws, *PAIRS)
        own = {"prefill": pick(draws, *ORDINARY), "decode": pick(draws, *ORDINARY)} if name == "pair" else {}
        found["policies"]["routing"] = {"name": name, **own}
    return found


def split_traits(scenario: Json, requests: Any) -> dict[str, bool]:
    """What a run has shown of it."""
    routing = scenario["policies"]["routing"]
    name = routing if isinstance(routing, str) else routing["name"]
    given = scenario["policies"].get("decider", "")
    rows = list(zip(requests["handed_ps"], requests["transfer_ps"], requests["transferred_ps"], strict=True))
    apart = [at >= 0 for at in requests["prefill_instance"]]
    return {
        "transfer": any(at >= 0 for _, _, at in rows),
        "waits for room": any(begun > handed >= 0 for handed, begun, _ in rows),
        "handed over and not there": any(handed >= 0 > arrived for handed, _, arrived in rows),
        "both ways": any(apart) and not all(apart),
        "one policy for both halves": name not in PAIRS,
        "beside others": "deployments" in scenario["cluster"],
        f"decider {given if isinstance(given, str) else given['name']}": True,
    }


SHOWN = ("transfer", "waits for room", "both ways", "one policy for both halves", "beside others")
