"""lmetric: the lowest pending prefill tokens, including this request's uncached ones, times the requests in flight."""


def score(request, instance, cluster):
    uncached = request.prompt_tokens - cached_tokens(instance)
    return -(instance.pending_prefill_tokens + uncached) * instance.inflight
