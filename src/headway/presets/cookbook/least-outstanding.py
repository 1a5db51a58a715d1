"""least-outstanding: the instance with the fewest requests queued or running, as reported, or routed since."""


def score(request, instance, cluster):
    return -instance.effective_load
