"""An adaptation of a published head-room allocator: the most KV cache left once all that is in flight has grown by
what answers usually take."""

ANSWER = 250  # tokens


def score(request, instance, cluster):
    tokens = instance.inflight_tokens + instance.inflight * ANSWER + request.prompt_tokens + ANSWER
    return 1.0 - max(instance.kv_used * 16, tokens) / (instance.kv_blocks * 16) - 0.02 * instance.queued
