"""unified: keeps a session on its instance while that is warm and not overloaded, else decides by LMetric."""

overload_factor = parameter(2.0, 0, 1000)
min_hit_ratio = parameter(0.5, 0, 1)


def route(request, instances, cluster):
    home = home_of(request, instances)
    if home is not None:
        warm = cached_tokens(home) > min_hit_ratio * max(request.prompt_tokens, 1)
        total = sum(instance.inflight for instance in instances)
        calm = home.inflight * len(instances) <= overload_factor * max(total, len(instances))
        if warm and calm:
            return home
    keys = []
    for instance in instances:
        uncached = request.prompt_tokens - cached_tokens(instance)
        keys.append(((instance.pending_prefill_tokens + uncached) * instance.inflight, uncached, instance.inflight))
    return instances[in_turn(keys, cluster)]


def home_of(request, instances):
    if request.session is not None:
        for instance in instances:
            if recall(request.session + " " + instance.model, -1) == instance.index:
                return instance
    return None


def in_turn(keys, cluster):
    best = min(keys)
    tied = [place for place, key in enumerate(keys) if key == best]
    if len(tied) == 1:
        return tied[0]
    turn = recall(cluster.group, 0)
    remember(cluster.group, turn + 1)
    return tied[turn % len(tied)]


def routed(request, instance):
    if request.session is not None:
        remember(request.session + " " + instance.model, instance.index)
