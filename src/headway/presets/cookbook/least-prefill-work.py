"""least-prefill-work: the fewest prefill tokens left, then the fewest requests; equals take turns."""


def route(request, instances, cluster):
    keys = []
    for one in instances:
        work = one.pending_prefill_tokens + request.prompt_tokens - cached_tokens(one)
        keys.append((work, one.inflight))
    return in_turn(keys, cluster)


def in_turn(keys, cluster):
    best = min(keys)
    tied = [place for place, one in enumerate(keys) if one == best]
    if len(tied) == 1:
        return tied[0]
    turn = recall(cluster.group, 0)
    remember(cluster.group, turn + 1)
    return tied[turn % len(tied)]
