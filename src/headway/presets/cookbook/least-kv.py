"""least-kv: the instance with the lowest share of KV blocks in use, as reported."""


def score(request, instance, cluster):
    return -instance.kv_utilization
