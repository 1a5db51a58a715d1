"""A trace in memory: columns, one row a request in the file's order, its prompt's blocks as runs of ids."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Final, TypeVar

from msgspec import Struct

from headway import hashing
from headway.errors import HeadwayError
from headway.types import PS_PER_SECOND, Path
from headway.workload.traces.blocks import beginning, rest, shared_blocks
from headway.workload.traces.paths import Tree
from headway.workload.traces.record import LOCAL, Info, Reader, Record

V = TypeVar("V")
PS_PER_DAY: Final = 86400 * PS_PER_SECOND
LAST_PS: Final = 100 * PS_PER_DAY  # times are 64-bit integers, good for 106 days: the rest is left for the run's end
MAX_LENGTH: Final = 2**31 - 1
NONE: Final = -1  # in a column: the format does not say
HALF: Final = 1 << 63
WHOLE: Final = 1 << 64


def too_late(at_ps: int) -> str:
    """How far beyond the last arrival that leaves the clock room for the run a time lies."""
    days = at_ps // PS_PER_DAY
    return f"after {days if days < 10**9 else 'over 1000000000'} days, but arrivals end after {LAST_PS // PS_PER_DAY}"


class Labels(Struct, frozen=True):
    """What is said of a request beside times, lengths and content; many say the same."""

    model: str | None = None
    tenant: str | None = None
    slo_class: str | None = None
    kind: str | None = None
    max_tokens: int | None = None
    shared_prefix_tokens: int = 0
    adapter: str | None = None


class Trace:
    """Row i's blocks are the runs `starts[i]` to `starts[i + 1]` of `firsts` and `counts`."""

    __slots__ = (
        "_label_of",
        "_row_of",
        "_session_of",
        "_system_of",
        "after",
        "arrival_ps",
        "counts",
        "delay_ps",
        "firsts",
        "info",
        "label",
        "labels",
        "output_tokens",
        "prompt_tokens",
        "session",
        "sessions",
        "starts",
        "system",
        "systems",
        "think_ps",
    )

    def __init__(self, info: Info) -> None:
        self.info = info
        self.arrival_ps = array("q")  # from what info.clock says
        self.prompt_tokens = array("q")
        self.output_tokens = array("q")
        self.firsts = array("q")  # ids as the file has them, folded into 64 bits
        self.counts = array("q")
        self.starts = array("q", [0])
        self.session = array("q")  # index into `sessions`
        self.sessions: list[str] = []
        self.system = array("q")  # index into `systems`
        self.systems: list[tuple[int, int]] = []  # tool and system tokens that a prompt begins with
        self.delay_ps = array("q")
        self.think_ps = array("q")  # as the file has it, which is not always the delay of a replay
        self.after: dict[int, tuple[int, ...]] = {}  # rows that a row waits for, where its format says so
        self.label = array("q")  # index into `labels`
        self.labels: list[Labels] = []
        self._label_of: dict[tuple[object, ...], int] = {}
        self._session_of: dict[str, int] = {}
        self._system_of: dict[tuple[int, int], int] = {}
        self._row_of: dict[str, int] = {}

    @classmethod
    def load(cls, reader: Reader, whole: bool = True) -> Trace:
        """All records of a reader. `whole` says that none was left out, so that what is waited for must be there."""
        trace = cls(reader.info)
        for record in reader.records:
            trace.append(record, whole)
        return trace

    def append(self, record: Record, whole: bool = True) -> None:
        row = len(self)
        self.arrival_ps.append(NONE if record.at_ps is None else record.at_ps)
        self.prompt_tokens.append(record.prompt_tokens)
        self.output_tokens.append(record.output_tokens)
        for first, count in record.blocks or ():
            # An id stands for itself only: whichever 64 bits are kept of a longer hash name it as well.
            self.firsts.append((first + HALF) % WHOLE - HALF)
            self.counts.append(count)
        self.starts.append(len(self.firsts))
        self.delay_ps.append(NONE if record.delay_ps is None else record.delay_ps)
        think = record.extra.get("think_time")
        self.think_ps.append(round(think * PS_PER_SECOND) if isinstance(think, int | float) else self.delay_ps[-1])
        self.session.append(self._number(record.session, self._session_of, self.sessions))
        self.system.append(self._number(_system(record), self._system_of, self.systems))
        said = (record.model, record.tenant, record.slo_class, record.kind, record.max_tokens)
        rest = (record.shared_prefix_tokens, record.adapter)
        label = self._label_of.setdefault((*said, *rest), len(self.labels))
        if label == len(self.labels):
            self.labels.append(Labels(*said, *rest))
        self.label.append(label)
        if record.after:
            self.after[row] = self._rows(record, whole)
        if record.id is not None:
            self._row_of[record.id] = row

    def _number(self, value: V | None, number_of: dict[V, int], values: list[V]) -> int:
        """The place of a value in its list, to whose end a new one goes."""
        if value is None:
            return NONE
        number = number_of.setdefault(value, len(values))
        if number == len(values):
            values.append(value)
        return number

    def _rows(self, record: Record, whole: bool) -> tuple[int, ...]:
        missing = [name for name in record.after if name not in self._row_of]
        if missing and whole:
            raise HeadwayError(
                f"request {record.id or len(self) - 1}: waits for {missing[0]!r}, but no earlier one is called that."
            )
        return tuple(self._row_of[name] for name in record.after if name in self._row_of)

    def __len__(self) -> int:
        return len(self.arrival_ps)

    @property
    def format(self) -> str:
        return self.info.format

    @property
    def block_tokens(self) -> int | None:
        return self.info.block_tokens

    def runs(self, row: int) -> list[tuple[int, int]]:
        """The ids of a row's blocks as (first, count). Where ids mean something within a session only, the session is
        part of them."""
        start, end = self.starts[row], self.starts[row + 1]
        scope = 0
        if self.info.scope == LOCAL:
            session = self.session[row]
            scope = (1 + session if session >= 0 else 1 + len(self.sessions) + row) * WHOLE
        return [(self.firsts[at] + scope, self.counts[at]) for at in range(start, end)]

    def paths(self, share_system: bool = False) -> Callable[[int], Path]:
        """A function from a row to its prompt's path. Without block ids every prompt is content of its own."""
        size, prompts = self.info.block_tokens, self.prompt_tokens
        if size is None:
            kind, key = hashing.PROMPT, hashing.key
            return lambda row: Path((key(kind, row),), (prompts[row],))
        runs = self._shared(size) if share_system else self.runs
        # Where a last block may be partly filled, a prompt's end cuts; else its rest is of its own and parts anyway.
        tree = Tree(cut_at_ends=not self.info.whole_blocks)
        for row in range(len(self)):
            tree.add(runs(row))
        return lambda row: tree.path(runs(row), size, prompts[row], row)

    def _shared(self, size: int) -> Callable[[int], list[tuple[int, int]]]:
        """The runs of a row in which tool and system prompts, local ids though they have, are common to all sessions
        that have them equally long: the blocks that the first prompt of a session begins with."""
        beginnings: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for row, system in enumerate(self.system):
            if system != NONE:
                blocks = sum(self.systems[system]) // size
                beginnings.setdefault((self.session[row], system), beginning(self.runs(row), blocks))

        def runs(row: int) -> list[tuple[int, int]]:
            found, system = self.runs(row), self.system[row]
            if system == NONE:
                return found
            common = shared_blocks(found, beginnings[self.session[row], system])
            return [((-1 - system) * WHOLE, common), *rest(found, common)] if common else found

        return runs


def _system(record: Record) -> tuple[int, int] | None:
    tools, system = record.extra.get("tool_tokens"), record.extra.get("system_tokens")
    return (tools, system) if isinstance(tools, int) and isinstance(system, int) and tools + system > 0 else None
