"""The six routers of a published experiment, on ten seeds that were not chosen for a result."""

from math import fsum
from pathlib import Path

import yaml

from headway.evolve import Bundle, Suite, evaluate_many
from headway.experiment.runner import runner_of

HERE = Path(__file__).parent
code = str(HERE / "policies")
document = yaml.safe_load((HERE / "19_published.yaml").read_text())
document["held_out"] = [part for part in document["held_out"] if part["workload"] in ("prefix-heavy", "40qps")]
suite = Suite.load(document)
ROUTERS = {
    "least queue, 5 s old": {
        "name": "code",
        "source": "def score(request, instance, cluster):\n    return -instance.queued",
    },
    "head-room allocator": {"name": "code", "path": f"{code}/published_hra.py"},
    "least outstanding": "least-loaded",
    "3:2:2 prefix, queue, KV": "weighted",
    "1:1 prefix, load": {"name": "weighted", "scorers": {"prefix-affinity": 1, "load-balance": 1}},
    "published evolved rule": {"name": "code", "path": f"{code}/published_evolved.py"},
    "lmetric": "lmetric",
    "lmetric-plus-one": "lmetric-plus-one",
}

with runner_of() as runner:
    found = evaluate_many([Bundle.of(routing=spec) for spec in ROUTERS.values()], suite, "held_out", runner=runner)
print(f"{'gain over 1:1, mean of ten seeds':<34}{'prefix-heavy':>14}{'40qps':>9}{'both':>9}")
for name, one in zip(ROUTERS, found, strict=True):
    gains = {
        workload: fsum(case.gains["e2e"] for case in one.cases if case.case == workload) / 10
        for workload in ("prefix-heavy", "40qps")
    }
    both = fsum(gains.values()) / 2
    print(f"{name:<34}{gains['prefix-heavy']:>13.1%}{gains['40qps']:>9.1%}{both:>9.1%}")
