"""Herding: consecutive decisions send requests to the same instance although a peer has far fewer requests.

A herd is a series of decisions among one set of peers (instances of the same model and role) with the same target, at
most `SPACING_PS` apart. A decision is late if the target has at least `EXCESS` more requests than the least loaded open
peer. A herd needs at least `LEAST` late decisions. With N peers and D decisions, it also needs at least n late
decisions, where n is the smallest number with Nⁿ⁻¹ ≥ `ONCE_IN`·D. With this n, a policy that chooses at random makes a
herd in at most one of `ONCE_IN` such runs. In a disaggregated cluster, the choice of the prefill instance counts. There
is one finding per set of peers. Severity: the late decisions of its herds divided by all decisions.
"""

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import compress
from typing import Final, NamedTuple

from headway.results.findings.observed import CAUSE, Observed, busiest, many, seconds, span, worst
from headway.results.findings.remedies import balance, fresher_signals, use
from headway.results.records import ROUTING, Finding, Suggestion
from headway.results.time_split import QUEUED
from headway.types import PS_PER_SECOND, SERVING

KIND: Final = "herding"
ROLE: Final = CAUSE
AREA: Final = "routing"
ORDER: Final = 8
SPACING_PS: Final = PS_PER_SECOND
EXCESS: Final = 4
LEAST: Final = 8
ONCE_IN: Final = 100  # random choice should make at most one herd in this many runs


class Late(NamedTuple):
    """A decision for an instance that has many more requests than another instance."""

    row: int
    at_ps: int
    had: int  # number of requests at the target before the decision
    fewest: int  # number of requests at the least loaded open peer


class Herd(NamedTuple):
    target: int
    late: list[Late]


class Decisions:
    """The requests sent to a set of peers. `rows` are in order of time. For each row, `target` is the instance that the
    request was sent to, and `end_ps` is the time when it left that instance."""

    def __init__(self, run: Observed, peers: Sequence[int]) -> None:
        self.target, self.end_ps = array("q", [-1]) * len(run.requests), array("q", [-1]) * len(run.requests)
        for instance in peers:
            stays = run.stays[instance]
            for row, end in zip(stays.rows, stays.end_ps, strict=True):
                self.target[row], self.end_ps[row] = instance, end
        self.at_ps = run.requests.routed_ps
        self.rows = sorted((row for row, target in enumerate(self.target) if target >= 0), key=self.at_ps.__getitem__)

    def streaks(self) -> Iterator[list[int]]:
        """Yield series of rows: consecutive decisions with the same target, each at most `SPACING_PS` after the
        previous one."""
        rows, at, begin = self.rows, self.at_ps, 0
        for place, row in enumerate(rows):
            last = rows[place - 1]
            if place and (self.target[row] != self.target[last] or at[row] - at[last] > SPACING_PS):
                yield rows[begin:place]
                begin = place
        yield rows[begin:]


def find(run: Observed) -> list[Finding]:
    findings = []
    for (_, role), peers in run.peers.items():
        if role != "decode":
            decisions = Decisions(run, peers)
            limit = max(LEAST, by_chance(len(peers), len(decisions.rows)))
            possible = any(len(rows) >= limit for rows in decisions.streaks())
            herds = list(_herds(run, peers, decisions, limit)) if possible else []
            findings += [_finding(run, herds, limit, len(decisions.rows))] if herds else []
    return worst(findings)


def suggest(run: Observed, finding: Finding) -> Iterator[Suggestion]:
    yield from balance(run)
    yield from use(run, ROUTING, "power-of-two", ", which chooses among two random instances")
    yield from fresher_signals(run)


def by_chance(peers: int, decisions: int) -> int:
    """Return how long a series of equal choices must be to be unlikely under random choice."""
    choices, ways = 1, 1
    while ways < ONCE_IN * decisions:
        choices, ways = choices + 1, ways * peers
    return choices


def _herds(run: Observed, peers: Sequence[int], decisions: Decisions, limit: int) -> Iterator[Herd]:
    """Yield herds in order of time. Apply the end of a request's stay, or a change of an instance's state, before the
    decisions at the same time."""
    target_of, at_ps, end_ps = decisions.target, decisions.at_ps, decisions.end_ps
    ending = sorted((row for row in decisions.rows if end_ps[row] > at_ps[row]), key=end_ps.__getitem__, reverse=True)
    changes = [change for change in reversed(run.result.states) if change.instance in peers]
    loads, is_open = dict.fromkeys(peers, 0), dict.fromkeys(peers, not changes)
    for rows in decisions.streaks():
        late = []
        for row in rows:
            now, target = at_ps[row], target_of[row]
            while ending and end_ps[ending[-1]] <= now:
                loads[target_of[ending.pop()]] -= 1
            while changes and changes[-1].at_ps <= now:
                change = changes.pop()
                is_open[change.instance] = change.state in SERVING
            if len(rows) >= limit:
                fewest = min(compress(loads.values(), is_open.values()), default=loads[target])
                if loads[target] - fewest >= EXCESS:
                    late.append(Late(row, now, loads[target], fewest))
            if end_ps[row] > now:
                loads[target] += 1
        if len(late) >= limit:
            yield Herd(target, late)


def _finding(run: Observed, herds: list[Herd], limit: int, decisions: int) -> Finding:
    count = sum(len(herd.late) for herd in herds)
    target, late = max(herds, key=lambda herd: len(herd.late))
    first, last = late[0], late[-1]
    where: Counter[int] = Counter()
    for herd in herds:
        where[herd.target] += len(herd.late)
    return Finding(
        kind=KIND,
        at_ps=herds[0].late[0].at_ps,
        until_ps=herds[-1].late[-1].at_ps,
        severity=count / decisions,
        count=count,
        title=(
            f"{many(len(herds), 'herd')} of at least {limit} requests went to one instance although another had at "
            f"least {EXCESS} fewer; the longest sent {len(late):,} requests to {run.name(target)} "
            f"{span(first.at_ps, last.at_ps)}, which then had {last.had:,} while another had {last.fewest:,}."
        ),
        requests=run.slowest(decision.row for herd in herds for decision in herd.late),
        instances=busiest(where),
        evidence={
            "herds": len(herds),
            "late_decisions": count,
            "decisions": decisions,
            "limit": limit,
            "longest": len(late),
            "longest_from_s": seconds(first.at_ps),
            "longest_until_s": seconds(last.at_ps),
            "longest_had": last.had,
            "longest_fewest": last.fewest,
        },
        explains=run.loss.share(
            (decision.row for herd in herds for decision in herd.late), (*QUEUED, "preemption", "prefill", "decode")
        ),
        resource="choice",
    )
