"""Fit the profiles of GPUs from measured kernels, and print the constants and the errors by kind of step.

python benchmarks/fit_kernel_profiles.py rtx-4090
"""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random

from msgspec.structs import asdict, replace

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "latency"))
from kernels import steps  # noqa: E402

from headway.latency import read_gpu  # noqa: E402
from headway.latency.fit import fit, starting_constants  # noqa: E402

DATA = ROOT.parent / "shared" / "validation" / "llmservingsim" / "profiles"
CARDS = {
    "rtx-4090": [("RTX4090/Llama-3.1-8B/tp1", "llama-3.1-8b", 1, 41_408)],
    "rtx-pro-6000": [
        ("RTXPRO6000/Llama-3.1-8B/tp1", "llama-3.1-8b", 1, 585_000),
        ("RTXPRO6000/Qwen3-32B/tp1", "qwen-3-32b", 1, 100_000),
        ("RTXPRO6000/Qwen3-32B/tp2", "qwen-3-32b", 2, 400_000),
    ],
}
SAMPLES = {"decode": 90, "prefill": 60, "mixed": 200}  # number of fitted steps of each kind, for each model


def main(name: str) -> None:
    gpu = read_gpu(name, "gpu")
    memory, tflops = gpu.bandwidth / 1e12, float(gpu.flops) / 1e12
    measured = {folder: list(steps(DATA / folder, model, tp, room)) for folder, model, tp, room in CARDS[name]}
    draw = Random(0)
    sample = []
    for kinds in measured.values():
        for phase, count in SAMPLES.items():
            own = [step for kind, step in kinds if kind == phase]
            sample += draw.sample(own, min(count, len(own)))
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
    constants = fit(sample, memory, tflops, start)
    for key, value in asdict(constants).items():
        print(f"  {key}: {value:.4g}")
    for folder, kinds in measured.items():
        for phase in SAMPLES:
            errors = sorted(abs(step.error(constants)) for kind, step in kinds if kind == phase)
            median, p90 = errors[len(errors) // 2], errors[len(errors) * 9 // 10]
            print(f"# {folder} {phase}: {len(errors)} steps, median {median:.1%}, 90th percentile {p90:.1%}")


if __name__ == "__main__":
    main(sys.argv[1])
