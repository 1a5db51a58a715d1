"""Sessions that branch: which requests a request waited for, as far as the times of a recording tell.

A lane is a stretch of requests one after the other: a session's own, or those of a sub-agent that it started. A lane's
first request waits for the latest one of the lane it branched off, and the first request that such a lane makes after a
branch has ended waits for that branch. Requests are shown in order of their start.
"""

from __future__ import annotations

from msgspec import Struct


class Lane:
    """Requests one after the other. `left` is how many are still to come."""

    __slots__ = ("_branches", "_end", "_last", "_shown", "left", "parent", "root")

    def __init__(self, left: int, parent: Lane | None = None) -> None:
        self.left = left
        self.parent = parent
        self.root: Lane = self if parent is None else parent.root
        self._branches: list[Lane] = []  # not yet waited for
        self._last: str | None = None  # the id of the latest request
        self._end = 0  # of all so far
        self._shown: str | None = None  # of a root: the latest request of the whole session

    def show(self, id: str, start: int, end: int) -> Wait:
        """The lane's next request, and what it waited for."""
        waits: list[tuple[int, str]] = []
        goes_on = self._last is not None
        if self._last is not None:
            waits.append((self._end, self._last))
        elif self.parent is not None and self.parent._last is not None:
            waits.append((self.parent._end, self.parent._last))
            self.parent._branches.append(self)
        until = waits[0][0] if waits else None
        for branch in [branch for branch in self._branches if not branch.left and branch._end <= start]:
            self._branches.remove(branch)
            if branch._last is not None:
                waits.append((branch._end, branch._last))
            if until is None or branch._end > until:
                until, goes_on = branch._end, False
        after = tuple(name for _, name in waits)
        if after == (self.root._shown,):
            after = ()  # as any request of a session waits for the one before
        self.left -= 1
        self._last = self.root._shown = id
        self._end = max(self._end, end)
        return Wait(after, until, goes_on)


class Wait(Struct):
    """What a request waited for; `until` is when the last of that ended, None where it waited for nothing.
    `goes_on` says that this was the lane's own previous request."""

    after: tuple[str, ...]
    until: int | None
    goes_on: bool
