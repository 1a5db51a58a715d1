"""Which requests were at an instance and when: from the moment they were sent there until they ended or went on. A
prompt computed apart makes two stays: at the instance that computes it, and from there on at the one that generates.

Of a request that was sent again the last time alone is known, and one that was moved while it ran is left out.
"""

from __future__ import annotations

from array import array

from headway.results.columns import Columns


class Stays:
    """Those at one instance, in order of the requests' arrival."""

    __slots__ = ("begin_ps", "end_ps", "rows")

    def __init__(self) -> None:
        self.rows = array("q")
        self.begin_ps = array("q")
        self.end_ps = array("q")

    def add(self, row: int, begin: int, end: int) -> None:
        self.rows.append(row)
        self.begin_ps.append(begin)
        self.end_ps.append(end)


def stays(requests: Columns, ended_ps: int) -> dict[int, Stays]:
    """By instance."""
    found: dict[int, Stays] = {}
    columns = zip(
        requests.routed_ps,
        requests.instance,
        requests.prefill_instance,
        requests.handed_ps,
        requests.finished_ps,
        requests.redirects,
        strict=True,
    )
    for row, (routed, instance, prefill, handed, finished, moved) in enumerate(columns):
        if routed < 0 or instance < 0 or moved:
            continue
        end = finished if finished >= 0 else ended_ps
        if prefill < 0:
            _at(found, instance).add(row, routed, end)
        else:
            _at(found, prefill).add(row, routed, handed if handed >= 0 else end)
            if handed >= 0:
                _at(found, instance).add(row, handed, end)
    return found


def _at(found: dict[int, Stays], instance: int) -> Stays:
    one = found.get(instance)
    if one is None:
        one = found[instance] = Stays()
    return one
