"""least-loaded: the instance with the fewest requests in flight."""


def score(request, instance, cluster):
    return -instance.inflight
