"""Several routers in front of one cluster: TTFT p99 in ms and share of cached prompt tokens, on 16 instances.

A policy that uses its own counts sees only the requests of its own router. It must also learn on its own which instance
holds which prefix. With 16 routers that exchange nothing, such a policy routes no better than round-robin. If the
routers exchange their counts every 10 ms, they find nearly all cached prefixes. If they exchange counts rarely, they
herd: all routers choose the instance that was best at the last exchange. A policy that uses only reports herds as well,
with any number of routers, because all routers get the same reports.
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
    "workload": {
        "requests": 600,
        "rate": "150/s",
        "prompt_tokens": {"dist": "lognormal", "mean": 1600, "std": 800, "min": 64, "max": 6000},
        "output_tokens": {"dist": "lognormal", "mean": 200, "std": 300, "min": 4, "max": 2000},
        "prefix": {"groups": 100, "tokens": 1024},
    },
    "cluster": {"instances": 16, "gpu": "h200", "kv": {"gpu_blocks": 6000}},
    "signals": {"poll_interval": "50ms", "poll_delay": "5ms"},
}
policies = {
    "round-robin": "round-robin",  # uses no signal
    "shortest-queue": ShortestQueue,  # reports, 5 to 55 ms old
    "least-outstanding": "least-outstanding",  # reports, and the requests that this router has sent since
    "least-loaded": "least-loaded",  # this router's own count
    "lmetric": "lmetric",  # this router's own count and prefix index
    "least-prefill": "least-prefill-work",  # the same, with more weight on the index
}
routers = {
    "1 router": 1,
    "4 routers": 4,
    "4, told every 10ms": {"count": 4, "sync_interval": "10ms"},
    "4, told every 500ms": {"count": 4, "sync_interval": "500ms"},
    "16 routers": 16,
    "16, told every 10ms": {"count": 16, "sync_interval": "10ms"},
    "16, told every 500ms": {"count": 16, "sync_interval": "500ms"},
}

print(f"{'p99 TTFT in ms (cached)':<24}" + "".join(f"{name:>19}" for name in policies))
for name, count in routers.items():
    row = f"{name:<24}"
    for routing in policies.values():
        found = headway.simulate({**scenario, "routers": count}, routing=routing).summary()
        row += f"{found['latency']['ttft']['p99']:>12,.0f} ({found['cache']['token_hit_ratio']:.2f})"
    print(row)
