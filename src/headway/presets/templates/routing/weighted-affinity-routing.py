"""Weighs the share of the prompt believed cached against load and queue; if KV use is high, the cache does not count.

score = cache_affinity_weight x cached share + load_balance_weight x (1 - requests in flight / the most of any
candidate) + queue_depth_weight x (1 - requests queued / the longest queue); the highest wins, ties: lowest index.
The cached share is 0 on an instance with more than utilization_threshold of its KV blocks in use.

Limits: a fully cached prompt outweighs load and queue together. If all requests have the same prompt, one instance gets
them all while its KV cache has room.
"""

cache_affinity_weight = parameter(0.7, 0, 1)
load_balance_weight = parameter(0.2, 0, 1)
queue_depth_weight = parameter(0.1, 0, 1)
utilization_threshold = parameter(0.85, 0, 1)


def route(request, instances, cluster):
    most = max(instance.inflight for instance in instances)
    longest = max(instance.queued for instance in instances)
    best = 0
    highest = -1.0
    for place, instance in enumerate(instances):
        cached = 0.0
        if instance.kv_utilization <= utilization_threshold:
            cached = ratio(cached_tokens(instance), request.prompt_tokens)
        idle = 1.0 - ratio(instance.inflight, most)
        free = 1.0 - ratio(instance.queued, longest)
        score = score_term("cache", cache_affinity_weight * cached, instance)
        score = score + score_term("load", load_balance_weight * idle, instance)
        score = score + score_term("queue", queue_depth_weight * free, instance)
        if score > highest:
            highest = score
            best = place
    return best
