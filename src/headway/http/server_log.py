"""The log of a server: one line for each event, with its time and level, as text or as JSON."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

Level = Literal["debug", "info", "warning", "error"]
OWN: Final = "headway"  # parent of all loggers of Headway
NOISY: Final = ("quic", "aioquic")  # these libraries log every fault of a peer, which Headway counts itself
BURST: Final = 20  # number of lines from one place in the code within WINDOW_S; further lines are counted
WINDOW_S: Final = 10.0
OFTEN_S: Final = 10.0  # least time between two lines of an `Occasional`
ACCESS: Final = logging.getLogger("headway.access")


class LogSettings(Struct, frozen=True):
    """The section `log:` of a gateway's file."""

    format: Annotated[Literal["text", "json"], "one line of text or one JSON object for each event"] = "text"
    level: Annotated[Level, "lowest level to log"] = "info"
    access: Annotated[
        float, Meta(ge=0, le=1), "share of requests with a line in the access log, which has no text of prompts"
    ] = 0.0


class Handler(logging.StreamHandler[Any]):
    """Writes the lines to stderr. If one place in the code logs more than BURST lines in WINDOW_S seconds, its further
    lines are only counted. The access log has its own limit, the share in its settings."""

    def __init__(self, worker: int | None, seconds: Callable[[], float] = time.monotonic) -> None:
        super().__init__(sys.stderr)
        self.worker, self.seconds = worker, seconds
        self._recent: dict[tuple[str, int], list[float]] = {}  # place -> begin of its window, lines, omitted lines

    def filter(self, record: logging.LogRecord) -> Any:
        if record.name == ACCESS.name:
            return True
        now = self.seconds()
        window = self._recent.setdefault((record.pathname, record.lineno), [now, 0, 0])
        if now - window[0] >= WINDOW_S:
            window[0], window[1] = now, 0
        window[1] += 1
        if window[1] > BURST:
            window[2] += 1
            return False
        record.omitted, window[2] = int(window[2]), 0
        return True


class TextFormat(logging.Formatter):
    def __init__(self, worker: int | None) -> None:
        super().__init__()
        self.source = "headway: " if worker is None else f"headway: worker {worker}: "

    def format(self, record: logging.LogRecord) -> str:
        """Return the event as a line. Each line of a traceback has time and level too."""
        begin = f"{_time(record)} {record.levelname} {self.source}"
        lines = [_printable(_message(record))]
        if record.exc_info:
            lines += self.formatException(record.exc_info).splitlines()
        return "\n".join(begin + line for line in lines)


class JsonFormat(logging.Formatter):
    def __init__(self, worker: int | None) -> None:
        super().__init__()
        self.source = {} if worker is None else {"worker": worker}

    def format(self, record: logging.LogRecord) -> str:
        document: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
            **self.source,
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            document["error"] = self.formatException(record.exc_info)
        return msgspec.json.encode(document).decode()


def _message(record: logging.LogRecord) -> str:
    omitted = getattr(record, "omitted", 0)
    return record.getMessage() + (f" ({omitted} similar lines were omitted)" if omitted else "")


def _printable(text: str) -> str:
    """Return the text with escapes in place of control characters, so that no client can forge a line."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _time(record: logging.LogRecord) -> str:
    at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{at}.{int(record.msecs):03d}Z"


@contextmanager
def log_to_stderr(settings: LogSettings | None = None, worker: int | None = None) -> Iterator[None]:
    """Log to stderr for the duration of a `with` block. Omit what libraries log below the level `warning`, and
    everything that noisy libraries log."""
    levels = {OWN: logging.INFO, "": logging.WARNING, **dict.fromkeys(NOISY, logging.CRITICAL)}
    former = {name: logging.getLogger(name).level for name in levels}
    handler = Handler(worker)
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    logging.getLogger().addHandler(handler)
    change_log(settings or LogSettings())
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
        for name, level in former.items():
            logging.getLogger(name).setLevel(level)


def change_log(settings: LogSettings) -> None:
    """Set level and format of the log, if this process logs to stderr."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, Handler):
            kind = TextFormat if settings.format == "text" else JsonFormat
            handler.setFormatter(kind(handler.worker))
            logging.getLogger(OWN).setLevel(settings.level.upper())


class Occasional:
    """An event that may happen thousands of times a second. It is logged when it happens first, and then at most every
    `every_s` seconds, with the number of events since the last line."""

    def __init__(
        self,
        log: logging.Logger,
        message: str,
        *,
        level: int = logging.WARNING,
        every_s: float = OFTEN_S,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self.log, self.message, self.level, self.every_s, self.seconds = log, message, level, every_s, seconds
        self.count = 0  # number of events since the last line
        self._due = float("-inf")

    def note(self, *values: object) -> None:
        self.count += 1
        now = self.seconds()
        if now < self._due:
            return
        more = f" ({self.count:,} times since the last such line)" if self.count > 1 else ""
        self.log.log(self.level, self.message + more, *values, stacklevel=2)
        self.count, self._due = 0, now + self.every_s
