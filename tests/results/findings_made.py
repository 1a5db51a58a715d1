"""Results made by hand for the detectors of findings, and what is common to their tests."""

from __future__ import annotations

from random import Random
from typing import Any

from recorders import SECOND, record

from headway.results.findings import find
from headway.results.findings.observed import Observed
from headway.results.records import Finding
from headway.results.result import Result
from headway.results.table import Table

Json = dict[str, Any]


def request(arrival: float, *, start: float = -1, first: float = -1, end: float = -1, **more: Any) -> Json:
    """A row, its times in seconds: sent to instance 0 as it arrives, and completed unless it never ended."""
    at = round(arrival * SECOND)
    row: Json = {"arrival_ps": at, "admitted_ps": at, "routed_ps": at, "enqueued_ps": at, "instance": 0}
    times = {"started_ps": start, "first_token_ps": first, "finished_ps": end}
    row |= {name: round(time * SECOND) if time >= 0 else -1 for name, time in times.items()}
    row |= {"outcome": "completed" if end >= 0 else "in_flight", "output_tokens": 2}
    return row | more


def result(rows: list[Json], *, instances: int | list[Json] = 1, scenario: Json | None = None, **more: Any) -> Result:
    """The run that these rows are of, which ends with the last of them unless `duration_s` says otherwise."""
    table = Table.of(record(rows))
    ends = [max(row.get("finished_ps", -1), row["arrival_ps"]) for row in rows]
    summary: Json = {
        "duration_s": (max(ends) - rows[0]["arrival_ps"]) / SECOND if rows else 0.0,
        "instances": [{"id": f"i{k}"} for k in range(instances)] if isinstance(instances, int) else instances,
    }
    summary |= more.pop("summary", {})
    return Result(scenario or {}, table, summary, **more)


def seen(rows: list[Json], **more: Any) -> Observed:
    return Observed(result(rows, **more))


def of_kind(run: Result, kind: str) -> list[Finding]:
    return [finding for finding in find(run) if finding.kind == kind]


def kinds(run: Result) -> set[str]:
    return {finding.kind for finding in find(run)}


def drawn(rng: Random, count: int, instances: int = 3) -> list[Json]:
    """Rows at random, with small whole times so that many are equal; every kind of wait and end is among them."""
    rows = []
    for arrival in sorted(rng.randrange(40) for _ in range(count)):
        enqueued = arrival + rng.randrange(3)
        row: Json = {
            "arrival_ps": arrival, "admitted_ps": arrival, "routed_ps": enqueued, "enqueued_ps": enqueued,
            "instance": rng.randrange(instances), "prompt_tokens": rng.choice((10, 300, 1500, 5000, 20000)),
            "slo_class": rng.choice(("realtime", "standard", "batch", "gold")), "priority": rng.choice((0.0, 1.0)),
            "tenant": rng.choice("ab"),
        }  # fmt: skip
        waited = enqueued + rng.randrange(12)
        fate = rng.random()
        if fate < 0.8:
            row |= {"started_ps": waited, "first_token_ps": waited + 1 + rng.randrange(6), "cached_tokens": 5}
            steps = rng.randrange(4)
            row |= {"finished_ps": row["first_token_ps"] + steps * rng.randrange(4), "outcome": "completed"}
            row |= {"output_tokens": 1 + steps, "predicted_tokens": rng.choice((0, row["prompt_tokens"]))}
        elif fate < 0.9:
            row |= {"finished_ps": waited, "outcome": "timed_out"}
        if rng.random() < 0.05:
            row["redirects"] = 1
        rows.append(row)
    return rows
