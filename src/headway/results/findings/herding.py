"""Herding: consecutive decisions send requests to the same few instances although a peer has far fewer requests.

A herd is a series of decisions among one set of N peers (instances of the same model and role), at most `SPACING_PS`
apart, whose targets are at most m instances. Herds are looked for with m = 1, 2, 4 and so on up to N/2: a router with
stale signals sends requests to the instance that seemed least loaded, until it seems as loaded as the next one, and
then to both. A decision is late if the target has at least `EXCESS` more requests than the least loaded open peer,
unless it returns a session to the instance of its last turn. A herd needs at least `LEAST` late decisions. With D
decisions, it also needs at least n late decisions, where n is the smallest number with (N/m)ⁿ ≥ `ONCE_IN`·D·C(N, m).
With this n, a policy that chooses at random makes a herd of one size in at most one of `ONCE_IN` such runs. In a
disaggregated cluster, the choice of the prefill instance counts. There is one finding per set of peers. Severity: the
late decisions of its herds divided by all decisions.
"""

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import compress
from math import comb
from typing import Final, NamedTuple, cast

from headway.results.findings.cluster_remedies import fresher_signals
from headway.results.findings.observed import CAUSE, Observed, busiest, many, seconds, span, worst
from headway.results.findings.policy_remedies import balance, use
from headway.results.records import ROUTING, Finding, Suggestion
from headway.results.time_split import QUEUED
from headway.types import PS_PER_SECOND, SERVING

KIND: Final = "herding"
ROLE: Final = CAUSE
AREA: Final = "routing"
ORDER: Final = 8
YIELDS_TO: Final = ("hot_prefix",)  # the prefix says why the instances were chosen
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
    targets: Counter[int]  # late decisions by target
    limit: int  # fewest late decisions of a herd with so many targets
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

    def streaks(self, most: int = 1) -> Iterator[list[int]]:
        """Yield series of rows: consecutive decisions with at most `most` targets, each at most `SPACING_PS` after the
        previous one."""
        rows, at, begin = self.rows, self.at_ps, 0
        targets: set[int] = set()
        for place, row in enumerate(rows):
            target = self.target[row]
            new = target not in targets and len(targets) == most
            if place and (new or at[row] - at[rows[place - 1]] > SPACING_PS):
                yield rows[begin:place]
                begin = place
                targets.clear()
            targets.add(target)
        yield rows[begin:]


def find(run: Observed) -> list[Finding]:
    findings = []
    for (_, role), peers in run.peers.items():
        if role != "decode":
            decisions = Decisions(run, peers)
            possible = list(_possible(decisions, len(peers)))
            herds = list(_herds(possible, decisions, _late(run, peers, decisions))) if possible else []
            findings += [_finding(run, herds, len(peers), len(decisions.rows))] if herds else []
    return worst(findings)


def suggest(run: Observed, finding: Finding) -> Iterator[Suggestion]:
    yield from balance(run)
    yield from use(run, ROUTING, "power-of-two", ", which chooses among two random instances")
    yield from fresher_signals(run)


def by_chance(peers: int, decisions: int, most: int = 1) -> int:
    """Return how long a series of choices among `most` peers must be to be unlikely under random choice."""
    limit, ways, chance = 1, peers, ONCE_IN * decisions * comb(peers, most) * most
    while ways < chance:
        limit, ways, chance = limit + 1, ways * peers, chance * most
    return limit


def _possible(decisions: Decisions, peers: int) -> Iterator[tuple[int, list[int]]]:
    """Yield the series that are long enough to be a herd, each with the fewest late decisions that it needs."""
    most = 1
    while 2 * most <= peers:
        limit = max(LEAST, by_chance(peers, len(decisions.rows), most))
        yield from ((limit, rows) for rows in decisions.streaks(most) if len(rows) >= limit)
        most *= 2


def _herds(possible: Sequence[tuple[int, list[int]]], decisions: Decisions, late: Mapping[int, Late]) -> Iterator[Herd]:
    """Yield the herds, those with the fewest targets first. A decision belongs to the first herd that has it."""
    known: set[int] = set()
    for limit, rows in possible:
        here = [late[row] for row in rows if row in late and row not in known]
        if len(here) >= limit:
            known.update(each.row for each in here)
            yield Herd(Counter(decisions.target[each.row] for each in here), limit, here)


def _late(run: Observed, peers: Sequence[int], decisions: Decisions) -> dict[int, Late]:
    """Return the late decisions by row. Apply the end of a request's stay, or a change of an instance's state, before
    the decisions at the same time."""
    target_of, at_ps, end_ps = decisions.target, decisions.at_ps, decisions.end_ps
    ending = sorted((row for row in decisions.rows if end_ps[row] > at_ps[row]), key=end_ps.__getitem__, reverse=True)
    changes = [change for change in reversed(run.result.states) if change.instance in peers]
    loads, is_open = dict.fromkeys(peers, 0), dict.fromkeys(peers, not changes)
    session_of, turn_of = cast(Sequence[str], run.requests.session), run.requests.turn
    last_of: dict[str, int] = {}  # session -> the instance of its last turn
    late = {}
    for row in decisions.rows:
        now, target = at_ps[row], target_of[row]
        while ending and end_ps[ending[-1]] <= now:
            loads[target_of[ending.pop()]] -= 1
        while changes and changes[-1].at_ps <= now:
            change = changes.pop()
            is_open[change.instance] = change.state in SERVING
        returns = turn_of[row] > 0 and last_of.get(session_of[row]) == target
        if session_of[row]:
            last_of[session_of[row]] = target
        if loads[target] >= EXCESS and not returns:
            fewest = min(compress(loads.values(), is_open.values()), default=loads[target])
            if loads[target] - fewest >= EXCESS:
                late[row] = Late(row, now, loads[target], fewest)
        if end_ps[row] > now:
            loads[target] += 1
    return late


def _finding(run: Observed, herds: list[Herd], peers: int, decisions: int) -> Finding:
    late = sorted((decision for herd in herds for decision in herd.late), key=lambda decision: decision.at_ps)
    longest = max(herds, key=lambda herd: len(herd.late))
    first, last = longest.late[0], longest.late[-1]
    where: Counter[int] = Counter()
    for herd in herds:
        where.update(herd.targets)
    limit, most = min(herd.limit for herd in herds), max(len(herd.targets) for herd in herds)
    few = "one instance" if most == 1 else f"at most {most} of {peers} instances"
    return Finding(
        kind=KIND,
        at_ps=late[0].at_ps,
        until_ps=late[-1].at_ps,
        severity=len(late) / decisions,
        count=len(late),
        title=(
            f"{many(len(herds), 'herd')} of at least {limit} requests went to {few} although another had at "
            f"least {EXCESS} fewer; the longest sent {len(longest.late):,} requests to {run.names(longest.targets)} "
            f"{span(first.at_ps, last.at_ps)}, the last one to an instance that had {last.had:,} while another had "
            f"{last.fewest:,}."
        ),
        requests=run.slowest(decision.row for decision in late),
        instances=busiest(where),
        evidence={
            "herds": len(herds),
            "late_decisions": len(late),
            "decisions": decisions,
            "limit": limit,
            "targets": most,
            "longest": len(longest.late),
            "longest_from_s": seconds(first.at_ps),
            "longest_until_s": seconds(last.at_ps),
            "longest_had": last.had,
            "longest_fewest": last.fewest,
        },
        explains=run.loss.share((decision.row for decision in late), (*QUEUED, "preemption", "prefill", "decode")),
        resource="choice",
    )
