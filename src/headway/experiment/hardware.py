"""Hardware profiles to look at: where each comes from, how far it holds, and step times as examples."""

from typing import Final

from headway.config.keys import keys_of
from headway.config.wording import suggest
from headway.errors import HeadwayError
from headway.latency.base import Chunk
from headway.latency.gpus import Gpu, gpus, read_gpu
from headway.latency.profiles import Profile, read_profile
from headway.latency.step_cost import Constants
from headway.latency.step_models.hardware import PS_PER_MS, step_times
from headway.latency.tables import plain
from headway.types import Json

MODEL: Final = "llama-3.1-8b"  # whose steps are the examples
CONTEXT: Final = 1024
# How many sequences decode, and the chunks beside them.
EXAMPLES: Final[tuple[tuple[int, tuple[Chunk, ...]], ...]] = (
    (1, ()),
    (32, ()),
    (128, ()),
    (0, ((512, 0),)),
    (0, ((2048, 0),)),
    (0, ((2048, 6144),)),
    (32, ((512, 0),)),
)


def hardware(name: str | None = None, model: str = MODEL, tp: int = 1) -> Json:
    """All profiles, or one by its name or file with its constants and the times of a few steps of a model."""
    if name is None:
        entries = gpus().entries
        return {"profiles": [_about(read_profile(each, gpu, "gpu"), gpu) for each, gpu in entries.items()]}
    profile, gpu = _find(name)
    constants = {
        name: {"value": getattr(profile.constants, name), "unit": key.doc.type, "of": key.doc.meaning}
        for name, key in keys_of(Constants).items()
    }
    times = step_times(name, model, tp)
    steps = [
        {
            "decodes": decodes,
            "context": CONTEXT if decodes else 0,
            "chunks": [list(chunk) for chunk in chunks],
            "gpu_ms": times.step_ms([CONTEXT] * decodes, chunks),
        }
        for decodes, chunks in EXAMPLES
    ]
    doubts = times.hardware.doubts(max(decodes + sum(new for new, _ in chunks) for decodes, chunks in EXAMPLES))
    examples = {"model": times.model.name, "tp": tp, "note": doubts, "steps": steps}
    return {**_about(profile, gpu), "constants": constants, "examples": examples}


def _find(name: str) -> tuple[Profile, Gpu | None]:
    table = gpus()
    if name.endswith((".yaml", ".yml")):
        profile = read_profile(name, next(iter(table.entries.values())), "profile")
        known = plain(profile.gpu)
        return profile, table.entries.get(table.aliases.get(known, known))
    key = plain(name)
    key = table.aliases.get(key, key)
    if key not in table.entries:
        raise HeadwayError(
            f"no hardware profile is called {name!r}.{suggest(key, table.entries)} "
            "`headway hardware list` has all; a file that ends in .yaml will do."
        )
    gpu = read_gpu(key, "gpu")
    return read_profile(key, gpu, "profile"), gpu


def _about(profile: Profile, gpu: Gpu | None) -> Json:
    known = profile.calibrated
    card = None
    if gpu is not None:
        card = {
            "memory_gb": gpu.memory / 1e9,
            "bandwidth_tb_s": gpu.bandwidth / 1e12,
            "tflops": float(gpu.flops) / 1e12,
            "approximate": list(gpu.approximate),
        }
    return {
        "name": profile.name,
        "gpu": profile.gpu,
        "calibrated": known,
        "as_of": profile.as_of,
        "source": profile.source,
        "measured": profile.measured.strip(),
        "error": dict(profile.error),
        "range": {"tokens": list(profile.tokens), "context": list(profile.context)} if known else None,
        "shapes": list(profile.shapes),
        "host_ms": profile.host_ps / PS_PER_MS,
        "card": card,
    }
