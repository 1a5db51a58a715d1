"""Each routing policy with eight healthy instances, with one slow instance, and with a crash during the run.

Every step of the slow instance takes three times as long, and no signal tells the router. Policies that count requests
in flight see that this instance finishes fewer requests, and send it fewer. Policies that do not count them
(round-robin, random, and prefix-aware, which follows the prefix) send it as many as before. A crash loses the requests
of the instance: they fail or, with `retries`, start again from the beginning, so their first token is late. When the
instance is back, it is empty. Policies that count requests then send it all new requests, which are more prompts than
it can compute in time.
"""

from typing import Any

import headway

FILE = "examples/16_faults.yaml"
POLICIES = (
    "round-robin, random, power-of-two, least-loaded, least-kv, "
    "least-prefill-work, prefix-aware, prefix-affinity, lmetric, weighted"
)
CRASH = "faults=[{at: 10s, instance: instance-3, kind: crash, duration: 5s}]"
SITUATIONS = {
    "healthy": [],
    "one slow x3": ["faults=[{at: 0s, instance: instance-3, kind: slow, factor: 3}]"],
    "crash": [CRASH],
    "with retries": [CRASH, "retries=2"],
}


def cell(summary: dict[str, Any], lost: bool) -> str:
    shown = f"{summary['latency']['ttft']['p99']:7,.0f}{summary['slo']['goodput_ratio']:7.1%}"
    return shown + f"{summary['requests']['failed']:5}" * lost


found = {name: headway.compare(FILE, POLICIES, overrides=changes) for name, changes in SITUATIONS.items()}
print("TTFT p99 in ms, share of requests within the SLO, requests that failed\n")
print(f"{'':<19}" + "".join(f"{name:>{19 if name == 'crash' else 14}}" for name in found))
print(f"{'':<19}" + "".join(f"{'p99':>7}{'in SLO':>7}" + f"{'lost':>5}" * (name == "crash") for name in found))
for policy, _ in found["one slow x3"].ranked:
    print(f"{policy:<19}" + "".join(cell(one[policy], name == "crash") for name, one in found.items()))
