"""Workloads of extreme sizes and of any content: a sentence, or requests that come soon and in little memory."""

from __future__ import annotations

import copy
import os
import tracemalloc
from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest
from generated import plan, spec
from hypothesis import given
from hypothesis import strategies as st

from drawing import draws
from headway.errors import HeadwayError
from headway.workload.plans import MOST_STEPS
from headway.workload.spec import load_preset, preset_names
from headway.workload.traffic import Planned, Sessions

HUGE = 2**31 - 1
AGENT = {"kind": "agentic", "tool_call": 1, "calls": HUGE}
EXTREMES: dict[str, dict[str, Any]] = {
    "volleys": {"rate": "1000000/s", "behaviour": {"type": "abusive", "rapid_fire": {"size": 1_000_000}}},
    "bursts": {"rate": "1/s", "kind": "chat", "behaviour": {"type": "adversarial", "size": 1_000_000}},
    "many at once": {"rate": "1/s", "kind": "chat", "arrival": {"process": "adversarial", "size": 1_000_000}},
    "long agents": {"rate": "1/h", "kind": AGENT | {"subagents": {"probability": 0.001}}},
    "many sub-agents": {"rate": "1/h", "kind": AGENT | {"subagents": {"probability": 1, "count": HUGE, "turns": HUGE}}},
    "long thoughts": {"rate": "1/h", "kind": {"kind": "reasoning", "turns": HUGE, "steps": HUGE}},
    "idle users": {"requests": 50, "closed_loop": {"concurrency": 100_000}, "kind": "chat"},
    "users of many groups": {
        "closed_loop": {"concurrency": 200, "think_time": "0s"},
        "prefix": {"groups": 100_000, "tokens": 9, "popularity": "zipf"},
    },
}


@pytest.mark.full
@pytest.mark.parametrize("name", EXTREMES)
def test_the_first_requests_of_an_extreme_workload_take_little_memory(name: str) -> None:
    tracemalloc.start()
    requests = plan(first=50, **({"requests": 1_000_000} | EXTREMES[name]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(requests) == 50
    assert peak < 30e6


def test_a_session_has_at_most_as_many_requests_as_is_said() -> None:
    kind = AGENT | {"subagents": {"probability": 0.5, "count": 700, "turns": 3}}
    traffic = spec(requests=3 * MOST_STEPS, rate="0.001/h", kind=kind).plan(3, "m")
    assert isinstance(traffic, Sessions)
    lengths: dict[str | None, int] = {}
    for item in islice(traffic, 2 * MOST_STEPS + 1):
        lengths[item.request.session] = lengths.get(item.request.session, 0) + 1
    assert list(lengths.values()) == [MOST_STEPS, MOST_STEPS, 1]


def test_bursts_that_hardly_ever_come_are_told_instead_of_sought() -> None:
    for section, where in [
        ({"behaviour": {"type": "bursty", "probability": 1e-300}}, "workload.behaviour.probability"),
        ({"archetype": {"burst_propensity": 1e-9}}, "workload.archetype.burst_propensity"),
    ]:
        with pytest.raises(HeadwayError) as error:
            spec(requests=9, rate="1/s", **section)
        assert str(error.value).startswith(f"{where}: must be 0 or at least 0.0001, got 1e-")
    assert len(plan(requests=9, rate="1/s", behaviour={"type": "bursty", "probability": 0})) == 9


def test_the_users_of_a_closed_loop_know_the_same_groups() -> None:
    prefix = {"groups": 5, "tokens": {"dist": "uniform", "min": 5, "max": 500}}
    requests = plan(requests=300, closed_loop={"concurrency": 30}, prompt_tokens=600, prefix=prefix)
    ends = {(item.request.path.keys[0], item.request.path.ends[0]) for item in requests}
    assert len(ends) == len({key for key, _ in ends}) == 5


def test_a_thousand_tenants_share_a_rate() -> None:
    requests = plan(requests=300, rate="100/s", prompt_tokens=5, tenants={f"t{number}": {} for number in range(1000)})
    assert len({item.request.tenant for item in requests}) > 200


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize(
    "section",
    [
        {"trace": {"path": "pipe"}},
        {"trace": {"path": "pipe", "format": "mooncake"}},
        {"trace": {"path": "pipe", "format": "servegen"}},
        {"requests": 5, "rate": "1/s", "prompt_tokens": {"dist": "empirical", "path": "pipe"}},
        {"requests": 5, "arrival": {"process": "trace", "path": "pipe"}},
    ],
)
def test_nobody_waits_for_a_pipe(section: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(HeadwayError, match=r"pipe.* (is a pipe or a device|is not a readable text file)"):
        plan(**section)


def test_a_file_of_lengths_is_read_line_by_line(tmp_path: Path) -> None:
    file = tmp_path / "lengths.txt"
    file.write_text("7\n\n 9\n" * 20_000)
    tracemalloc.start()
    requests = plan(requests=50, rate="1/s", prompt_tokens={"dist": "empirical", "path": str(file)})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert {item.request.prompt_tokens for item in requests} == {7, 9}
    assert peak < 1e6
    file.write_text("7" * 10_000_000)
    with pytest.raises(HeadwayError, match=r"^lengths.txt line 1: a length is a whole number"):
        plan(requests=1, rate="1/s", prompt_tokens={"dist": "empirical", "path": str(file)})


# --- any content ------------------------------------------------------------------------------------------------------

FULL: dict[str, Any] = {
    "requests": 100,
    "duration": "10s",
    "rate": "5/s",
    "arrival": {"process": "gamma", "cv": 2.0},
    "profile": {"type": "diurnal", "period": "1h", "low": 0.3, "high": 1.7, "peak_at": "10m"},
    "prompt_tokens": {"dist": "empirical", "values": [3, 4], "weights": [1, 2]},
    "output_tokens": {"dist": "geometric", "mean": 5, "min": 1, "max": 30},
    "max_tokens": {"dist": "uniform", "min": 3, "max": 9},
    "prefix": {"groups": [{"name": "a", "tokens": 5, "popularity": 2, "reuse": 0.5}, {"name": "b"}], "tokens": 4},
    "kinds": [
        {"kind": "chat", "weight": 2, "think_time": {"dist": "lognormal", "mean": "2s", "std": "3s", "max": "60s"}},
        {"kind": "agentic", "calls": 3, "subagents": {"probability": 0.5, "count": 2, "turns": 3}},
        {"kind": "reasoning", "steps": 3, "step_tokens": 4, "growth": "bounded", "context_limit": 100},
    ],
    "models": [{"name": "m", "weight": 2, "kind": "chat"}, {"name": "n", "kinds": ["completion", "reasoning"]}],
    "priority": "gold",
    "slo": {"ttft": "1s", "tpot": "50ms", "e2e": "3s"},
    "behaviour": {"type": "abusive", "oversized_prompts": {"factor": 3}, "rapid_fire": {"size": 3, "gap": "1ms"}},
    "archetype": {"prompt_size": "small", "reuse_affinity": 0.4, "burst_propensity": 0.2, "session_turns": 3},
    "correlations": {"prefix": 0.4, "burst_size": 0.3, "session": {"prompt_growth": 1.2, "decode_variation": 0.4}},
    "retry": {"max": 2, "backoff": "1s"},
}
STEP = {"type": "step", "levels": [{"at": "0s", "multiplier": 0}, {"at": "1s", "multiplier": 3}], "repeat": "10s"}
BURSTY = {"type": "bursty", "probability": 0.4, "interval": {"dist": "exponential", "mean": "3s"}}
SECTIONS: list[dict[str, Any]] = [
    FULL,
    {"requests": 50, "rate": "5/s", "arrival": {"process": "bursty", "alpha": 1.3}, "profile": STEP},
    {"requests": 50, "arrival": {"process": "adversarial", "size": 5, "interval": "1s"}},
    {"duration": "1m", "rate": "5/s", "behaviour": BURSTY, "kind": "chat"},
    {"duration": "1m", "closed_loop": {"concurrency": 4, "think_time": "1s"}, "retry": {"max": 3, "backoff": "0s"}},
    *(load_preset(name, "preset") for name in preset_names()),
]
ODD = st.one_of(
    st.sampled_from(
        [
            None,
            True,
            0,
            1,
            -1,
            0.5,
            1e-300,
            1e300,
            float("nan"),
            float("inf"),
            10**20,
            10**400,
            HUGE,
            2**63,
            10**6,
            1e-6,
        ]
    ),
    st.sampled_from(
        ["", "x", "1", "0s", "1us", "1ps", "100d", "-1s", "1e400s", "1/s", "0/s", "1e12/s", "0.001/h", "\x00", "é/"]
    ),
    st.sampled_from(
        ["chat", "agentic", "reasoning", "poisson", "trace", "abusive", "bursty", "uniform", "zipf", "x" * 5000]
    ),
    st.sampled_from(
        [[], {}, [[]], [None], [1, 2], {"a": 1}, {1: 2}, {None: None}, {"dist": "constant", "value": HUGE}]
    ),
    st.sampled_from(
        [{"dist": "exponential", "mean": HUGE}, {"dist": "lognormal", "mean": 1, "std": 1e12}, {"dist": "geometric"}]
    ),
    st.sampled_from([{"dist": "exponential", "mean": "100d"}, {"dist": "uniform", "min": "0s", "max": "0s"}]),
)


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*place, key)
        yield from places(inner, (*place, key))


@st.composite
def mistaken(draw: st.DrawFn) -> dict[str, Any]:
    section: Any = copy.deepcopy(draw(st.sampled_from(SECTIONS)))
    for _ in range(draw(st.integers(1, 3))):
        *outer, last = draw(st.sampled_from(sorted(places(section), key=repr) or [("rate",)]))
        inner = section
        for key in outer:
            inner = inner[key]
        if draw(st.booleans()) or draw(st.booleans()):
            inner[last] = copy.deepcopy(draw(ODD))
        elif len(inner) > 1:
            del inner[last]
    return section  # type: ignore[no-any-return]


def in_order(figures: list[Planned]) -> bool:
    return all(earlier.request.arrival_ps <= other.request.arrival_ps for earlier, other in pairwise(figures))


@draws(60)
@given(mistaken())
def test_whatever_a_workload_says_gives_a_sentence_or_requests(section: dict[str, Any]) -> None:
    try:
        requests = plan(first=50, **section)
    except HeadwayError as error:
        sentence = str(error)
        assert "\n" not in sentence and len(sentence) < 800 and sentence.endswith((".", "?"))
        return
    assert in_order(requests)
    for item in requests:
        assert item.request.prompt_tokens == item.request.path.tokens >= 1 and item.output_tokens >= 1
