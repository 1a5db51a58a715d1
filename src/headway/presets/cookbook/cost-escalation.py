"""cost-escalation: charges an instance for each request that it gets; charges decay, and the cheapest instance wins.

Costs are remembered by the instance's index, in integer billionths. They decay on all instances, also on those that
cannot serve this request. Times are converted to picoseconds.
"""

decay = parameter(0.1, 0, 1000)
base = parameter(1.0, 0, 1000)
queue_weight = parameter(0.5, 0, 1000)
kv_weight = parameter(2.0, 0, 1000)
picoseconds = 1000000000000


def route(request, instances, cluster):
    fade(round(cluster.now * picoseconds))
    best = min(instances, key=lambda instance: recall(instance.index, 0))
    charge = base + queue_weight * best.queued + kv_weight * (best.kv_used / best.kv_blocks)
    remember(best.index, recall(best.index, 0) + int(charge * 1000000000.0 + 0.5))
    remember("charged", max(recall("charged", 0), best.index + 1))
    return best


def fade(now):
    elapsed = now - recall("last", 0)
    if elapsed > 0:
        remember("last", now)
        factor = exp(-decay * (elapsed / picoseconds))
        for index in range(recall("charged", 0)):
            remember(index, int(recall(index, 0) * factor + 0.5))
