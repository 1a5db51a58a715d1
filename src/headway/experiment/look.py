"""The verbs of `headway workload` and `headway trace` as functions, which return the document of `--json`."""

import pathlib
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, ClassVar, Final

from msgspec import to_builtins
from msgspec.structs import replace

from headway.config.arguments import checked
from headway.config.wording import shown, suggest
from headway.display.displayed import Document, Types, cells, columns_of
from headway.display.progress import Bar, watch
from headway.errors import HeadwayError, argument
from headway.scenario.scenario import DEFAULT, Scenario, Source
from headway.workload import inspect as traces
from headway.workload.planned_trace import planned_trace
from headway.workload.preview import REQUESTS
from headway.workload.preview import preview as look
from headway.workload.reuse import ORDERS, Order
from headway.workload.traces import open_trace
from headway.workload.traces.columns import parse_columns
from headway.workload.traces.record import Options
from headway.workload.traces.table import Trace
from headway.workload.transforms import parse
from headway.workload.transforms.rewrite import Count, rewrite, write_trace

Progress = Callable[[int], None]  # argument: number of requests read so far

CAPACITIES: Final = (1_000, 10_000, None)
INSTANCES: Final = (1, 8)
GROUPS: Final = ("tenants", "kinds", "models")


class WorkloadFigures(Document):
    """Figures of requests that were not simulated: lengths, rates, sessions and reuse."""

    _types: ClassVar[Types] = {"name": str}

    def columns(self) -> dict[str, list[Any]]:
        """Return a row for all requests, and a row for each tenant, kind and model. The columns of `prompt_tokens` and
        `output_tokens` are statistics of the lengths, such as the mean."""
        rows: list[tuple[str, Any]] = [("all", self)]
        rows += [(group.removesuffix("s"), each) for group in GROUPS for each in self.get(group, ())]
        names = ("requests", "share", "rate_per_s", "prompt_tokens", "output_tokens")
        return columns_of(
            {"group": group, "name": row.get("name"), **cells({name: row[name] for name in names if name in row})}
            for group, row in rows
        )


class Preview(WorkloadFigures):
    """Figures of a scenario's first requests."""

    _view: ClassVar[str] = "headway.report.notebook:preview_view"


class TraceFigures(WorkloadFigures):
    """Figures of a trace file."""

    _view: ClassVar[str] = "headway.report.notebook:trace_view"


class WrittenTrace(Document):
    """The number of requests written to a trace, and the fields that its format cannot express."""

    _view: ClassVar[str] = "headway.report.notebook:written_view"

    def columns(self) -> dict[str, list[Any]]:
        """Return one row."""
        return columns_of([cells(self)])


@checked
def preview(
    scenario: Source = DEFAULT,
    *,
    requests: int = REQUESTS,
    overrides: str | Iterable[str] = (),
    progress: bool = True,
) -> Preview:
    """Return the figures of a scenario's first `requests`: rate over time, lengths, sessions, reusable prefixes.
    Nothing is simulated: a request that follows an answer arrives as if answers took no time."""
    if requests < 1:
        raise HeadwayError(f"{argument('requests')}: must be at least 1, got {requests}.")
    loaded = Scenario.load(scenario, overrides)
    with watch(progress, lambda: Bar(None, "drawing requests")):
        figures = look(loaded.workload, loaded.seed.workload, loaded.cluster.default_model(), requests)
    return Preview({"scenario": loaded.name, **figures})


@checked
def inspect_trace(
    path: str | pathlib.Path,
    *,
    format: str | None = None,
    capacities: Sequence[int | None] = CAPACITIES,
    instances: Sequence[int] = INSTANCES,
    order: Order = "first-to-last",
    block_tokens: int | None = None,
    limit: int | None = None,
    seed: int = 0,
    start: str | None = None,
    duration: str | None = None,
    columns: Any = None,
    skip_bad: bool = False,
    progress: Progress | bool = True,
) -> TraceFigures:
    """Return the figures of a trace file: rate, lengths, sessions, and the hits in LRU caches. There is one result for
    each of the `capacities` (in blocks of the trace; None means unlimited) and each number of `instances`. The `order`
    in which a cache uses the blocks of a prompt is first-to-last or, as in an engine, tail-first. `seed`, `start` and
    `duration` are for a format that draws its requests at random. `columns` maps fields to the columns of a table of
    your own, as in {"arrival": "ts_ms:ms", "prompt": "in_tok", "output": "out_tok"}. `skip_bad` skips its invalid
    rows."""
    if order not in ORDERS:
        raise HeadwayError(f"order: there is no order {shown(order)}.{suggest(str(order), ORDERS)}")
    for name, values in (("capacities", capacities), ("instances", instances)):
        for value in values:
            if value is not None and value < 1:
                raise HeadwayError(f"{name}: must be at least 1, got {value}.")
    source = pathlib.Path(path)
    options = _options(block_tokens, limit, seed, start, duration, columns, skip_bad)
    with watch(progress, lambda: Bar(None, "requests")) as report:
        reader = open_trace(source, format, replace(options, stage=_stage(report)))
        reader.records = Count(report).over(reader.records)
        trace = Trace.load(reader)
        if not len(trace):
            raise HeadwayError(f"{source.name}: the file has no requests.")
        return TraceFigures(traces.describe(trace, capacities, instances, order))


@checked
def convert_trace(
    source: str | pathlib.Path,
    target: str | pathlib.Path,
    *,
    transforms: Sequence[Any] = (),
    format: str | None = None,
    to: str | None = None,
    block_tokens: int | None = None,
    limit: int | None = None,
    seed: int = 0,
    start: str | None = None,
    duration: str | None = None,
    columns: Any = None,
    skip_bad: bool = False,
    progress: Progress | bool = True,
) -> WrittenTrace:
    """Rewrite a trace with `transforms` (as in a scenario: `[{"cap": {"max_turns": 8}}]`) in the format `to`, and
    return the number of requests and what was lost. By default, the target's name determines the format. `columns` and
    `skip_bad` are for a table of your own, as in `inspect_trace`."""
    options = _options(block_tokens, limit, seed, start, duration, columns, skip_bad)
    with watch(progress, lambda: Bar(None, "requests")) as report:
        counts = rewrite(
            pathlib.Path(source),
            pathlib.Path(target),
            parse(transforms, "transforms"),
            read_format=format,
            format=to,
            options=replace(options, stage=_stage(report)),
            progress=report,
        )
    return WrittenTrace({"in": str(source), "out": str(target), **to_builtins(counts)})


@checked
def write_workload(
    scenario: Source = DEFAULT,
    target: str | pathlib.Path = "workload.jsonl",
    *,
    overrides: str | Iterable[str] = (),
    to: str | None = None,
    requests: int | None = None,
    progress: Progress | bool = True,
) -> WrittenTrace:
    """Write the requests that a scenario's workload plans as a trace: all requests, or the first `requests`.

    `to` is the format; by default, the target's name determines it. The scenario may be a run folder: its workload is
    generated again, which gives the same requests.
    """
    if isinstance(scenario, str | pathlib.Path) and (run := pathlib.Path(scenario) / "scenario.yaml").is_file():
        scenario = run
    loaded = Scenario.load(scenario, overrides)
    reader = planned_trace(loaded.workload.plan(loaded.seed.workload, loaded.cluster.default_model()), loaded.name)
    if requests is not None:
        if requests < 1:
            raise HeadwayError(f"{argument('requests')}: must be at least 1, got {requests}.")
        reader.records = islice(reader.records, requests)
    with watch(progress, lambda: Bar(requests, "requests")) as report:
        counts = write_trace(reader, pathlib.Path(target), source=loaded.name, format=to, progress=report)
    return WrittenTrace({"scenario": loaded.name, "out": str(target), **to_builtins(counts)})


def _stage(report: Any) -> Callable[[str, int], None] | None:
    return report.stage if isinstance(report, Bar) else None


def _options(
    block_tokens: int | None,
    limit: int | None,
    seed: int,
    start: str | None,
    duration: str | None,
    columns: Any,
    skip_bad: bool,
) -> Options:
    for name, value in (("block_tokens", block_tokens), ("limit", limit)):
        if value is not None and value < 1:
            raise HeadwayError(f"{argument(name)}: must be at least 1, got {value}.")
    parsed = None if columns is None else parse_columns(columns, argument("columns", "--map"))
    return Options(block_tokens, limit, start, duration, seed, parsed, skip_bad)
