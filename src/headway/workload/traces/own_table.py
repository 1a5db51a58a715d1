"""A user's own table of requests: CSV, TSV, JSONL or Parquet, with a mapping from fields of a request to columns.

The file is read twice. The first pass checks every row, finds the first arrival, and tests whether the rows are in
order. The second pass yields the records. If the rows are not in order, they are sorted with temporary files, so that
memory stays bounded.

The table does not describe content, so the reader makes two assumptions. If a prompt is at least as long as the
previous prompt and answer of its session together, the prompt begins with these two. Prompts with the same `prefix`
share as many tokens as the shortest of these prompts has.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterable, Iterator
from typing import Any, Final

from msgspec import Struct

from headway.config.wording import join_words, shown, suggest
from headway.errors import HeadwayError
from headway.types import PS_PER_SECOND
from headway.workload.traces.blocks import Run, add_run, beginning
from headway.workload.traces.cells import (
    DATED_PS,
    EPOCHS,
    EXCEL,
    EXCEL_1970,
    EXCEL_2100,
    PS_2100,
    UNITS,
    BadRow,
    cell_text,
    read_time,
    read_tokens,
)
from headway.workload.traces.columns import NAME, REQUIRED, Columns, how_to_map, how_to_set, write_columns
from headway.workload.traces.limits import LAST_PS, MAX_LENGTH, too_late
from headway.workload.traces.record import Column, Format, Info, Options, Reader, Record
from headway.workload.traces.sorting import sort_rows
from headway.workload.traces.source import head
from headway.workload.traces.table_files import Row, file_rows, has_decimal_commas, is_json, read_names

TEXTS: Final = ("session", "tenant", "class", "model", "prefix", "id")
NUMBERS: Final = {"turn": 0, "prefix_tokens": 0, "max_tokens": 1}  # optional numbers, with their minimum
BLOCK_TOKENS: Final = 16
SHOWN: Final = 5  # maximum number of bad rows that an error lists
REMEMBERED: Final = 200_000  # maximum number of sessions whose history is kept in memory
MAX_PREFIXES: Final = 500_000  # maximum number of prefixes, which stay in memory
PREFIXES: Final = 1 << 62  # block ids of prefixes begin here; ids of other blocks begin at 0


class Survey(Struct):
    """The results of the first pass over a table."""

    rows: int = 0
    first_ps: int | None = None
    last_ps: int = 0
    ordered: bool = True
    dated: bool | None = None  # whether times count from 1970
    bad: int = 0
    examples: list[str] = []
    shortest: dict[str, int] = {}  # prefix -> length of its shortest prompt


def read(path: pathlib.Path, options: Options) -> Reader:
    if options.columns is None:
        wrong = f"the format {NAME} needs a mapping of columns"
        raise HeadwayError(f"{path.name}: {wrong}. {how_to_map(path, options.ask)}")
    return _Table(path, options.columns, options).reader()


class _Table:
    def __init__(self, path: pathlib.Path, columns: Columns, options: Options) -> None:
        self.path, self.columns, self.options = path, columns, options
        self.size = options.block_tokens or BLOCK_TOKENS
        known = read_names(path)
        for field, column in columns.items():
            if column.name not in known and not is_json(head(path)):
                hint = suggest(column.name, known) or f" It has {join_words(known[:20])}."
                raise HeadwayError(f"{path.name}: no column is called {shown(column.name)} (for {field}).{hint}")
            if known.count(column.name) > 1:
                raise HeadwayError(f"{path.name}: two columns are called {shown(column.name)}. Rename one of them.")
        self.decimal_comma = has_decimal_commas(path)
        self.texts = [(field, columns[field].name) for field in TEXTS if field in columns]
        self.numbers = [(field, columns[field], least) for field, least in NUMBERS.items() if field in columns]
        self.survey = Survey()

    def reader(self) -> Reader:
        survey = self._survey()
        if not survey.rows:
            raise HeadwayError(f"{self.path.name}: the table has a header, but no rows.")
        if survey.bad and (not self.options.skip_bad or survey.bad == survey.rows):
            listed = "; ".join(survey.examples)
            more = f"; and {survey.bad - SHOWN:,} more" if survey.bad > SHOWN else ""
            amount = f"{survey.bad:,} of {survey.rows:,} rows {'is' if survey.bad == 1 else 'are'} bad"
            skip = how_to_set("skip_bad", "true", self.options.ask)
            remedy = "" if survey.bad == survey.rows else f" Mend them, or skip them: {skip[0].lower()}{skip[1:]}."
            raise HeadwayError(f"{self.path.name}: {amount}: {listed}{more}.{remedy}")
        content = bool({"session", "prefix"} & self.columns.keys())
        info = Info(
            NAME,
            block_tokens=self.size if content else None,
            whole_blocks=content,
            sessions="session" in self.columns,
            think_times="duration" in self.columns or "session" not in self.columns,
            extra={"columns": write_columns(self.columns), **self._notes()},
        )
        rows = self._parsed(survey)
        return Reader(info, self._records(rows if survey.ordered else sort_rows(rows), content))

    def _notes(self) -> dict[str, Any]:
        survey = self.survey
        notes = []
        if survey.bad:
            notes.append(f"bad rows are skipped: {survey.bad:,} ({'; '.join(survey.examples)})")
        if not survey.ordered:
            notes.append("rows are not in order of arrival; they are sorted")
        if survey.shortest and "prefix_tokens" not in self.columns:
            notes.append("assumed: prompts with the same prefix share as many tokens as the shortest of them has")
        if "session" in self.columns:
            notes.append("assumed: a prompt begins with its session's previous prompt and answer if it is long enough")
            if "duration" not in self.columns:
                why = "the table does not tell when answers ended. Map duration to replay by think time"
                notes.append(f"requests of a session arrive at their recorded times, because {why}")
        return {"notes": notes} if notes else {}

    def _survey(self) -> Survey:
        """Check every row. Find the first arrival, the shortest prompt of each prefix, and whether rows are in
        order."""
        survey = self.survey = Survey(examples=[], shortest={})
        for place, row in file_rows(self.path, self._names()):
            survey.rows += 1
            try:
                at_ps, record, prefix, _ = self._parse(row)
                self._check_time(at_ps)
            except BadRow as problem:
                survey.bad += 1
                if len(survey.examples) < SHOWN:
                    survey.examples.append(f"{place}: {problem}")
                continue
            survey.ordered = survey.ordered and (survey.first_ps is None or at_ps >= survey.last_ps)
            survey.last_ps = max(survey.last_ps, at_ps)
            survey.first_ps = at_ps if survey.first_ps is None else min(survey.first_ps, at_ps)
            if prefix is not None:
                survey.shortest[prefix] = min(record.prompt_tokens, survey.shortest.get(prefix, MAX_LENGTH))
                self._check_prefixes(len(survey.shortest))
        self._check_times()
        return survey

    def _check_prefixes(self, count: int) -> None:
        if count > MAX_PREFIXES:
            name = self.columns["prefix"].name
            wrong = f"has more than {MAX_PREFIXES:,} values. Map a column that names shared beginnings of prompts"
            raise HeadwayError(f"{self.path.name}: prefix ({name}) {wrong}, or none.")

    def _check_times(self) -> None:
        """Reject dates after 2100, times that span too many days, and numbers that are Excel's dates rather than
        seconds."""
        survey, column = self.survey, self.columns["arrival"]
        if survey.first_ps is None:
            return
        if survey.first_ps >= PS_2100:
            used = column.unit or "s"
            number = survey.first_ps // UNITS[used]
            unit = next((unit for least, unit in EPOCHS if number >= least), used)
            fits = f" {unit} fits: write arrival={column.name}:{unit}." if unit != used else ""
            raise HeadwayError(f"{self.path.name}: all arrivals are after 2100. Check the unit of arrival.{fits}")
        span_ps = survey.last_ps - survey.first_ps
        if span_ps > LAST_PS:
            raise HeadwayError(f"{self.path.name}: the last arrival is {too_late(span_ps)}. Check the unit of arrival.")
        days, rest = divmod(survey.first_ps, PS_PER_SECOND)
        fractions = rest or survey.last_ps % PS_PER_SECOND
        if column.unit is None and fractions and EXCEL_1970 <= days < EXCEL_2100 and span_ps <= 100 * PS_PER_SECOND:
            remedy = f"Write arrival={column.name}:{EXCEL}; or arrival={column.name}:s if they are seconds"
            raise HeadwayError(f"{self.path.name}: the arrivals from {days:,} on look like dates of Excel. {remedy}.")

    def _check_time(self, at_ps: int) -> None:
        """Reject a relative time in a table of dates, and a date in a table of relative times."""
        dated = at_ps >= DATED_PS
        if self.survey.dated is None:
            self.survey.dated = dated
        elif self.survey.dated != dated:
            raise BadRow("arrival is a date in some rows, and a time from 0 in others")

    def _names(self) -> list[str]:
        return [column.name for column in self.columns.values()]

    def _parse(self, row: Row | str) -> tuple[int, Record, str | None, int | None]:
        """Return the arrival of a row, its record without the arrival, its prefix, and the length of the prefix. The
        length is None if no column contains it."""
        if isinstance(row, str):
            raise BadRow(row)
        columns = self.columns
        for field in REQUIRED:
            if columns[field].name not in row:
                raise BadRow(f"{field} ({columns[field].name}) is missing")
        arrival = columns["arrival"]
        try:
            at_ps = read_time(row[arrival.name], arrival.unit, self.decimal_comma)
        except BadRow as problem:
            raise BadRow(f"arrival ({arrival.name}) {problem}") from None
        if at_ps < 0:
            raise BadRow(f"arrival ({arrival.name}) is negative")
        texts = {field: cell_text(row.get(name)) for field, name in self.texts}
        for field, text in texts.items():
            if text is not None and not text.isprintable():
                raise BadRow(f"{field} ({columns[field].name}) has control characters: {shown(text)}")
        numbers = {
            field: _tokens(row, column, field, least)
            for field, column, least in self.numbers
            if cell_text(row.get(column.name)) is not None
        }
        record = Record(
            _tokens(row, columns["prompt"], "prompt", 1),
            _tokens(row, columns["output"], "output", 1),
            session=texts.get("session"),
            turn=numbers.get("turn"),
            id=texts.get("id"),
            model=texts.get("model"),
            tenant=texts.get("tenant"),
            slo_class=texts.get("class"),
            max_tokens=numbers.get("max_tokens"),
        )
        if "duration" in columns and cell_text(row.get(columns["duration"].name)) is not None:
            record.extra["duration_ps"] = self._read_duration(row[columns["duration"].name])
        return at_ps, record, texts.get("prefix"), numbers.get("prefix_tokens")

    def _read_duration(self, cell: Any) -> int:
        column = self.columns["duration"]
        try:
            duration_ps = read_time(cell, column.unit or "s", self.decimal_comma)
        except BadRow as problem:
            raise BadRow(f"duration ({column.name}) {problem}") from None
        if not 0 <= duration_ps <= LAST_PS:
            raise BadRow(f"duration ({column.name}) is not between 0 and 106 days")
        return duration_ps

    def _parsed(self, survey: Survey) -> Iterator[tuple[int, int, Record, str | None, int | None]]:
        """Yield the valid rows. Their arrivals count from the first arrival."""
        for number, (_, row) in enumerate(file_rows(self.path, self._names())):
            try:
                at_ps, record, prefix, length = self._parse(row)
                if (at_ps >= DATED_PS) != survey.dated:
                    continue
            except BadRow:
                continue
            yield at_ps - (survey.first_ps or 0), number, record, prefix, length

    def _records(
        self, rows: Iterable[tuple[int, int, Record, str | None, int | None]], content: bool
    ) -> Iterator[Record]:
        contents, ends = _Contents(self.size), _Ends()
        shortest = {} if "prefix_tokens" in self.columns else self.survey.shortest
        for at_ps, _, record, prefix, length in rows:
            record.at_ps = at_ps
            if "duration" in self.columns and record.session is not None:
                record.delay_ps = ends.think_time(record.session, at_ps, record.extra.get("duration_ps"))
            if content:
                shared = shortest.get(prefix or "", 0) if length is None else length
                contents.add(record, prefix, min(shared, record.prompt_tokens))
            yield record


def _tokens(row: Row, column: Column, field: str, least: int) -> int:
    try:
        return read_tokens(row[column.name], least)
    except BadRow as problem:
        raise BadRow(f"{field} ({column.name}) {problem}") from None


class _Ends:
    """Remembers when the last answer of each session ended."""

    def __init__(self) -> None:
        self.ends: dict[str, int] = {}  # session -> end of its last answer in picoseconds, least recent session first

    def think_time(self, session: str, at_ps: int, duration_ps: int | None) -> int | None:
        """Return the time from the end of the session's last answer to a request at `at_ps`. If the request came before
        that end, return 0; if the end is unknown, return None. Also remember when the answer to this request ends."""
        before = self.ends.pop(session, None)
        if duration_ps is not None:
            self.ends[session] = at_ps + duration_ps
            if len(self.ends) > REMEMBERED:
                del self.ends[next(iter(self.ends))]
        return None if before is None else max(0, at_ps - before)


class _Contents:
    """Assigns block ids to prompts. Prompts with the same prefix share the ids of this prefix, and a turn of a session
    repeats the ids of the earlier turns."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.next_id = 0
        self.prefixes: dict[str, int] = {}  # prefix -> first block id
        self.sessions: dict[str, tuple[int, list[Run]]] = {}  # (tokens, blocks) so far, least recent session first

    def add(self, record: Record, prefix: str | None, shared: int) -> None:
        tokens = 0
        runs: list[Run] = []
        known = self.sessions.pop(record.session, None) if record.session is not None else None
        if known is not None and record.prompt_tokens >= known[0]:
            tokens, runs = known
        elif prefix is not None and shared >= self.size:
            first = self.prefixes.setdefault(prefix, PREFIXES + len(self.prefixes) * MAX_LENGTH)
            runs, tokens = [(first, shared // self.size)], shared
        runs = beginning(runs, tokens // self.size)
        end = record.prompt_tokens + record.output_tokens
        if new := end // self.size - tokens // self.size:
            add_run(runs, *self._take(new))
        record.blocks = beginning(runs, record.prompt_tokens // self.size)
        if record.session is not None:
            self.sessions[record.session] = end, runs
            if len(self.sessions) > REMEMBERED:
                del self.sessions[next(iter(self.sessions))]

    def _take(self, blocks: int) -> tuple[int, int]:
        first = self.next_id
        self.next_id += blocks
        return first, blocks


FORMAT: Final = Format(
    NAME, "a table of your own, with a mapping of columns: CSV, TSV, JSONL or Parquet", lambda path, first: False, read
)
