"""Requests that wait at a router: delayed, queued or stranded. What comes up next, and when."""

from __future__ import annotations

from random import Random
from typing import Any

import headway.policies  # noqa: F401
from headway.control.model_groups import ModelGroups
from headway.control.waiting_room import DELAYED, OVERDUE, RESCUED, WaitingRoom
from headway.policies import registry
from headway.policies.context import Context
from headway.types import NEVER, NO_PRIORITY, Path, Request
from headway.views.instance import InstanceView


def request(number: int, model: str = "") -> Request:
    return Request(number, 0, 10, Path((), ()), model)


class Room:
    """A waiting room before two models, of which one instance each may come up."""

    def __init__(self, flow: Any = None, patience_ps: int = NEVER) -> None:
        self.views = [InstanceView(index, f"i{index}") for index in range(2)]
        for view, name in zip(self.views, "ab", strict=True):
            view.serves, view.state = (name,), "stopped"
        context = Context(self.views, Random, None, 16)  # type: ignore[arg-type]
        self.groups = ModelGroups(self.views)
        self.dequeued: list[int] = []
        self.waiting = WaitingRoom(
            context, self.groups, flow, patience_ps, lambda request: self.dequeued.append(request.id)
        )
        for queue in self.waiting.queues():
            queue.bind(context)

    def strand(self, now_ps: int, number: int, model: str) -> None:
        group = self.groups.of(model)
        assert group is not None
        self.waiting.strand(now_ps, request(number, model), group)

    def come_up(self, now_ps: int, place: int) -> None:
        self.views[place].state = "ready"
        for group in self.groups:
            group.refresh(now_ps)


def test_the_delayed_come_up_by_time_and_then_by_request() -> None:
    room = Room().waiting
    for until, number in ((20, 1), (10, 3), (10, 2), (10, 0)):
        room.delay(until, request(number))
    assert room.next_ps == 10 and room.next_turn(9) is None
    assert room.give_up(0) and not room.give_up(0)
    taken = []
    while (turn := room.next_turn(10)) is not None:
        taken.append((turn, room.take_delayed().id))
    assert taken == [((DELAYED, 2), 2), ((DELAYED, 3), 3)]
    assert room.next_ps == 20
    assert [waiting.id for waiting in room.leave()] == [1]


def test_how_often_a_request_was_delayed_in_a_row_is_known_while_it_comes_up() -> None:
    room = Room().waiting
    for times in range(3):
        assert room.delays(5) == times
        room.delay(10, request(5))
        room.take_delayed()
    assert room.delays(5) == 3 and room.delays(6) == 0


def test_the_stranded_are_rescued_when_an_instance_comes_up_and_else_wait_as_long_as_patience_lasts() -> None:
    made = Room(patience_ps=100)
    room = made.waiting
    for now, number, model in ((0, 0, "a"), (5, 1, "b"), (10, 2, "a")):
        made.strand(now, number, model)
    assert room.next_ps == 100 and room.next_turn(99) is None
    assert room.pending("default") == 3 == sum(len(group.stranded) for group in made.groups)
    made.come_up(105, 1)
    assert room.next_turn(105) == (RESCUED, 0) and room.take_rescued().request.id == 1
    assert room.next_turn(105) == (OVERDUE, 0) and room.take_overdue(105).id == 0
    assert room.next_turn(105) is None and room.next_ps == 110


def test_each_model_has_a_queue_of_its_own_and_whoever_leaves_one_is_told_of() -> None:
    made = Room(registry.build("flow", {"name": "bands", "ttl": "50ps"}, ""))
    room = made.waiting
    for number, name in enumerate("abb"):
        group = made.groups.of(name)
        assert group is not None
        group.flow.put(number, request(number, name), NO_PRIORITY)
    room.set_next()
    assert [len(queue) for queue in room.queues()] == [1, 2] and room.queued == 3 and room.next_ps == 50
    assert room.give_up(1) and made.dequeued == [1]
    made.views[1].serves = ("c",)  # nobody serves b any more
    assert [waiting.id for waiting in room.regroup(9)] == [2] and made.dequeued == [1, 2]
    assert made.groups.of("b") is None and room.queued == 1


def test_where_no_instance_names_its_models_one_group_serves_all() -> None:
    groups = ModelGroups([InstanceView(0, "i0"), InstanceView(1, "")])
    group = groups.of("whatever")
    assert group is not None and [view.id for view in group.members] == ["i0"] and len(groups) == 1


def test_delayed_requests_are_pending_for_the_pool_of_their_model_until_they_come_up_or_give_up() -> None:
    built = Room()
    room, views = built.waiting, built.views
    for view, pool in zip(views, ("pa", "pb"), strict=True):
        view.pool = pool
    assert room.regroup(0) == []
    for number, model in enumerate("aab"):
        room.delay(10 + number, request(number, model))
    assert (room.pending("pa"), room.pending("pb")) == (2, 1)
    room.take_delayed()
    assert (room.pending("pa"), room.pending("pb")) == (1, 1)
    views[0].serves = ("a", "b")
    room.regroup(1)
    assert (room.pending("pa"), room.pending("pb")) == (2, 1)
    assert room.give_up(1)
    assert (room.pending("pa"), room.pending("pb")) == (1, 1)
