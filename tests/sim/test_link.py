"""Transfers share a link equally, worked out by hand and against exact fractions."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from headway.sim.job import Job
from headway.sim.link import Link, Load
from headway.types import NEVER, Path, Request

US = 10**6
GB = 10**9
JOB = Job(Request(0, 0, 1, Path((), ())), 1, 0, 16, True)


def arrivals(
    bandwidth: int, latency: int, transfers: list[tuple[int, int]], alone: int | None = None
) -> dict[int, int]:
    """When each transfer of (start, bytes), in order of start, arrives; or the one that alone somebody waits for."""
    link: Link[int] = Link(bandwidth, latency)
    found: dict[int, int] = {}
    waiting = list(enumerate(transfers))
    while waiting or link.next_ps != NEVER:
        start = waiting[0][1][0] if waiting else NEVER
        now = min(start, link.next_ps)
        if link.next_ps == now:
            found.update({load.instance: now for load in link.take_arrived(now)})
        while waiting and waiting[0][1][0] == now:
            number, (_, amount) = waiting.pop(0)
            link.start(now, amount, Load(number, JOB, 0, 0) if alone in (None, number) else None)
    return found


def test_one_transfer_takes_its_bytes_over_the_bandwidth_and_the_latency() -> None:
    assert arrivals(50 * GB, 500 * US, [(7, 50 * 10**6)]) == {0: 7 + 1000 * US + 500 * US}


def test_two_that_start_together_take_twice_as_long_but_for_the_latency() -> None:
    assert arrivals(50 * GB, 500 * US, [(0, 50 * 10**6)] * 2) == {0: 2500 * US, 1: 2500 * US}


def test_who_comes_into_the_middle_of_another_shares_the_rest_with_it() -> None:
    # Alone until 500 us; then both at half speed: the first has 500 us left and takes 1000 us for it. The second has
    # then had 500 of its 1000 us, and the link to itself.
    assert arrivals(50 * GB, 0, [(0, 50 * 10**6), (500 * US, 50 * 10**6)]) == {0: 1500 * US, 1: 2000 * US}


def test_thirds_of_a_picosecond_add_up() -> None:
    # Each of the first three has had a third of a picosecond when three more come; they need 6 x 11/3 = 22 more.
    # Then the others have had 11/3 of their hundred, and need 3 x 289/3.
    first, others = dict.fromkeys(range(3), 23), dict.fromkeys(range(3, 6), 23 + 289)
    assert arrivals(10**12, 0, [(0, 4)] * 3 + [(1, 100)] * 3) == first | others


def test_who_waits_for_the_whole_waits_for_the_part_that_leaves_last() -> None:
    link = Link(10**12, 5)
    first = link.start(0, 100)
    assert link.next_ps == NEVER
    link.start(10, 20, load := Load(0, JOB, 0, 0), first)
    assert not link.sure and link.next_ps == 10 + 20 + 5  # at the earliest
    link.set_next()
    # They share the link until the second has left after 40 ps; the first has then had 30 of its hundred.
    assert link.sure and link.next_ps == 10 + 40 + 70 + 5
    assert link.take_arrived(125) == [load]


def test_nothing_at_all_still_takes_a_picosecond() -> None:
    assert arrivals(GB, 0, [(5, 0)]) == {0: 6}


def exact(bandwidth: int, transfers: list[tuple[int, int]]) -> dict[int, Fraction]:
    left: dict[int, Fraction] = {}
    found: dict[int, Fraction] = {}
    now = Fraction(0)
    waiting = list(enumerate(transfers))
    while waiting or left:
        ends = now + min(left.values()) * len(left) if left else None
        start = Fraction(waiting[0][1][0]) if waiting else None
        then = min(time for time in (ends, start) if time is not None)
        for number in left:
            left[number] -= (then - now) / len(left)
        now = then
        for number in [number for number in left if left[number] == 0]:
            found[number] = now
            del left[number]
        while waiting and waiting[0][1][0] == now:
            number, (_, amount) = waiting.pop(0)
            left[number] = max(Fraction(1), Fraction(amount * 10**12, bandwidth))
    return found


@given(
    st.integers(1, 10**12),
    st.lists(st.tuples(st.integers(0, 10**7), st.integers(0, 10**6)), min_size=1, max_size=12).map(sorted),
)
def test_it_agrees_with_exact_fractions(bandwidth: int, transfers: list[tuple[int, int]]) -> None:
    got = arrivals(bandwidth, 0, transfers)
    for number, at in exact(bandwidth, transfers).items():
        # Rounded up to whole picoseconds each time something happens, which delays those behind by as much.
        assert at <= got[number] <= at + 3 * len(transfers) ** 2, number


@given(
    st.integers(1, 10**12),
    st.lists(st.tuples(st.integers(0, 10**4), st.integers(0, 10**4)), min_size=1, max_size=12).map(sorted),
    st.data(),
)
def test_what_nobody_waits_for_takes_its_share_all_the_same(
    bandwidth: int, transfers: list[tuple[int, int]], data: st.DataObject
) -> None:
    number = data.draw(st.integers(0, len(transfers) - 1))
    got = arrivals(bandwidth, 3, transfers, number)[number]
    # Looked at less often, it has been rounded less often.
    assert abs(got - arrivals(bandwidth, 3, transfers)[number]) <= 3 * len(transfers) ** 2
