"""The searches of a plan: for the fewest replicas, for the highest load, and for the cheapest mix of pools.

A search calls `ask` to find out whether a value, such as a number of replicas, meets the SLO. Each answer costs several
simulations, so a search asks as rarely as possible. In each call, `ask` also receives the values that the search may
ask for next, so that these can be simulated in advance. A search assumes that the answer changes only once: more
replicas never serve worse, and more load is never served better. Even if this assumption is wrong, the result meets
the SLO, and the next smaller cluster (or the next higher load) misses the SLO.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Final, TypeVar

from headway.experiment.load_levels import Load
from headway.experiment.space import Counts, Space

T = TypeVar("T")
Ask = Callable[[T, Sequence[T]], bool]  # arguments: a value to try, and values that the search may try next
AHEAD: Final = 8
FURTHEST: Final = 1024  # maximum factor by which a search multiplies or divides the load


def fewest(ask: Ask[int], low: int, high: int, guess: int) -> int | None:
    """Return the smallest number from `low` to `high` to which `ask` says yes. If `ask` says no to `high`, return
    None."""
    no, yes = low - 1, high + 1
    number = min(max(guess, low), high)
    while no + 1 < yes:
        if_yes = max(number // 2, low) if no < low else (no + number) // 2
        if_no = min(max(2 * number, 1), high) if yes > high else (number + yes) // 2
        if ask(number, [next_ for next_ in (if_no, if_yes) if no < next_ < yes and next_ != number]):
            yes, number = number, if_yes
        else:
            no, number = number, if_no
    return yes if yes <= high else None


def highest(ask: Ask[Fraction], load: Load, digits: int, tolerance: float) -> tuple[Fraction | None, Fraction | None]:
    """Return two loads: the highest to which `ask` says yes, and the lowest to which `ask` says no. The two loads
    differ by at most the tolerance. If `ask` says yes even to `FURTHEST` times the scenario's load, the second load is
    None. If `ask` says no even to 1/`FURTHEST` of the scenario's load, the first load is None."""
    yes: Fraction | None = None
    no: Fraction | None = None
    value, most = load.base, load.most(FURTHEST)
    while yes is None or no is None:
        double, half = min(value * 2, most), load.round(value / 2, digits)
        if ask(value, [double] * (no is None) + [half] * (yes is None)):
            yes = value
            if no is None and value >= most:
                return yes, None
            value = double
        else:
            no = value
            if yes is None and (value <= load.base / FURTHEST or half >= value):
                return None, no
            value = half
    while no > yes * (1 + Fraction(tolerance)):
        middle = load.middle(yes, no, digits)
        if middle is None:
            break
        sides = [load.middle(middle, no, digits), load.middle(yes, middle, digits)]
        if ask(middle, [side for side in sides if side is not None]):
            yes = middle
        else:
            no = middle
    return yes, no


class Mixes:
    """The search for the cheapest mix. A mix is a number of replicas for each pool."""

    def __init__(self, ask: Ask[Counts], space: Space) -> None:
        self._ask = ask
        self._space = space
        self._pools = space.pools
        self._yes: list[Counts] = []
        self._no: list[Counts] = []
        # The pools, most expensive first. A column consists of the mixes that differ only in the number of replicas of
        # the last pool. The last pool is the cheapest, so that there are few columns with many mixes each.
        self._order = sorted(range(len(self._pools)), key=lambda place: -self._pools[place].usd_per_hour)

    def cheapest(self, every: bool = False) -> Counts | None:
        """Return the cheapest mix that meets the SLO. `ask` has said no to every mix with one replica less. By default,
        the search assumes that a larger mix is never worse. With `every`, the search asks for every cheaper mix
        instead."""
        best = self._first()
        if best is None:
            return self._of_all(None) if every else None
        columns = list(self._cheaper(best, self._order[:-1])) if len(self._pools) > 1 else []
        for place, part in enumerate(columns):
            top = self._top(part, best)
            tops = [self._top(column, best) for column in columns[place + 1 : place + 1 + AHEAD]]
            if top is not None and self._judge(top, [later for later in tops if later is not None]):
                best = self._line(top, self._order[-1], top[self._order[-1]]) or best
        if every:
            return self._of_all(best)
        return self._descend(best)

    def below(self, counts: Counts) -> list[Counts]:
        """Return the mixes that have one replica less than `counts`."""
        smaller = []
        for place, pool in enumerate(self._pools):
            less = _with(counts, place, counts[place] - 1)
            if counts[place] > pool.low and self._space.serves(less):
                smaller.append(less)
        return smaller

    def _judge(self, counts: Counts, ahead: Sequence[Counts] = ()) -> bool:
        """Return whether a mix meets the SLO. Call `ask` only if the answer does not follow from the answers for
        smaller and larger mixes."""
        if not self._space.serves(counts) or any(_within(counts, other) for other in self._no):
            return False
        if any(_within(other, counts) for other in self._yes):
            return True
        answer = self._ask(counts, [mix for mix in ahead if self._space.serves(mix)])
        (self._yes if answer else self._no).append(counts)
        return answer

    def _first(self) -> Counts | None:
        """Return a mix that meets the SLO, to start the search from: one pool with as few replicas as possible or, if
        no single pool suffices, all pools. If even the largest mix does not meet the SLO, return None."""
        low = tuple(pool.low for pool in self._pools)
        whole = max(1, sum(self._space.now()))
        for place in range(len(self._pools)):
            alone = self._line(low, place, whole)
            if alone is not None:
                return alone
        mix = tuple(pool.high for pool in self._pools)
        if len(self._pools) == 1 or not self._judge(mix):
            return None
        for place, now in enumerate(self._space.now()):
            mix = self._line(mix, place, now) or mix
        return mix

    def _line(self, counts: Counts, place: int, guess: int) -> Counts | None:
        """Change only the number of replicas of the pool `place`. Return the mix with the fewest replicas that meets
        the SLO, or None if there is no such mix."""
        pool = self._pools[place]

        def ask(number: int, ahead: Sequence[int]) -> bool:
            return self._judge(_with(counts, place, number), [_with(counts, place, next_) for next_ in ahead])

        number = fewest(ask, pool.low, pool.high, guess)
        return None if number is None else _with(counts, place, number)

    def _cheaper(self, best: Counts, places: Sequence[int], counts: Counts | None = None) -> Iterator[Counts]:
        """Yield every mix that is cheaper than `best` and differs from the smallest mix only in the pools `places`."""
        counts = tuple(pool.low for pool in self._pools) if counts is None else counts
        if self._space.key(counts) >= self._space.key(best):
            return
        if not places:
            yield counts
            return
        place = places[0]
        for number in range(self._pools[place].low, self._pools[place].high + 1):
            mix = _with(counts, place, number)
            if self._space.key(mix) >= self._space.key(best):
                return
            yield from self._cheaper(best, places[1:], mix)

    def _top(self, counts: Counts, best: Counts) -> Counts | None:
        """Return the largest mix of a column that is cheaper than `best`, or None if no mix of the column is cheaper. A
        column consists of the mixes that differ from `counts` only in the cheapest pool."""
        last, key = self._order[-1], self._space.key(best)
        low, high = self._pools[last].low, self._pools[last].high
        if self._space.key(counts) >= key:
            return None
        while low < high:
            middle = (low + high + 1) // 2
            if self._space.key(_with(counts, last, middle)) < key:
                low = middle
            else:
                high = middle - 1
        return _with(counts, last, low)

    def _descend(self, best: Counts) -> Counts:
        """Remove replicas from `best` until `ask` says no to every mix with one replica less. Ask again for each of
        these mixes, without inferring answers from other mixes."""
        while True:
            below = sorted(self.below(best), key=self._space.key)
            better = next((less for place, less in enumerate(below) if self._ask(less, below[place + 1 :])), None)
            if better is None:
                return best
            best = better

    def _of_all(self, best: Counts | None) -> Counts | None:
        """Return the cheapest of all mixes that meet the SLO, after asking for every mix that is cheaper than `best`,
        from the cheapest on. If none of these meets the SLO, return `best`."""
        bound = tuple(pool.high for pool in self._pools) if best is None else best
        cheaper = sorted(filter(self._space.serves, self._cheaper(bound, self._order)), key=self._space.key)
        good = (mix for place, mix in enumerate(cheaper) if self._ask(mix, cheaper[place + 1 : place + 1 + AHEAD]))
        return next(good, best)


def _with(counts: Counts, place: int, number: int) -> Counts:
    return (*counts[:place], number, *counts[place + 1 :])


def _within(smaller: Counts, larger: Counts) -> bool:
    return all(few <= many for few, many in zip(smaller, larger, strict=True))
