"""BurstGPT CSV with the columns `Timestamp` (s), `Model`, `Request tokens`, `Response tokens`, `Total tokens`, `Log
Type`, and from version 3 on `Session ID` (of conversations) and `Elapsed time` (s). The first row has time 0. The file
does not describe content. Rows with a response of 0 tokens are failed requests: they are skipped, and
`Info.extra["failures"]` counts them.
"""

import csv
import pathlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Final

from headway.config.units import exact
from headway.errors import HeadwayError
from headway.types import PS_PER_SECOND
from headway.workload.traces.csv_file import Row, has_columns, parse_length, stamped_rows
from headway.workload.traces.limits import LAST_PS
from headway.workload.traces.record import Format, Info, Options, Reader, Record
from headway.workload.traces.source import head
from headway.workload.traces.writing import Losses, open_text

COLUMNS: Final = ("Timestamp", "Model", "Request tokens", "Response tokens", "Total tokens", "Log Type")
SESSION, ELAPSED = "Session ID", "Elapsed time"
KINDS: Final = {"Conversation log": "chat", "API log": "completion"}
LOGS: Final = {kind: log for log, kind in KINDS.items()}
NO_SESSION: Final = ("", "nan", "None")
REMEMBERED: Final = 100_000  # maximum number of sessions whose last end is stored; others get delays from timestamps


def tell(path: pathlib.Path, first: list[bytes]) -> bool:
    return has_columns(first, COLUMNS)


def read(path: pathlib.Path, options: Options) -> Reader:
    first = head(path)
    sessions = bool(first) and SESSION.encode() in first[0]
    info = Info("burstgpt", sessions=sessions, extra={"failures": 0})
    return Reader(info, _records(path, info))


def _records(path: pathlib.Path, info: Info) -> Iterator[Record]:
    ends: OrderedDict[str, int] = OrderedDict()  # session -> time at which its last answer ended
    for place, row, at_ps in stamped_rows(path, COLUMNS, _seconds):
        output = parse_length(row, "Response tokens", place, least=0)
        if not output:
            info.extra["failures"] += 1
            continue
        log = row["Log Type"]
        prompt = parse_length(row, "Request tokens", place)
        record = Record(prompt, output, at_ps=at_ps, model=row["Model"] or None, kind=KINDS.get(log))
        if log not in KINDS:
            record.extra["log_type"] = log
        if info.sessions:
            _add_session(record, row, ends, place)
        yield record
    if failures := info.extra["failures"]:
        info.extra["notes"] = [f"rows without a response are failures and are skipped: {failures}"]


def _add_session(record: Record, row: Row, ends: OrderedDict[str, int], place: str) -> None:
    """Set the session of a record, and its delay after the session's last answer."""
    assert record.at_ps is not None
    elapsed_ps = None
    if row.get(ELAPSED, "") not in NO_SESSION:
        elapsed_ps = _seconds(row[ELAPSED], place, ELAPSED)
        record.extra["elapsed_s"] = elapsed_ps / PS_PER_SECOND
    name = row[SESSION]
    if name in NO_SESSION:
        return
    record.session = name
    if name in ends:
        record.delay_ps = max(0, record.at_ps - ends.pop(name))
    if elapsed_ps is not None:
        ends[name] = record.at_ps + elapsed_ps
        if len(ends) > REMEMBERED:
            ends.popitem(last=False)


def _seconds(text: str, place: str, name: str = COLUMNS[0]) -> int:
    seconds = exact(text)
    if seconds is None or not 0 <= seconds <= LAST_PS:
        raise HeadwayError(f"{place}: {name} must be a time in seconds, got {text[:40]!r}.")
    return round(seconds * PS_PER_SECOND)


def write(path: pathlib.Path, info: Info, records: Iterable[Record]) -> list[str]:
    """Write the records. If the source has sessions, write version 3, otherwise version 1."""
    lost = Losses("session", "model", "kind", "extra", "delay_ps") if info.sessions else Losses("model", "kind")
    names = [*COLUMNS[:1], *((SESSION, ELAPSED) if info.sessions else ()), *COLUMNS[1:]]
    with open_text(path) as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(names)
        for record in records:
            lost.see(record)
            at_ps = lost.stamp(info, record, path, from_first=True)
            _note(record, lost)
            middle = [record.session or "", record.extra.get("elapsed_s", "")] if info.sessions else []
            log = record.extra.get("log_type", LOGS.get(record.kind or "", "API log"))
            lengths = [record.prompt_tokens, record.output_tokens, record.prompt_tokens + record.output_tokens]
            table.writerow([_text(at_ps), *middle, record.model or "", *lengths, log])
    return lost.phrases()


def _note(record: Record, lost: Losses) -> None:
    if record.kind not in LOGS and "log_type" not in record.extra:
        lost.add("kinds of requests other than chat and completion")
    if record.delay_ps is not None and "elapsed_s" not in record.extra:
        lost.add("delays")
    if not record.output_tokens:
        lost.add("requests without any output (readers take them for failures)")
    if any(name not in ("elapsed_s", "log_type") for name in record.extra):
        lost.add("other fields of the source")


def _text(ps: int) -> str:
    seconds, rest = divmod(ps, PS_PER_SECOND)
    return f"{seconds}.{rest:012d}".rstrip("0").rstrip(".")


FORMAT: Final = Format(
    "burstgpt", "BurstGPT CSV, versions 1 to 3: times, lengths, models, sessions", tell, read, write, blocks=False
)
