"""prefix-aware: weighs whether the declared shared prefix is believed cached, as 1 or 0, against load."""

cache_weight = parameter(0.8, 0, 1)
max_load = parameter(0.9, 0, 1)
block_tokens = 16


def route(request, instances, cluster):
    shared = min(request.shared_prefix_tokens, request.prompt_tokens) // block_tokens
    wanted = max(shared, 1) * block_tokens
    return min(instances, key=lambda instance: rank(instance, wanted))


def rank(instance, wanted):
    load = instance.effective_load / instance.max_queue
    score = (1.0 - cache_weight) * (1.0 - min(load, 1.0))
    if cached_tokens(instance) >= wanted and load < max_load:
        score = cache_weight + score
    return (-score, load)
