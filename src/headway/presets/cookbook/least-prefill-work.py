"""least-prefill-work: the fewest prefill tokens left, then the fewest requests; ties in rotation."""


def route(request, instances, cluster):
    keys = []
    for instance in instances:
        work = instance.pending_prefill_tokens + request.prompt_tokens - cached_tokens(instance)
        keys.append((work, instance.inflight))
    return in_turn(keys, cluster)


def in_turn(keys, cluster):
    best = min(keys)
    tied = [place for place, key in enumerate(keys) if key == best]
    if len(tied) == 1:
        return tied[0]
    turn = recall(cluster.group, 0)
    remember(cluster.group, turn + 1)
    return tied[turn % len(tied)]
