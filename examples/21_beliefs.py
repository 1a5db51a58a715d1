"""Approximate and precise prefix routing: what the router believes cached, and how wrong this belief is.

The first rows vary the size of the belief; the router receives no events. In the other rows, the router receives events
about evictions (routed), about stored blocks (stored), or both, half a second or ten seconds late.
"""

from pathlib import Path

import headway

SCENARIO = str(Path(__file__).with_suffix(".yaml"))
SIZE = "policies.routing.scorers.prefix-affinity.lru_blocks"
CASES = [(size, None, "routed") for size in ("1000", "31250", "auto")]
CASES += [("auto", delay, belief) for delay in ("500ms", "10s") for belief in ("routed", "both", "stored")]

print(f"{'size':>6} {'events':>7} {'belief':>7} {'cached':>7} {'mean TTFT':>10} {'token error':>12} {'token bias':>11}")
for size, delay, belief in CASES:
    changes = [f"{SIZE}={size}"]
    if delay is not None:
        changes += [f"signals.kv_event_delay={delay}", f"signals.belief={belief}"]
    summary = headway.simulate(SCENARIO, overrides=changes).summary()
    cached, ttft, shadow = summary["cache"]["token_hit_ratio"], summary["latency"]["ttft"]["mean"], summary["shadow"]
    figures = f"{cached:>7.1%} {ttft:>7.0f} ms {shadow['token_error']:>12.0f} {shadow['token_bias']:>11.0f}"
    print(f"{size:>6} {delay or 'none':>7} {belief:>7} {figures}")
