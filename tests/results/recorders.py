"""Recorders made by hand and at random, and the gaps that a request's tokens leave."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from headway.results.recorder import InstanceStats, Recorder, RunFacts
from headway.types import OUTCOMES, Path, Request

MS = 10**9
SECOND = 10**12
WORDS = ("tenant", "slo_class", "kind", "model", "session", "turn")


def record(rows: list[dict[str, Any]]) -> Recorder:
    """A recorder with these rows; each is completed unless it says otherwise."""
    recorder = Recorder()
    for row, values in enumerate(rows):
        tokens = values.get("prompt_tokens", 32)
        words = {name: values[name] for name in WORDS if name in values}
        recorder.record_arrival(values["arrival_ps"], Request(row, values["arrival_ps"], tokens, Path((), ()), **words))
        if values.get("started_ps", -1) >= 0:  # at once, unless it says otherwise
            values = {**dict.fromkeys(("admitted_ps", "routed_ps", "enqueued_ps"), values["arrival_ps"]), **values}
        for name, value in values.items():
            if name == "reason":
                recorder.reasons[row] = value
            elif name != "gaps" and name not in WORDS:
                getattr(recorder, name)[row] = OUTCOMES.index(value) if name == "outcome" else value
        for run in values.get("gaps", ()):
            recorder.gaps.extend(run)
    return recorder


def facts(**changes: Any) -> RunFacts:
    values: dict[str, Any] = {
        "started_ps": 0,
        "ended_ps": 10 * SECOND,
        "block_tokens": 16,
        "warmup": 0,
        "policy_metrics": {},
    }
    return RunFacts(**{**values, **changes})


def fleet(count: int, **figures: int) -> list[InstanceStats]:
    return [InstanceStats(f"i{index}", kv_blocks=100, usd_per_gpu_hour=2.0, **figures) for index in range(count)]


@st.composite
def rows(draw: st.DrawFn, instances: int = 3) -> list[dict[str, Any]]:
    """Possible rows in order of arrival, of every outcome, at any time up to 10 s."""
    built = []
    duration = st.integers(0, SECOND)
    for arrival in sorted(draw(st.lists(st.integers(0, 5 * SECOND), max_size=40))):
        row: dict[str, Any] = {
            "arrival_ps": arrival,
            "outcome": draw(st.sampled_from(OUTCOMES)),
            "prompt_tokens": draw(st.integers(1, 200)),
        }
        if row["outcome"] == "rejected":
            row["reason"] = "too busy"
        else:
            row["instance"] = draw(st.integers(0, instances - 1))
            row["started_ps"] = arrival + draw(duration)
            row["cached_tokens"] = draw(st.integers(0, row["prompt_tokens"] - 1))
        if row["outcome"] == "completed":
            row["output_tokens"] = draw(st.integers(1, 9))
            row["first_token_ps"] = row["started_ps"] + draw(duration)
            steps, first, increment = row["output_tokens"] - 1, draw(duration), draw(st.integers(0, MS))
            row["gaps"] = [(first, increment, steps, 1)] if steps else []
            row["finished_ps"] = row["first_token_ps"] + steps * first + increment * steps * (steps - 1) // 2
        built.append(row)
    return built
