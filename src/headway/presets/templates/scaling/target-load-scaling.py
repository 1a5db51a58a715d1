"""Keeps the load of each replica near a target: grows at once, shrinks by one replica at a time after a pause.

Load is requests in flight and waiting, the higher of its means over window_s and over a fifth of that. The pool
needs load / target_load replicas, rounded up. It removes one if the load of the others stays within target_load x
slack, and rest_s have passed since the last change. While there are requests it keeps at least one.
"""

target_load = parameter(32, 1, 1000)
slack = parameter(0.7, 0.1, 1)
window_s = parameter(60, 5, 600)
rest_s = parameter(120, 0, 3600)


def scale(pool):
    load = max(concurrency(pool, window_s), concurrency(pool, window_s / 5))
    needed = 1 if pool.pending + pool.inflight > 0 else 0
    wanted = max(int(-(-load // target_load)), pool.minimum, needed)
    if wanted >= pool.replicas:
        return wanted
    rested = pool.since_scaled is None or pool.since_scaled >= rest_s
    if rested and load <= target_load * slack * (pool.replicas - 1):
        return pool.replicas - 1
    return pool.replicas
