"""The free blocks and the hits of grouped KV caches are those of vLLM's own KV cache manager.

Headway simulates a scenario step by step, and vLLM's manager allocates and frees the same tokens in the same order.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headway
from headway.latency import kv_layout, read_model
from headway.sim.grouped_cache import GroupedCache
from headway.sim.job import Job
from headway.sim.step_scheduler import StepScheduler

pytestmark = pytest.mark.live
Json = dict[str, Any]
HERE = Path(__file__).parent
PYTHON = HERE.parent.parent / ".venv-live" / "bin" / "python"
TOY = {"hidden": 64, "heads": 4, "kv_heads": 1, "params": 100_000, "name": "toy"}
NONE = {"full": 1, "windows": 0, "window": 0, "states": 0, "kept": "none", "drafts": 0}
COSTLESS = dict.fromkeys(("prefill_token", "prefill_pair", "context_token"), "0s")


class Recorder:
    """The schedule of an instance, step by step."""

    def __init__(self) -> None:
        self.steps: list[Json] = []
        self.free: list[int] = []
        self.prompts: dict[int, list[int]] = {}
        self.before: dict[int, int] = {}  # running requests -> order of entry

    def note(self, scheduler: StepScheduler) -> None:
        batch, cache = scheduler.batch, scheduler.cache
        assert isinstance(cache, GroupedCache)
        if not batch.running:
            return
        chunks = {job.row: want for job, want in scheduler.run.chunks}
        now = {job.row: job.order for job in batch.running}
        runs, cached = [], {}
        for job in batch.running:
            self.prompts.setdefault(job.row, tokens_of(job))
            enters = self.before.get(job.row) != job.order
            known, computed = job.known, job.computed
            if job.row not in chunks:
                known = job.request.prompt_tokens + batch.generated(job)
                computed = known - 1
            if enters:
                cached[str(job.row)] = computed
            runs.append([job.row, chunks.get(job.row, batch.width), enters, known, computed])
        left = [row for row, order in self.before.items() if now.get(row) != order]
        self.steps.append({"left": left, "runs": runs, "cached": cached})
        self.free.append(cache.pool.total - cache.pool.held)
        self.before = now


def tokens_of(job: Job) -> list[int]:
    tokens: list[int] = []
    for key, end in job.request.path.blocks(1):
        tokens += [(key * 1_000_003 + at) % 900_000 for at in range(len(tokens), end)]
    return tokens


def scenario(
    seed: int, full: int, windowed: int, window: int, pages: int, caching: bool, states: int = 0, kept: str = "none"
) -> Json:
    other = {"kind": "sliding", "layers": windowed, "window": window}
    if states:
        other = {"kind": "state", "layers": states, "state_bytes": 64}
    return {
        "leap": False,
        "seed": seed,
        "workload": {
            "requests": 60,
            "rate": "40/s",
            "arrival": "constant",
            "prompt_tokens": {"dist": "uniform", "min": 1, "max": 300},
            "output_tokens": {"dist": "uniform", "min": 1, "max": 120},
            "prefix": {"groups": 3, "tokens": 150, "share": 0.8},
        },
        "cluster": {
            "instances": 1,
            "gpu": "h200",
            "model": {
                **TOY,
                "layers": full + windowed + states,
                "kv_groups": [{"kind": "full", "layers": full}, other],
            },
            "max_batch_tokens": 128,
            "kv": {"block_tokens": 16, "gpu_blocks": pages, "prefix_caching": caching, "states": kept},
            "latency": {"model": "linear", "step": "3ms", "sequence": "0s", **COSTLESS},
        },
        "warmup": 0,
    }


class Engine:
    """vLLM's KV cache manager in a process of its own."""

    def __init__(self) -> None:
        command = [PYTHON, HERE / "kv_groups_engine.py"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, data: Json) -> list[Json]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(data) + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("answer: "):
                answer: list[Json] = json.loads(line.removeprefix("answer: "))
                return answer
        raise AssertionError("vLLM's KV cache manager has ended")


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    engine = Engine()
    yield engine
    engine.process.kill()
    engine.process.wait()


def both(
    engine: Engine, given: Json, groups: Json, patch: pytest.MonkeyPatch
) -> tuple[Recorder, list[Json], headway.Result]:
    """Return Headway's schedule, what vLLM says of it, and the result of the run."""
    recorder = Recorder()
    form_step = StepScheduler.form_step

    def noting(scheduler: StepScheduler, now: int) -> bool:
        once = form_step(scheduler, now)
        recorder.note(scheduler)
        return once

    patch.setattr(StepScheduler, "form_step", noting)
    result = headway.simulate(given)
    cluster, kept = given["cluster"], groups.get("kept", "none")
    data = {
        **NONE,
        **groups,
        "pages": cluster["kv"]["gpu_blocks"],
        "block_tokens": cluster["kv"]["block_tokens"],
        "max_batch_tokens": cluster["max_batch_tokens"],
        "caching": cluster["kv"]["prefix_caching"] and not (groups.get("states") and kept == "none"),
        "prompts": recorder.prompts,
        "steps": recorder.steps,
    }
    answer = engine.ask(data)
    assert "error" not in answer[0], answer
    return recorder, answer, result


def compare(recorder: Recorder, answer: list[Json]) -> tuple[int, int, int]:
    """Return the number of steps, those with another number of free blocks, and the requests with other hits."""
    counts = sum(step["free"] != free for step, free in zip(answer, recorder.free, strict=True))
    other = 0
    for ours, step in zip(recorder.steps, answer, strict=True):
        other += sum(ours["cached"][str(row)] != found for row, found in step["hits"])
    return len(answer), counts, other


@pytest.mark.parametrize(("full", "windowed", "window"), [(1, 1, 32), (1, 2, 48), (2, 4, 20), (1, 3, 100), (1, 1, 1)])
@pytest.mark.parametrize("seed", range(3))
def test_free_blocks_are_those_of_vllm_without_prefix_caching(
    engine: Engine, full: int, windowed: int, window: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With few pages, so that requests are preempted."""
    groups = {"full": 1, "windows": windowed // full, "window": window}
    pages = 45 * (1 + windowed // full)
    recorder, answer, result = both(
        engine, scenario(seed, full, windowed, window, pages, caching=False), groups, monkeypatch
    )
    steps, counts, other = compare(recorder, answer)
    assert (counts, other) == (0, 0) and steps > 100
    assert result.summary()["preemptions"] > 0


@pytest.mark.parametrize(("full", "windowed", "window"), [(1, 1, 32), (1, 2, 48), (2, 4, 20), (1, 3, 100)])
@pytest.mark.parametrize("seed", range(3))
def test_hits_are_those_of_vllm_if_nothing_is_evicted(
    engine: Engine, full: int, windowed: int, window: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = {"full": 1, "windows": windowed // full, "window": window}
    recorder, answer, result = both(
        engine, scenario(seed, full, windowed, window, 20_000, caching=True), groups, monkeypatch
    )
    _, counts, other = compare(recorder, answer)
    assert (counts, other) == (0, 0)
    assert sum(result.requests["cached_tokens"]) > 1000


@pytest.mark.parametrize("seed", range(4))
def test_hits_are_close_to_those_of_vllm_if_content_is_evicted(
    engine: Engine, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM also caches generated blocks, and keeps the order of a prefix whose middle is hit."""
    groups = {"full": 1, "windows": 2, "window": 48}
    recorder, answer, result = both(engine, scenario(seed, 1, 2, 48, 500, caching=True), groups, monkeypatch)
    ours = sum(sum(step["cached"].values()) for step in recorder.steps)
    theirs = sum(found for step in answer for _, found in step["hits"])
    assert result.summary()["instances"][0]["evicted_blocks"] > 0
    assert ours == pytest.approx(theirs, rel=0.1)


@pytest.mark.parametrize("states", [1, 3])
def test_free_blocks_are_those_of_vllm_if_layers_keep_states(
    engine: Engine, states: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = scenario(1, 1, 0, 0, 100, caching=True, states=states)
    recorder, answer, _ = both(engine, given, {"states": states}, monkeypatch)
    steps, counts, other = compare(recorder, answer)
    assert (counts, other) == (0, 0) and steps > 100


@pytest.mark.parametrize("kept", ["all", "align"])
@pytest.mark.parametrize("states", [1, 3])
def test_free_blocks_and_hits_are_those_of_vllm_if_states_are_kept(
    engine: Engine, kept: str, states: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = scenario(2, 1, 0, 0, 5000 * (1 + states), caching=True, states=states, kept=kept)
    recorder, answer, result = both(engine, given, {"states": states, "kept": kept}, monkeypatch)
    steps, counts, other = compare(recorder, answer)
    assert (counts, other) == (0, 0) and steps > 100
    assert sum(result.requests["cached_tokens"]) > 1000


@pytest.mark.parametrize("kept", ["all", "align"])
def test_hits_are_close_to_those_of_vllm_if_states_are_evicted(
    engine: Engine, kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In total: in a single run with `align`, few states decide over many tokens."""
    ours = theirs = 0
    for seed in range(4):
        given = scenario(seed, 1, 0, 0, 250, caching=True, states=1, kept=kept)
        recorder, answer, result = both(engine, given, {"states": 1, "kept": kept}, monkeypatch)
        ours += sum(sum(step["cached"].values()) for step in recorder.steps)
        theirs += sum(found for step in answer for _, found in step["hits"])
        assert result.summary()["instances"][0]["evicted_blocks"] > 0
    print(f"{kept}: {ours} and {theirs} tokens hit")
    assert ours == pytest.approx(theirs, rel=0.1)


@pytest.mark.parametrize("drafts", [1, 3])
@pytest.mark.parametrize("kept", ["", "none", "all", "align"])
def test_free_blocks_are_those_of_vllm_if_decodes_verify_drafts(
    engine: Engine, kept: str, drafts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two groups of windows, or of states that are kept in different ways."""
    groups: Json = {"states": 2, "kept": kept, "drafts": drafts} if kept else {"windows": 2, "window": 40}
    given = scenario(3, 1, 0 if kept else 2, 40, 9000, True, 2 if kept else 0, kept or "none")
    given["cluster"]["speculation"] = {"tokens": drafts, "acceptance": 0.6}
    recorder, answer, result = both(engine, given, groups, monkeypatch)
    steps, counts, other = compare(recorder, answer)
    assert (counts, other) == (0, 0) and steps > 100
    assert result.summary()["speculation"]["accepted_tokens"] > 500


@pytest.mark.parametrize(
    "name", ["gpt-oss-20b", "gpt-oss-120b", "gemma-3-4b", "gemma-3-12b", "gemma-3-27b", "mixed-20-30", "mixed-12-13"]
)
def test_layers_are_grouped_as_vllm_groups_them(engine: Engine, name: str) -> None:
    model: Any = name
    if name.startswith("mixed"):
        full, windowed = (int(number) for number in name.split("-")[1:])
        kinds = [{"kind": "full", "layers": full}, {"kind": "sliding", "layers": windowed, "window": 128}]
        model = {**TOY, "layers": full + windowed, "kv_groups": kinds}
    shape = read_model(model, "model")
    layout = kv_layout(shape, 1, 16)
    layers = {kind.kind: kind.layers for kind in shape.kv_groups}
    (answer,) = engine.ask({"full": layers["full"], "windows": layers["sliding"], "window": 128, "grouped": True})
    token = 2 * shape.kv_heads * shape.head_dim * 2
    assert answer == {"full": layout.full, "windows": layout.windows, "layers": layout.page_bytes // (16 * token)}
