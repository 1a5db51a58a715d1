"""lmetric-plus-one: the prefill tokens waiting times the batch that this request would make."""


def score(request, instance, cluster):
    uncached = request.prompt_tokens - cached_tokens(instance)
    return -(instance.pending_prefill_tokens + uncached) * (instance.inflight + 1)
