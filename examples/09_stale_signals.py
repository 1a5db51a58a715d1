"""What old signals do to a router: p99 of TTFT and evenness on 16 instances, by how often the instances are polled.

Between two reports a router that goes by reported values alone sees the same best instance again and again, and sends
the whole herd there. One that adds what it has routed itself since the report, or counts for itself, does not.
"""

import headway
from headway import ClusterView, Request, Route, policy


@policy("routing", "shortest-queue", reported=("queued", "running"))
class ShortestQueue:
    """The fewest requests by the last report, whatever has been routed since."""

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
    "least-outstanding": "least-outstanding",  # reported queue and batch, and what was routed since
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
