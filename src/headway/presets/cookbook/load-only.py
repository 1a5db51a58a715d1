"""load-only: the fewest requests in flight, whatever the cache and the session."""


def route(request, instances, cluster):
    return min(instances, key=lambda one: one.inflight)
