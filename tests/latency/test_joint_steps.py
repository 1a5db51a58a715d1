"""The times of joint steps of data-parallel ranks, and of experts that are spread over GPUs."""

from __future__ import annotations

from random import Random
from statistics import fmean
from typing import Any

import pytest

from headway.latency import build, read_gpu, read_model
from headway.latency.all_reduce import all_reduce, exchange
from headway.latency.base import StepShape
from headway.latency.experts import busiest_gpu, experts_read
from headway.latency.gpus import interconnect, interconnects
from headway.latency.hardware_times import Hardware, HardwareVerifier
from headway.latency.joint_steps import GRAPH_TOKENS, JointHardware, run_group_after_pause, run_group_of, slowest
from headway.latency.overlap import overlap
from headway.latency.shards import kv_blocks, rank_weight_bytes
from headway.latency.verification import UNITS, RankShape, Verification

MODEL = read_model("qwen3-30b-a3b", "model")
H200 = read_gpu("h200", "gpu")
DECODING = (16, 16_000, ())
IDLE: Any = (0, 0, ())


def joint(dp: int = 2, ep: bool = True, tp: int = 1, **keys: Any) -> JointHardware:
    model = build({"model": "hardware", **keys}, MODEL, H200, tp, dp=dp, ep=ep)
    assert isinstance(model, JointHardware)
    return model


def test_the_slowest_rank_decides_until_another_one_overtakes_it() -> None:
    assert slowest([(100, 1, 1000), (90, 3, 1000)]) == (100, 1, 6)  # at step 6, the second takes 108, not 106
    assert slowest([(100, 1, 4), (90, 3, 1000)]) == (100, 1, 4)
    assert slowest([(100, 1, 50), (100, 3, 60)]) == (100, 3, 50)


@pytest.mark.parametrize("seed", range(20))
def test_a_joint_run_is_the_maximum_of_the_runs_of_its_ranks_step_by_step(seed: int) -> None:
    draws = Random(seed)
    runs = [(draws.randint(1, 400), draws.randint(0, 9), draws.randint(1, 90)) for _ in range(draws.randint(1, 4))]
    first, increment, most = slowest(runs)
    for step in range(most):
        assert first + step * increment == max(start + step * growth for start, growth, _ in runs)


def test_two_equal_ranks_take_their_own_part_and_share_experts_and_exchange() -> None:
    """By hand: the step of a rank without experts, the experts for the tokens of both, and the exchange."""
    model = joint()
    own = model.own.run(*DECODING)[0]
    assert model.run_group([DECODING, DECODING])[0] == own + model.shared_ps(32, 32)


def test_an_idle_rank_adds_one_token_to_the_experts_and_its_padding_to_the_exchange() -> None:
    model = joint()
    assert model.run_group([DECODING, IDLE])[0] == model.own.run(*DECODING)[0] + model.shared_ps(17, 32)


def test_small_steps_are_padded_to_the_largest_and_large_ones_are_not() -> None:
    model = joint()
    few, many = (4, 400_000, ()), (16, 16, ())
    padded = model.own.run(*few)[0] + model.own.token_ps(16) - model.own.token_ps(4)
    assert padded > model.own.run(*many)[0]
    assert model.run_group([few, many])[0] == padded + model.shared_ps(32, 32)
    chunk = (0, 0, ((GRAPH_TOKENS + 1, 0),))
    tokens = GRAPH_TOKENS + 1 + 16
    assert model.run_group([DECODING, chunk])[0] == model.own.run(*chunk)[0] + model.shared_ps(tokens, tokens)


def test_a_gpu_reads_only_its_share_of_the_experts() -> None:
    apart = build({"model": "hardware"}, MODEL, H200, 1)
    assert isinstance(apart, Hardware)
    assert joint().whole.part.weight_bytes < 0.6 * apart.part.weight_bytes
    many = (256, 256_000, ())
    assert joint().run_group([many, many])[0] < apart.run(*many)[0]


def test_experts_without_expert_parallelism_are_split_over_all_ranks() -> None:
    whole, split = joint().whole.part, joint(ep=False).whole.part
    assert whole.weight_bytes == split.weight_bytes


def test_a_model_that_cannot_tell_ranks_apart_takes_the_slowest_ranks_time() -> None:
    latency = {"model": "linear", "context_token": "1us"}
    model = build(latency, MODEL, H200, 1, dp=2)
    assert run_group_of(model)([DECODING, IDLE]) == model.run(*DECODING)
    assert run_group_of(model)([DECODING, (16, 17_000, ())]) == model.run(16, 17_000, ())


def test_a_slow_engine_slows_all_parts() -> None:
    model = joint()
    slow = model.scale(2 * model.factor)
    assert slow.run_group([DECODING, DECODING])[0] == pytest.approx(2 * model.run_group([DECODING, DECODING])[0])


@pytest.mark.parametrize(
    ("tokens", "gpus"), [(1, 2), (4, 2), (16, 2), (16, 8), pytest.param(64, 4, marks=pytest.mark.full)]
)
def test_the_busiest_gpu_is_that_of_random_choices(tokens: int, gpus: int) -> None:
    experts, visits, draws = 128, 8, Random(1)
    reads, rows = [], []
    for _ in range(1500):
        chosen = [draws.sample(range(experts), visits) for _ in range(tokens)]
        per_gpu = [[one % gpus for one in each] for each in chosen]
        rows.append(max(sum(gpus_of.count(gpu) for gpus_of in per_gpu) for gpu in range(gpus)))
        visited = {one for each in chosen for one in each}
        reads.append(max(sum(one % gpus == gpu for one in visited) for gpu in range(gpus)))
    read, pairs = busiest_gpu(experts, visits, 0.0, tokens, gpus)
    assert read == pytest.approx(fmean(reads), rel=0.04)
    assert pairs == pytest.approx(fmean(rows), rel=0.04)
    assert experts_read(experts, visits, 0.0, tokens) / gpus <= read


def test_skewed_choices_load_the_gpu_with_the_most_popular_expert_most() -> None:
    even, skewed = (busiest_gpu(64, 4, skew, 1000, 4)[1] for skew in (0.0, 1.5))
    assert even < skewed <= 4000


@pytest.mark.parametrize("name", interconnects().names)
@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_a_larger_exchange_never_takes_less_time(name: str, gpus: int) -> None:
    times = exchange(interconnects().entries[name], gpus)
    series = [times.time_us(1 << power) for power in range(10, 30)]
    assert series == sorted(series) and series[0] > 0


def test_the_exchange_of_two_h200_is_the_measured_one() -> None:
    times = exchange(interconnect(H200, 2), 2)
    assert times.measured
    assert times.time_us(1 << 21) == 31.29  # an all-gather of 16.17 us and a reduce-scatter of 15.12 us


def test_an_exchange_moves_as_much_as_an_all_reduce_of_large_messages() -> None:
    """An all-reduce is a reduce-scatter and an all-gather. The tables were measured apart."""
    for gpu in ("h100", "h200", "a100-80gb", "b200", "l40s"):
        link = interconnect(read_gpu(gpu, "gpu"), 2)
        assert exchange(link, 2).time_us(1 << 28) == pytest.approx(all_reduce(link, 2).time_us(1 << 28), rel=0.3)


def test_a_rank_holds_its_share_of_the_experts() -> None:
    """By hand: 48 layers of 128 experts of 3 x 2048 x 768 weights of 2 bytes."""
    experts = 48 * 128 * 3 * 2048 * 768 * 2
    assert rank_weight_bytes(MODEL, 2) == MODEL.weight_bytes - experts // 2
    alone, ranked = (kv_blocks(MODEL, H200, 1, 16, dp=dp) for dp in (1, 2))
    assert ranked - alone == pytest.approx(experts // 2 / (MODEL.kv_bytes_per_token * 16), abs=1)


def test_the_work_of_the_host_is_hidden_behind_the_joint_step() -> None:
    shapes: list[StepShape] = [(4, 4000, ()), (40, 40_000, ())]
    gpu, short, long = (joint(host=host) for host in ("0s", "1ms", "900ms"))
    first, increment, _ = gpu.run_group(shapes)
    assert 10**9 < first < 900 * 10**9
    hidden, shown = (run_group_of(overlap(model)) for model in (short, long))
    assert hidden(shapes)[:2] == (first, increment)
    assert shown(shapes)[:2] == (900 * 10**9, 0)
    assert run_group_after_pause(overlap(short), shapes)[0] == first + 10**9 == short.run_group(shapes)[0]


def test_ranks_pad_to_the_captured_size_of_the_largest() -> None:
    shapes: list[StepShape] = [(3, 3000, ()), (9, 9000, ())]
    plain, graphs = joint(), joint(graph_sizes=[16, 64])
    own = max(plain.own.run(*shape)[0] - plain.own.token_ps(shape[0]) for shape in shapes)
    own += graphs.own.token_ps(9)
    assert graphs.own.token_ps(9) > plain.own.token_ps(9)
    assert graphs.run_group(shapes)[0] == own + plain.shared_ps(18, 32)


def test_larger_steps_than_the_largest_graph_are_not_padded() -> None:
    shapes: list[StepShape] = [(3, 3000, ()), (9, 9000, ())]
    assert joint(graph_sizes=[1, 8]).run_group(shapes)[0] < joint().run_group(shapes)[0]


def test_ranks_that_speculate_compute_their_drafts_in_the_joint_step() -> None:
    """Two equal ranks take their own part, and the experts and the exchange have the tokens of both."""
    model = joint()
    alone = HardwareVerifier(model.own, 3).run(16, 16_000 * UNITS, 24 * UNITS, ())
    ranks: list[RankShape] = [(16, 16_000 * UNITS, 24 * UNITS, (), None)] * 2
    first, increment, _ = Verification(model, 2, None, 7).group(ranks)
    assert (first, increment) == (alone[0] + model.shared_ps(96, 96) + 7, alone[1])
    idle: RankShape = (0, 0, 0, (), None)
    assert Verification(model, 2).group([ranks[0], idle])[0] == alone[0] + model.shared_ps(49, 96)


def test_each_pass_of_a_draft_waits_for_the_slowest_rank() -> None:
    target, draft = joint(), joint(host="0s")
    ranks: list[RankShape] = [
        (16, 16_000 * UNITS, 24 * UNITS, (), None),
        (2, 90_000 * UNITS, 3 * UNITS, ((10, 4),), None),
    ]
    alone: list[RankShape] = [(*rank[:3], (), None) for rank in ranks]
    passes = [Verification(target, 2).group(ranks)[0], Verification(draft, 2).group(ranks)[0]]
    shapes: list[StepShape] = [(16, 16_000, ()), (2, 90_000, ())]
    again = Verification(target, 2, draft).group(ranks)[0] - sum(passes)
    assert again == pytest.approx(draft.run_group(shapes)[0], rel=1e-3)  # a unit of context is a whole picosecond
    assert Verification(target, 2, draft).group(alone)[0] < Verification(target, 2, draft).group(ranks)[0]
