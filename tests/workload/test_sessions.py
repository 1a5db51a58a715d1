from __future__ import annotations

from collections.abc import Iterator
from random import Random

from fake_service import turn
from hypothesis import given
from hypothesis import strategies as st

from headway.workload.sessions import Chain, Graph, Turn


def test_a_chain_hands_out_one_turn_at_a_time_and_knows_what_is_left() -> None:
    chain = Chain("a", "default", "standard", iter([turn(delay) for delay in (1, 2, 3)]), 3)
    assert [(number, step.delay_ps) for number, step in chain.begin()] == [(0, 1)]
    assert chain.turns_left() == 2
    assert [(number, step.delay_ps) for number, step in chain.on_ended(0)] == [(1, 2)]
    assert [number for number, _ in chain.on_ended(1)] == [2]
    assert (list(chain.on_ended(2)), chain.turns_left()) == ([], 0)


def test_a_chain_draws_its_turns_as_they_are_needed() -> None:
    drawn = 0

    def endless() -> Iterator[Turn]:
        nonlocal drawn
        while True:
            drawn += 1
            yield turn()

    chain = Chain("a", "default", "standard", endless())
    assert drawn == 0
    chain.begin()
    chain.on_ended(0)
    assert (drawn, chain.turns_left()) == (2, 0)  # what has no end has nothing left over


def test_a_joining_turn_waits_for_the_last_of_those_it_waits_for() -> None:
    """0 branches into 1 and 2; 3 waits for both, and names one of them twice."""
    graph = Graph("a", "default", "standard", [turn(delay) for delay in (0, 1, 2, 3)], [[], [0], [0], [1, 2, 1]])
    assert [number for number, _ in graph.begin()] == [0]
    assert [number for number, _ in graph.on_ended(0)] == [1, 2]
    assert (list(graph.on_ended(2)), graph.turns_left()) == ([], 1)
    assert [(number, step.delay_ps) for number, step in graph.on_ended(1)] == [(3, 3)]
    assert graph.turns_left() == 0


def test_branches_that_wait_for_nothing_begin_together() -> None:
    graph = Graph("a", "default", "standard", [turn(), turn(), turn()], [[], [], [0, 1]])
    assert [number for number, _ in graph.begin()] == [0, 1]
    assert graph.turns_left() == 1


@st.composite
def waits(draw: st.DrawFn) -> list[list[int]]:
    """For each turn the earlier ones that it waits for."""
    count = draw(st.integers(1, 12))
    return [draw(st.lists(st.integers(0, number - 1), max_size=4)) if number else [] for number in range(count)]


@given(waits(), st.randoms(use_true_random=False))
def test_every_turn_of_a_graph_is_handed_out_once_and_after_all_that_it_waits_for(
    after: list[list[int]], random: Random
) -> None:
    graph = Graph("a", "default", "standard", [turn() for _ in after], after)
    free = [number for number, _ in graph.begin()]
    visited, ended = list(free), set()
    while free:
        number = free.pop(random.randrange(len(free)))
        ended.add(number)
        for freed, _ in graph.on_ended(number):
            assert set(after[freed]) <= ended
            free.append(freed)
            visited.append(freed)
        assert graph.turns_left() == len(after) - len(visited)
    assert sorted(visited) == list(range(len(after)))
