"""least-delay: the lowest delay in seconds, for the prompt itself and for the other requests there."""

wait = parameter(2.2, 0, 100)
others = parameter(0.44, 0, 100)
decode = parameter(11.0, 0, 10000)


def score(request, instance, cluster):
    waits = instance.estimated_wait
    computes = estimated_ttft(instance, request.prompt_tokens - cached_tokens(instance)) - waits
    delay = wait * waits + computes * (1 + others * instance.inflight) + decode * instance.decode_tokens / 1000000
    return -delay
