"""Chunk size: the token budget of a step (`max_batch_tokens`) is too small or too large for the requests.

The step times come from the latency model of the scenario, for the mean batch of the instance. u is the fraction of
time in which the instance computes prompts, while requests are late.

*Too small*: the fixed time of a step dominates. `BUDGETS` are multiples of the budget, as long as their steps stay
within the TPOT target. With the best of them, a prompt token takes less time by the fraction w, which is at least
`WASTE`. Late requests lose time in prefill, or in the queue for it; by the formula u/(1 − u) for queues, they would
wait less by 1 − (v/(1 − v)) / (u/(1 − u)), with v = u·(1 − w). They count for this fraction.

*Too large*: a step with a chunk takes longer than the TPOT target, and `STALLS` as long as a step without. A smaller
budget of at least `SMALLEST` tokens keeps steps within the target, and the instance still computes prompts fast enough:
a prompt token takes at most `COSTLY` times as long, and u stays at most 1.
A late request that lost time in decode counts for the time in which its instance computed prompts of others, as a
fraction of the lost time.

There is one finding for each of the two if it explains at least `LEAST` of the loss. Severity: the loss that it
explains, as a fraction of the counted requests.
"""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from headway import latency
from headway.errors import HeadwayError
from headway.latency import LatencyModel
from headway.results.findings.cluster_remedies import more_replicas, set_to
from headway.results.findings.observed import CAUSE, Observed, busiest, examples, many, percent
from headway.results.findings.policy_remedies import balance, reject_late
from headway.results.occupancy import PREFILL, Occupancy
from headway.results.records import Finding, Suggestion

KIND: Final = "chunk_size"
ROLE: Final = CAUSE
AREA: Final = "scheduling"
ORDER: Final = 21
BUDGETS: Final = (2, 4, 8)
WASTE: Final = 0.25
BUSIEST: Final = 0.95  # an instance counts as at most this busy, so that the formula for queues stays finite
STALLS: Final = 3
COSTLY: Final = 1.2  # a smaller budget may make a prompt token take at most this many times as long
SMALLEST: Final = 64
LEAST: Final = 0.1
FEWEST: Final = 5
WAITS: Final = ("queue.prompt", "queue.tokens", "prefill")
SMALL, LARGE = "small", "large"


class Step(NamedTuple):
    """A step of an instance that has its mean batch and a chunk of a prompt."""

    time_ps: int
    tokens: int  # number of prompt tokens in the chunk

    @property
    def per_token(self) -> float:
        return self.time_ps / self.tokens


class Engine(NamedTuple):
    """The steps of one instance with its mean batch."""

    model: LatencyModel
    budget: int
    decodes: int
    context: int  # tokens of all requests that decode
    past: int  # tokens of a prompt that are computed before a chunk, on average

    def step(self, budget: int) -> Step:
        tokens = max(1, budget - self.decodes)
        time, _, _ = self.model.run(self.decodes, self.context, [(tokens, self.past)])
        return Step(time, tokens)

    @property
    def without_chunk_ps(self) -> int:
        return self.model.run(max(1, self.decodes), self.context, [])[0]


def find(run: Observed) -> list[Finding]:
    if len(run.loss.late) < FEWEST:
        return []
    occupancy = Occupancy(run.requests, run.requests.tenant, (), run.waits.left_ps, run.ended_ps)
    at, until = run.loss.main_period(dict.fromkeys(run.loss.late, 1.0))
    claims: dict[str, dict[int, float]] = {SMALL: {}, LARGE: {}}
    better: dict[str, dict[int, int]] = {SMALL: {}, LARGE: {}}  # kind -> instance -> a better budget
    homes: dict[int, list[int]] = {}
    for row in run.loss.late:
        if run.requests.enqueued_ps[row] >= 0:
            homes.setdefault(run.home(row), []).append(row)
    for instance, rows in homes.items():
        engine = usual_engine(run, instance, at, until)
        if engine is None:
            continue
        busy = occupancy.busy(PREFILL, instance, at, until)
        targets = [target for row in rows if (target := run.tpot_target(row)) is not None]
        target = min(targets, default=None)
        if (found := _larger(engine, busy, target)) is not None:
            better[SMALL][instance], fraction = found
            claims[SMALL].update({row: fraction * run.loss.of(row, WAITS) for row in rows})
        if target is not None and (smaller := _smaller(engine, busy, target)) is not None:
            better[LARGE][instance] = smaller
            claims[LARGE].update({row: _stalled(run, occupancy, row) for row in rows})
    return [
        _finding(run, kind, {row: claim for row, claim in found.items() if claim > 0}, better[kind])
        for kind, found in claims.items()
        if run.loss.claim(found) >= LEAST and sum(claim > 0 for claim in found.values()) >= FEWEST
    ]


def suggest(run: Observed, finding: Finding) -> Iterator[Suggestion]:
    reason = "a step computes more of a prompt" if finding.evidence["chunks"] == SMALL else "steps are shorter"
    yield from set_to(run, finding, "max_batch_tokens", finding.evidence["better"], f", so that {reason}")
    yield from more_replicas(run, finding)
    yield from balance(run)
    yield from reject_late(run)


def usual_engine(run: Observed, instance: int, at: int, until: int) -> Engine | None:
    """Return the steps of an instance with its mean batch in a period; None if its latency model is not known, as in a
    live run."""
    settings = run.engine(instance)
    section, budget = settings.get("latency"), settings.get("max_batch_tokens")
    if not isinstance(section, dict) or not budget or until <= at:
        return None
    try:
        shape, gpu = latency.read_model(settings.get("model"), "model"), latency.read_gpu(settings.get("gpu"), "gpu")
        model = latency.build(section, shape, gpu, settings.get("tp") or 1)
    except HeadwayError:
        return None
    requests = run.requests
    rows = [row for row in run.stays[instance].rows if requests.started_ps[row] >= 0]
    running = sum(_decoding_ps(run, row, at, until) for row in rows if requests.prefill_instance[row] != instance)
    decodes = min(running // (until - at), budget - 1)
    tokens = sum(requests.prompt_tokens[row] + requests.output_tokens[row] // 2 for row in rows) // max(1, len(rows))
    past = sum(requests.prompt_tokens[row] for row in rows) // max(1, 2 * len(rows))
    return Engine(model, budget, decodes, decodes * tokens, past)


def _decoding_ps(run: Observed, row: int, at: int, until: int) -> int:
    """Return how long a request decodes within a period."""
    first, end = run.requests.first_token_ps[row], run.requests.finished_ps[row]
    return max(0, min(end if end >= 0 else run.ended_ps, until) - max(first, at)) if first >= 0 else 0


def _larger(engine: Engine, busy: float, target: int | None) -> tuple[int, float] | None:
    """Return a better, larger budget and the fraction of the waits that it saves; None if there is none."""
    own = engine.step(engine.budget)
    steps = {engine.budget * factor: engine.step(engine.budget * factor) for factor in BUDGETS}
    allowed = {budget: step for budget, step in steps.items() if target is None or step.time_ps <= target}
    if not allowed:
        return None
    best = min(allowed, key=lambda budget: allowed[budget].per_token)
    waste = 1 - allowed[best].per_token / own.per_token
    if waste < WASTE or busy <= 0:
        return None
    now = min(BUSIEST, busy)
    then = now * (1 - waste)
    return best, 1 - (then / (1 - then)) / (now / (1 - now))


def _smaller(engine: Engine, busy: float, target: int) -> int | None:
    """Return the largest smaller budget whose steps stay within the TPOT target; None if there is none."""
    tokens = min(engine.budget - engine.decodes, max(1, 2 * engine.past))  # a chunk is at most one prompt
    now = engine.step(tokens + engine.decodes)
    if now.time_ps <= max(target, STALLS * engine.without_chunk_ps):
        return None
    budget = engine.budget
    while budget >= SMALLEST + engine.decodes:
        step = engine.step(budget)
        if step.time_ps <= target:
            longer = step.per_token / now.per_token
            return budget if longer <= COSTLY and busy * longer <= 1 else None
        budget //= 2
    return None


def _stalled(run: Observed, occupancy: Occupancy, row: int) -> float:
    """Return the fraction of a request's loss in decode in which its instance computed prompts."""
    share, target = run.loss.of(row, ("decode",)), run.tpot_target(row)
    if not share or target is None:
        return 0.0
    instance, begin, end = occupancy.period(row, "decode")
    lost = end - begin - target * max(0, run.requests.output_tokens[row] - 1)
    if lost <= 0:
        return 0.0
    return share * min(1.0, occupancy.busy(PREFILL, instance, begin, end) * (end - begin) / lost)


def _finding(run: Observed, kind: str, claims: Mapping[int, float], better: Mapping[int, int]) -> Finding:
    explains = run.loss.claim(claims)
    where: dict[int, float] = {}
    for row, claim in claims.items():
        where[run.home(row)] = where.get(run.home(row), 0.0) + claim
    first = busiest(where)[0]
    budget = run.engine(first)["max_batch_tokens"]
    count = run.loss.count(len(claims))
    at, until = run.loss.main_period(claims)
    effect = (
        "prompts take many steps, whose fixed time dominates"
        if kind == SMALL
        else "decodes get no token while a step computes a long chunk"
    )
    return Finding(
        kind=KIND,
        at_ps=at,
        until_ps=until,
        severity=explains * run.loss.late_share,
        count=count,
        title=(
            f"Steps of at most {budget:,} tokens are too {kind} at {run.names(where)}: {effect}. "
            f"{many(count, 'late request')} lost time by this, which explains {percent(explains)} of the loss; about "
            f"{better[first]:,} tokens would fit better."
        ),
        requests=examples((claim, row) for row, claim in claims.items()),
        instances=busiest(where),
        evidence={"chunks": kind, "max_batch_tokens": budget, "better": better[first], "late": count},
        explains=explains,
        resource="prefill" if kind == SMALL else "decode",
    )
