"""Rejects low classes above one load, and all requests above a higher one.

Load is the mean over the candidates of queue and batch as reported, plus requests routed since that report. Above
soft_load the classes batch and best-effort are rejected; above hard_load all are.
"""

soft_load = parameter(48, 0, 1000)
hard_load = parameter(192, 0, 10000)


def admit(request, cluster):
    load = ratio(sum(instance.effective_load for instance in cluster.instances), len(cluster.instances))
    if load > hard_load:
        return False
    return load <= soft_load or request.slo_class not in ("batch", "best-effort")
