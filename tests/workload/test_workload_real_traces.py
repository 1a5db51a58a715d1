"""The real files, whole: counts, stamps, totals, published statistics, and reuse against an independent cache."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from headway.workload.inspect import inspect
from headway.workload.spec import WorkloadSpec
from headway.workload.traces import read_trace

TRACES = Path(__file__).parents[3] / "shared" / "traces"
pytestmark = pytest.mark.skipif(
    not TRACES.is_dir(), reason="the real traces are not beside the repository (../shared/traces)"
)

# rows, last stamp in ps, prompt tokens, output tokens
FILES = {
    "mooncake/conversation_trace.jsonl.gz": (12_031, 3_536_999 * 10**9, 144_793_823, 4_122_048),
    "mooncake/synthetic_trace.jsonl.gz": (3_993, 1_022_025 * 10**9, 61_194_628, 595_432),
    "mooncake/arxiv_mooncake_trace_first1000.jsonl": (1_000, 177_098 * 10**9, 9_792_030, 199_084),
    "azure-llm-2023/AzureLLMInferenceTrace_code.csv": (8_819, 3_435_948_056 * 10**6, 18_059_974, 245_896),
    "azure-llm-2023/AzureLLMInferenceTrace_conv.csv": (19_366, 3_501_721_937 * 10**6, 22_361_870, 4_088_665),
}
MOONCAKE = [name for name in FILES if name.startswith("mooncake")]


def raw(name: str) -> list[dict[str, Any]]:
    content = (TRACES / name).read_bytes()
    text = gzip.decompress(content) if name.endswith(".gz") else content
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_planned_whole(name: str) -> None:
    rows, last_ps, prompt, output = FILES[name]
    planned = list(WorkloadSpec(trace={"path": str(TRACES / name)}).plan(1, "m"))
    assert len(planned) == rows
    assert planned[0].request.arrival_ps == 0
    assert planned[-1].request.arrival_ps == last_ps
    assert sum(item.request.prompt_tokens for item in planned) == prompt
    assert sum(item.output_tokens for item in planned) == output
    assert all(item.request.path.tokens == item.request.prompt_tokens for item in planned)


@pytest.mark.parametrize("name", MOONCAKE)
def test_runs_share_what_the_ids_share(name: str) -> None:
    rows = raw(name)
    path = read_trace(TRACES / name).paths()
    assert sum(len(path(row).keys) for row in range(len(rows))) < len(rows) * 4
    by_first: dict[int, list[int]] = {}
    for number, row in enumerate(rows):
        by_first.setdefault(row["hash_ids"][min(1, len(row["hash_ids"]) - 1)], []).append(number)
    related = [group for group in by_first.values() if len(group) > 1]
    rng = Random(1)
    pairs = [(rng.randrange(len(rows)), rng.randrange(len(rows))) for _ in range(2000)]
    pairs += [tuple(rng.sample(rng.choice(related), 2)) for _ in range(4000)]  # type: ignore[misc]
    deep = 0
    for first, other in pairs:
        shared = 0
        for a, b in zip(rows[first]["hash_ids"], rows[other]["hash_ids"], strict=False):
            if a != b:
                break
            shared += 1
        tokens = 0
        for run_a, run_b in zip(
            zip(path(first).keys, path(first).ends, strict=True),
            zip(path(other).keys, path(other).ends, strict=True),
            strict=False,
        ):
            if run_a[0] != run_b[0]:
                break
            tokens = min(run_a[1], run_b[1])
        assert -(-tokens // 512) == shared
        deep += shared > 1
    assert deep > 500


@pytest.mark.parametrize(
    ("name", "cv", "idc", "peak", "prompt", "output"),
    [
        (MOONCAKE[0], 3.03, (7.9, 2.1, 2.9), 1.21, (6909, 27367, 85400, 126195), (350, 597, 1119, 2000)),
        (MOONCAKE[1], 1.01, (1.1, 1.2, 1.2), 1.17, (11587, 38611, 66456, 191378), (69, 389, 768, 893)),
        (MOONCAKE[2], 4.03, (12.5, 4.4, None), 1.03, (6558, 19789, 77828, 121290), (34, 534, 831, 2000)),
        (list(FILES)[3], 13.15, (13.2, 71.6, 164), 4.18, (1469, 5188, 7436, 7437), (13, 55, 251, 1899)),
        (list(FILES)[4], 1.09, (1.4, 3.9, 16.1), 1.52, (1020, 2734, 4142, 14050), (129, 424, 601, 1000)),
    ],
)
def test_shapes_match_the_published_statistics(
    name: str, cv: float, idc: tuple[float | None, ...], peak: float, prompt: tuple[int, ...], output: tuple[int, ...]
) -> None:
    requests = inspect(TRACES / name)
    assert requests["requests"] == FILES[name][0]
    assert requests["arrivals"]["cv"] == pytest.approx(cv, abs=0.006)
    for window, expected in zip(("1s", "10s", "60s"), idc, strict=True):
        if expected is not None:
            assert requests["arrivals"]["idc"][window] == pytest.approx(expected, abs=0.06)
    assert requests["arrivals"]["peak_to_mean_60s"] == pytest.approx(peak, abs=0.006)
    for key, figures in (("prompt_tokens", prompt), ("output_tokens", output)):
        assert [requests[key][at] for at in ("p50", "p90", "p99", "max")] == pytest.approx(figures, abs=0.6)


@pytest.mark.parametrize(
    ("name", "ratio", "distinct", "referenced", "sessions"),
    [
        (MOONCAKE[0], 0.3664, 182_790, 288_500, 7_373),
        (MOONCAKE[1], 0.6396, 43_924, 121_877, 2_211),
        (MOONCAKE[2], 0.3799, 12_207, 19_686, None),
    ],
)
def test_reuse_and_sessions_match_the_published_figures(
    name: str, ratio: float, distinct: int, referenced: int, sessions: int | None
) -> None:
    figures = inspect(TRACES / name)
    assert round(figures["reuse"][0]["block_hit_ratio"], 4) == ratio
    assert figures["blocks"] == {"tokens": 512, "distinct": distinct, "referenced": referenced}
    if sessions:
        assert figures["sessions"]["count"] == sessions


def independent(prompts: list[list[int]], instances: int, capacity: int) -> float:
    """LRU by stamps: a block is resident while fewer than `capacity` others were touched since; a queue of touches
    finds the oldest."""
    hits = 0
    last: list[dict[int, int]] = [{} for _ in range(instances)]
    order: list[list[tuple[int, int]]] = [[] for _ in range(instances)]
    head = [0] * instances
    for number, blocks in enumerate(prompts):
        at = number % instances
        stamps, touches = last[at], order[at]
        leading = 0
        while leading < len(blocks) and blocks[leading] in stamps:
            leading += 1
        hits += leading
        for block in blocks:
            stamps[block] = len(touches)
            touches.append((len(touches), block))
            while len(stamps) > capacity:
                stamp, oldest = touches[head[at]]
                head[at] += 1
                if stamps.get(oldest) == stamp:
                    del stamps[oldest]
    return hits / sum(map(len, prompts))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if "first1000" in name else pytest.mark.full) for name in MOONCAKE]
)
def test_reuse_at_every_capacity_equals_an_independent_cache(name: str) -> None:
    prompts = [row["hash_ids"] for row in raw(name)]
    capacities = [100, 1000, 5859, 10_000, 50_000]
    figures = inspect(TRACES / name, capacities=capacities, instances=[1, 8])["reuse"]
    assert [(entry["instances"], entry["capacity"]) for entry in figures] == [
        (n, c) for n in (1, 8) for c in capacities
    ]
    for entry in figures:
        assert entry["block_hit_ratio"] == independent(prompts, entry["instances"], entry["capacity"])
