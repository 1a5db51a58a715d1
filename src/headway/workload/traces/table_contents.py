"""What requests of a user's own table share, assumed from their sessions, prefixes and lengths.

The table does not describe content, so there are two assumptions. If a prompt is at least as long as the previous
prompt and answer of its session together, the prompt begins with these two. Prompts with the same `prefix` share as
many tokens as the shortest of these prompts has.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from headway.workload.traces.blocks import Run, extended, without_end
from headway.workload.traces.limits import MAX_LENGTH

REMEMBERED: Final = 200_000  # maximum number of sessions whose history is kept in memory
PREFIXES: Final = 1 << 62  # block ids of prefixes begin here; ids of other blocks begin at 0


class Contents:
    """Assigns block ids to prompts. Prompts with the same prefix share the ids of this prefix, and a turn of a session
    repeats the ids of the earlier turns."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.next_id = 0
        self.prefixes: dict[str, int] = {}  # prefix -> first block id
        # Session -> (tokens, blocks) so far, least recent session first. In a plain dict, removing the first entry is
        # slow.
        self.sessions: OrderedDict[str, tuple[int, tuple[Run, ...]]] = OrderedDict()

    def add(self, session: str | None, prompt: int, output: int, prefix: str | None, shared: int) -> tuple[Run, ...]:
        """Return the blocks of a session's next prompt. If this prompt does not repeat the session's last prompt, its
        first `shared` tokens are those of the prefix."""
        size, tokens = self.size, 0
        runs: tuple[Run, ...] = ()
        known = self.sessions.pop(session, None) if session is not None else None
        if known is not None and prompt >= known[0]:
            tokens, runs = known
        elif prefix is not None and shared >= size:
            first = self.prefixes.setdefault(prefix, PREFIXES + len(self.prefixes) * MAX_LENGTH)
            runs, tokens = ((first, shared // size),), shared
        end = prompt + output
        if new := end // size - tokens // size:
            runs = extended(runs, self.next_id, new)
            self.next_id += new
        if session is not None:
            self.sessions[session] = end, runs
            if len(self.sessions) > REMEMBERED:
                self.sessions.popitem(last=False)
        return without_end(runs, end // size - prompt // size)


class Ends:
    """Remembers when the last answer of each session ended."""

    def __init__(self) -> None:
        self.ends: OrderedDict[str, int] = OrderedDict()  # in picoseconds, least recent session first

    def think_time(self, session: str, at_ps: int, duration_ps: int | None) -> int | None:
        """Return the time from the end of the session's last answer to a request at `at_ps`. If the request came before
        that end, return 0; if the end is unknown, return None. Also remember when the answer to this request ends."""
        before = self.ends.pop(session, None)
        if duration_ps is not None:
            self.ends[session] = at_ps + duration_ps
            if len(self.ends) > REMEMBERED:
                self.ends.popitem(last=False)
        return None if before is None else max(0, at_ps - before)
