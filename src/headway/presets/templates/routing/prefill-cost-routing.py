"""Minimises prefill work times a power of the load: LMetric with free constants, plus a cost for full caches.

cost = (pending_weight x prefill tokens pending + prompt tokens - cache_weight x those believed cached) x (requests
in flight + load_offset) to the power of load_exponent + decode_weight x prompt tokens of decoding requests +
kv_weight x 1,000 x the share of KV blocks in use; the lowest wins, ties: lowest index. With the defaults it equals
lmetric-plus-one, except for the block size of the match and for rounding.
"""

pending_weight = parameter(1, 0, 4)
cache_weight = parameter(1, 0, 1)
load_exponent = parameter(1, 0, 3)
load_offset = parameter(1, 0.1, 32)
decode_weight = parameter(0, 0, 1)
kv_weight = parameter(0, 0, 100)


def score(request, instance, cluster):
    work = pending_weight * instance.pending_prefill_tokens + request.prompt_tokens
    work = work - cache_weight * cached_tokens(instance)
    crowd = exp(load_exponent * log(instance.inflight + load_offset))
    score = score_term("prefill", -work * crowd) + score_term("decode", -decode_weight * instance.decode_tokens)
    return score + score_term("kv", -kv_weight * 1000 * instance.kv_utilization)
