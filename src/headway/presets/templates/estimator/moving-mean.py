"""Expects the moving mean of the completed answers of the request's class, times a margin.

Each completed answer moves the mean of its class by `pace` of the difference. A class without answers is expected to be
like all requests, and these like `first_guess`.
"""

pace = parameter(0.05, 0.001, 1)
margin = parameter(1, 0.25, 4)
first_guess = parameter(256, 1, 10000)


def estimate(request, cluster):
    return margin * recall("class " + request.slo_class[:100], recall("all", first_guess))


def finished(request, instance, tokens, outcome):
    if outcome == "completed":
        for name in ("all", "class " + request.slo_class[:100]):
            mean = recall(name, tokens)
            remember(name, mean + pace * (tokens - mean))
