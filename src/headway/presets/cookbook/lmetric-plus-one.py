"""lmetric-plus-one: the lowest pending prefill tokens times the batch size with this request."""


def score(request, instance, cluster):
    uncached = request.prompt_tokens - cached_tokens(instance)
    return -(instance.pending_prefill_tokens + uncached) * (instance.inflight + 1)
