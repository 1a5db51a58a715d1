"""Minimises the estimated wait, the delay of this prompt for itself and for all others there, and the decode load."""

wait = parameter(1.0, 0, 3)
others = parameter(0.1, 0, 0.5)
decode = parameter(1.0, 0, 20)


def score(request, instance, cluster):
    waits = instance.estimated_wait
    computes = estimated_ttft(instance, request.prompt_tokens - cached_tokens(instance)) - waits
    delays = computes * (1 + others * instance.inflight)
    return -(wait * waits + delays + decode * instance.decode_tokens / 1000000)
