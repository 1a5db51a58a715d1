"""session-affinity: a session stays on its first instance; a new one goes to the lowest effective load."""


def route(request, instances, cluster):
    if request.session is not None:
        for instance in instances:
            if recall(request.session + " " + instance.model, -1) == instance.index:
                return instance
    return min(instances, key=lambda instance: instance.effective_load)


def routed(request, instance):
    if request.session is not None:
        remember(request.session + " " + instance.model, instance.index)
