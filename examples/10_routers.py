"""Several routers before one cluster: p99 of TTFT in ms and share of prompt tokens found cached, on 16 instances.

Who counts for itself sees only its own share of the load, the less of it the more routers there are, and has to learn
for itself where each prefix lies: 16 routers that know nothing of each other route no better than round-robin. Told
every 10 ms what the others have sent, they find nearly all that one would. Told rarely, they run in herds, all after
the instance that was the best the last time. Who goes by the reports of the instances alone runs in herds as well, and
does not care how many routers there are, since all are told the same.
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
    "round-robin": "round-robin",  # knows nothing
    "shortest-queue": ShortestQueue,  # by reports, 5 to 55 ms old
    "least-outstanding": "least-outstanding",  # by reports, and what this router has sent since
    "least-loaded": "least-loaded",  # by this router's own count
    "lmetric": "lmetric",  # by its own count and its own prefix index
    "least-prefill": "least-prefill-work",  # by these too, and more by the index
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
