"""prefix-affinity: the least loaded of those that hold the whole prompt, or else of all."""

block_tokens = 16


def route(request, instances, cluster):
    full = request.prompt_tokens // block_tokens * block_tokens
    holders = [one for one in instances if full > 0 and cached_tokens(one) == full]
    return min(holders if holders else instances, key=lambda one: one.inflight)
