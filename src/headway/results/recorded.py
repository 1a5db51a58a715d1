"""Reads a file of requests that an engine served: arrival, first and last token, and lengths."""

import csv
from collections.abc import Iterator, Sequence
from math import isfinite, nan
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from headway.config.wording import join_words, shown
from headway.errors import HeadwayError
from headway.results.result import Result
from headway.types import PS_PER_SECOND

# Columns, and their other names in engines' logs. All times are seconds on one clock. A file without `arrival` may have
# the time of queueing instead.
COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "arrival": ("arrival_ts", "queued_ts"),
    "first_token": ("first_token_ts",),
    "last_token": ("last_token_ts",),
    "prompt_tokens": ("input_toks",),
    "output_tokens": ("output_toks",),
}
OPTIONAL: Final[dict[str, tuple[str, ...]]] = {"queued": ("queued_ts",), "request_id": ("id",)}
# vLLM writes this column with a wall clock, and the other times with a monotonic clock. It counts as `arrival` only if
# every request of the file is queued within `MOST_HANDLING_S` seconds after it.
OTHER_CLOCK: Final = "arrival_time"
MOST_HANDLING_S: Final = 60.0
JSONL: Final = (".jsonl", ".json", ".ndjson")
COMPLETED: Final = "completed"


class Served(Struct, frozen=True):
    """A request that an engine served. The latencies are None if the request was not answered."""

    arrival_s: float
    ttft_ps: float | None
    e2e_ps: float | None
    prompt_tokens: int
    output_tokens: int
    queued_ps: float | None = None  # time from the arrival until the engine queued it; None if this is not known
    id: str | None = None

    @property
    def ttft_queued_ps(self) -> float | None:
        """The time from queueing to the first token."""
        return None if self.ttft_ps is None or self.queued_ps is None else self.ttft_ps - self.queued_ps

    @property
    def tpot_ps(self) -> float | None:
        if self.ttft_ps is None or self.e2e_ps is None or self.output_tokens < 2:
            return None
        return (self.e2e_ps - self.ttft_ps) / (self.output_tokens - 1)


def read_recorded(path: str | Path) -> list[Served]:
    """Read the requests of a CSV or JSONL file, or of a run folder, in order of arrival. The order of the rows has no
    effect."""
    place = Path(path)
    if place.is_dir():
        return served_requests(Result.load(place))
    rows = list(_rows(place))
    _check_clocks([row for _, row in rows])
    requests = [_request(row, f"{path}, line {line}") for line, row in rows]
    if all(request.e2e_ps is None for request in requests):
        raise HeadwayError(f"{path}: contains no answered request, so there is nothing to compare with.")
    return sorted(requests, key=_order)


def _order(request: Served) -> tuple[Any, ...]:
    lengths = request.prompt_tokens, request.output_tokens
    times = (-1.0 if time is None else time for time in (request.queued_ps, request.ttft_ps, request.e2e_ps))
    return request.arrival_s, request.id or "", *lengths, *times


def served_requests(result: Result) -> list[Served]:
    """Return the requests of a simulated run, in order of arrival. A request is queued when it reaches its instance."""
    names = ("arrival_ps", "enqueued_ps", "first_token_ps", "finished_ps", "prompt_tokens", "output_tokens", "outcome")
    requests = []
    for arrival, queued, first, last, prompt, output, outcome in zip(*map(result.requests.column, names), strict=True):
        whole = outcome == COMPLETED
        ttft, e2e = (first - arrival, last - arrival) if whole else (None, None)
        handling = queued - arrival if whole and queued is not None and arrival <= queued <= first else None
        requests.append(Served(arrival / PS_PER_SECOND, ttft, e2e, prompt, output, handling))
    return requests


def _check_clocks(rows: Sequence[dict[str, Any]]) -> None:
    """Use `arrival_time` as the arrival of all rows if it has the clock of the other times, and ignore the times of
    queueing if they have another clock."""
    handling = [_seconds_between(row, OTHER_CLOCK, "queued") for row in rows]
    if all(seconds is not None and 0 <= seconds <= MOST_HANDLING_S for seconds in handling):
        for row in rows:
            row["arrival"] = row[OTHER_CLOCK]
    spans = [
        _seconds_between(row, *pair)
        for row in rows
        for pair in (("arrival", "queued"), ("queued", "first_token"))
        if row.get("first_token") not in (None, "")
    ]
    if any(seconds is None or seconds < 0 for seconds in spans):
        for row in rows:
            row.pop("queued", None)


def _seconds_between(row: dict[str, Any], begin: str, end: str) -> float | None:
    try:
        return float(row[end]) - float(row[begin])
    except (KeyError, TypeError, ValueError):
        return None


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            if path.suffix not in JSONL:
                reader = csv.DictReader(file)
                names = _names(reader.fieldnames or (), str(path))
                for row in reader:
                    yield reader.line_num, {name: row[column] for name, column in names.items()}
                return
            for line, text in enumerate(file, 1):
                if text.strip():
                    row = msgspec.json.decode(text, type=dict[str, Any])
                    names = _names(tuple(row), f"{path}, line {line}")
                    yield line, {name: row[column] for name, column in names.items()}
    except OSError as error:
        raise HeadwayError(f"{path}: cannot be read: {error.strerror}.") from None
    except (UnicodeDecodeError, csv.Error):
        raise HeadwayError(f"{path}: not a CSV file in UTF-8.") from None
    except msgspec.DecodeError:
        raise HeadwayError(f"{path}: line {line} is not a JSON object.") from None


def _names(header: Sequence[str], where: str) -> dict[str, str]:
    every = COLUMNS | OPTIONAL
    aliases = {name: [alias for alias in (name, *others) if alias in header] for name, others in every.items()}
    if not aliases["arrival"]:  # a file may call the time of queueing `queued`
        aliases["arrival"] = aliases["queued"]
    missing = [repr(name) for name in COLUMNS if not aliases[name]]
    if missing:
        many = len(missing) > 1
        raise HeadwayError(
            f"{where}: the column{'s' * many} {join_words(missing)} {'are' if many else 'is'} missing; "
            f"a recorded run needs {', '.join(COLUMNS)}, with times in seconds on one clock."
        )
    names = {name: known[0] for name, known in aliases.items() if known}
    if names["arrival"] == names.get("queued") and OTHER_CLOCK in header:
        names[OTHER_CLOCK] = OTHER_CLOCK
    return names


def _request(row: dict[str, Any], where: str) -> Served:
    arrival = _number(row["arrival"], f"{where}, arrival")
    prompt, output = (_tokens(row[name], f"{where}, {name}") for name in ("prompt_tokens", "output_tokens"))
    name = None if row.get("request_id") in (None, "") else str(row["request_id"])
    if any(row[name] in (None, "") for name in ("first_token", "last_token")):
        return Served(arrival, None, None, prompt, output, id=name)
    first, last = (_number(row[name], f"{where}, {name}") for name in ("first_token", "last_token"))
    if first < arrival:
        raise HeadwayError(
            f"{where}, first_token: {first:g} s is before the arrival at {arrival:g} s; use times of one clock."
        )
    if last < first:
        raise HeadwayError(f"{where}, last_token: {last:g} s is before the first token at {first:g} s.")
    queued = (float(row["queued"]) - arrival) * PS_PER_SECOND if "queued" in row else None
    ttft, e2e = (first - arrival) * PS_PER_SECOND, (last - arrival) * PS_PER_SECOND
    return Served(arrival, ttft, e2e, prompt, output, queued, name)


def _number(value: object, where: str) -> float:
    try:
        number = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else nan
    except (ValueError, OverflowError):
        number = nan
    if not isfinite(number):
        raise HeadwayError(f"{where}: must be a number, got {shown(value)}.")
    return number


def _tokens(value: object, where: str) -> int:
    number = _number(value, where)
    if number != int(number) or number < 1:
        raise HeadwayError(f"{where}: must be a whole number of tokens, 1 or more, got {shown(value)}.")
    return int(number)
