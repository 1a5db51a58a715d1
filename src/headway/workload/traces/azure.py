"""Azure LLM inference CSV: `TIMESTAMP,ContextTokens,GeneratedTokens` under a header. Stamps are date and time with up
to seven digits of a second (2023) or with `+00:00` (2024); the first row is time 0. Nothing is said of content, so no
two prompts share any."""

from __future__ import annotations

import csv
import pathlib
import re
from datetime import datetime, timedelta
from typing import Final

from headway.types import PS_PER_SECOND, HeadwayError
from headway.workload.traces.source import lines
from headway.workload.traces.table import LAST_PS, MAX_LENGTH, Trace, too_late

COLUMNS: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
EPOCH: Final = datetime(1970, 1, 1)
SECOND: Final = timedelta(seconds=1)
MAX_ZONE_HOURS: Final = 14  # no clock on Earth is further from UTC
STAMP: Final = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.(\d{1,12}))?(Z|[+-]\d\d:\d\d)?", re.ASCII)


def load(path: pathlib.Path, limit: int | None = None) -> Trace:
    """The first `limit` requests of a file."""
    trace = Trace("azure", None)
    places: list[int] | None = None
    width = 0
    first_ps = last_ps = 0
    for number, line in lines(path):
        place = f"{path.name} line {number}"
        cells = split(line, place)
        if places is None:
            places, width = _columns(cells, place), len(cells)
            continue
        if len(cells) != width:
            raise HeadwayError(f"{place}: {len(cells)} values where the header names {width} columns.")
        stamp, prompt, output = (cells[at] for at in places)
        at_ps = stamp_ps(stamp, place)
        if not len(trace):
            first_ps = last_ps = at_ps
        if at_ps < last_ps:
            raise HeadwayError(f"{place}: TIMESTAMP {stamp} is before an earlier line's; sort the file by time.")
        if at_ps - first_ps > LAST_PS:
            raise HeadwayError(f"{place}: TIMESTAMP {stamp} is too late, {too_late(at_ps - first_ps)}.")
        last_ps = at_ps
        trace.arrival_ps.append(at_ps - first_ps)
        trace.prompt_tokens.append(_length(prompt, "ContextTokens", place))
        trace.output_tokens.append(_length(output, "GeneratedTokens", place))
        if len(trace) == limit:
            break
    return trace


def split(line: bytes, place: str) -> list[str]:
    """The cells of a line; a quoted one may hold commas, but does not run on into the next line."""
    try:
        text = line.decode()
        cells = next(csv.reader((text,), strict=True, skipinitialspace=True)) if '"' in text else text.split(",")
    except UnicodeDecodeError:
        raise HeadwayError(f"{place}: this is not text in UTF-8.") from None
    except csv.Error as error:
        raise HeadwayError(f"{place}: the quotes of this line do not match ({error}).") from None
    return [cell.strip() for cell in cells]


def _columns(header: list[str], place: str) -> list[int]:
    for name in COLUMNS:
        if name not in header:
            raise HeadwayError(f"{place}: the header has no column {name}; expected {','.join(COLUMNS)}.")
    return [header.index(name) for name in COLUMNS]


def stamp_ps(text: str, place: str) -> int:
    """A stamp as picoseconds since 1970, exactly; one without a zone counts as UTC."""
    match = STAMP.fullmatch(text)
    try:
        if match is None:
            raise ValueError
        date, clock, digits, zone = match.groups()
        seconds = (datetime.fromisoformat(f"{date}T{clock}") - EPOCH) // SECOND
        if zone and zone != "Z":
            hours, minutes = int(zone[1:3]), int(zone[4:6])
            if hours > MAX_ZONE_HOURS or minutes > 59:
                raise ValueError
            away = hours * 3600 + minutes * 60
            seconds -= away if zone[0] == "+" else -away
    except ValueError:
        raise HeadwayError(f"{place}: TIMESTAMP {text!r} is not a time like 2023-11-16 18:17:03.9799600.") from None
    return seconds * PS_PER_SECOND + int((digits or "0").ljust(12, "0"))


def _length(text: str, name: str, place: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18 and 1 <= int(text) <= MAX_LENGTH):
        raise HeadwayError(f"{place}: {name} must be a whole number between 1 and {MAX_LENGTH}, got {text[:40]!r}.")
    return int(text)
