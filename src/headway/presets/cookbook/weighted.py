"""weighted, with its default profile: prefix-affinity 3, queue-depth 2, kv-utilization 2.

Totals that differ only by rounding count as equal; ties: lowest index.
"""

block_tokens = 16
almost = 0.999999999999


def route(request, instances, cluster):
    loads = [instance.effective_load for instance in instances]
    high = max(loads)
    span = high - min(loads)
    blocks = request.prompt_tokens // block_tokens
    totals = []
    for instance, load in zip(instances, loads):
        idle = 1.0 if span == 0 else (high - load) / span
        cached = 0.0 if blocks == 0 else cached_tokens(instance) // block_tokens / blocks
        free = 1.0 - instance.kv_used / instance.kv_blocks
        totals.append(2.0 * free + 3.0 * cached + 2.0 * idle)
    floor = max(totals) * almost
    for place, total in enumerate(totals):
        if total >= floor:
            return place
    return 0
