"""always-busiest: the instance with the most requests in flight, a control that is wrong on purpose."""


def score(request, instance, cluster):
    return instance.inflight
