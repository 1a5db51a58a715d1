from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from fake_service import Served, serve, starts, turn
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from drawing import draws
from headway.errors import HeadwayError
from headway.types import NEVER, Path, Request
from headway.workload import traffic as module
from headway.workload.sessions import Chain, Graph, Session
from headway.workload.traffic import OpenLoop, Planned, Retry, Sessions, Source


def chain(name: str | None, delays: Sequence[int], tenant: str = "default") -> Chain:
    return Chain(name, tenant, "standard", iter([turn(delay) for delay in delays]), len(delays))


def graph(name: str, delays: Sequence[int], after: Sequence[Sequence[int]]) -> Graph:
    return Graph(name, "default", "standard", [turn(delay) for delay in delays], after)


def of(*sessions: tuple[int, Session], **options: Any) -> Sessions:
    return Sessions([Source(starts(sessions), **options)])


def takes(duration: int, failing: Sequence[tuple[str, int]] = ()) -> Any:
    """Every request takes this long; those of a session and turn named here fail, every time."""
    return lambda request: (duration, (request.session, request.turn) not in failing)


# --- open loops ---------------------------------------------------------------------------------------------------


def test_an_open_loop_gives_its_requests_as_they_come_and_does_not_listen() -> None:
    planned = [Planned(Request(row, at, 1, Path((1,), (1,))), 1, 0) for row, at in enumerate((3, 3, 9))]
    loop = OpenLoop(planned)
    assert (loop.next_ps, loop.listens) == (3, False)
    assert serve(loop, takes(100)).requests == [each.request for each in planned]
    assert (loop.next_ps, loop.not_issued) == (NEVER, 0)
    assert list(OpenLoop(planned)) == planned
    assert OpenLoop([]).next_ps == NEVER


# --- chains -------------------------------------------------------------------------------------------------------


def test_a_turn_comes_its_delay_after_the_one_before_has_ended() -> None:
    traffic = of((10, chain("a", [0, 5, 7])), (12, chain("b", [1])))
    served = serve(traffic, takes(100))
    assert served.names() == [(10, "a", 0), (13, "b", 0), (115, "a", 1), (222, "a", 2)]
    assert (traffic.not_issued, traffic.abandoned, traffic.retried) == (0, 0, 0)


def test_a_follow_up_without_delay_comes_at_the_very_instant() -> None:
    served = serve(of((0, chain("a", [0, 0, 0]))), takes(10))
    assert served.names() == [(0, "a", 0), (10, "a", 1), (20, "a", 2)]


def test_what_comes_at_one_instant_comes_by_source_session_and_turn_and_not_as_it_was_found_out() -> None:
    """All at 20: two sessions that start there, the third turn of one and the second of two others."""
    first = [(0, chain("a", [0, 0, 0])), (5, chain("b", [0, 5])), (20, chain("c", [0]))]
    second = [(0, chain("d", [0, 10])), (19, chain("e", [1])), (20, chain("f", [0]))]
    traffic = Sessions([Source(starts(first)), Source(starts(second))])
    served = serve(traffic, takes(10))
    at_20 = [(session, turn) for at, session, turn in served.names() if at == 20]
    # What was known before the instant comes first; a's last turn follows from what ends at that instant.
    assert at_20 == [("b", 1), ("c", 0), ("d", 1), ("e", 0), ("f", 0), ("a", 2)]


def test_requests_that_end_at_one_instant_are_followed_in_order_of_their_identity() -> None:
    """The second session's turn ends last and the first one's follow-up still comes first."""
    traffic = of((0, chain("a", [3, 4])), (0, chain("b", [0, 4])))
    served = serve(traffic, lambda request: (13 - request.arrival_ps if request.turn == 0 else 1, True))
    assert served.names() == [(0, "b", 0), (3, "a", 0), (17, "a", 1), (17, "b", 1)]


def test_a_request_carries_what_its_session_and_turn_say() -> None:
    second = turn(2, tokens=9)
    second.model, second.kind, second.max_tokens, second.shared_prefix_tokens = "m", "chat", 5, 3
    traffic = of((4, Chain("a", "acme", "gold", iter([second]), 1)))
    planned = traffic.take()
    assert (planned.output_tokens, planned.output_key) == (2, 7)
    assert planned.request == Request(
        0, 6, 9, second.path, "m", "acme", "gold", "a", 0, 5, shared_prefix_tokens=3, kind="chat"
    )


def test_iterating_is_as_if_every_request_ended_as_it_came() -> None:
    traffic = of((0, chain("a", [0, 5])), (3, chain("b", [0, 1])))
    come = [(planned.request.arrival_ps, planned.request.session, planned.request.turn) for planned in traffic]
    assert come == [(0, "a", 0), (3, "b", 0), (4, "b", 1), (5, "a", 1)]


# --- what fails ---------------------------------------------------------------------------------------------------


def test_a_session_ends_with_a_turn_that_fails_and_the_rest_is_not_issued() -> None:
    traffic = of((0, chain("a", [0, 0, 0, 0])))
    served = serve(traffic, takes(10, [("a", 1)]))
    assert len(served.requests) == 2
    assert (traffic.not_issued, traffic.abandoned) == (2, 2)


def test_a_failed_turn_is_sent_again_each_time_after_twice_the_backoff() -> None:
    traffic = of((0, chain("a", [0, 6])), retry=Retry(3, 10))
    served = serve(traffic, takes(1, [("a", 1)]))
    assert served.names() == [(0, "a", 0), *((at, "a", 1) for at in (7, 18, 39, 80))]
    assert (traffic.retried, traffic.not_issued) == (3, 0)


def test_a_turn_that_succeeds_when_sent_again_is_followed_by_the_next() -> None:
    tries = Counter[int]()

    def service(request: Request) -> tuple[int, bool]:
        tries[request.turn] += 1
        return 1, tries[request.turn] > 1

    traffic = of((0, chain("a", [0, 5])), retry=Retry(1, 10))
    assert serve(traffic, service).names() == [(0, "a", 0), (11, "a", 0), (17, "a", 1), (28, "a", 1)]
    assert (traffic.retried, traffic.not_issued) == (2, 0)


def test_attempts_without_a_backoff_are_made_at_the_same_instant_and_are_counted() -> None:
    traffic = of((0, chain("a", [0])), retry=Retry(4, 0))
    assert len(serve(traffic, takes(0, [("a", 0)])).requests) == 5


def test_branches_under_way_go_on_when_another_fails_and_the_join_does_not_come() -> None:
    """0 branches into 1 and 2, 2 goes on with 3, 4 joins 1 and 3. Turn 1 fails while 2 is on its way."""
    traffic = of((0, graph("a", [0, 0, 0, 5, 0], [[], [0], [0], [2], [1, 3]])))
    served = serve(traffic, lambda request: (10 if request.turn != 2 else 50, request.turn != 1))
    assert [request.turn for request in served.requests] == [0, 1, 2]
    assert served.ends[2] == (60, True)
    assert (traffic.not_issued, traffic.abandoned) == (2, 2)


def test_a_join_comes_after_the_last_of_its_branches() -> None:
    traffic = of((0, graph("a", [0, 1, 2, 3], [[], [0], [0], [1, 2]])))
    served = serve(traffic, lambda request: ({0: 10, 1: 100, 2: 20, 3: 1}[request.turn], True))
    assert served.names() == [(0, "a", 0), (11, "a", 1), (12, "a", 2), (114, "a", 3)]


# --- ends ---------------------------------------------------------------------------------------------------------


def test_nothing_comes_at_or_after_a_sources_end() -> None:
    sessions = [(0, chain("a", [0, 5, 5])), (29, chain("b", [0, 1])), (30, chain("c", [0]))]
    traffic = of(*sessions, stop_ps=30)
    assert serve(traffic, takes(10)).names() == [(0, "a", 0), (15, "a", 1), (29, "b", 0)]
    assert (traffic.not_issued, traffic.abandoned) == (2, 0)  # a's third at 30, b's second; c never began


def test_a_branch_that_comes_too_late_does_not_end_the_others() -> None:
    traffic = of((0, graph("a", [0, 100, 0, 0, 0], [[], [0], [0], [2], [1, 3]])), stop_ps=50)
    assert [request.turn for request in serve(traffic, takes(10)).requests] == [0, 2, 3]
    assert (traffic.not_issued, traffic.abandoned) == (2, 0)


def test_an_attempt_after_the_end_is_not_made() -> None:
    traffic = of((0, chain("a", [0, 0])), retry=Retry(5, 10), stop_ps=25)
    assert [at for at, _, _ in serve(traffic, takes(1, [("a", 0)])).names()] == [0, 11]
    assert (traffic.not_issued, traffic.retried) == (1, 1)


def test_a_stopped_clock_counts_the_turns_of_sessions_that_had_begun() -> None:
    """At 12 a's second turn is on its way and has two more behind it, b has failed once and waits to try again, c has
    not begun although nobody knows of anything that comes sooner."""
    sessions = [(0, chain("a", [0, 0, 0, 0])), (1, chain("b", [0, 0])), (20, chain("c", [0, 0]))]
    traffic = of(*sessions, retry=Retry(1, 10))
    served = serve(traffic, takes(10, [("b", 0)]), horizon=12)
    assert served.names() == [(0, "a", 0), (1, "b", 0), (10, "a", 1)]
    assert (traffic.not_issued, traffic.abandoned, traffic.next_ps) == (3, 0, NEVER)


def test_a_stopped_clock_counts_a_turn_that_was_known_to_come() -> None:
    traffic = of((0, chain("a", [0, 50, 0])))
    serve(traffic, takes(10), horizon=20)
    assert traffic.not_issued == 2


def test_sessions_that_had_not_begun_count_alike_whatever_was_known_of_them() -> None:
    for begun in ([], [(0, chain("a", [0]))], [(0, chain("a", [50]))]):
        traffic = of(*begun, (40, chain("b", [0, 0])), (41, chain("c", [0, 0])))
        serve(traffic, takes(1), horizon=30)
        assert traffic.not_issued == 0


# --- a fixed number of users --------------------------------------------------------------------------------------


def test_so_many_users_are_live_at_a_time_and_pause_between_sessions() -> None:
    sessions = [(999, chain(name, delays)) for name, delays in (("a", [0, 5]), ("b", [0]), ("c", [0]), ("d", [2]))]
    served = serve(of(*sessions, users=2, pause_ps=3), takes(10))
    assert served.names() == [(0, "a", 0), (0, "b", 0), (13, "c", 0), (15, "a", 1), (28, "d", 0)]
    assert served.most_at_once == {"default": 2}


def test_a_user_goes_on_after_a_session_that_failed_and_past_one_without_turns() -> None:
    sessions = [(0, chain(name, delays)) for name, delays in (("a", [0, 0]), ("b", []), ("c", [0]))]
    traffic = of(*sessions, users=1)
    assert serve(traffic, takes(10, [("a", 0)])).names() == [(0, "a", 0), (10, "c", 0)]
    assert traffic.not_issued == 1


def test_no_session_begins_at_or_after_the_end() -> None:
    sessions = ((0, chain(str(number), [1])) for number in range(10**9))
    traffic = Sessions([Source(starts(sessions), users=3, pause_ps=4, stop_ps=31)])
    assert {at for at, _, _ in serve(traffic, takes(10)).names()} == {1, 16}
    assert traffic.not_issued == 0


def test_users_who_are_always_turned_away_at_once_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FUTILE", 50)
    monkeypatch.setattr(module, "FUTILE_EACH", 1)

    def count_rejected(sessions: int, **options: Any) -> int:
        many = ((0, chain(None, [0])) for _ in range(sessions))
        return len(serve(Sessions([Source(starts(many), users=4, **options)]), lambda request: (0, False)).requests)

    assert count_rejected(54) == 54
    with pytest.raises(HeadwayError, match=r"^workload: 55 requests .* at one instant"):
        count_rejected(10**9)
    with pytest.raises(HeadwayError, match=r"^workload: 63 requests .* at one instant"):
        count_rejected(10**9, retry=Retry(2, 0))
    assert count_rejected(1000, pause_ps=1) == 1000  # each of them at another instant


def test_sessions_that_start_together_begin_one_by_one() -> None:
    begun = 0

    def sessions() -> Iterator[tuple[int, Session]]:
        nonlocal begun
        for number in range(1_000_000):
            begun += 1
            yield 7, chain(str(number), [0])

    late = [(7, chain("late", [0]))]
    traffic = Sessions([Source(starts(sessions())), Source(starts(late))])
    assert [traffic.take().request.session for _ in range(10)] == [str(number) for number in range(10)]
    assert begun <= 12


# --- whatever the service ------------------------------------------------------------------------------------------


class Kept:
    """A session that counts how many like it are alive."""

    alive = 0

    def __init__(self, inner: Chain | Graph) -> None:
        self.inner, self.name, self.tenant, self.slo_class = inner, inner.name, inner.tenant, inner.slo_class
        self.begin, self.on_ended, self.turns_left = inner.begin, inner.on_ended, inner.turns_left
        Kept.alive += 1

    def __del__(self) -> None:
        Kept.alive -= 1


@pytest.mark.parametrize(("users", "most"), [(None, 8), (3, 5)])
def test_memory_goes_with_the_live_sessions_and_not_with_their_number(users: int | None, most: int) -> None:
    """A session starts every 10 and lasts 50: five are live, one is known to start."""
    highest = 0

    def service(request: Request) -> tuple[int, bool]:
        nonlocal highest
        highest = max(highest, Kept.alive)
        return 25, True

    sessions = ((10 * number, Kept(chain(str(number), [0, 0]))) for number in range(2000))
    assert len(serve(Sessions([Source(starts(sessions), users=users)]), service).requests) == 4000
    assert highest <= most


Shape = tuple[list[int], list[list[int]] | None]  # delays, and what each turn waits for where it is a graph


@st.composite
def shapes(draw: DrawFn) -> Shape:
    delays = draw(st.lists(st.sampled_from([0, 0, 1, 5, 40]), min_size=1, max_size=6))
    if draw(st.booleans()):
        return delays, None
    earlier = [
        st.lists(st.integers(0, max(0, number - 1)), max_size=3 if number else 0) for number in range(len(delays))
    ]
    return delays, [draw(planned) for planned in earlier]


@st.composite
def sources(draw: DrawFn) -> dict[str, Any]:
    return {
        "shapes": draw(st.lists(shapes(), max_size=8)),
        "gaps": draw(st.lists(st.sampled_from([0, 0, 1, 10]), min_size=8, max_size=8)),
        "retry": Retry(draw(st.integers(0, 2)), draw(st.sampled_from([0, 3]))),
        "users": draw(st.sampled_from([None, None, 1, 3])),
        "pause_ps": draw(st.sampled_from([0, 2])),
        "stop_ps": draw(st.sampled_from([NEVER, NEVER, 30])),
    }


def build(drawn: Sequence[dict[str, Any]]) -> Sessions:
    sources = []
    for tenant, source in enumerate(drawn):
        at, sessions = 0, []
        for number, ((delays, after), gap) in enumerate(zip(source["shapes"], source["gaps"], strict=False)):
            at += gap
            turns, name = [turn(delay) for delay in delays], f"{tenant}.{number}"
            planned: Session = Chain(name, str(tenant), "standard", iter(turns), len(turns))
            if after is not None:
                planned = Graph(name, str(tenant), "standard", turns, after)
            sessions.append((at, planned))
        options = {key: source[key] for key in ("retry", "users", "pause_ps", "stop_ps")}
        sources.append(Source(starts(sessions), **options))
    return Sessions(sources)


def turns_by_session(drawn: Sequence[dict[str, Any]]) -> dict[str | None, int]:
    return {
        f"{tenant}.{number}": len(delays)
        for tenant, source in enumerate(drawn)
        for number, (delays, _) in enumerate(source["shapes"])
    }


def run(drawn: Sequence[dict[str, Any]], services: Sequence[tuple[int, bool]], horizon: int) -> tuple[Sessions, Served]:
    """The service of a request depends on what it is and on its attempt, never on when it comes."""
    attempts = Counter[Any]()

    def service(request: Request) -> tuple[int, bool]:
        name = (request.tenant, request.session, request.turn)
        attempts[name] += 1
        return services[(len(str(name)) + sum(map(ord, str(name))) + attempts[name]) % len(services)]

    traffic = build(drawn)
    return traffic, serve(traffic, service, horizon)


SERVICES = st.lists(st.tuples(st.sampled_from([0, 1, 5, 30]), st.sampled_from([True, True, True, False])), min_size=1)
HORIZONS = st.sampled_from([NEVER - 1, NEVER - 1, 0, 20, 60])


@pytest.mark.full
@draws(25)
@given(st.lists(sources(), min_size=1, max_size=3), SERVICES, HORIZONS)
def test_whatever_the_service_every_planned_turn_is_accounted_for(
    drawn: list[dict[str, Any]], services: list[tuple[int, bool]], horizon: int
) -> None:
    traffic, served = run(drawn, services, horizon)
    attempts = Counter((request.session, request.turn) for request in served.requests)
    planned = turns_by_session(drawn)
    begun = {session for session, _ in attempts}
    # Of the sessions that have begun each turn came, or was not issued.
    assert sum(planned[session] for session in begun) == len(attempts) + traffic.not_issued
    assert sum(attempts.values()) - len(attempts) == traffic.retried
    assert 0 <= traffic.abandoned <= traffic.not_issued
    if horizon == NEVER - 1 and all(source["stop_ps"] == NEVER for source in drawn):
        assert traffic.abandoned == traffic.not_issued
        assert begun == set(planned)
        if all(completed for _, completed in services):
            assert traffic.not_issued == traffic.retried == 0
    for (session, _), count in attempts.items():
        assert session is not None
        assert count <= 1 + drawn[int(session.partition(".")[0])]["retry"].max
    for tenant, source in enumerate(drawn):
        arrivals = [request.arrival_ps for request in served.requests if request.tenant == str(tenant)]
        assert all(at < source["stop_ps"] for at in arrivals)
        chains = all(after is None for _, after in source["shapes"])
        if source["users"] is not None and chains:
            assert served.most_at_once.get(str(tenant), 0) <= source["users"]
    assert [request.id for request in served.requests] == list(range(len(served.requests)))
    assert all(a.arrival_ps <= b.arrival_ps for a, b in zip(served.requests, served.requests[1:], strict=False))


@draws(25)
@given(st.lists(sources(), min_size=1, max_size=3), SERVICES)
def test_whatever_the_service_a_turn_comes_its_delay_after_what_it_waits_for(
    drawn: list[dict[str, Any]], services: list[tuple[int, bool]]
) -> None:
    _, served = run(drawn, services, NEVER - 1)
    good = {
        (request.session, request.turn): served.ends[request.id][0]
        for request in served.requests
        if served.ends[request.id][1]
    }
    visited = set()
    for request in served.requests:
        assert request.session is not None
        if (request.session, request.turn) in visited:
            continue
        visited.add((request.session, request.turn))
        tenant, _, number = request.session.partition(".")
        delays, after = drawn[int(tenant)]["shapes"][int(number)]
        earlier = ([request.turn - 1] if request.turn else []) if after is None else after[request.turn]
        if earlier:
            last = max(good[request.session, turn] for turn in earlier)
            assert request.arrival_ps == last + delays[request.turn]


@draws(25)
@given(st.lists(sources(), min_size=1, max_size=2), sources(), SERVICES, HORIZONS)
def test_another_source_changes_nothing_about_the_ones_before_it(
    drawn: list[dict[str, Any]], another: dict[str, Any], services: list[tuple[int, bool]], horizon: int
) -> None:
    """Where nobody waits for a machine, sources do not feel one another."""
    _, alone = run(drawn, services, horizon)
    _, beside = run([*drawn, another], services, horizon)
    stored = [request for request in beside.requests if int(request.tenant) < len(drawn)]
    assert Served(stored).names() == alone.names()
