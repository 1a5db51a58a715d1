"""The busy share of a sliding window equals the plain sum over all busy times."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headway.sim.recent_values import BusyWindow


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 20), st.booleans()), max_size=40),
    st.integers(1, 60),
    st.integers(0, 30),
)
def test_a_window_sums_the_busy_times_it_overlaps(spans: list[tuple[int, int, bool]], length: int, origin: int) -> None:
    window, ended, ended_ps, now = BusyWindow(length), [], 0, 0
    for idle, busy, look in spans:
        start = now + idle
        now = start + busy
        if look and now > origin:  # in the middle of the busy time
            since = max(origin, now - length)
            expected = sum(max(0, min(end, now) - max(begin, since)) for begin, end in [*ended, (start, now)])
            assert window.share(origin, now, ended_ps, start) == expected / (now - since)
        window.add(start, now)
        ended.append((start, now))
        ended_ps += busy
        if look and now > origin:  # idle again
            since = max(origin, now - length)
            expected = sum(max(0, end - max(begin, since)) for begin, end in ended)
            assert window.share(origin, now, ended_ps, -1) == expected / (now - since)


def test_a_window_that_has_just_begun_is_idle() -> None:
    assert BusyWindow(5).share(7, 7, 0, 3) == 0.0
