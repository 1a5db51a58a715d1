"""The input of the detectors: a run's columns, and derived values that several detectors need, computed once."""

from array import array
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from heapq import nlargest
from itertools import compress
from typing import Final, Protocol

from headway.config.wording import join_words
from headway.results.groups import promises
from headway.results.holders import Holders
from headway.results.loss import Loss
from headway.results.recorder import RunFacts, ScaleRecord, StateChange
from headway.results.records import EXAMPLES, Finding, Preemption, QueueLimit, Thrash
from headway.results.sample import MISSED, UNCOUNTED, Sample, completed_flags, completed_sample, missed_targets
from headway.results.table import Columns, Table
from headway.results.time_split import QUEUED, TimeSplit
from headway.results.waits import Waits
from headway.types import PS_PER_SECOND, Json


class Run(Protocol):
    """The parts of a run's result that detectors read. This is a protocol, because the result imports the detectors."""

    scenario: Json
    requests: Table
    preemptions: list[Preemption]
    thrashes: list[Thrash]
    queue_limits: list[QueueLimit]
    states: list[StateChange]
    scaling_events: list[ScaleRecord]

    def summary(self) -> Json: ...

    def instances(self) -> dict[int, Json]: ...

    def instance_ids(self) -> dict[int, str]: ...

    def span_ps(self) -> tuple[int, int]: ...


class Stays:
    """The stays of requests at one instance, in order of their arrival."""

    __slots__ = ("begin_ps", "end_ps", "rows")

    def __init__(self) -> None:
        self.rows = array("q")
        self.begin_ps = array("q")
        self.end_ps = array("q")

    def add(self, row: int, begin: int, end: int) -> None:
        self.rows.append(row)
        self.begin_ps.append(begin)
        self.end_ps.append(end)


def stays(requests: Columns, ended_ps: int) -> defaultdict[int, Stays]:
    """Return the stays of requests at each instance, from dispatch until the request ended or left the instance.

    A disaggregated request has two stays: at its prefill instance, then at its decode instance. For a retried request,
    only the last attempt is known. Requests that moved between instances while running are left out.
    """
    by_instance: defaultdict[int, Stays] = defaultdict(Stays)
    names = ("routed_ps", "instance", "prefill_instance", "handed_ps", "finished_ps", "redirects")
    for row, (routed, instance, prefill, handed, finished, moved) in enumerate(requests.select(*names)):
        if routed < 0 or instance < 0 or moved:
            continue
        end = finished if finished >= 0 else ended_ps
        if prefill < 0:
            by_instance[instance].add(row, routed, end)
        else:
            by_instance[prefill].add(row, routed, handed if handed >= 0 else end)
            if handed >= 0:
                by_instance[instance].add(row, handed, end)
    return by_instance


CAUSE, LIMIT, SYMPTOM = "cause", "limit", "symptom"  # roles of findings; see the package's docstring
FEWEST_FOR_RATE: Final = 20  # least number of requests that give a rate of late requests
MOST: Final = 5  # maximum number of findings of one kind that a run reports


def runs(times: Sequence[int], gap_ps: int) -> Iterator[tuple[int, int]]:
    """Split ascending times wherever two neighbours are more than `gap_ps` apart. Yield the start and end index of each
    group."""
    begin = 0
    for place in range(1, len(times) + 1):
        if place == len(times) or times[place] - times[place - 1] > gap_ps:
            yield begin, place
            begin = place


def worst(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings of one kind that explain most of the loss; among equal ones, the most severe. Add the total
    number of findings of that kind to their evidence."""
    ranked = sorted(findings, key=lambda finding: (-finding.explains, -finding.severity, finding.at_ps))
    for finding in ranked[:MOST]:
        finding.evidence["of_this_kind"] = len(ranked)
    return ranked[:MOST]


def examples(weights: Iterable[tuple[float, int]]) -> list[int]:
    """Return the requests with the greatest weights, greatest first. Among requests of equal weight, earlier arrivals
    are first."""
    return [-row for _, row in nlargest(EXAMPLES, ((weight, -row) for weight, row in weights))]


def busiest(counts: Mapping[int, float]) -> list[int]:
    """Return the keys in descending order of their counts."""
    return sorted(counts, key=lambda key: (-counts[key], key))


NAMED: Final = 3  # maximum number of instances that a sentence names


def seconds(time_ps: int) -> float:
    return time_ps / PS_PER_SECOND


def moment(at_ps: int) -> str:
    return f"{at_ps / PS_PER_SECOND:,.1f} s"


def duration(time_ps: int) -> str:
    """Write a duration in seconds, or in milliseconds if it is below one second."""
    return moment(time_ps) if time_ps >= PS_PER_SECOND else f"{time_ps / PS_PER_SECOND * 1000:.1f} ms"


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def many(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def span(at_ps: int, until_ps: int) -> str:
    return f"from {moment(at_ps)} to {moment(until_ps)}"


class Observed:
    def __init__(self, result: Run) -> None:
        self.result = result
        self.scenario: Json = result.scenario
        self.summary: Json = result.summary()
        self.requests = Columns(result.requests)
        self.instances = result.instance_ids()
        self.warmup: int = self.scenario.get("warmup") or 0
        self.started_ps, self.ended_ps = result.span_ps()
        self.findings: Sequence[Finding] = ()  # all findings in order, once the detectors have run

    @property
    def length_ps(self) -> int:
        return self.ended_ps - self.started_ps

    @cached_property
    def classes(self) -> dict[int, str]:
        return {code: word for word, code in self.requests.names["slo_class"].items()}

    @cached_property
    def tenants(self) -> dict[int, str]:
        return {code: word for word, code in self.requests.names["tenant"].items()}

    @cached_property
    def waits(self) -> Waits:
        return Waits(self.requests, self.ended_ps)

    @cached_property
    def split(self) -> TimeSplit:
        return TimeSplit(self.requests, self.result.queue_limits, self.ended_ps)

    @cached_property
    def holders(self) -> Holders:
        return Holders(self.requests, self.waits.left_ps, self.ended_ps)

    @cached_property
    def stays(self) -> defaultdict[int, Stays]:
        return stays(self.requests, self.ended_ps)

    @cached_property
    def peers(self) -> dict[tuple[str, str], list[int]]:
        """The instances among which a router chooses, by model and role; groups of one instance are left out."""
        groups: dict[tuple[str, str], list[int]] = {}
        for index, instance in self.result.instances().items():
            groups.setdefault((instance.get("model", ""), instance.get("role", "")), []).append(index)
        return {key: peers for key, peers in groups.items() if len(peers) > 1}

    @cached_property
    def facts(self) -> RunFacts:
        """The targets of the resolved scenario, in the form that the metrics need."""
        promised = promises(self.scenario)
        return RunFacts(
            started_ps=self.started_ps,
            ended_ps=self.ended_ps,
            block_tokens=1,
            warmup=self.warmup,
            policy_metrics={},
            slo=promised.default,
            tenant_slos=promised.own,
        )

    @cached_property
    def sample(self) -> Sample:
        """The completed requests after the warm-up, with the targets that they met."""
        return completed_sample(self.requests, self.facts)

    @cached_property
    def missed(self) -> "array[int]":
        """For each request MET, MISSED or UNCOUNTED, as `missed_targets` defines them."""
        return missed_targets(self.requests, self.sample, self.warmup)

    @cached_property
    def loss(self) -> Loss:
        flags = enumerate(self.missed)
        counted = [row for row, flag in flags if flag != UNCOUNTED]
        missed: dict[int, list[str]] = {row: [] for row in counted if self.missed[row] == MISSED}
        rows = list(compress(range(self.warmup, len(self.requests)), completed_flags(self.requests, self.warmup)))
        for target, met in self.sample.met.items():
            for row, flag in zip(rows, met, strict=True):
                if flag is False:
                    missed[row].append(target)
        has_targets = self.sample.good is not None
        return Loss(self.requests, self.split, counted, missed, self.tpot_target, has_targets=has_targets)

    def queue_loss(self, times: Mapping[int, int]) -> float:
        """Return the fraction of the whole loss that lies in these parts of the requests' waits at their instances."""
        left, enqueued = self.waits.left_ps, self.requests.enqueued_ps
        rows = {row: time for row, time in times.items() if left[row] > enqueued[row]}
        return self.loss.claim(
            {row: self.loss.of(row, QUEUED) * time / (left[row] - enqueued[row]) for row, time in rows.items()}
        )

    def loss_behind(self, row: int) -> dict[str, float]:
        """Return the fractions of a late request's loss by part. The wait for KV blocks is divided over what the
        requests did that held them (see `results.holders`); the rest of it stays `queue.kv`."""
        shares = dict(self.loss.shares(row))
        if wait := shares.get("queue.kv"):
            since, left = self.requests.enqueued_ps[row], self.waits.left_ps[row]
            for part, share in self.holders.shares(self.home(row), since, left).items():
                shares[part] = shares.get(part, 0.0) + wait * share
                shares["queue.kv"] -= wait * share
        return shares

    def late_during(self, periods: Sequence[tuple[int, int]], instances: Collection[int]) -> list[int]:
        """Return the late requests of these instances whose time before the first token overlaps a period."""
        first, finished, home = self.requests.first_token_ps, self.requests.finished_ps, self.home

        def waits(row: int) -> tuple[int, int]:
            end = first[row] if first[row] >= 0 else finished[row]
            return self.requests.arrival_ps[row], end if end >= 0 else self.ended_ps

        chosen = [row for row in self.loss.late if home(row) in instances or self.requests.instance[row] in instances]
        return [row for row in chosen if any(waits(row)[0] < end and waits(row)[1] > begin for begin, end in periods)]

    def late_rate(
        self, periods: Sequence[tuple[int, int]], instances: Collection[int], *, inside: bool = True
    ) -> float:
        """Return the fraction of late requests among those that arrived in some periods (or at other times) and were
        sent to these instances. If there are hardly any such requests, return 0."""
        arrivals, late, total = self.requests.arrival_ps, 0, 0
        for row in range(self.warmup, len(self.requests)):
            if self.missed[row] == UNCOUNTED or self.home(row) not in instances:
                continue
            if any(begin <= arrivals[row] < end for begin, end in periods) == inside:
                late += self.missed[row] == MISSED
                total += 1
        return late / total if total >= FEWEST_FOR_RATE else 0.0

    def excess_late(self, periods: Sequence[tuple[int, int]], instances: Collection[int]) -> float:
        """Return the fraction of the late requests of some periods that would not be late at the rate of the other
        times. If there are hardly any other times, return 1."""
        rate = self.late_rate(periods, instances)
        return max(0.0, 1 - self.late_rate(periods, instances, inside=False) / rate) if rate else 1.0

    def tpot_target(self, row: int) -> int | None:
        return self.facts.tenant_slos.get(self.tenants[self.requests.tenant[row]], self.facts.slo).tpot_ps

    @cached_property
    def missed_ttft(self) -> frozenset[int]:
        """The completed requests that missed their TTFT."""
        rows = compress(range(self.warmup, len(self.requests)), completed_flags(self.requests, self.warmup))
        met = self.sample.met.get("ttft") or [None] * len(self.sample)
        return frozenset(row for row, flag in zip(rows, met, strict=True) if flag is False)

    @cached_property
    def waiting(self) -> list[int]:
        """The requests after the warm-up whose wait at an instance is known."""
        return [row for queue in self.waits.queues for row in queue.rows if row >= self.warmup]

    def engine(self, instance: int) -> Json:
        """Return the settings of an instance's engine: the keys of `cluster`, of its deployment, or of its side of a
        disaggregated one."""
        about = self.result.instances()[instance]
        cluster: Json = self.scenario.get("cluster") or {}
        deployment = (cluster.get("deployments") or {}).get(about.get("pool", ""), cluster)
        side = deployment.get(about.get("role", "")) or {}
        return {**cluster, **deployment, **side}

    def home(self, row: int) -> int:
        """Return the instance at which a request waited."""
        prefill = self.requests.prefill_instance[row]
        return prefill if prefill >= 0 else self.requests.instance[row]

    @property
    def block_tokens(self) -> int:
        """The number of tokens of a KV block."""
        kv = (self.scenario.get("cluster") or {}).get("kv") or {}
        return int(kv.get("block_tokens") or 1)

    def lifetime_ps(self, rows: Iterable[int]) -> int:
        """Return the time from arrival to end, summed over these requests. A request in flight lasts until the end of
        the run."""
        arrivals, ends = self.requests.arrival_ps, self.requests.finished_ps
        return sum((ends[row] if ends[row] >= 0 else self.ended_ps) - arrivals[row] for row in rows)

    def name(self, instance: int) -> str:
        return self.instances.get(instance, f"instance {instance}")

    def names(self, counts: Mapping[int, float]) -> str:
        """Name the busiest instances, and count the others."""
        names = [self.name(instance) for instance in busiest(counts)]
        return join_words(names if len(names) <= NAMED else [*names[:NAMED], f"{len(names) - NAMED} more"])

    def slowest(self, rows: Iterable[int]) -> list[int]:
        """Return the requests of `rows` that waited longest at their instance."""
        left, enqueued = self.waits.left_ps, self.requests.enqueued_ps
        return examples((left[row] - enqueued[row], row) for row in rows)

    def most_hit(self, tenants: Counter[int], word: str) -> Json:
        """Return the most affected tenant and its count as evidence. If the run has one tenant, return no evidence."""
        if len(self.tenants) < 2:
            return {}
        first = busiest(tenants)[0]
        return {"tenant": self.tenants[first], f"tenant_{word}": tenants[first]}
