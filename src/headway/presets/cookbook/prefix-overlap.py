"""prefix-overlap: weighs the share of the prompt's blocks believed cached against load."""

cache_weight = parameter(0.7, 0, 1)
max_load = parameter(0.9, 0, 1)
block_tokens = 16


def score(request, instance, cluster):
    blocks = request.prompt_tokens // block_tokens
    if blocks == 0:
        return -instance.effective_load
    load = instance.effective_load / instance.max_queue
    cached = 0.0
    if load <= max_load:
        cached = cached_tokens(instance) // block_tokens / blocks
    return cache_weight * cached + (1.0 - cache_weight) * (1.0 - load)
