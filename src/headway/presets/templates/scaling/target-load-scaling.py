"""Keeps so many requests on each replica: grows at once, shrinks by one replica at a time after a rest.

Load is requests in flight and waiting, the higher of its means over window_s and over a fifth of that. The pool
gets as many replicas as hold it at target_load each; it gives one back when one less would hold it at target_load x
slack, and rest_s have passed since the last change. While there are requests it keeps one.
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
