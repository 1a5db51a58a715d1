"""A trace in memory, stored as columns. It has one row per request, in file order. Block ids are stored as runs."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable
from operator import attrgetter
from typing import Final, TypeVar

from msgspec import Struct

from headway import hashing
from headway.errors import HeadwayError
from headway.types import PS_PER_SECOND, Path
from headway.workload.traces.blocks import IDS, RunTable, beginning, rest, shared_blocks
from headway.workload.traces.paths import Tree
from headway.workload.traces.record import LOCAL, Info, Reader, Record

V = TypeVar("V")
NONE: Final = -1  # an unknown value in a column


class Labels(Struct, frozen=True):
    """Attributes of a request other than times, lengths and content. Many requests share one object."""

    model: str | None = None
    tenant: str | None = None
    slo_class: str | None = None
    kind: str | None = None
    max_tokens: int | None = None
    shared_prefix_tokens: int = 0
    adapter: str | None = None


label_values: Final = attrgetter(*Labels.__struct_fields__)  # returns the labels of a record


class Trace:
    """The requests of a trace, with one column per attribute."""

    def __init__(self, info: Info) -> None:
        self.info = info
        self.arrival_ps = array("q")  # arrival times; `info.clock` says from which start they count
        self.prompt_tokens = array("q")
        self.output_tokens = array("q")
        self.blocks = RunTable()
        self.session = array("q")  # index into `sessions`
        self.sessions: list[str] = []
        self.system = array("q")  # index into `systems`
        self.systems: list[tuple[int, int]] = []  # (tool tokens, system tokens) at the start of a prompt
        self.delay_ps = array("q")
        self.think_ps = array("q")  # think time as in the file; it may differ from the delay of a replay
        self.after: dict[int, tuple[int, ...]] = {}  # row -> rows that the request waits for, if recorded
        self.label = array("q")  # index into `labels`
        self.labels: list[Labels] = []
        self._label_of: dict[Labels, int] = {}
        self._session_of: dict[str, int] = {}
        self._system_of: dict[tuple[int, int], int] = {}
        self._row_of: dict[str, int] = {}

    @classmethod
    def load(cls, reader: Reader, whole: bool = True) -> Trace:
        """Load all records. If `whole` is set, no request was removed, so every request named in `after` must exist."""
        trace = cls(reader.info)
        for record in reader.records:
            trace.append(record, whole)
        return trace

    def append(self, record: Record, whole: bool = True) -> None:
        row = len(self)
        self.arrival_ps.append(NONE if record.at_ps is None else record.at_ps)
        self.prompt_tokens.append(record.prompt_tokens)
        self.output_tokens.append(record.output_tokens)
        self.blocks.append(record.blocks or ())
        self.delay_ps.append(NONE if record.delay_ps is None else record.delay_ps)
        think = record.extra.get("think_time")
        self.think_ps.append(round(think * PS_PER_SECOND) if isinstance(think, int | float) else self.delay_ps[-1])
        self.session.append(self._number(record.session, self._session_of, self.sessions))
        tools, system = record.extra.get("tool_tokens"), record.extra.get("system_tokens")
        prefix = (tools, system) if isinstance(tools, int) and isinstance(system, int) and tools + system > 0 else None
        self.system.append(self._number(prefix, self._system_of, self.systems))
        self.label.append(self._number(Labels(*label_values(record)), self._label_of, self.labels))
        if record.after:
            self.after[row] = self._rows(record, whole)
        if record.id is not None:
            self._row_of[record.id] = row

    def _number(self, value: V | None, number_of: dict[V, int], values: list[V]) -> int:
        """Return the index of a value in `values`. If the value is new, append it. For None, return NONE."""
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
                f"request {record.id or len(self) - 1}: waits for {missing[0]!r}, but no earlier request has that id."
            )
        return tuple(self._row_of[name] for name in record.after if name in self._row_of)

    def __len__(self) -> int:
        return len(self.arrival_ps)

    def runs(self, row: int) -> list[tuple[int, int]]:
        """Return the block ids of a row as runs (first id, count). If ids are local to a session, the returned ids
        include the number of the session, so that they are unique."""
        if self.info.scope != LOCAL:
            return self.blocks.row(row)
        session = self.session[row]
        space = 1 + session if session >= 0 else 1 + len(self.sessions) + row
        return self.blocks.row(row, space * IDS)

    def paths(self, share_system: bool = False) -> Callable[[int], Path]:
        """Return a function that maps a row to the path of its prompt. If the trace has no block ids, prompts share no
        content."""
        size, prompts = self.info.block_tokens, self.prompt_tokens
        if size is None:
            kind, key = hashing.PROMPT, hashing.key
            return lambda row: Path((key(kind, row),), (prompts[row],))
        runs = self._share_system(size) if share_system else self.runs
        # If the last block may be partly filled, a run must end at the end of a prompt. Otherwise the tokens after the
        # last full block are unique content, which ends the run anyway.
        tree = Tree(cut_at_ends=not self.info.whole_blocks)
        for row in range(len(self)):
            tree.add(runs(row))
        return lambda row: tree.path(runs(row), size, prompts[row], row)

    def _share_system(self, size: int) -> Callable[[int], list[tuple[int, int]]]:
        """Return a function that maps a row to its runs of block ids, with tool and system prompts shared by sessions.

        Sessions with equally long tool and system prompts share the blocks of these prompts, although ids are local.
        """
        beginnings: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for row, system in enumerate(self.system):
            if system != NONE:
                blocks = sum(self.systems[system]) // size
                beginnings.setdefault((self.session[row], system), beginning(self.runs(row), blocks))

        def runs(row: int) -> list[tuple[int, int]]:
            own, system = self.runs(row), self.system[row]
            if system == NONE:
                return own
            common = shared_blocks(own, beginnings[self.session[row], system])
            return [((-1 - system) * IDS, common), *rest(own, common)] if common else own

        return runs


def number_sessions() -> Callable[[Hashable | None], int]:
    """Return a function that numbers sessions in order of first appearance. Each None counts as a new session."""
    numbers: dict[Hashable, int] = {}
    alone = 0

    def number(session: Hashable | None) -> int:
        nonlocal alone
        if session is None:
            alone += 1
            return len(numbers) + alone - 1
        return numbers.setdefault(session, len(numbers) + alone)

    return number
