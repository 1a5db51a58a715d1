"""load-only: the instance with the fewest requests in flight, regardless of cache and session."""


def route(request, instances, cluster):
    return min(instances, key=lambda instance: instance.inflight)
