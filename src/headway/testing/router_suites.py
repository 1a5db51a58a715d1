"""Suites for the stages of the control plane: routing, admission, priority, flow control, estimators and deciders."""

from collections.abc import Callable
from functools import partial
from typing import Any

from headway.control.flights import Flight
from headway.control.plane import ControlPlane
from headway.policies import registry
from headway.policies.answers import check_estimate
from headway.testing.bench import QUEUES, Bench, requests
from headway.testing.suite import COUNT, RouterSuite
from headway.types import Reject, Request
from headway.views.cluster import ClusterView


class RoutingSuite(RouterSuite):
    """Tests of a routing policy. If the policy breaks ties by its own rule, set `ties` to False."""

    stage = "routing"
    ties: bool = True

    def test_among_equal_instances_the_lowest_index_wins(self) -> None:
        if not self.ties:
            return
        bench = self.bench()
        _, control = self.start(bench)
        (first,) = requests(1)
        flight = control.arrive(0, first)
        assert isinstance(flight, Flight | Reject)
        lowest = next(view for view in bench.views if view.role != "prefill")
        assert isinstance(flight, Reject) or flight.view is lowest, (
            f"All instances are equal and idle, but the request went to {flight.view.id}, not to {lowest.id}. "
            "If the policy has its own tie rule, set `ties = False`."
        )


class AdmissionSuite(RouterSuite):
    stage = "admission"


class PrioritySuite(RouterSuite):
    stage = "priority"


class FlowSuite(RouterSuite):
    """Tests of a flow-control policy. In addition to the tests of every router stage, they check that no request leaves
    the queue twice."""

    stage = "flow"

    def test_every_request_leaves_the_queue_once(self) -> None:
        bench = self.bench()
        _, control = self.start(bench)
        transcript = bench.drive(control, requests(COUNT))
        left = [number for number, answer in transcript if answer != QUEUES]
        assert len(left) == len(set(left)), "A request left the queue twice."


class EstimatorSuite(RouterSuite):
    """Tests of an estimator of output lengths. Requests are routed by its expectations, and it hears of their ends."""

    stage = "estimator"

    def start(self, bench: Bench) -> tuple[Any, ControlPlane]:
        policy = self.make()
        bench.record_reads(policy, "bind", "observe", "estimate")
        policy.estimate = partial(self._record, bench, policy.estimate)
        routing = registry.build("routing", {"name": "weighted", "scorers": {"expected-kv": 1}}, "policies.routing")
        return policy, bench.plane(estimator=policy, routing=routing)

    def _record(self, bench: Bench, estimate: Callable[..., Any], request: Request, cluster: ClusterView) -> Any:
        answer = estimate(request, cluster)
        checked = check_estimate(self, answer, request)
        most = request.max_tokens
        wrong = f"the estimate of request {request.id} is {checked.tokens}, above its max_tokens of {most}"
        assert most is None or checked.tokens <= most, wrong
        bench.transcript.append((request.id, checked.tokens))
        return answer


class DeciderSuite(RouterSuite):
    """Tests of a decider, on instances of which half prefill and half decode. The routing policy is `pair`."""

    stage = "decider"

    def bench(self) -> Bench:
        return Bench(pairs=True)

    def start(self, bench: Bench) -> tuple[Any, ControlPlane]:
        policy = self.make()
        bench.record_reads(policy, "bind", "observe", "apart")
        return policy, bench.plane(decider=policy, routing=registry.build("routing", "pair", "policies.routing"))
