"""lmetric: the prefill tokens waiting, this request's uncached part included, times the requests in flight."""


def score(request, instance, cluster):
    uncached = request.prompt_tokens - cached_tokens(instance)
    return -(instance.pending_prefill_tokens + uncached) * instance.inflight
