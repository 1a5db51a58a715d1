"""What an engine takes from the memory of a GPU beside the weights, before the rest becomes its KV cache.

vLLM runs one step with its full budget of tokens and the largest number of sequences, and notes the peak. The peak is
either in a layer, or while the engine samples from the logits of all these sequences. The second part is often larger,
because sampling keeps several copies of the logits of the whole vocabulary.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Final

from msgspec import Meta, Struct
from msgspec.structs import replace

from headway.config.keys import Bytes
from headway.latency.gpus import Gpu
from headway.latency.shapes import ModelShape

UNSEEN: Final = 480 * 2**20  # bytes that the driver reports as memory, but does not offer to programs
# Engines widen experts in MXFP4 (4.25 bits a weight) to a multiple of this number, as their kernels need it.
MXFP4: Final = Fraction(17, 32)
WIDE: Final = 256


class EngineMemory(Struct, frozen=True):
    """The memory that an engine takes on each GPU, beside weights and KV cache."""

    logit: Annotated[int, Meta(ge=0, le=1000)]  # bytes of a logit while the engine samples, with all copies
    libraries: Bytes  # memory of the libraries, and of buffers whose size does not depend on the model
    peers: Bytes  # in addition, if several GPUs compute together


class EngineLoad(Struct, frozen=True):
    """What decides the memory that an engine takes: its version, and the largest step that it may form."""

    memory: EngineMemory
    tokens: int
    sequences: int


def usable_bytes(gpu: Gpu) -> int:
    """Return the memory of a GPU that programs can use. If the reported memory is unknown, return the vendor's."""
    return gpu.memory if gpu.visible is None else gpu.visible - UNSEEN


def taken_bytes(load: EngineLoad, model: ModelShape, tp: int) -> int:
    """Return the bytes that an engine takes on each of its `tp` GPUs, beside weights and KV cache."""
    memory, tokens = load.memory, load.tokens
    vectors = 2 * tokens * model.hidden  # a hidden state of 16-bit numbers for each token
    sampling = vectors + min(load.sequences, tokens) * (memory.logit * model.vocab + 2 * model.hidden)
    width = max(model.intermediate, model.experts_per_token * model.expert_intermediate + model.shared_intermediate)
    layer = 2 * vectors + 2 * tokens * 3 * width // tp
    return max(sampling, layer) + memory.libraries + (memory.peers if tp > 1 else 0)


def as_loaded(model: ModelShape) -> ModelShape:
    """Return a model with the size that its weights have in an engine."""
    if model.expert_size != MXFP4 or not model.experts:
        return model
    experts = (model.layers - model.dense_layers) * 3 * model.hidden * model.expert_intermediate * model.experts
    wide = WIDE * -(-model.expert_intermediate // WIDE)
    more = experts * MXFP4 * (Fraction(wide, model.expert_intermediate) - 1)
    return replace(model, weight_bytes=model.weight_bytes + round(more))
