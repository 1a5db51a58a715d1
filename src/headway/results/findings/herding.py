"""Herding: one decision after another sent requests to the same instance although another had far fewer.

A herd are decisions in a row on requests to one set of peers (instances of the same model and role) with the same
target and no more than `SPACING_PS` between two of them. A decision is late if the target had `EXCESS` requests or more
above the open peer with the fewest. A herd is reported if it has at least `LEAST` late decisions, and more than chance
would give once in a hundred such runs: n with Nⁿ⁻¹ ≥ `ONCE_IN`·D for N peers and D decisions. Where prompts are
computed apart, the choice of the prefill instance counts. One finding a set of peers. Severity: the late decisions of
its herds over all decisions.
"""

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from headway.results.findings.observed import Observed, busiest, many, seconds, span, worst
from headway.results.records import Finding
from headway.types import PS_PER_SECOND, SERVING

KIND: Final = "herding"
AREA: Final = "routing"
ADVICE: Final = (
    "Routing: spread decisions taken on the same stale signals, by exact signals (inflight) or power-of-two."
)
ORDER: Final = 8
SPACING_PS: Final = PS_PER_SECOND
EXCESS: Final = 4
LEAST: Final = 8
ONCE_IN: Final = 100  # runs in which chance alone would make one herd


class Herd(NamedTuple):
    target: int
    rows: list[int]  # of the late decisions
    at_ps: int
    until_ps: int
    had: int  # requests that the target had before the last of them
    least: int  # and that the peer with the fewest had


class Loads:
    """The requests of each peer, by its place, and the fewest that one has to which requests can go."""

    __slots__ = ("counts", "fewest", "having", "open")

    def __init__(self, peers: int, open_: bool) -> None:
        self.counts = [0] * peers
        self.open = [open_] * peers
        self.having = [peers if open_ else 0]  # by requests: open instances that have so many
        self.fewest = 0

    def more(self, peer: int) -> None:
        count = self.counts[peer]
        self.counts[peer] = count + 1
        if count + 1 == len(self.having):
            self.having.append(0)
        if self.open[peer]:
            self.having[count] -= 1
            self.having[count + 1] += 1

    def less(self, peer: int) -> None:
        count = self.counts[peer]
        self.counts[peer] = count - 1
        if self.open[peer]:
            self.having[count] -= 1
            self.having[count - 1] += 1
            self.fewest = min(self.fewest, count - 1)

    def switch(self, peer: int, open_: bool) -> None:
        """Requests can go there from now on, or no longer."""
        if self.open[peer] != open_:
            self.open[peer] = open_
            self.having[self.counts[peer]] += 1 if open_ else -1
            self.fewest = min(self.fewest, self.counts[peer])

    def least(self) -> int | None:
        """None where requests can go nowhere."""
        having, place = self.having, self.fewest
        while place < len(having) and not having[place]:
            place += 1
        if place == len(having):
            return None
        self.fewest = place
        return place


class Decisions:
    """The requests sent to a set of peers, in order of time: which, when, until when they were there, and to whom."""

    def __init__(self, run: Observed, peers: Sequence[int]) -> None:
        where, end = array("q", [-1]) * len(run.requests), array("q", [-1]) * len(run.requests)
        for place, instance in enumerate(peers):
            stays = run.stays.get(instance)
            if stays is not None:
                for row, until in zip(stays.rows, stays.end_ps, strict=True):
                    where[row], end[row] = place, until
        routed = run.requests.routed_ps
        self.rows = sorted((row for row, place in enumerate(where) if place >= 0), key=routed.__getitem__)
        self.begin_ps = [routed[row] for row in self.rows]
        self.end_ps = [end[row] for row in self.rows]
        self.peer = [where[row] for row in self.rows]

    def __len__(self) -> int:
        return len(self.rows)

    def has_streak(self, limit: int) -> bool:
        """Whether there are so many decisions in a row that may be a herd."""
        target, last, length = -1, 0, 0
        for now, peer in zip(self.begin_ps, self.peer, strict=True):
            length = length + 1 if peer == target and now - last <= SPACING_PS else 1
            if length >= limit:
                return True
            target, last = peer, now
        return False


def find(run: Observed) -> list[Finding]:
    findings = []
    for (_, role), peers in run.peers.items():
        if role != "decode":
            decisions = Decisions(run, peers)
            limit = max(LEAST, by_chance(len(peers), len(decisions)))
            herds = list(_herds(run, peers, decisions, limit)) if decisions.has_streak(limit) else []
            findings += [_finding(run, herds, limit, len(decisions))] if herds else []
    return worst(findings)


def by_chance(peers: int, decisions: int) -> int:
    """How many equal throws in a row are too many."""
    throws, ways = 1, 1
    while ways < ONCE_IN * decisions:
        throws, ways = throws + 1, ways * peers
    return throws


def _herds(run: Observed, peers: Sequence[int], decisions: Decisions, limit: int) -> Iterator[Herd]:
    """In order of time. What ends at an instant, and instances that come and go then, do so before its decisions."""
    begin, end, where = decisions.begin_ps, decisions.end_ps, decisions.peer
    ending = sorted((place for place in range(len(decisions)) if end[place] > begin[place]), key=end.__getitem__)
    places = {instance: place for place, instance in enumerate(peers)}
    states = [change for change in run.result.states if change.instance in places]
    loads = Loads(len(peers), not states)
    ended = changed = 0
    target, last, late = -1, 0, list[int]()
    at = until = had = least = 0
    for place, (now, peer) in enumerate(zip(begin, where, strict=True)):
        while ended < len(ending) and end[ending[ended]] <= now:
            loads.less(where[ending[ended]])
            ended += 1
        while changed < len(states) and states[changed].at_ps <= now:
            loads.switch(places[states[changed].instance], states[changed].state in SERVING)
            changed += 1
        if peer != target or now - last > SPACING_PS:
            if len(late) >= limit:
                yield Herd(peers[target], late, at, until, had, least)
            target, late = peer, []
        last = now
        fewest = loads.least()
        if fewest is not None and loads.counts[peer] - fewest >= EXCESS:
            at = at if late else now
            late.append(decisions.rows[place])
            until, had, least = now, loads.counts[peer], fewest
        if end[place] > now:
            loads.more(peer)
    if len(late) >= limit:
        yield Herd(peers[target], late, at, until, had, least)


def _finding(run: Observed, herds: list[Herd], limit: int, decisions: int) -> Finding:
    late = sum(len(herd.rows) for herd in herds)
    longest = max(herds, key=lambda herd: len(herd.rows))
    where: Counter[int] = Counter()
    for herd in herds:
        where[herd.target] += len(herd.rows)
    return Finding(
        kind=KIND,
        at_ps=herds[0].at_ps,
        until_ps=herds[-1].until_ps,
        severity=late / decisions,
        count=late,
        title=(
            f"{many(len(herds), 'herd')} of {limit} requests or more went to one instance although another had at "
            f"least {EXCESS} fewer; the longest, {len(longest.rows):,} to {run.name(longest.target)} "
            f"{span(longest.at_ps, longest.until_ps)}, which then had {longest.had:,} where another had "
            f"{longest.least:,}."
        ),
        requests=run.slowest(row for herd in herds for row in herd.rows),
        instances=busiest(where),
        evidence={
            "herds": len(herds),
            "late_decisions": late,
            "decisions": decisions,
            "limit": limit,
            "longest": len(longest.rows),
            "longest_from_s": seconds(longest.at_ps),
            "longest_until_s": seconds(longest.until_ps),
            "longest_had": longest.had,
            "longest_fewest": longest.least,
        },
    )
