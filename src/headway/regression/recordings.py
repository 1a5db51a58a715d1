"""Recorded runs as the sides of a check: run folders, and folders of live traffic with a run folder for each chapter.

A recording is cut into windows of consecutive requests, and the figures of the requests are computed in each window.
The windows are the replicates of a check. If neighbouring windows resemble each other, they are merged in pairs until
they do not, because an interval from dependent windows would be too narrow (batch means).
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import fsum
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from headway import __version__
from headway.config.wording import cut
from headway.errors import HeadwayError
from headway.regression.sequential import FIRST
from headway.results import store
from headway.results.groups import GROUPS, promises
from headway.results.metrics import cache_ratios
from headway.results.recorder import RequestColumns, RunFacts
from headway.results.result import Result
from headway.results.sample import attainment, completed_sample, latency, throughput
from headway.results.table import Columns
from headway.scenario import references
from headway.types import OUTCOMES, Json

MOST: Final = 64  # windows of a recording
LEAST: Final = 100  # requests of a window
FIRST_REQUEST: Final = "first_request"  # the gateway writes this key in place of a workload
RESEMBLE: Final = 0.3  # greatest correlation between neighbouring windows
ALIKE: Final = 0.1  # greatest relative difference in lengths between recordings of different requests
READ: Final = (
    "tenant", "slo_class", "arrival_ps", "started_ps", "first_token_ps", "finished_ps", "outcome", "prompt_tokens",
    "output_tokens", "cached_tokens",
)  # fmt: skip


class Recording(Struct):
    """The counted requests of a recording, in order of arrival, and what the figures need of its scenario."""

    label: str
    live: bool
    columns: dict[str, list[Any]]
    names: dict[str, dict[str, int]]
    facts: RunFacts
    findings: dict[str, str]
    planned: Json | None = None  # the workload and its seed; None if clients sent the traffic

    def __len__(self) -> int:
        return len(self.columns["arrival_ps"])


class Part(RequestColumns):
    """Some of the requests of a recording."""

    def __init__(self, recording: Recording, rows: Sequence[int]) -> None:
        self.names = recording.names
        for name in READ:
            column = recording.columns[name]
            setattr(self, name, [column[row] for row in rows])


def read_recording(source: Path | Result, label: str, kinds: Callable[[Any], dict[str, str]]) -> Recording:
    """Return a result, a run folder, or all chapters of a folder of live traffic as a recording."""
    if isinstance(source, Result):
        return _recording(source, label, kinds)
    folder = source
    processes = sorted({each.parent.parent for each in folder.glob(f"*/*/{store.MANIFEST}")})
    if processes and not (folder / store.STUDY).exists():
        remedy = f"Name the folder of one of them, such as {processes[0]}."
        raise HeadwayError(f"{cut(label)}: contains the recordings of several gateway processes. {remedy}")
    several = sorted((each.parent for each in folder.glob(f"*/{store.MANIFEST}")), key=_chapter)
    single = (folder / store.MANIFEST).exists() or (folder / store.STUDY).exists() or not several
    parts = [_read(place, label, kinds) for place in ([folder] if single else several)]
    recording, *rest = parts
    for part in rest:
        if not (recording.live and part.live):
            raise HeadwayError(f"{cut(label)}: contains several simulated runs; name the folder of one of them.")
        _append(recording, part)
        recording.findings = {}  # each chapter has its own
    return recording


def _chapter(folder: Path) -> tuple[bool, int, str]:
    """Return a sort key: the name of a chapter is the number of its first request."""
    return not folder.name.isdecimal(), int(folder.name) if folder.name.isdecimal() else 0, folder.name


def _read(folder: Path, label: str, kinds: Callable[[Any], dict[str, str]]) -> Recording:
    manifest = store.manifest(folder)
    result = Result.load(folder)
    recording = _recording(result, label, kinds)
    if not recording.live and manifest is not None and manifest.headway != __version__:
        wrong = f"was simulated by Headway {manifest.headway}, and this is {__version__}"
        raise HeadwayError(f"{cut(label)}: {wrong}. Run it again, so that both sides have one simulator.")
    return recording


def _recording(result: Result, label: str, kinds: Callable[[Any], dict[str, str]]) -> Recording:
    live = bool(result.scenario.get("live"))
    columns = Columns(result.requests)
    warmup = result.scenario["warmup"]
    promised = promises(result.scenario)
    facts = RunFacts(
        started_ps=0,
        ended_ps=0,
        block_tokens=int((result.scenario["cluster"].get("kv") or {}).get("block_tokens", 1)),
        warmup=0,
        policy_metrics={},
        slo=promised.default,
        tenant_slos=promised.own,
    )
    known = {name: list(getattr(columns, name))[warmup:] for name in READ}
    planned = None
    if FIRST_REQUEST not in result.scenario["workload"]:
        workload = references.replace_by_digests(result.scenario["workload"])
        planned = {"workload": workload, "seed": result.scenario["seed"].get("workload"), "warmup": warmup}
    return Recording(label, live, known, columns.names, facts, kinds(result.findings()), planned)


def _append(recording: Recording, part: Recording) -> None:
    """Add the requests of the next chapter. Its times continue those of the chapter before, and its words get codes."""
    for name in ("tenant", "slo_class"):
        codes = recording.names[name]
        own = {code: codes.setdefault(word, len(codes)) for word, code in part.names[name].items()}
        part.columns[name] = [own[code] for code in part.columns[name]]
    for name in READ:
        recording.columns[name] += part.columns[name]


def compatible(base: Recording, candidate: Recording) -> bool:
    """Return whether both recordings have the same requests, so that their windows can be paired. If their traffic
    differs in kind, raise an error."""
    planned = base.planned is not None and candidate.planned is not None
    if base.planned == candidate.planned if planned else _prompts(base) == _prompts(candidate):
        return True
    if planned or not (base.live and candidate.live):
        raise HeadwayError(
            f"{cut(base.label)} and {cut(candidate.label)} have different requests. "
            "A check needs the same workload on both sides: run both with one scenario."
        )
    for name, unit in (("prompt_tokens", "prompt tokens"), ("output_tokens", "output tokens")):
        means = [fsum(side.columns[name]) / max(1, len(side)) for side in (base, candidate)]
        if abs(means[1] - means[0]) > ALIKE * means[0]:
            raise HeadwayError(
                f"{cut(base.label)} and {cut(candidate.label)} have different workloads: {means[0]:,.0f} and "
                f"{means[1]:,.0f} {unit} per request. Choose recordings of similar traffic."
            )
    return False


def _prompts(recording: Recording) -> list[int]:
    prompts: list[int] = recording.columns["prompt_tokens"]
    return prompts


def windows(recording: Recording, many: int) -> list[Json]:
    """Return the figures of the requests in each of `many` windows."""
    edges = [len(recording) * place // many for place in range(many + 1)]
    arrivals = recording.columns["arrival_ps"]
    return [
        _summary(recording, range(low, high), arrivals[min(high, len(arrivals) - 1)] - arrivals[low])
        for low, high in pairwise(edges)
    ]


def how_many(recordings: Sequence[Recording]) -> int:
    """Return the number of windows into which the recordings are cut at first."""
    many = MOST
    while many > FIRST and min(map(len, recordings)) < many * LEAST:
        many //= 2
    shortest = min(recordings, key=len)
    if len(shortest) < many * LEAST:
        raise HeadwayError(
            f"{cut(shortest.label)}: has {len(shortest):,} requests; {many} windows of {LEAST} need {many * LEAST}. "
            "Record more traffic."
        )
    return many


def independent(series: Sequence[float]) -> bool:
    """Return whether neighbouring values of a series do not resemble each other."""
    mean = fsum(series) / len(series)
    apart = [value - mean for value in series]
    whole = fsum([each * each for each in apart])
    return not whole or fsum([one * other for one, other in pairwise(apart)]) <= RESEMBLE * whole


def _summary(recording: Recording, rows: Sequence[int], window_ps: int) -> Json:
    """Return the sections of a summary that the requests alone determine, also by tenant and class."""
    whole = _sections(recording, rows, window_ps)
    for column in ("tenant", "slo_class"):
        codes = recording.columns[column]
        members: dict[int, list[int]] = {}
        for row in rows:
            members.setdefault(codes[row], []).append(row)
        whole[GROUPS[column]] = [
            {"id": word, **_sections(recording, members[code], window_ps)}
            for word, code in sorted(recording.names[column].items())
            if code in members
        ]
    return whole


def _sections(recording: Recording, rows: Sequence[int], window_ps: int) -> Json:
    part = Part(recording, rows)
    sample = completed_sample(part, recording.facts)
    counts = {outcome: list(part.outcome).count(code) for code, outcome in enumerate(OUTCOMES)}
    return {
        "requests": {"arrived": len(rows), **counts},
        "latency": latency(sample),
        "throughput": throughput(sample, window_ps),
        "cache": cache_ratios(part, recording.facts),
        "slo": attainment(sample, len(rows), window_ps),
    }
