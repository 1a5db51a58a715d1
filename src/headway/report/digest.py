"""What a page shows of one run, small enough to keep several: made from a result that can go again afterwards."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct

from headway.report.charts.base import brief
from headway.report.charts.distributions import Curve, curve
from headway.report.decided import Decided, decided
from headway.report.over_time import Grid, Loads, coarse, loads
from headway.results.recorder import COMPLETED
from headway.results.records import Finding
from headway.results.result import Result
from headway.results.scaling import levels
from headway.results.table import Coded
from headway.types import OUTCOMES, PS_PER_SECOND, SERVING, Json

CELLS: Final = 10  # of a calibration, a side


class Event(Struct, frozen=True):
    """Something that happened to the cluster, or several of the same kind in one part of the run."""

    kind: str
    at_s: float
    count: int
    said: str = ""


class Digest(Struct, frozen=True):
    """One run as its charts need it."""

    label: str
    folder: str  # empty where it lies in none
    summary: Json
    names: dict[int, str]  # of the instances, by index
    curves: dict[str, Curve]
    loads: Loads
    kv: dict[int, list[float | None]]  # by instance: the share of its GPU's blocks in use
    replicas: list[tuple[float, int]]  # from when on there were how many that serve
    events: list[Event]
    calibration: dict[tuple[int, int], int]  # cells of believed and actual share of the prompt cached: requests
    decided: Decided | None
    findings: list[Finding]


def digest(label: str, result: Result, folder: str = "") -> Digest:
    found = loads(result)
    return Digest(
        label=label,
        folder=folder,
        summary=result.summary(),
        names=result.instance_ids(),
        curves=curves(result),
        loads=found,
        kv=_kv(result, found.grid),
        replicas=_replicas(result),
        events=_events(result, found.grid),
        calibration=calibration(result) if "shadow" in result.summary() else {},
        decided=decided(result),
        findings=result.findings(),
    )


def curves(result: Result) -> dict[str, Curve]:
    """The distributions of the requests that statistics are about: completed, and not of the warm-up."""
    warmup = result.scenario["warmup"]
    table = result.requests
    columns = [table.column(name) for name in ("arrival_ps", "first_token_ps", "finished_ps", "output_tokens")]
    ttft, tpot, e2e = array("q"), array("d"), array("q")
    done = _is(table.column("outcome"), OUTCOMES[COMPLETED])
    for place, (arrival, first, finished, tokens) in enumerate(zip(*columns, strict=True)):
        if place < warmup or not done[place]:
            continue
        ttft.append(first - arrival)
        e2e.append(finished - arrival)
        if tokens > 1:
            tpot.append((finished - first) / (tokens - 1))
    return {"ttft": curve(ttft), "tpot": curve(tpot), "e2e": curve(e2e)}


def _is(column: Sequence[Any], word: str) -> bytearray:
    """Of each entry whether it is this word."""
    if isinstance(column, Coded):
        code = column.words.index(word) if word in column.words else -1
        return bytearray(one == code for one in column.codes)
    return bytearray(one == word for one in column)


def calibration(result: Result) -> dict[tuple[int, int], int]:
    """How often a share of a prompt was believed cached and another found, in tenths."""
    found: dict[tuple[int, int], int] = {}
    names = ("started_ps", "prompt_tokens", "predicted_tokens", "cached_tokens")
    for started, prompt, believed, cached in zip(*(result.requests.column(name) for name in names), strict=True):
        if started >= 0 and prompt > 0:
            cell = (_tenth(believed, prompt), _tenth(cached, prompt))
            found[cell] = found.get(cell, 0) + 1
    return dict(sorted(found.items()))


def _tenth(part: int, whole: int) -> int:
    return min(CELLS - 1, CELLS * part // whole)


def _kv(result: Result, grid: Grid) -> dict[int, list[float | None]]:
    instances = result.instances()
    found = {}
    for series in result.series:
        whole = instances.get(series.instance, {}).get("kv_blocks")
        if series.name == "kv_used" and whole:
            values = coarse(series, grid)
            found[series.instance] = [None if value is None else brief(value / whole) for value in values]
    return found


def _replicas(result: Result) -> list[tuple[float, int]]:
    return [(level.at_ps / PS_PER_SECOND, level.serving) for level in levels(result.states)]


def _events(result: Result, grid: Grid) -> list[Event]:
    """What the autoscaler did, what faults did, and preemptions and thrashing by part of the run."""
    found = []
    for one in result.scaling_events:
        kind = "scaled up" if one.after > one.before else "scaled down"
        said = f"{one.pool}: {one.before} to {one.after}" + (f", {one.reason}" if one.reason else "")
        found.append(Event(kind, one.at_ps / PS_PER_SECOND, abs(one.after - one.before), said))
    names, before = result.instance_ids(), dict[int, str]()
    for change in result.states:
        # Who stops without being emptied first has crashed.
        crashed = change.state == "stopped" and before.get(change.instance) in SERVING
        if crashed or change.state == "unreachable":
            kind = "crashed" if crashed else "unreachable"
            found.append(Event(kind, change.at_ps / PS_PER_SECOND, 1, names.get(change.instance, "")))
        before[change.instance] = change.state
    for kind, times in (("preempted", result.preemptions), ("thrashed", result.thrashes)):
        counts: dict[int, int] = {}
        for when in times:
            into = (when.at_ps - grid.start_ps) // grid.step_ps
            counts[into] = counts.get(into, 0) + 1
        found += [Event(kind, grid.seconds(into), count) for into, count in counts.items()]
    return found
