"""`table`: step times interpolated between measured steps, without a formula."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Annotated, Any, Final

from msgspec import Struct

from headway.config import section
from headway.config.keys import Doc, Form
from headway.config.units import LONGEST_PS
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.latency.base import FOREVER, Chunk, LatencyKind, Run, times
from headway.latency.exact_numbers import PartDuration, StepDuration, positive
from headway.latency.gpus import Gpu
from headway.latency.scattered import Points, through
from headway.latency.shapes import ModelShape, models
from headway.latency.surface import Surface
from headway.latency.tables import COLUMNS, plain, read_rows, whole

MOST: Final = 1000  # maximum number of rows of decode steps, and of prefill steps
LARGEST: Final = 10**9  # maximum number of tokens in a row

Measured = tuple[int, int, int]  # (decodes, context, picoseconds) or (tokens, past, picoseconds)


class StepRow(Struct):
    """A row of `rows`: a step that only decodes, or a step with one prefill chunk."""

    time_ps: Annotated[StepDuration, "measured time of the step"]
    decodes: Annotated[int, "number of decodes"] = 0
    context: Annotated[int, "sum of their contexts, in tokens"] = 0
    prefill: Annotated[int, "tokens of the chunk"] = 0
    past: Annotated[int, "tokens before the chunk"] = 0


class StepTableParameters(Struct):
    """Keys of `latency: {model: table}`: either `file` or `rows`."""

    file: Annotated[
        Any, Form.of(str), Doc("CSV file of measured steps (columns below); excludes `rows`", type="text")
    ] = None
    rows: Annotated[Any, Form.of(list[StepRow]), Doc("measured steps as a list; excludes `file`", type="list")] = None
    shape: Annotated[
        Any,
        Form.of(str),
        Doc("use only rows with this value in the column `shape`; default: the cluster's `model`", type="text"),
    ] = None
    host_ps: Annotated[PartDuration, "added to each step for work that the measurements do not include"] = 0


class StepTable:
    """Interpolates measured step times on two surfaces. The first surface is for steps that only decode, as a function
    of the number of decodes and the sum of their contexts. The second is for steps of one chunk, as a function of the
    number of new tokens and of past tokens.

    The time of any other step is the sum of two parts. The first part is the longer of two times: the time of a single
    chunk with all tokens of the step but no past, and the time of the step's decodes without context. The second part
    is the time that contexts and pasts add. A step never takes less time than its decodes alone, or than any of its
    chunks alone.
    """

    def __init__(self, decode: tuple[Measured, ...], prefill: tuple[Measured, ...], host_ps: int = 0) -> None:
        self.decode, self.prefill, self.host_ps = decode, prefill, host_ps
        self._decode, self._contexts = _surfaces(decode, False)
        self._prefill, self._pasts = _surfaces(prefill, True)

    def scale(self, factor: Fraction) -> StepTable:
        decode, prefill = (
            tuple((row, place, times(ps, factor, 1)) for row, place, ps in rows) for rows in (self.decode, self.prefill)
        )
        return StepTable(decode, prefill, times(self.host_ps, factor))

    def split_host(self) -> tuple[StepTable, int, int]:
        return StepTable(self.decode, self.prefill), self.host_ps, 0

    def doubts(self, tokens: int, sequences: int) -> str | None:
        most, crowd = self._prefill.rows[-1], self._decode.rows[-1]
        if tokens <= most and sequences <= crowd:
            return None
        return (
            f"The steps of the table have at most {most:,} prompt tokens and {crowd:,} decodes. Larger steps, possible "
            f"with max_batch_tokens {tokens:,} and max_batch_size {sequences:,}, are extrapolated."
        )

    def run(self, decodes: int, context: int, chunks: Sequence[Chunk]) -> Run:
        alone: list[Run] = []
        if decodes:
            alone.append(_run(self._decode, decodes, context, self.host_ps))
        for length, past in chunks:
            alone.append(_run(self._prefill, length, past, self.host_ps))
        if len(alone) == 1:
            return alone[0]
        tokens = decodes
        first = increment = 0
        k_max = FOREVER
        added = [_run(self._contexts, decodes, context)] if decodes else []
        for length, past in chunks:
            tokens += length
            added.append(_run(self._pasts, length, past))
        for value, rise, steps in added:
            first += value
            increment += rise
            k_max = min(k_max, steps)
        first += self.host_ps + max(self._prefill.start(tokens), self._decode.start(decodes) if decodes else 0)
        return _highest((first, increment, k_max), alone)


def _build(keys: StepTableParameters, where: str, model: ModelShape, gpu: Gpu, tp: int) -> StepTable:
    if (keys.file is None) == (keys.rows is None):
        raise HeadwayError(f"{where}: set either 'file', a CSV file of measured steps, or 'rows'.")
    if keys.rows is None:
        place = str(keys.file)
        rows = _from_file(keys.file, keys.shape, model, where)
    else:
        place = f"{where}.rows"
        rows = _from_rows(keys.rows, place)
    decode = tuple((row.decodes, row.context, row.time_ps) for row in rows if row.decodes)
    prefill = tuple((row.prefill, row.past, row.time_ps) for row in rows if row.prefill)
    _check(decode, place, "decode steps", "numbers of decodes", "contexts")
    _check(prefill, place, "steps of one prefill chunk", "numbers of tokens", "pasts")
    return StepTable(decode, prefill, keys.host_ps)


MODEL: Final = LatencyKind("table", StepTableParameters, _build)


def _run(surface: Surface, count: int, place: int, beside: int = 0) -> Run:
    """Return the (first, increment, k_max) of a run of steps whose times lie on a surface. The first count is `count`
    in every step; the second count starts at `place` and grows by `count` per step. `beside` is added to each step
    time."""
    value, slope, room = surface.curve(count).at(place)
    return beside + value, slope * count, -(-room // count)


def _highest(run: Run, others: Sequence[Run]) -> Run:
    """Return the run of steps whose first step is the longest, cut to fewer steps if necessary. It is cut before the
    first step that is longer in another run, and it has at most as many steps as the shortest run."""
    first, increment, k_max = max(run, *others)
    for value, rise, steps in (run, *others):
        k_max = min(k_max, steps)
        if rise > increment:
            k_max = min(k_max, (first - value) // (rise - increment) + 1)
    return first, increment, k_max


@lru_cache(maxsize=16)
def _surfaces(rows: tuple[Measured, ...], grows: bool) -> tuple[Surface, Surface]:
    """Return two surfaces: the step times, and the part of the step times that context or past adds. If a step was
    measured several times, use the mean."""
    measured: dict[int, dict[int, list[int]]] = {}
    for row, place, ps in rows:
        measured.setdefault(row, {}).setdefault(place, []).append(ps)
    points: Points = {
        row: {place: max(1, sum(many) // len(many)) for place, many in line.items()} for row, line in measured.items()
    }
    whole_step = through(points, grows)
    return whole_step, whole_step.rises()


def _from_rows(data: object, where: str) -> list[StepRow]:
    if not isinstance(data, list):
        raise HeadwayError(f"{where}: expected a list of rows such as {{decodes: 8, context: 8192, time: 6ms}}.")
    rows = []
    for number, entry in enumerate(data):
        place = f"{where}[{number}]"
        row = section.read(StepRow, entry, place)
        for key in ("decodes", "context", "prefill", "past"):
            _within(getattr(row, key), f"{place}.{key}")
        if (row.decodes > 0) == (row.prefill > 0) or (row.context and not row.decodes) or (row.past and row.decodes):
            raise HeadwayError(f"{place}: set either 'decodes' and 'context', or 'prefill' and 'past'.")
        rows.append(row)
    return rows


def _from_file(path: object, shape: object, model: ModelShape, where: str) -> list[StepRow]:
    """Return the steps of a model in a file of measured steps. Only steps that have either decodes or a single chunk
    are returned."""
    if not isinstance(path, str):
        raise HeadwayError(f"{where}.file: expected the path of a CSV file, got {shown(path)}.")
    model_name = model.name if shape is None else str(shape)
    rows = []
    others: dict[str, None] = {}
    for place, row in read_rows(path, COLUMNS):
        if row.get("shape") and _canonical(row["shape"]) != _canonical(model_name):
            others[row["shape"]] = None
            continue
        decodes, context, count, tokens = (_figure(row, key, place) for key in COLUMNS[:4])
        if bool(count) != bool(tokens) or not decodes + tokens:
            raise HeadwayError(f"{place}: a step needs decodes ('batch') or chunks ('n_prefill' and 'new_tokens').")
        ps = round(positive(row["median_ms"], f"{place}, median_ms") * 10**9)
        if not 1 <= ps <= LONGEST_PS:
            raise HeadwayError(f"{place}, median_ms: must lie between 1ps and 100d, got {shown(row['median_ms'])}.")
        if not count:
            rows.append(StepRow(ps, decodes, context))
        elif count == 1 and not decodes:
            rows.append(StepRow(ps, prefill=tokens, past=_figure(row, "past_context", place)))
    if others and not rows:
        raise HeadwayError(
            f"{where}.shape: {path} has no step of {shown(model_name)}. It has steps of {', '.join(others)}."
        )
    return rows


def _canonical(name: str) -> str:
    """Return the name of a model in the table of models. If the table lacks the model, return the normalized name."""
    try:
        return models().find(name, "model", "").name
    except HeadwayError:
        return plain(name)


def _figure(row: dict[str, Any], key: str, place: str) -> int:
    return _within(whole(row[key], f"{place}, {key}"), f"{place}, {key}")


def _within(count: int, where: str) -> int:
    if not 0 <= count <= LARGEST:
        raise HeadwayError(f"{where}: must lie between 0 and {LARGEST:,}, got {count}.")
    return count


def _check(rows: tuple[Measured, ...], where: str, kind: str, counted: str, along: str) -> None:
    lines: dict[int, set[int]] = {}
    for row, place, _ in rows:
        lines.setdefault(row, set()).add(place)
    if len(lines) < 2 or all(len(places) < 2 for places in lines.values()):
        raise HeadwayError(
            f"{where}: too few {kind}. The table needs at least two {counted}, one of them with two {along}."
        )
    if len(rows) > MOST:
        raise HeadwayError(f"{where}: {len(rows):,} {kind} are too many. The limit is {MOST:,}.")
