"""least-outstanding: the fewest requests queued and running, as reported, and routed since."""


def score(request, instance, cluster):
    return -instance.effective_load
