"""ServeGen's client data in a folder or a tar archive. Each client has a file of rates and a file of lengths. The sizes
of the files are limited."""

import ast
import pathlib
import re
import tarfile
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import compress, islice
from math import isfinite
from typing import Final

import msgspec
from msgspec import Struct

from headway.config.wording import join_words, one_line, shown
from headway.errors import HeadwayError
from headway.workload.shapes import Maker, pickers
from headway.workload.traces.limits import LAST_PS, MAX_LENGTH, PS_PER_DAY
from headway.workload.traces.objects import decode_object
from headway.workload.traces.source import reason

NAME: Final = re.compile(r"chunk-([0-9]{1,9})-(trace\.csv|dataset\.json)")
ARCHIVES: Final = (".tar.gz", ".tgz", ".tar")
DAMAGED: Final = (tarfile.TarError, EOFError, zlib.error, ValueError, LookupError)  # errors of a damaged archive
WINDOW: Final = 600  # length of a window in seconds
LAST_SECOND: Final = 86400 * (LAST_PS // PS_PER_DAY)
MAX_FILE: Final = 64 << 20  # maximum size of one file in bytes
MAX_TOTAL: Final = 1 << 30
MAX_FILES: Final = 20_000
MAX_HISTOGRAM: Final = 4 << 20  # maximum number of characters in a histogram: ten times the largest known one
MAX_COUNT: Final = 10_000  # maximum number of images in one request
MAX_RATE: Final = 10_000.0  # maximum rate of one client in requests per second
SHAPES: Final = (0.006, 1e6)  # range of shape parameters from which gaps can be drawn
LAWS: Final = ("Gamma", "Weibull")


class Window(Struct, frozen=True):
    """A period of `WINDOW` seconds in which the gaps between a client's requests have one distribution."""

    start: int  # in seconds
    requests: int
    law: str
    shape: float


class Client(Struct, frozen=True):
    number: int
    trace: str  # name of the client's file of rates
    windows: list[Window]  # only windows with requests
    lengths: Callable[[], bytes] | None  # reads the client's file of lengths; None if the file is missing

    @property
    def name(self) -> str:
        return f"client-{self.number}"

    @property
    def dataset(self) -> str:
        return self.trace.replace("-trace.csv", "-dataset.json")


Files = dict[tuple[int, str], tuple[str, Callable[[], bytes]]]


def looks_like(path: pathlib.Path) -> bool:
    """Return whether a folder, or the beginning of an archive, contains a file that is named like ServeGen's files."""
    try:
        if path.is_dir():
            return any(NAME.fullmatch(file.name) for file in path.rglob("chunk-*-*"))
        if not (path.name.endswith(ARCHIVES) and path.is_file()):
            return False
        with tarfile.open(path) as archive:
            names = (pathlib.PurePosixPath(member.name).name for member in islice(archive, 10))
            return any(NAME.fullmatch(name) for name in names)
    except (OSError, HeadwayError, *DAMAGED):
        return False


def clients(path: pathlib.Path) -> list[Client]:
    """Return the clients in order of their numbers. Read their files of rates, but not their files of lengths."""
    files: Files = {}
    folder: str | None = None
    for place, name, load in _in_folder(path) if path.is_dir() else _in_archive(path):
        match = NAME.fullmatch(name)
        assert match is not None
        if folder not in (None, place):
            raise HeadwayError(f"{path}: contains clients of both {folder} and {place}. Name one of these folders.")
        folder = place
        files[int(match[1]), match[2]] = (name, load)
    clients = []
    for number, kind in sorted(files):
        if kind == "trace.csv":
            name, load = files[number, kind]
            lengths = files.get((number, "dataset.json"))
            clients.append(Client(number, name, _windows(load(), name), lengths[1] if lengths else None))
    if not clients:
        raise HeadwayError(f"{path}: contains no chunk-*-trace.csv, the rates of ServeGen's clients.")
    return clients


def _in_folder(path: pathlib.Path) -> Iterator[tuple[str, str, Callable[[], bytes]]]:
    """Yield the folder, the name and a function that reads the content of each ServeGen file in a folder."""
    for file in sorted(path.rglob("chunk-*-*")):
        if NAME.fullmatch(file.name) and file.is_file():
            yield str(file.parent), file.name, lambda file=file: _bytes(file)  # type: ignore[misc]


def _bytes(path: pathlib.Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE + 1)
    except OSError as error:
        raise HeadwayError(f"{path}: the file cannot be read ({reason(error)}).") from None
    if len(content) > MAX_FILE:
        raise HeadwayError(f"{path.name}: has more than {MAX_FILE >> 20} MiB.")
    return content


def _in_archive(path: pathlib.Path) -> Iterator[tuple[str, str, Callable[[], bytes]]]:
    """Yield the same as `_in_folder`, but from an archive. Keep the contents in memory, because an archive cannot be
    read out of order."""
    total = 0
    try:
        with tarfile.open(path) as archive:
            for count, member in enumerate(archive):
                inside = pathlib.PurePosixPath(member.name)
                if count >= MAX_FILES:
                    raise HeadwayError(f"{path.name}: contains more than {MAX_FILES} files.")
                if not member.isfile() or not NAME.fullmatch(inside.name):
                    continue
                total += member.size
                if member.size > MAX_FILE or total > MAX_TOTAL:
                    raise HeadwayError(f"{path.name}: is too large for memory, at {inside.name}.")
                file = archive.extractfile(member)
                content = file.read() if file else b""
                yield str(inside.parent), inside.name, lambda content=content: content  # type: ignore[misc]
    except DAMAGED as error:
        why = one_line(error, kind=False)
        raise HeadwayError(f"{path.name}: is damaged, or is not a tar archive ({why}).") from None
    except OSError as error:
        raise HeadwayError(f"{path}: the file cannot be read ({reason(error)}).") from None


# --- rates --------------------------------------------------------------------------------------------------------


def _windows(content: bytes, name: str) -> list[Window]:
    windows = []
    last = -1
    for number, line in enumerate(content.splitlines(), 1):
        place = f"{name} line {number}"
        cells = line.decode(errors="replace").split(",")
        if len(cells) != 6:
            columns = "window start, rate, CV, law, shape and scale"
            raise HeadwayError(f"{place}: has {len(cells)} values, but a line has {columns}.")
        start = _number(cells[0], "the window start", 0, LAST_SECOND - WINDOW, place)
        if start != int(start) or start % WINDOW or start <= last:
            wrong = f"must be a multiple of {WINDOW} s, later than the previous one, got {shown(cells[0])}"
            raise HeadwayError(f"{place}: the window start {wrong}.")
        last = int(start)
        requests = round(_number(cells[1], "the rate", 0, MAX_RATE, place) * WINDOW)
        law = cells[3].strip()
        if not law or not requests:
            continue
        if law not in LAWS:
            raise HeadwayError(f"{place}: the law must be {' or '.join(LAWS)}, or empty, got {shown(law)}.")
        windows.append(Window(last, requests, law, _number(cells[4], "the shape", *SHAPES, place)))
    return windows


def _number(text: str, what: str, low: float, high: float, place: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not low <= number <= high:
        raise HeadwayError(f"{place}: {what} must be a number between {low:g} and {high:g}, got {shown(text)}.")
    return number


# --- lengths ------------------------------------------------------------------------------------------------------


Lengths = dict[str, Maker]  # field -> function that creates samplers of its lengths


class Datasets:
    """The length histograms of a client. Only the histograms that are used are parsed."""

    def __init__(self, client: Client) -> None:
        assert client.lengths is not None
        self._name = client.dataset
        decode = msgspec.json.Decoder(dict[str, dict[str, str]]).decode
        form = "the file maps the start of a window to histograms by field"
        windows = decode_object(decode, client.lengths(), self._name, form)
        self._windows = {
            int(_number(start, "a window's start", 0, LAST_SECOND, self._name)): fields
            for start, fields in windows.items()
        }
        filled = [fields and all(text.strip() != "{}" for text in fields.values()) for fields in self._windows.values()]
        self.starts = sorted(compress(self._windows, filled))
        if not self.starts:
            raise HeadwayError(f"{self._name}: contains no histograms.")

    def at(self, second: int) -> int:
        """Return the start of the latest window with lengths that begins at or before this time. If there is no such
        window, return the start of the first window with lengths."""
        return self.starts[max(0, bisect_right(self.starts, second) - 1)]

    def lengths(self, start: int) -> Lengths:
        fields = self._windows[start]
        place = f"{self._name} window {start}"
        lengths = {
            name: _histogram(text, MAX_COUNT if name.endswith("_count") else MAX_LENGTH, f"{place}: {name}")
            for name, text in fields.items()
        }
        for name in ("output_tokens", "text_tokens" if "text_tokens" in lengths else "input_tokens"):
            if name not in lengths:
                raise HeadwayError(f"{place}: has no {name}, only {join_words(sorted(lengths))}.")
        return lengths


def _histogram(text: str, largest: int, place: str) -> Maker:
    """Return a function that creates samplers of a histogram. The histogram is a string with a Python dict of values
    and weights, which is parsed but not executed."""
    if len(text) > MAX_HISTOGRAM:
        raise HeadwayError(f"{place} has more than {MAX_HISTOGRAM >> 20} MiB.")
    try:
        weights = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        weights = None
    if not isinstance(weights, dict) or not weights:
        raise HeadwayError(f"{place} must be a dict of values and probabilities, got {shown(text)}.")
    total = 0.0
    for value, weight in weights.items():
        for number in (value, weight):
            if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number <= largest:
                raise HeadwayError(f"{place} contains {shown(number)}, which is not a number from 0 to {largest}.")
        total += weight
    if not (isfinite(total) and total > 0):
        raise HeadwayError(f"{place} has probabilities that are all 0.")
    return pickers(list(weights), weights.values())
