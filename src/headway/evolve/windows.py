"""Windows of a trace: parts of one trace that are the replicates of a comparison, as seeds are for generated workloads.

Each window is simulated alone. Before its own requests, the requests of a lead-in are replayed, which fill the caches
and queues, but do not count.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final

from msgspec import Meta, Struct

from headway.config.keys import Doc, Form
from headway.errors import HeadwayError
from headway.types import Json

MOST: Final = 1000  # maximum number of windows in one entry


class Windows(Struct, frozen=True):
    """Windows of equal size, counted in requests of the trace after its own transforms."""

    requests: Annotated[int, Meta(ge=1), "requests that count in each window"]
    windows: Annotated[int, Meta(ge=1, le=MOST), "number of windows"]
    first: Annotated[int, Meta(ge=0), "number of the first request that counts, from 0"] = 0
    lead_in: Annotated[int, Meta(ge=0), "requests before each window that are replayed and do not count"] = 0
    every: Annotated[
        int | None,
        Form.of(Annotated[int, Meta(ge=1)]),
        Doc("requests between the starts of two windows", default="requests: windows touch"),
    ] = None


def scenarios(windows: Windows, scenario: Json, where: str) -> Iterator[Json]:
    """Yield the scenario of each window: a slice of the trace, with the lead-in as `warmup`."""
    workload = scenario["workload"]
    trace = workload.get("trace")
    step = windows.requests if windows.every is None else windows.every
    if not isinstance(trace, dict):
        raise HeadwayError(f"{where}: only a trace has windows. Set a list of seeds, or a range.")
    if step < windows.requests:
        raise HeadwayError(f"{where}.every: must be at least {windows.requests}, so that windows do not overlap.")
    if windows.first < windows.lead_in:
        raise HeadwayError(f"{where}.first: must be at least {windows.lead_in}, so that the lead-in has its requests.")
    for number in range(windows.windows):
        start = windows.first + number * step
        cut = {"slice": {"requests": [start - windows.lead_in, start + windows.requests]}}
        sliced = {**trace, "transforms": [*(trace.get("transforms") or []), cut]}
        yield {**scenario, "workload": {**workload, "trace": sliced}, "warmup": windows.lead_in}
