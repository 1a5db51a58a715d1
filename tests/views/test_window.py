"""The one sliding window."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from drawing import draws
from headway.types import PS_PER_SECOND
from headway.views.window import Window


@draws(60)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9), st.booleans())), st.integers(1, 40))
def test_a_window_holds_exactly_what_came_after_now_less_its_length(events, length) -> None:
    window = Window(length)
    now, came = 0, []
    for wait, amount, looks in events:
        now += wait
        if looks:
            amounts = [amount for at, amount in came if now - length < at <= now]
            assert window.amounts(now) == amounts and window.count(now) == len(amounts)
            assert window.sum(now) == sum(amounts)
        else:
            window.add(now, amount)
            came.append((now, amount))
            assert all(at > now - length for at, _ in window.entries)  # no more is kept than the window


def test_what_a_window_says_of_its_amounts() -> None:
    window = Window(2 * PS_PER_SECOND)
    assert window.mean_seconds(0) is None and window.per_second(0) == 0
    window.add(0, PS_PER_SECOND)
    window.add(PS_PER_SECOND, 3 * PS_PER_SECOND)
    assert window.mean_seconds(PS_PER_SECOND) == 2.0
    assert window.mean_seconds(2 * PS_PER_SECOND) == 3.0
    window.pop()
    assert window.sum(2 * PS_PER_SECOND) == 0


def test_the_newest_entry_of_a_window_of_no_length_stays_until_the_next_look() -> None:
    window = Window(0)
    window.add(5, 7)
    assert [*window.entries] == [(5, 7)] and window.count(5) == 0
