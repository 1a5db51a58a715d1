"""session-affinity: a session stays where its first request went; a new one goes to the least outstanding."""


def route(request, instances, cluster):
    if request.session is not None:
        for one in instances:
            if recall(request.session + " " + one.model, -1) == one.index:
                return one
    return min(instances, key=lambda one: one.effective_load)


def routed(request, instance):
    if request.session is not None:
        remember(request.session + " " + instance.model, instance.index)
