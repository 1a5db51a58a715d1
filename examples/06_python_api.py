"""Run a scenario from Python, read its columns, compare policies, and try a policy of your own."""

import headway

SCENARIO = "examples/01_first_run.yaml"


class LastInstance:
    """Sends every request to the last instance. This is a bad policy, but a complete one."""

    def route(self, request, cluster):
        return headway.Route(cluster.instances[-1].id)


result = headway.simulate(SCENARIO)
print("TTFT p99 ms:", round(result.summary()["latency"]["ttft"]["p99"], 1))

requests = result.requests  # equally long columns in order of arrival; dict(requests) makes a data frame
waits = [(s - a) / 1e9 for s, a in zip(requests["started_ps"], requests["arrival_ps"], strict=True)]
print("longest wait ms:", round(max(waits), 1), "of", len(requests), "requests")

rivals = ["round-robin", {"name": "unified", "overload_factor": 3}, LastInstance]  # names, mappings, classes, objects
comparison = headway.compare(SCENARIO, rivals, overrides=["workload.rate=20/s"])
for name, summary in comparison.ranked:
    print(name, round(summary["latency"]["e2e"]["mean"], 1))

mine = headway.simulate(SCENARIO, routing=LastInstance(), overrides=["workload.requests=50"])
print("requests per instance:", [instance["requests"] for instance in mine.summary()["instances"]])
