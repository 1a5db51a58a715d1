"""The effect of stale signals: TTFT p99 and evenness on 16 instances, for several poll intervals.

Between two reports, a router that uses only reported values sees the same best instance. It sends every request there:
the requests herd. A router that adds the requests that it has sent since the report, or uses its own counts, does not.
"""

import headway
from headway import ClusterView, Request, Route, policy


@policy("routing", "shortest-queue", reported=("queued", "running"))
class ShortestQueue:
    """Picks the instance with the fewest requests in its last report, and ignores requests routed since."""

    def route(self, request: Request, cluster: ClusterView) -> Route:
        return Route(min(cluster.instances, key=lambda view: view.queued + view.running).id)


scenario = {
    "seed": 1,
    "workload": {"requests": 1500, "rate": "250/s", "prefix": {"groups": 20, "tokens": 256}},
    "cluster": {"instances": 16, "gpu": "h200"},
}
policies = {
    "shortest-queue": ShortestQueue,  # reported queue and batch
    "least-kv": "least-kv",  # reported KV use
    "least-outstanding": "least-outstanding",  # reported queue and batch, and the requests routed since
    "least-loaded": "least-loaded",  # the router's own count
}

print(f"{'p99 TTFT in ms (Jain)':<24}" + "".join(f"{name:>20}" for name in policies))
for interval in ("0s", "50ms", "500ms", "2s"):
    signals = {"poll_interval": interval, "poll_delay": "0s" if interval == "0s" else "5ms"}
    row = f"{'always fresh' if interval == '0s' else 'polled every ' + interval:<24}"
    for routing in policies.values():
        found = headway.simulate({**scenario, "signals": signals}, routing=routing).summary()
        row += f"{found['latency']['ttft']['p99']:>13,.0f} ({found['balance']['jain']:.2f})"
    print(row)
