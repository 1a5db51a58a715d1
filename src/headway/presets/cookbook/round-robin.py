"""round-robin: the n-th request goes to candidate n mod N; each group of instances has its own count."""


def route(request, instances, cluster):
    count = recall(cluster.group, 0)
    remember(cluster.group, count + 1)
    return count % len(instances)
