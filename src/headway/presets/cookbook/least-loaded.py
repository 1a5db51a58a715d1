"""least-loaded: the fewest requests in flight."""


def score(request, instance, cluster):
    return -instance.inflight
