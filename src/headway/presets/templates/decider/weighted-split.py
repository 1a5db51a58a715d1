"""Splits a request if its uncached prompt tokens, with weights for the prompts that wait on both sides, are enough.

Split if uncached + decode_weight x pending on the decode instance - prefill_weight x pending on the least loaded
prefill instance is at least `least_tokens`. Pending are the uncached prompt tokens of requests without a first token.
"""

least_tokens = parameter(256, 1, 100000)
decode_weight = parameter(0, 0, 10)
prefill_weight = parameter(0, 0, 10)


def apart(request, instance, cluster):
    pending = [one.pending_prefill_tokens for one in cluster.instances if one.role == "prefill"]
    uncached = request.prompt_tokens - cached_tokens(instance)
    waiting = decode_weight * instance.pending_prefill_tokens - prefill_weight * min(pending, default=0)
    return uncached + waiting >= least_tokens
