"""The published rule, as its authors describe it: prefix and load at 1:1, but the prefix counts for less the busier its
holder is than the idlest instance; a cache that is more than nine tenths full counts against an instance, and the
requests in flight decide between equals."""


def route(request, instances, cluster):
    most = max(cached_tokens(one) for one in instances)
    idlest = min(one.inflight for one in instances)
    holder = min(one.inflight for one in instances if cached_tokens(one) == most)
    weight = 1.0
    if most > 0 and holder > idlest:
        weight = 1.0 / (1.0 + 0.6 * (holder - idlest))
    chosen = instances[0]
    best = -1000.0
    for one in instances:
        score = 0.5 * weight * cached_tokens(one) / request.prompt_tokens + 0.5 / (1.0 + one.inflight)
        if one.kv_utilization > 0.9:
            score = score - 5.0 * (one.kv_utilization - 0.9)
        if score > best or (score == best and one.inflight < chosen.inflight):
            best = score
            chosen = one
    return chosen
