"""Turns low classes away above a load, and everybody above a higher one.

Load is the mean over the candidates of queue and batch as reported, plus what was routed since. Above soft_load
requests of the classes batch and best-effort are turned away; above hard_load all are.
"""

soft_load = parameter(48, 0, 1000)
hard_load = parameter(192, 0, 10000)


def admit(request, cluster):
    load = ratio(sum(one.effective_load for one in cluster.instances), len(cluster.instances))
    if load > hard_load:
        return False
    return load <= soft_load or request.slo_class not in ("batch", "best-effort")
