"""round-robin: the n-th request goes to candidate n mod N; each group of instances has a count of its own."""


def route(request, instances, cluster):
    count = recall(cluster.group, 0)
    remember(cluster.group, count + 1)
    return count % len(instances)
