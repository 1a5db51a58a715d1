"""`aiconfigurator`: steps as sums of that package's kernel times, near to its own figures and never falling."""

from __future__ import annotations

import csv
import json
import logging
import re
import sys
from collections.abc import Iterator
from fractions import Fraction
from importlib.util import find_spec
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headway
from conftest import ROOT
from drawing import draws
from headway.errors import HeadwayError
from headway.experiment.notes import note_unmeasured
from headway.latency import build, read_gpu, read_model
from headway.latency.base import scale_model
from headway.latency.scattered import smooth
from headway.latency.step_models.aiconfigurator import Aiconfigurator
from headway.scenario.scenario import Scenario

EIGHT_B = read_model("llama-3.1-8b", "model")
H200 = read_gpu("h200", "gpu")
STEPS = ROOT.parent / "shared" / "calibration" / "h200" / "steps.csv"
MS = 10**9

needed = pytest.mark.skipif(
    find_spec("aiconfigurator_core") is None,
    reason="aiconfigurator-core is not installed (pip install 'headway[aiconfigurator]')",
)


def kernels(model: Any = "llama-3.1-8b", gpu: str = "h200", tp: int = 1, **keys: Any) -> Aiconfigurator:
    section = {"model": "aiconfigurator", "host": "0ms", **keys}
    found = build(section, read_model(model, "model"), read_gpu(gpu, "gpu"), tp)
    assert isinstance(found, Aiconfigurator)
    return found


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("", ".sdk", ".sdk.perf_database"):
        monkeypatch.setitem(sys.modules, f"aiconfigurator_core{name}", None)
    with pytest.raises(HeadwayError) as error:
        build({"model": "aiconfigurator"}, EIGHT_B, H200, 1)
    assert str(error.value) == (
        "cluster.latency.model: aiconfigurator-core is not installed. Run: pip install 'headway[aiconfigurator]'."
    )


cells = st.dictionaries(st.integers(1, 6), st.dictionaries(st.integers(0, 6), st.integers(1, 99), min_size=1))


@given(cells)
def test_smooth_points_never_fall_and_stay_where_they_did_not(points: dict[int, dict[int, int]]) -> None:
    flat = {(row, place): value for row, line in points.items() for place, value in line.items()}
    made = {(row, place): value for row, line in smooth(points).items() for place, value in line.items()}
    assert made.keys() == flat.keys()
    for one, value in made.items():
        larger = [other for other in made if other[0] >= one[0] and other[1] >= one[1]]
        smaller = [other for other in made if other[0] <= one[0] and other[1] <= one[1]]
        assert all(made[other] >= value for other in larger)
        low, high = min(flat[other] for other in larger), max(flat[other] for other in smaller)
        assert value == (low + high) // 2
        if low == high:
            assert value == flat[one]


@pytest.fixture(scope="module")
def package() -> Iterator[Any]:
    """The package's own model of Llama 3.1 8B on an H200."""
    sdk = pytest.importorskip("aiconfigurator_core.sdk")
    logging.disable(logging.WARNING)
    yield sdk.EngineHandle.compile("meta-llama/Meta-Llama-3.1-8B", "h200_sxm", "vllm")
    logging.disable(logging.NOTSET)


@needed
@pytest.mark.parametrize(
    ("decodes", "context"), [(1, 101), (8, 1000), (33, 700), (64, 4000), (256, 8000), (16, 30_000)]
)
def test_a_decode_step_is_what_the_package_itself_gives(package: Any, decodes: int, context: int) -> None:
    own = package.predict_decode_latency(decodes, context)
    assert kernels().run(decodes, decodes * (context + 1), ())[0] / MS == pytest.approx(own, rel=0.04)


@needed
@pytest.mark.parametrize(("tokens", "past"), [(100, 0), (512, 0), (2048, 0), (16_384, 0), (512, 2048), (2048, 8192)])
def test_a_chunk_is_what_the_package_itself_gives(package: Any, tokens: int, past: int) -> None:
    own = package.predict_prefill_latency(1, tokens + past, past)
    assert kernels().run(0, 0, [(tokens, past)])[0] / MS == pytest.approx(own, rel=0.04)


@needed
def test_a_mixed_step_is_what_the_package_itself_gives(package: Any) -> None:
    own = package.mixed_step_latency(512, 32, 512, 200)  # 512 new tokens beside 32 decodes, at 512 and half of 200
    assert kernels().run(32, 32 * 612, [(512, 0)])[0] / MS == pytest.approx(own, rel=0.02)


@pytest.fixture(scope="module")
def errors() -> dict[tuple[str, str], list[float]]:
    """The relative errors on the measured steps, sorted, by shape and phase."""
    if not STEPS.is_file():
        pytest.skip("the measurements are not beside this checkout (../shared/calibration)")
    found: dict[tuple[str, str], list[float]] = {}
    with STEPS.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["mode"] == "graph":
                chunks = [(tokens, past) for tokens, past in json.loads(row["composition"])["prefill"]]
                ms = kernels(row["shape"]).run(int(row["batch"]), int(row["decode_kv_tokens"]), chunks)[0] / MS
                found.setdefault((row["shape"], row["phase"]), []).append(abs(ms / float(row["median_ms"]) - 1))
    return {key: sorted(values) for key, values in found.items()}


@pytest.mark.full
@needed
def test_the_measured_steps_of_an_h200_are_met_within_a_tenth(errors: dict[tuple[str, str], list[float]]) -> None:
    for phase in ("decode", "prefill", "mixed"):
        found = sorted(
            x for (shape, its), values in errors.items() if its == phase and "1b" not in shape for x in values
        )
        assert len(found) > 150 and found[len(found) // 2] < 0.1, phase


@pytest.mark.full
@needed
def test_the_page_has_the_errors_on_the_measured_steps(errors: dict[tuple[str, str], list[float]]) -> None:
    page = (ROOT / "docs" / "hardware.md").read_text(encoding="utf-8").partition("## Kernel times of aiconfigurator")[2]
    rows = re.findall(r"^\| ([a-z][\w.-]+) \| (\d.+) \|$", page.partition("## Validating")[0], re.MULTILINE)
    assert {read_model(name, "model").name for name, _ in rows} == {
        read_model(shape, "model").name for shape, _ in errors
    }
    for name, cells in rows:
        mine = {its: values for (shape, its), values in errors.items() if read_model(shape, "model").name == name}
        assert cells.split(" | ") == [
            f"{100 * mine[phase][len(mine[phase]) // 2]:.0f} % ({100 * mine[phase][len(mine[phase]) * 9 // 10]:.0f} %)"
            for phase in ("decode", "prefill", "mixed")
        ], name


counts = st.integers(1, 3000) | st.sampled_from((1, 16, 17, 64, 256, 257, 2048))
lengths = st.integers(0, 300_000) | st.sampled_from((0, 1, 1024, 65_536))
growth = st.sampled_from((0, 0, 1, 2, 15, 1000))
chunk = st.tuples(st.integers(1, 20_000), lengths)


@pytest.mark.full
@needed
@draws(60)  # the first of each model asks the package
@given(st.data(), st.sampled_from(("llama-3.1-8b", "mixtral-8x7b")), st.lists(chunk, max_size=2))
def test_more_never_costs_less_and_a_run_is_affine(
    data: st.DataObject, name: str, chunks: list[tuple[int, int]]
) -> None:
    model = kernels(name)
    decodes = data.draw(st.just(0) | counts) if chunks else data.draw(counts)
    context = decodes * data.draw(lengths) if decodes else 0
    larger = [(tokens + data.draw(growth), past + data.draw(growth)) for tokens, past in chunks]
    larger += data.draw(st.lists(chunk, max_size=1))
    first, increment, k_max = model.run(decodes, context, chunks)
    assert model.run(decodes + data.draw(growth), context + data.draw(growth), larger)[0] >= first > 0
    for j in (j for j in (1, k_max // 2, k_max - 1) if j < k_max):
        moved = [(tokens, past + j * tokens) for tokens, past in chunks]
        assert model.run(decodes, context + j * decodes, moved)[0] == first + j * increment


@needed
def test_no_step_is_faster_than_the_memory_or_the_arithmetic_of_the_card() -> None:
    model = kernels()
    read = (EIGHT_B.weight_bytes - 2 * EIGHT_B.vocab * EIGHT_B.hidden) / H200.bandwidth * 1e12
    assert model.run(1, 1, ())[0] > read
    for decodes, context in ((1, 100_000), (64, 500_000), (256, 1_000_000)):
        kv = context * EIGHT_B.kv_bytes_per_token / H200.bandwidth * 1e12
        assert model.run(decodes, context, ())[0] > read + kv
    for tokens in (512, 4096, 16_384):
        flop = 2 * (EIGHT_B.active_params - 2 * EIGHT_B.vocab * EIGHT_B.hidden) * tokens
        assert model.run(0, 0, [(tokens, 0)])[0] > flop / float(H200.flops) * 1e12


@pytest.mark.full
@needed
def test_tensor_parallelism_splits_the_work_and_pays_for_the_all_reduce() -> None:
    one, four = kernels("llama-3.1-70b"), kernels("llama-3.1-70b", tp=4)
    shard = kernels("llama-70b-tp4-shard")  # the same matrices without the others to wait for
    for step in ((8, 8192, ()), (0, 0, [(2048, 0)])):
        assert shard.run(*step)[0] < four.run(*step)[0] < one.run(*step)[0]


@pytest.mark.full
@needed
def test_leaping_and_walking_end_every_request_at_the_same_picosecond_and_the_run_says_what_was_reckoned() -> None:
    scenario: dict[str, Any] = {
        "workload": {"requests": 60, "rate": "20/s", "prompt_tokens": 900, "output_tokens": 80},
        "cluster": {"gpu": "h200", "latency": {"model": "aiconfigurator", "backend": "sglang"}},
    }
    leapt = headway.simulate(scenario).requests["finished_ps"]
    assert leapt == headway.simulate({**scenario, "leap": False}).requests["finished_ps"]
    assert leapt == headway.simulate({**scenario, "leap": "random-cuts"}).requests["finished_ps"]
    said = str(note_unmeasured(Scenario.load(scenario)))
    assert "sums of kernel times measured one by one" in said and "sglang" in said and "on h200_sxm" in said
    assert "16,384" not in said
    scenario["cluster"]["max_batch_tokens"] = 20_000
    assert "chunks above 16,384 tokens" in str(note_unmeasured(Scenario.load(scenario)))


@needed
def test_the_host_is_the_profile_s_unless_it_is_given_and_a_slow_engine_takes_so_many_times_as_long() -> None:
    plain = kernels()
    usual = build({"model": "aiconfigurator"}, EIGHT_B, H200, 1)
    host = round(headway.latency("h200", "llama-3.1-8b").host_ms * MS)
    step = (8, 8000, [(300, 70)])
    assert usual.run(*step)[0] == plain.run(*step)[0] + host
    slow = scale_model(plain, Fraction(3, 2)).run(*step)[0]
    assert slow == pytest.approx(plain.run(*step)[0] * 1.5, rel=1e-6)


@pytest.mark.full
@needed
@pytest.mark.parametrize(
    ("model", "gpu", "tp", "keys", "sentence"),
    [
        (
            "llama-3.1-8b",
            "mi300x",
            1,
            {},
            "cluster.latency.system: aiconfigurator-core has no kernel times of 'mi300x'. Set",
        ),
        ("llama-3.1-8b", "l4", 1, {}, "h200_sxm"),
        ("llama-3.1-8b", "h200", 1, {"system": 7}, "cluster.latency.system: expected a name, got 7."),
        (
            "llama-3.1-8b",
            "h200",
            1,
            {"backend": "tgi"},
            "no kernel times of 'tgi' on h200_sxm. Set 'backend' to sglang, trtllm or",
        ),
        ("llama-3.1-8b", "h200", 1, {"version": "0.1"}, "has no vllm '0.1' on h200_sxm, only 0.24.0"),
        ("llama-3.1-8b", "h200", 3, {}, "aiconfigurator cannot split 32 heads evenly over 3 GPUs."),
        (
            {"like": "llama-3.1-8b", "dtype_bytes": 4},
            "h200",
            1,
            {},
            "no kernels for dtype_bytes 4. It has 2 or 1 or 0.5.",
        ),
        ({"like": "mixtral-8x7b", "experts": 12}, "h200", 1, {}, "2 of 8 × 14336 from 4096"),
        ({"like": "mixtral-8x7b", "dense_layers": 2, "intermediate": 9}, "h200", 1, {}, "layers without experts"),
        (
            {"like": "llama-3.1-8b", "dtype_bytes": 0.5, "kv_dtype_bytes": 2},
            "h200",
            1,
            {},
            "no kernel times of llama-3.1-8b",
        ),
        ("llama-3.1-8b", "h200", 1, {"host": 3}, "cluster.latency.host: 3 is not a duration"),
    ],
)
def test_what_the_package_does_not_have_is_told(
    model: Any, gpu: str, tp: int, keys: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(HeadwayError) as error:
        kernels(model, gpu, tp, **keys)
    assert str(error.value).startswith("cluster.latency") and sentence in str(error.value)
    assert "/" not in str(error.value)


@pytest.mark.full
@needed
def test_other_cards_backends_and_weights_have_kernels_of_their_own() -> None:
    step = (16, 16_000, [(512, 0)])
    found = [
        kernels(),
        kernels(backend="trtllm"),
        kernels({"like": "llama-3.1-8b", "dtype_bytes": 1, "kv_dtype_bytes": 2}),
        kernels(gpu="h100"),
        kernels(gpu="mi300x", system="b200_sxm"),
    ]
    assert len({model.run(*step)[0] for model in found}) == len(found)
    assert found[2].run(8, 8000, ())[0] < found[0].run(8, 8000, ())[0]
