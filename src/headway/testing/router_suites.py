"""Suites for the stages of the control plane: routing, admission, priority and flow control."""

from headway.control.flights import Flight
from headway.testing.bench import QUEUES, requests
from headway.testing.suite import COUNT, RouterSuite
from headway.types import Reject


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
