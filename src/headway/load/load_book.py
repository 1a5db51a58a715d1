"""The measurements of a load run as a `Result`, which `headway report` reads like any other result."""

from array import array
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from headway.load.question import CACHED, NOT_YET, OUTPUT, PROMPT, Question
from headway.results.recorder import Recorder, RunFacts, seen_stats
from headway.results.result import Result
from headway.results.statistics import spread_of
from headway.scenario.scenario import Scenario
from headway.types import OUTCOMES, Json, Request
from headway.workload.traffic import Traffic

GRAIN_NS: Final = 1000  # resolution of the recorded gaps between tokens, in nanoseconds
PS_PER_NS: Final = 1000
MOST_REASONS: Final = 10
SENT: Final = ("admitted_ps", "routed_ps", "enqueued_ps", "started_ps")


class Book:
    """Records the requests of a run, in the planned order of sending. A request counts as started at the time it was
    actually sent. `clock` converts nanoseconds of the wall clock to picoseconds of the workload."""

    def __init__(self, endpoint: str, speed: float, clock: Callable[[int], int]) -> None:
        self.recorder = Recorder()
        self.endpoint, self.speed, self.clock = (
            endpoint,
            speed,
            clock,
        )  # if no header of an answer names the instance, `endpoint` is recorded as the instance
        self.lag_ns = array("q")
        self.ended_ps = 0
        self.connections = 0
        self._gaps: Counter[int] = Counter()
        self._targets: dict[str, int] = {}
        self._cache_reports = 0  # number of answers that report a count of cached tokens

    def add(self, request: Request) -> int:
        self.recorder.record_arrival(request.arrival_ps, request)
        return self.recorder.rows - 1

    def record_end(self, question: Question, outcome: str, why: str, at_ns: int) -> int:
        """Record the end of a request, and return the time of the end by the workload's clock."""
        recorder, row = self.recorder, question.row
        recorder.outcome[row] = OUTCOMES.index(outcome)
        if why:
            recorder.reasons[row] = why
        self.record_sending(question)
        at_ps = max(self.clock(at_ns), recorder.arrival_ps[row], recorder.first_token_ps[row], recorder.started_ps[row])
        recorder.finished_ps[row] = at_ps
        if outcome == "completed":  # gaps of other requests are not recorded, as in a simulation
            self._gaps.update([gap // GRAIN_NS for gap in question.gaps_ns])
            if recorder.first_token_ps[row] == NOT_YET:
                recorder.first_token_ps[row] = at_ps
            recorder.output_tokens[row] = max(1, question.usage(OUTPUT) or question.count)
            recorder.prompt_tokens[row] = question.usage(PROMPT) or recorder.prompt_tokens[row]
        cached = question.usage(CACHED)
        if cached is not None:
            self._cache_reports += 1
            recorder.cached_tokens[row] = min(cached, recorder.prompt_tokens[row])
        self.ended_ps = max(self.ended_ps, at_ps)
        return at_ps

    def record_sending(self, question: Question) -> None:
        """Record when a request was sent, and how many tokens its client has received so far."""
        recorder, row, line = self.recorder, question.row, question.line
        recorder.output_tokens[row] = question.count
        if question.sent_ns == NOT_YET:
            return
        self.lag_ns.append(max(0, question.sent_ns - question.due_ns))
        if line is None or not line.status:  # the head of the answer has not arrived
            return
        recorder.instance[row] = self._targets.setdefault(line.target or self.endpoint, len(self._targets))
        sent = max(recorder.arrival_ps[row], self.clock(question.sent_ns))
        for name in SENT:
            getattr(recorder, name)[row] = sent
        if question.first_ns != NOT_YET:
            recorder.first_token_ps[row] = max(sent, self.clock(question.first_ns))

    def result(self, loaded: Scenario, traffic: Traffic) -> Result:
        recorder = self.recorder
        for name in ("retried", "not_issued", "abandoned"):
            setattr(recorder, name, getattr(traffic, name))
        for gap, count in sorted(self._gaps.items()):
            recorder.gaps.extend((round(gap * GRAIN_NS * PS_PER_NS * self.speed), 0, 1, count))
        names = self._sorted_targets()
        begun = recorder.arrival_ps[0] if len(recorder) else 0
        times = (recorder.finished_ps, recorder.first_token_ps, recorder.started_ps, recorder.arrival_ps)
        facts = RunFacts(
            started_ps=begun,
            ended_ps=max([begun, self.ended_ps, *(max(column) for column in times if column)]),
            block_tokens=loaded.cluster.kv.block_tokens,
            warmup=loaded.warmup,
            policy_metrics={},
            slo=loaded.slo,
            tenant_slos=loaded.workload.slos(),
        )
        stats = [seen_stats(recorder, index, name, ended_ps=facts.ended_ps) for index, name in enumerate(names)]
        result = Result.of(describe(loaded, names, recorder), recorder, stats, facts)
        result.summary()["client"] = self.client()
        return result

    def _sorted_targets(self) -> list[str]:
        """Renumber the instances in the order of their names, because until now they are numbered in the order of their
        first answers. Return the sorted names."""
        names = sorted(self._targets, key=natural)
        places = {self._targets[name]: place for place, name in enumerate(names)}
        self.recorder.instance = array("i", [places.get(place, -1) for place in self.recorder.instance])
        return names

    def client(self) -> Json:
        """Return statistics of the load generator, such as its lag. Times are milliseconds of the wall clock."""
        return {
            "speed": self.speed,
            "lag": spread_of([lag * PS_PER_NS for lag in self.lag_ns]),
            "connections": self.connections,
            "told_cached": self._cache_reports,
            "reasons": dict(Counter(self.recorder.reasons.values()).most_common(MOST_REASONS)),
        }


def natural(name: str) -> tuple[Any, ...]:
    """Return a sort key that puts instance-10 after instance-9."""
    head = name.rstrip("0123456789")
    return head, len(name) - len(head), name


def describe(loaded: Scenario, targets: list[str], recorder: Recorder) -> Json:
    """Describe the run as a scenario. Its key `live` shows that the run was not simulated."""
    resolved = loaded.resolved()
    models = [model for model in recorder.names["model"] if model]
    return {
        "name": resolved["name"],
        "live": True,
        "seed": resolved["seed"],
        "workload": resolved["workload"],
        "cluster": {
            "instances": max(1, len(targets)),
            "model": ", ".join(models) or "live engines",
            "gpu": "engine",
            "tp": 1,
            "latency": {"model": "live"},
        },
        "policies": {"routing": {"name": "endpoint"}},
        "slo": resolved["slo"],
        "warmup": resolved["warmup"],
    }
