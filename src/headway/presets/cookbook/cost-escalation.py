"""cost-escalation: a charge for each request that an instance gets, which fades; the cheapest wins.

Costs are remembered by the instance's index, as whole billionths, and fade everywhere, also where this request cannot
go. Times are taken back to whole picoseconds.
"""

decay = parameter(0.1, 0, 1000)
base = parameter(1.0, 0, 1000)
queue_weight = parameter(0.5, 0, 1000)
kv_weight = parameter(2.0, 0, 1000)
picoseconds = 1000000000000


def route(request, instances, cluster):
    fade(round(cluster.now * picoseconds))
    best = min(instances, key=lambda one: recall(one.index, 0))
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
