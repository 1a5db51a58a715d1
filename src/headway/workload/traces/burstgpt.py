"""BurstGPT CSV, by column name: `Timestamp` (s), `Model`, `Request tokens`, `Response tokens`, `Total tokens`, `Log
Type`, and from version 3 on `Session ID` (of conversations) and `Elapsed time` (s). The first row is time 0; nothing is
said of content. A response of 0 tokens is a failure: such a row is no request to replay, and `Info.extra["failures"]`
counts them.
"""

from __future__ import annotations

import pathlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Final

from headway.config.units import exact
from headway.errors import HeadwayError
from headway.types import PS_PER_SECOND
from headway.workload.traces.azure import length
from headway.workload.traces.record import Format, Info, Options, Reader, Record
from headway.workload.traces.source import cells, columns, head, lines
from headway.workload.traces.table import LAST_PS, too_late
from headway.workload.traces.writing import Losses, open_text

COLUMNS: Final = ("Timestamp", "Model", "Request tokens", "Response tokens", "Total tokens", "Log Type")
SESSION, ELAPSED = "Session ID", "Elapsed time"
KINDS: Final = {"Conversation log": "chat", "API log": "completion"}
LOGS: Final = {kind: log for log, kind in KINDS.items()}
NO_SESSION: Final = ("", "nan", "None")
REMEMBERED: Final = 100_000  # sessions whose last answer is known: with older ones a delay is the stamps' difference


def tell(path: pathlib.Path, first: list[bytes]) -> bool:
    return bool(first) and set(COLUMNS) <= {name.strip(b' "').decode(errors="replace") for name in first[0].split(b",")}


def read(path: pathlib.Path, options: Options) -> Reader:
    first = head(path)
    sessions = bool(first) and SESSION.encode() in first[0]
    info = Info("burstgpt", sessions=sessions, extra={"failures": 0})
    return Reader(info, _records(path, info))


def _records(path: pathlib.Path, info: Info) -> Iterator[Record]:
    header: list[str] = []
    places: list[int] = []
    first_ps: int | None = None
    last_ps = 0
    ends: OrderedDict[str, int] = OrderedDict()  # of each session's last answer
    for number, line in lines(path):
        place = f"{path.name} line {number}"
        row = cells(line, place)
        if not header:
            header, places = row, columns(row, COLUMNS, place)
            continue
        if len(row) != len(header):
            raise HeadwayError(f"{place}: {len(row)} values where the header names {len(header)} columns.")
        stamp, model, prompt, output, _, log = (row[at] for at in places)
        at_ps = _seconds(stamp, "Timestamp", place)
        if first_ps is None:
            first_ps = last_ps = at_ps
        if at_ps < last_ps:
            raise HeadwayError(f"{place}: Timestamp {stamp} is before an earlier line's; sort the file by time.")
        if at_ps - first_ps > LAST_PS:
            raise HeadwayError(f"{place}: Timestamp {stamp} is too late, {too_late(at_ps - first_ps)}.")
        last_ps = at_ps
        if not length(output, "Response tokens", place, least=0):
            info.extra["failures"] += 1
            continue
        record = Record(
            length(prompt, "Request tokens", place),
            int(output),
            at_ps=at_ps - first_ps,
            model=model or None,
            kind=KINDS.get(log),
        )
        if log not in KINDS:
            record.extra["log_type"] = log
        if info.sessions:
            _add_session(record, dict(zip(header, row, strict=True)), ends, place)
        yield record
    if failures := info.extra["failures"]:
        info.extra["notes"] = [f"rows without a response are failures and were left out: {failures}"]


def _add_session(record: Record, row: dict[str, str], ends: OrderedDict[str, int], place: str) -> None:
    """Its session, and how long after the last answer in it the request came."""
    assert record.at_ps is not None
    elapsed_ps = None
    if row.get(ELAPSED, "") not in NO_SESSION:
        elapsed_ps = _seconds(row[ELAPSED], ELAPSED, place)
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


def _seconds(text: str, name: str, place: str) -> int:
    found = exact(text)
    if found is None or not 0 <= found <= LAST_PS:
        raise HeadwayError(f"{place}: {name} must be a time in seconds, got {text[:40]!r}.")
    return round(found * PS_PER_SECOND)


def write(path: pathlib.Path, info: Info, records: Iterable[Record]) -> list[str]:
    """Version 3 where the source has sessions, else version 1."""
    lost = Losses("session", "model", "kind", "extra", "delay_ps") if info.sessions else Losses("model", "kind")
    names = [*COLUMNS[:1], *((SESSION, ELAPSED) if info.sessions else ()), *COLUMNS[1:]]
    first = True
    with open_text(path) as file:
        file.write(",".join(names) + "\n")
        for record in records:
            lost.see(record)
            at_ps = lost.stamp(info, record, path)
            if first and at_ps:
                lost.add("the time before the first request")
            first = False
            _note(record, lost)
            middle = [_quoted(record.session or ""), str(record.extra.get("elapsed_s", ""))] if info.sessions else []
            log = record.extra.get("log_type", LOGS.get(record.kind or "", "API log"))
            total = record.prompt_tokens + record.output_tokens
            lengths = [str(record.prompt_tokens), str(record.output_tokens), str(total)]
            model = _quoted(record.model or "")
            file.write(",".join([_text(at_ps), *middle, model, *lengths, _quoted(str(log))]) + "\n")
    return lost.phrases()


def _note(record: Record, lost: Losses) -> None:
    if record.kind not in LOGS and "log_type" not in record.extra:
        lost.add("kinds of requests other than chat and completion")
    if record.delay_ps is not None and "elapsed_s" not in record.extra:
        lost.add("delays")
    if not record.output_tokens:
        lost.add("requests without any output (they read as failures)")
    if any(name not in ("elapsed_s", "log_type") for name in record.extra):
        lost.add("further fields of the source")


def _text(ps: int) -> str:
    seconds, rest = divmod(ps, PS_PER_SECOND)
    return f"{seconds}.{rest:012d}".rstrip("0").rstrip(".")


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if any(mark in text for mark in ',"\n') else text


FORMAT: Final = Format(
    "burstgpt", "BurstGPT CSV, versions 1 to 3: times, lengths, models, sessions", tell, read, write, blocks=False
)
