"""weighted, with its default profile: prefix-affinity 3, queue-depth 2, kv-utilization 2.

Totals closer than their rounding are equal, and of equals the lowest index wins.
"""

block_tokens = 16
almost = 0.999999999999


def route(request, instances, cluster):
    loads = [one.effective_load for one in instances]
    high = max(loads)
    span = high - min(loads)
    blocks = request.prompt_tokens // block_tokens
    totals = []
    for one, load in zip(instances, loads):
        idle = 1.0 if span == 0 else (high - load) / span
        cached = 0.0 if blocks == 0 else cached_tokens(one) // block_tokens / blocks
        free = 1.0 - one.kv_used / one.kv_blocks
        totals.append(2.0 * free + 3.0 * cached + 2.0 * idle)
    floor = max(totals) * almost
    for place, total in enumerate(totals):
        if total >= floor:
            return place
    return 0
