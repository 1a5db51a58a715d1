"""The control plane: it asks the policies in order and keeps the exact counters of each instance."""

from __future__ import annotations

from random import Random

import pytest

import headway.policies  # noqa: F401
from headway.control.flights import Flight
from headway.control.plane import ControlPlane
from headway.errors import HeadwayError
from headway.policies import registry
from headway.policies.context import Context
from headway.policies.priority import NoPriority
from headway.types import ADMIT, NEVER, Admit, Delay, Path, Reject, Request, Route
from headway.views.events import Finished, FirstToken, Routed
from headway.views.instance import InstanceView


class Told:
    """Routes as it is told, and remembers what it heard."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.events = []
        self.times = []

    def bind(self, context):
        self.context = context

    def route(self, request, cluster):
        self.times.append(cluster.now_ps)
        return self.answers.pop(0)

    def observe(self, event):
        self.events.append(event)

    def metrics(self):
        return {"answers_left": len(self.answers)}


class Closed:
    def admit(self, request, cluster):
        return Reject("closed") if request.tenant == "guest" else ADMIT

    def metrics(self):
        return {"closed": 1.0}


def request(number: int, tokens: int = 100, **fields) -> Request:
    return Request(number, 0, tokens, Path((4 * number + 1,), (tokens,)), **fields)


def plane(routing, admission=None, count: int = 2) -> tuple[ControlPlane, list[InstanceView]]:
    instances = [InstanceView(index, f"i{index}") for index in range(count)]
    context = Context(instances, Random, None, 16)  # type: ignore[arg-type]
    admission = admission or registry.build("admission", "always", "policies.admission")
    return ControlPlane(context, admission, NoPriority(), routing), instances


def counters(view: InstanceView) -> tuple[int, int, int]:
    return view.inflight, view.inflight_tokens, view.pending_prefill_tokens


def test_a_request_is_counted_from_its_routing_to_its_end():
    control, (first, second) = plane(Told(Route("i1", cached_tokens=32), Route("i1")))
    assert control.arrive(0, request(0)).view is second
    assert control.arrive(5, request(1, 50)).view is second
    assert counters(second) == (2, 150, 118)
    control.on_first_token(10, 0)
    assert counters(second) == (2, 150, 50)
    control.on_finished(20, 0, "completed", 7)
    assert counters(second) == (1, 50, 50)
    control.on_first_token(30, 1)
    control.on_finished(40, 1, "completed", 7)
    assert counters(first) == counters(second) == (0, 0, 0)
    assert control.flights.by_id == {}


def test_a_second_first_token_after_a_preemption_counts_nothing_twice():
    control, (first, _) = plane(Told(Route("i0")))
    control.arrive(0, request(0))
    control.on_first_token(1, 0)
    control.on_first_token(2, 0)
    assert counters(first) == (1, 100, 0)


def test_a_request_that_ends_before_its_first_token_takes_its_pending_prefill_with_it():
    control, (first, _) = plane(Told(Route("i0")))
    control.arrive(0, request(0))
    control.on_finished(1, 0, "timed_out", 0)
    assert counters(first) == (0, 0, 0)


def test_more_believed_cached_than_there_is_leaves_no_negative_work():
    control, (first, _) = plane(Told(Route("i0", cached_tokens=500)))
    control.arrive(0, request(0))
    assert first.pending_prefill_tokens == 0


def test_what_admission_refuses_is_never_routed():
    routing = Told(Route("i0"))
    control, (first, _) = plane(routing, Closed())
    assert control.arrive(0, request(0, tenant="guest")) == Reject("closed")
    assert len(routing.answers) == 1 and counters(first) == (0, 0, 0)
    assert control.arrive(0, request(1)).view is first


def test_what_routing_refuses_is_not_counted():
    control, (first, second) = plane(Told(Reject("full")))
    assert control.arrive(0, request(0)) == Reject("full")
    assert counters(first) == counters(second) == (0, 0, 0)


def test_a_route_to_nowhere_is_told():
    control, _ = plane(Told(Route("i9")))
    with pytest.raises(
        HeadwayError, match=r"^policies\.routing: Told routed request \d+ to 'i9', which is not an instance"
    ):
        control.arrive(0, request(0))


def test_policies_see_the_time_and_hear_what_happens_in_order():
    routing = Told(Route("i0"))
    control, (first, _) = plane(routing)
    asked = request(0)
    control.arrive(3, asked)
    control.on_first_token(7, 0)
    control.on_finished(9, 0, "timed_out", 4)
    assert routing.times == [3]
    assert routing.events == [
        Routed(3, asked, first),
        FirstToken(7, asked, first),
        Finished(9, asked, first, "timed_out", 4),
    ]


def test_admission_comes_before_routing_and_both_hear_of_an_event_when_it_is_counted():
    log = []

    class Noting:
        def bind(self, context):
            log.append((type(self).__name__, "bind"))

        def admit(self, request, cluster):
            log.append((type(self).__name__, "admit", cluster.now_ps))
            return Admit()

        def route(self, request, cluster):
            log.append((type(self).__name__, "route", cluster.now_ps))
            return Route("i1", cached_tokens=32)

        def observe(self, event):
            log.append((type(self).__name__, type(event).__name__, counters(event.instance)))

    class Door(Noting):
        pass

    class Router(Noting):
        pass

    control, _ = plane(Router(), Door())
    control.arrive(3, request(0))
    control.on_first_token(7, 0)
    control.on_finished(9, 0, "completed", 4)
    assert log[:4] == [("Door", "bind"), ("Router", "bind"), ("Door", "admit", 3), ("Router", "route", 3)]
    counted = [("Routed", (1, 100, 68)), ("FirstToken", (1, 100, 0)), ("Finished", (0, 0, 0))]
    assert log[4:] == [(name, *what) for what in counted for name in ("Door", "Router")]


@pytest.mark.parametrize("answer", [None, True, Reject(5), Route("i0"), "x" * 500])
def test_an_admission_that_answers_anything_else_is_told(answer):
    class Odd:
        def admit(self, request, cluster):
            return answer

    control, _ = plane(Told(), Odd())
    with pytest.raises(
        HeadwayError,
        match=r"^policies\.admission: Odd\.admit must return ADMIT, a Reject, or a Delay of 1 ps to 2\*\*62 ps, got ",
    ) as wrong:
        control.arrive(0, request(0))
    assert len(str(wrong.value)) < 250


def test_metrics_of_all_policies_come_together():
    control, _ = plane(Told(), Closed())
    assert control.metrics() == {"closed": 1.0, "answers_left": 0}


def test_routing_moves_the_recency_of_every_index_and_looking_does_not():
    class Indexed(Told):
        def bind(self, context):
            self.small = context.prefix_index(16, 8)
            self.same = context.prefix_index(16, 8)
            self.large = context.prefix_index(32, 8)

    routing = Indexed(Route("i1"))
    control, _ = plane(routing)
    asked = request(0, 70)
    assert routing.small is routing.same
    assert routing.small.matches(asked.path) == routing.large.matches(asked.path) == [0, 0]
    control.arrive(0, asked)
    assert routing.small.matches(asked.path) == [0, 4]
    assert routing.large.matches(asked.path) == [0, 2]


ROUTED = [entry.name for entry in registry.entries("routing") if not entry.oracle and not entry.blank]


@pytest.mark.parametrize("name", ROUTED)
def test_counters_return_to_zero_under_every_policy(name):
    class Estimator:
        def step_seconds(self, view, prefill_tokens, decodes, context):
            return 0.001 * (1 + prefill_tokens)

    rng = Random(5)
    instances = [InstanceView(index, f"i{index}") for index in range(4)]
    context = Context(instances, Random, Estimator(), 16)
    always = registry.build("admission", "always", "policies.admission")
    control = ControlPlane(context, always, NoPriority(), registry.build("routing", name, "policies.routing"))
    open_: list[int] = []
    for number in range(200):
        group = rng.randrange(5)
        tokens = rng.randrange(20, 2000)
        path = (
            Path((4 * group + 3, 4 * number + 1), (min(tokens, 600), tokens))
            if tokens > 600
            else Path((4 * group + 3,), (tokens,))
        )
        asked = Request(number, number, tokens, path, session=f"s{rng.randrange(9)}")
        assert isinstance(control.arrive(number * 10**9, asked), Flight)
        open_.append(number)
        assert sum(view.inflight for view in instances) == len(open_)
        while open_ and rng.random() < 0.45:
            ended = open_.pop(rng.randrange(len(open_)))
            if rng.random() < 0.8:
                control.on_first_token(number * 10**9, ended)
            control.on_finished(number * 10**9, ended, "completed", 1)
    for ended in open_:
        control.on_finished(10**13, ended, "completed", 1)
    assert all(counters(view) == (0, 0, 0) for view in instances)


BELIEVING = (
    "lmetric",
    "lmetric-plus-one",
    "least-prefill-work",
    "unified",
    "prefix-affinity",
    "prefix-aware",
    "prefix-overlap",
    "kv-aware-spill",
)


@pytest.mark.parametrize("session", [None, "a"])
@pytest.mark.parametrize("name", BELIEVING)
def test_what_a_policy_believes_cached_is_no_pending_prefill(name, session):
    routing = registry.build("routing", {"name": name, "block_tokens": 16}, "policies.routing")
    control, (only,) = plane(routing, count=1)
    for number, pending in enumerate((100, 104, 108)):  # six full blocks of the same prompt are cached, four tokens not
        control.arrive(number, Request(number, number, 100, Path((1,), (100,)), session=session))
        assert only.pending_prefill_tokens == pending


def test_what_a_policy_believes_cached_goes_with_the_flight():
    control, _ = plane(Told(Route("i0", cached_tokens=500), Route("i1")))
    assert control.arrive(0, request(0)).cached == 500
    assert control.arrive(0, request(1)).cached == 0


def test_what_is_put_off_comes_up_again_by_time_and_then_by_request_unless_its_client_has_gone():
    class Later:
        def admit(self, request, cluster):
            return Delay(10) if cluster.now_ps < 10 else ADMIT

    control, _ = plane(Told(*[Route("i0")] * 3), Later())
    asked = [request(number) for number in range(4)]
    for number, at in ((3, 0), (1, 0), (2, 4), (0, 2)):
        assert control.arrive(at, asked[number]) is None
    assert control.next_ps == 10 and control.wake(9) is None
    assert control.give_up(1) and not control.give_up(1)
    assert control.wake(10) == (asked[3], control.flight(3)) and control.wake(10) is None
    assert control.flight(3).view.id == "i0"
    assert control.next_ps == 12 and control.wake(12) == (asked[0], control.flight(0))
    assert control.give_up(2) and control.next_ps == NEVER
    assert not control.give_up(3)  # it is on its way


def test_a_clock_that_is_late_finds_all_that_was_put_off_until_then_in_order():
    class Later:
        def admit(self, request, cluster):
            return Delay(10) if cluster.now_ps < 10 else ADMIT

    control, _ = plane(Told(*[Route("i0")] * 3), Later())
    for number, at in ((0, 5), (1, 0), (2, 5)):
        assert control.arrive(at, request(number)) is None
    assert control.next_ps == 10
    assert woken(control, 13) == [1] and control.next_ps == 15
    assert woken(control, 99) == [0, 2] and control.next_ps == NEVER


def woken(control: ControlPlane, now: int) -> list[int]:
    found = []
    while (decision := control.wake(now)) is not None:
        assert isinstance(decision[1], Flight)
        found.append(decision[0].id)
    return found


def test_without_flow_control_nothing_ever_waits_at_the_router():
    control, _ = plane(Told(Route("i0")))
    none = ControlPlane(control.context, Closed(), NoPriority(), Told(), registry.build("flow", "none", ""))
    assert control.flow is none.flow is None
