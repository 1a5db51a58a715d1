"""prefix-affinity: the least loaded instance of those that hold the whole prompt, or of all if there are none."""

block_tokens = 16


def route(request, instances, cluster):
    full = request.prompt_tokens // block_tokens * block_tokens
    holders = [instance for instance in instances if full > 0 and cached_tokens(instance) == full]
    return min(holders if holders else instances, key=lambda instance: instance.inflight)
