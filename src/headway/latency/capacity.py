"""What fits: KV blocks of an instance, and the static capacity figure that routing may weigh."""

from __future__ import annotations

from typing import Final

from headway.errors import HeadwayError
from headway.latency.figures import share
from headway.latency.gpus import Gpu, gpus
from headway.latency.shapes import ModelShape

MOST_BLOCKS: Final = 10**9


def kv_blocks(
    model: ModelShape, gpu: Gpu, tp: int, block_tokens: int, utilization: float = 0.9, where: str = "cluster"
) -> int:
    """KV blocks that fit beside the weights: floor((memory·tp·utilization - weights) / (KV bytes·block_tokens)).

    Activations and graph pools are taken to fit in the unused share; a measured count is better where there is one.
    """
    part = share(utilization, f"{where}.utilization")
    offered = int(gpu.memory * tp * part)
    place = f"{tp} × {gpu.name} offers {{}} at {float(part * 100):g} % utilisation; raise tp or choose a larger GPU."
    if model.weight_bytes > offered:
        needed, available = _gigabytes(model.weight_bytes, offered)
        raise HeadwayError(f"{where}: {model.name} needs {needed} of weights but {place.format(available)}")
    block = model.kv_bytes_per_token * block_tokens
    blocks = (offered - model.weight_bytes) // block
    if blocks < 1:
        needed, available = _gigabytes(model.weight_bytes + block, offered)
        raise HeadwayError(
            f"{where}: {model.name} needs {needed} for its weights and one KV block but {place.format(available)}"
        )
    if blocks > MOST_BLOCKS:
        raise HeadwayError(f"{where}: room for {blocks:,} KV blocks is more than {MOST_BLOCKS:,}; set gpu_blocks.")
    return blocks


def _gigabytes(needed: int, offered: int) -> tuple[str, str]:
    """Both sizes for people, with as many digits as it takes to tell them apart."""
    for digits in range(9):
        texts = f"{needed / 1e9:.{digits}f} GB", f"{offered / 1e9:.{digits}f} GB"
        if texts[0] != texts[1]:
            break
    return texts


def capacity_score(model: ModelShape, gpu: Gpu, tp: int) -> float:
    """A static figure in [0, 1): free / (free + M), where `free` is the memory of all `tp` GPUs less the weights (so
    the dtype counts, and what is free is room for KV or for further models) and M the memory of the largest GPU of
    the table. It grows with memory and TP, is 0 where the weights do not fit and 0.5 with one such GPU free."""
    free = max(0, gpu.memory * tp - model.weight_bytes)
    largest = max(known.memory for known in gpus().entries.values())
    return free / (free + largest)
