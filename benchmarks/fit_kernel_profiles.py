"""Fit the profiles of GPUs from measured kernels, and print the constants and the errors by kind of kernel and of step.

python benchmarks/fit_kernel_profiles.py rtx-pro-6000

The constants of each kind of kernel are fitted to that kind: the work around matmuls, matmuls, logits, experts,
attention. So no kind makes up for another's error. The errors of small kinds count relative to the whole step. For
rtx-4090, all constants are fitted together to whole steps whose decodes have equal contexts.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random

from fit_hardware import fit
from msgspec import Struct
from msgspec.structs import asdict, replace

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "latency"))
from kernels import A_LAYER, ONCE, curves, steps  # noqa: E402

from headway.latency import read_gpu, read_model  # noqa: E402
from headway.latency.fit import Step, starting_constants  # noqa: E402
from headway.latency.fit import fit as fit_all  # noqa: E402
from headway.latency.shards import Matmul, shard  # noqa: E402
from headway.latency.step_cost import (  # noqa: E402
    Constants,
    grouped_us,
    matmul_us,
    sequences_us,
    sorting_us,
    step_us,
    tokens_us,
)

DATA = ROOT.parent / "shared" / "validation" / "llmservingsim" / "profiles"
EXPERTS = ROOT / "tests" / "latency" / "recorded_runs" / "moe-kernels.csv"  # of Qwen3-30B-A3B on rtx-pro-6000
CARDS = {
    "rtx-4090": [("RTX4090/Llama-3.1-8B/tp1", "llama-3.1-8b", 1, 41_408)],
    "rtx-pro-6000": [
        ("RTXPRO6000/Llama-3.1-8B/tp1", "llama-3.1-8b", 1, 585_000),
        ("RTXPRO6000/Qwen3-32B/tp1", "qwen-3-32b", 1, 100_000),
        ("RTXPRO6000/Qwen3-32B/tp2", "qwen-3-32b", 2, 400_000),
    ],
}
SAMPLES = {"decode": 90, "prefill": 60, "mixed": 200}  # number of fitted steps of each kind, for each model
TOKENS = [1, 2, 4, 8, *(round(16 * 2 ** (place / 8)) for place in range(57))]  # up to 2,048
UNEVEN = ("rtx-pro-6000",)  # cards whose profile is fitted kind by kind, with decodes of unequal contexts
SEQUENCES = 256  # the most that were measured
FEW_EXPERTS = 32  # fewer experts stay in the card's cache when a kernel is measured repeatedly
Measured = dict[str, list[tuple[str, Step, float]]]  # by folder: kind of step, step, its attention in µs


class Kernels(Struct, frozen=True):
    """The time of some kernels of a step, and how a profile predicts it."""

    us: float
    scale: float  # errors count relative to this time
    predict: Callable[[Constants], float]

    def error(self, gpu: Constants) -> float:
        return (self.predict(gpu) - self.us) / self.scale


def operators(folder: Path, model: str, tp: int) -> Iterator[tuple[str, Kernels]]:
    """Yield the work around the matmuls of steps, that work with the matmuls, and the logits."""
    dense, ends = curves(folder / "dense.csv", "tokens"), curves(folder / "per_sequence.csv", "sequences")
    part = replace(shard(read_model(model, "model"), tp), tp=1)
    rest = replace(part, matmuls=())
    for count in TOKENS:
        layer = {name: times * dense[name](count) for name, times in A_LAYER.items() if name in dense}
        matmul = part.layers * sum(us for name, us in layer.items() if name.endswith("_proj"))
        around = part.layers * sum(layer.values()) - matmul + sum(dense[name](count) for name in ONCE)

        def around_us(gpu: Constants, count: int = count) -> float:
            return tokens_us(gpu, rest, count)

        def all_us(gpu: Constants, count: int = count) -> float:
            return tokens_us(gpu, part, count)

        def logits_us(gpu: Constants, count: int = count) -> float:
            return sequences_us(gpu, part, count)

        yield "around matmuls", Kernels(around, matmul + around, around_us)
        yield "with matmuls", Kernels(matmul + around, matmul + around, all_us)
        if count <= SEQUENCES:
            us = ends["lm_head"](count) + ends["sampler"](count)
            yield "logits", Kernels(us, us + matmul + around, logits_us)


def experts(file: Path) -> Iterator[Kernels]:
    """Yield the blocks of experts, with the choice of experts, of all layers."""
    part = shard(read_model("qwen-3-30b-a3b", "model"), 1)
    routed, gate = part.matmuls[:2]
    with file.open(encoding="utf-8") as rows:
        for row in csv.DictReader(rows):
            tokens, count = int(row["tokens"]), int(row["activated_experts"])
            if count < FEW_EXPERTS:
                continue

            def block_us(gpu: Constants, tokens: int = tokens, count: int = count) -> float:
                choosing = sorting_us(gpu, part, routed, tokens) + matmul_us(gpu, gate, tokens)
                return choosing + grouped_us(gpu, routed, count, tokens * routed.visits)

            us = part.layers * float(row["time_us"])
            yield Kernels(us, us, block_us)


def attention(step: Step, us: float) -> Kernels:
    """Return the attention of a step, without the constants of a layer."""
    part = replace(step.part, matmuls=(), moved=0.0, head=Matmul(0.0, 2.0), logits=0.0)

    def attention_us(gpu: Constants) -> float:
        bare = replace(gpu, step_us=0.0, layer_us=0.0)
        return step_us(bare, part, step.decodes, step.context, step.chunks)

    return Kernels(us, step.us, attention_us)


def free_constants(memory: float, tflops: float) -> dict[str, dict[str, tuple[float, float, float]]]:
    """Return the start and the bounds of each constant, by the kernels that determine it. What norms and activations
    move stays in the card's cache, so their rate may exceed the memory's."""
    return {
        "around matmuls": {
            "elementwise_tb_s": (memory, 0.1 * memory, 10 * memory),
            "layer_us": (10.0, 0.1, 1e3),
            "step_us": (10.0, 1.0, 1e4),
        },
        "with matmuls": {
            "layer_us": (20.0, 0.1, 1e3),
            "weights_tb_s": (0.9 * memory, 0.3 * memory, memory),
            "many_tb_s": (1.2 * memory, 0.3 * memory, 5 * memory),
            "matmul_tflops": (0.7 * tflops, 0.1 * tflops, tflops),
            "tile_share": (0.5, 1e-3, 1.0),
        },
        "logits": {"logits_tb_s": (0.4 * memory, 0.05 * memory, 2 * memory)},
        "experts": {
            "expert_tb_s": (0.9 * memory, 0.3 * memory, memory),
            "expert_tflops": (0.6 * tflops, 0.1 * tflops, tflops),
            "expert_pad": (64.0, 0.1, 256.0),
            "expert_half": (32.0, 0.01, 500.0),
            "route_us": (25.0, 0.05, 200.0),
            "route_bytes": (1.0, 0.01, 60.0),
        },
        "attention": {
            "kv_tb_s": (0.9 * memory, 0.05 * memory, memory),
            "decode_us": (2.0, 0.05, 1e3),
            "crowd_us": (60.0, 0.05, 1e3),
            "crowd_half": (60.0, 0.5, 256.0),
            "mixed_kv": (1.05, 1.0, 4.0),
            "mixed_us": (2.0, 0.05, 1e3),
            "prefill_us": (2.0, 0.05, 1e3),
            "past_us": (5.0, 0.05, 1e3),
            "prefill_tflops": (0.6 * tflops, 0.05 * tflops, tflops),
            "short_read": (5.0, 1.0, 20.0),
            "short_pairs": (0.5, 1e-3, 10.0),
            "fill_rows": (16384.0, 1024.0, 131072.0),
            "padded_rows": (90.0, 0.01, 1000.0),
            "beside_us": (0.3, 1e-4, 100.0),
            "beside_row_us": (2e-4, 1e-7, 0.1),
        },
    }


def report(name: str, parts: Sequence[Kernels | Step], gpu: Constants) -> None:
    signed = sorted(part.error(gpu) for part in parts)
    errors = sorted(abs(error) for error in signed)
    median, p90, bias = errors[len(errors) // 2], errors[len(errors) * 9 // 10], signed[len(signed) // 2]
    print(f"# {name}: {len(errors)}, median {median:.1%}, 90th percentile {p90:.1%}, median with sign {bias:+.1%}")


def fit_kinds(name: str, memory: float, tflops: float, measured: Measured) -> Constants:
    """Fit the constants of each kind of kernel to that kind."""
    kernels: dict[str, list[Kernels]] = {}
    for folder, model, tp, _ in CARDS[name]:
        for kind, one in operators(DATA / folder, model, tp):
            kernels.setdefault(kind, []).append(one)
    kernels["experts"] = list(experts(EXPERTS))
    kernels["attention"] = [attention(step, us) for _, step, us in sample(measured)]
    constants = replace(starting_constants(memory, tflops), matmul_power=2)
    for kind, free in free_constants(memory, tflops).items():
        constants = fit(kernels[kind], constants, free)
        report(kind, kernels[kind], constants)
    return constants


def fit_together(memory: float, tflops: float, measured: Measured) -> Constants:
    """Fit all constants to whole steps, each the sum of its kernels."""
    start = replace(
        starting_constants(memory, tflops),
        weights_tb_s=0.9 * memory,
        kv_tb_s=0.9 * memory,
        elementwise_tb_s=0.8 * memory,
        logits_tb_s=0.4 * memory,
        matmul_tflops=0.7 * tflops,
        prefill_tflops=0.6 * tflops,
        crowd_us=60.0,
        crowd_half=60.0,
        short_read=5.0,
        short_pairs=0.5,
        padded_rows=90.0,
    )
    return fit_all([step for _, step, _ in sample(measured)], memory, tflops, start)


def sample(measured: Measured) -> list[tuple[str, Step, float]]:
    draw = Random(0)
    drawn = []
    for found in measured.values():
        for phase, count in SAMPLES.items():
            own = [row for row in found if row[0] == phase]
            drawn += draw.sample(own, min(count, len(own)))
    return drawn


def main(name: str) -> None:
    gpu = read_gpu(name, "gpu")
    memory, tflops = gpu.bandwidth / 1e12, float(gpu.flops) / 1e12
    uneven = name in UNEVEN
    measured = {folder: list(steps(DATA / folder, model, tp, room, uneven)) for folder, model, tp, room in CARDS[name]}
    constants = fit_kinds(name, memory, tflops, measured) if uneven else fit_together(memory, tflops, measured)
    for key, value in asdict(constants).items():
        print(f"  {key}: {value:.4g}")
    for folder, found in measured.items():
        for phase in SAMPLES:
            report(f"{folder} {phase}", [step for kind, step, _ in found if kind == phase], constants)


if __name__ == "__main__":
    main(sys.argv[1])
