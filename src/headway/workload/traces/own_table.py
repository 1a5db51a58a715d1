"""A user's own table of requests: CSV, TSV, JSONL or Parquet, with a mapping from fields of a request to columns.

If the rows are in order of arrival, the file is read twice. The first pass checks every row and finds the first
arrival. The second pass yields the records. As soon as the first pass meets a row that is not in order, it begins
again. It then also sorts the checked rows in a temporary file, so that memory stays bounded and no second pass is
necessary.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import le
from typing import Any, Final

from msgspec import Struct

from headway.config.wording import join_words, shown, suggest
from headway.errors import HeadwayError
from headway.types import PS_PER_SECOND
from headway.workload.traces.cells import EPOCHS, EXCEL, EXCEL_1970, EXCEL_2100, PS_2100, UNITS, BadRow
from headway.workload.traces.columns import NAME, Columns, how_to_map, how_to_set, write_columns
from headway.workload.traces.limits import LAST_PS, MAX_LENGTH, too_late
from headway.workload.traces.record import Format, Info, Options, Reader, Record
from headway.workload.traces.sorting import Sorter
from headway.workload.traces.source import head
from headway.workload.traces.table_contents import Contents, Ends
from headway.workload.traces.table_files import file_batches, has_decimal_commas, is_json, read_names
from headway.workload.traces.table_rows import FIELDS, Fields, RowParser

BLOCK_TOKENS: Final = 16
BAD_ROWS: Final = "bad rows are skipped"  # start of the note with the number of bad rows
SHOWN: Final = 5  # maximum number of bad rows that an error lists
MAX_PREFIXES: Final = 500_000  # maximum number of prefixes, which stay in memory

Row = tuple[Any, ...]  # arrival, position in the file, and the other values in the order of FIELDS


class Survey(Struct):
    """The results of the first pass over a table."""

    rows: int = 0
    first_ps: int | None = None
    last_ps: int = 0
    ordered: bool = True
    bad: int = 0
    examples: list[str] = []
    shortest: dict[str, int] = {}  # prefix -> length of its shortest prompt

    def add(self, arrivals: Sequence[int]) -> None:
        """Add the arrivals of valid rows."""
        if not arrivals:
            return
        self.rows += len(arrivals)
        first_ps = min(arrivals)
        self.ordered = self.ordered and (
            (self.first_ps is None or arrivals[0] >= self.last_ps) and all(map(le, arrivals, arrivals[1:]))
        )
        self.last_ps = max(self.last_ps, max(arrivals))
        self.first_ps = first_ps if self.first_ps is None else min(self.first_ps, first_ps)

    def reject(self, place: str, problem: BadRow) -> None:
        self.rows += 1
        self.bad += 1
        if len(self.examples) < SHOWN:
            self.examples.append(f"{place}: {problem}")


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
        self.parser = RowParser(columns, has_decimal_commas(path))
        self.survey = Survey()

    def reader(self) -> Reader:
        survey, sorter = self._survey(None), None
        if not survey.ordered:
            sorter = Sorter()
            survey = self._survey(sorter)
        self._check_times()
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
        return Reader(info, self._records(self._rows() if sorter is None else sorter.sorted(), content))

    def _notes(self) -> dict[str, Any]:
        survey = self.survey
        notes = []
        if survey.bad:
            notes.append(f"{BAD_ROWS}: {survey.bad:,} ({'; '.join(survey.examples)})")
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

    def _survey(self, sorter: Sorter | None) -> Survey:
        """Check every row and add it to the sorter. Find the first arrival and the shortest prompt of each prefix.
        Without a sorter, stop at the first row that is not in order."""
        survey = self.survey = Survey(examples=[], shortest={})
        prefix_at = FIELDS.index("prefix")
        valid = 0
        for fields in self._parsed(survey.reject):
            arrivals, prompts, prefixes = fields[0], fields[1], fields[prefix_at]
            survey.add(arrivals)
            self._report("rows checked", survey.rows)
            if sorter is not None:
                sorter.extend(_numbered(fields, valid))
                valid += len(arrivals)
            elif not survey.ordered:
                return survey
            if "prefix" in self.columns:
                shortest = survey.shortest
                for prefix, prompt in zip(prefixes, prompts, strict=True):
                    if prefix is not None and prompt < shortest.get(prefix, MAX_LENGTH + 1):
                        shortest[prefix] = prompt
                self._check_prefixes(len(shortest))
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
            raise HeadwayError(f"{self.path.name}: the arrivals from {days:,} on look like Excel dates. {remedy}.")

    def _parsed(self, reject: Callable[[str, BadRow], None]) -> Iterator[Fields]:
        names = [column.name for column in self.columns.values()]
        for batch in file_batches(self.path, names):
            yield self.parser.parse(batch, reject)

    def _rows(self) -> Iterator[Row]:
        """Yield the valid rows of a table that is in order."""
        for fields in self._parsed(lambda place, problem: None):
            yield from _numbered(fields, 0)

    def _report(self, unit: str, finished: int) -> None:
        if self.options.stage is not None:
            self.options.stage(unit, finished)

    def _records(self, rows: Iterable[Row], content: bool) -> Iterator[Record]:
        contents, ends = Contents(self.size), Ends()
        shortest = {} if "prefix_tokens" in self.columns else self.survey.shortest
        start_ps = self.survey.first_ps or 0
        for row in rows:
            # in the order of FIELDS, after the arrival and the position
            at_ps, _, prompt, output, session, tenant, slo_class, model, prefix, id = row[:10]
            turn, shared, max_tokens, duration_ps = row[10:]
            at_ps -= start_ps
            blocks = delay_ps = None
            if content:
                shared = shortest.get(prefix or "", 0) if shared is None else shared
                blocks = contents.add(session, prompt, output, prefix, min(shared, prompt))
            if session is not None and "duration" in self.columns:
                delay_ps = ends.think_time(session, at_ps, duration_ps)
            yield Record(
                prompt,
                output,
                at_ps,
                blocks,
                session=session,
                turn=turn,
                id=id,
                delay_ps=delay_ps,
                model=model,
                tenant=tenant,
                slo_class=slo_class,
                max_tokens=max_tokens,
                extra={} if duration_ps is None else {"duration_ps": duration_ps},
            )


def _numbered(fields: Fields, number: int) -> Iterator[Row]:
    """Yield rows with their positions, which count from `number`."""
    arrivals, *others = fields
    return zip(arrivals, range(number, number + len(arrivals)), *others, strict=True)


FORMAT: Final = Format(
    NAME, "a table of your own, with a mapping of columns: CSV, TSV, JSONL or Parquet", lambda path, first: False, read
)
