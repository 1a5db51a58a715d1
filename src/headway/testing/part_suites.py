"""Suites for scorers and filters, the parts of a weighted policy. A script calls the part at every decision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from headway.control.plane import ControlPlane
from headway.policies import registry
from headway.policies.user_policies import METHODS
from headway.policies.weighted import checked_keep, clamp
from headway.testing.bench import Bench, requests
from headway.testing.suite import RouterSuite
from headway.types import Request, Route
from headway.views.cluster import ClusterView
from headway.views.instance import InstanceView

Ask = Callable[[Request, Sequence[InstanceView], ClusterView], Any]


class _Asking:
    """A routing policy that calls a scorer or filter with all candidates, and then routes in rotation."""

    def __init__(self, part: Any, ask: Ask, transcript: list[Any]) -> None:
        self.ask, self.transcript = ask, transcript
        self.entry = registry.entry_of(part)
        for name in ("bind", "observe"):
            if hasattr(part, name):
                setattr(self, name, getattr(part, name))

    def route(self, request: Request, cluster: ClusterView) -> Route:
        self.transcript.append((request.id, self.ask(request, list(cluster.instances), cluster)))
        return Route(cluster.instances[request.id % len(cluster.instances)].id)


class _PartSuite(RouterSuite):
    ties: bool = True

    def ask(self, part: Any, request: Request, candidates: Sequence[InstanceView], cluster: ClusterView) -> list[Any]:
        """Call the scorer or filter, check its answer, and return the answer as plain values."""
        raise NotImplementedError

    def start(self, bench: Bench) -> tuple[Any, ControlPlane]:
        part = self.make()
        bench.record_reads(part, "bind", "observe", METHODS[self.stage])
        return part, bench.plane(routing=_Asking(part, partial(self.ask, part), bench.transcript))

    def first_answer(self) -> list[Any]:
        """Return the answer of the scorer or filter for equal and idle instances."""
        bench = self.bench()
        _, control = self.start(bench)
        answer: list[Any] = bench.drive(control, requests(1))[0][1]
        return answer


class ScorerSuite(_PartSuite):
    """Tests of a scorer. If the scorer may score equal instances differently, as a hash of the session does, set `ties`
    to False."""

    stage = "scorer"

    def ask(self, part: Any, request: Request, candidates: Sequence[InstanceView], cluster: ClusterView) -> list[Any]:
        before = list(candidates)
        values = part.score(request, candidates, cluster)
        assert list(candidates) == before, "`score` changed the list of candidates."
        assert len(list(values)) == len(before), f"`score` returned {len(values)} values for {len(before)} candidates."
        scores = clamp(part, values, request, len(before))
        assert scores == [float(value) for value in values], f"scores must be from 0 to 1, got {values}."
        return scores

    def test_equal_instances_have_equal_scores(self) -> None:
        scores = self.first_answer()
        assert not self.ties or len(set(scores)) == 1, f"All instances are equal and idle, but the scores are {scores}."


class FilterSuite(_PartSuite):
    """Tests of a filter: it keeps some of the candidates and does not change their order."""

    stage = "filter"

    def ask(self, part: Any, request: Request, candidates: Sequence[InstanceView], cluster: ClusterView) -> list[Any]:
        before = list(candidates)
        left = list(checked_keep(part, request, candidates, cluster))
        assert list(candidates) == before, "`keep` changed the list of candidates."
        places = [before.index(view) for view in left]
        assert places == sorted(set(places)), "`keep` must return candidates, each at most once, in their given order."
        return places

    def test_equal_instances_are_kept_or_dropped_together(self) -> None:
        left = self.first_answer()
        assert not self.ties or left in ([], [0, 1, 2, 3]), f"All instances are equal, but `keep` returned {left}."
