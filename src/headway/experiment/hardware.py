"""Describes hardware profiles: source, valid range, and examples of step times."""

from typing import Any, ClassVar, Final

from headway.config.arguments import checked
from headway.config.dated_defaults import CURRENT, SETS
from headway.config.keys import keys_of
from headway.display.displayed import Document, cells, columns_of
from headway.latency.base import Chunk
from headway.latency.engines import engines
from headway.latency.fit import CACHES_OF_8_BITS, FREE, KINDS, OF_BANDWIDTH, OF_FLOPS
from headway.latency.gpus import Gpu, gpus, interconnect
from headway.latency.profiles import HOST, Profile, read_profile
from headway.latency.step_cost import Constants
from headway.latency.step_models.hardware import PS_PER_MS, step_times
from headway.latency.tables import plain
from headway.types import PS_PER_US, Json

MODEL: Final = "llama-3.1-8b"  # the model of the examples
CONTEXT: Final = 1024
# For each example step: the number of decoding sequences, and the prefill chunks.
EXAMPLES: Final[tuple[tuple[int, tuple[Chunk, ...]], ...]] = (
    (1, ()),
    (32, ()),
    (128, ()),
    (0, ((512, 0),)),
    (0, ((2048, 0),)),
    (0, ((2048, 6144),)),
    (32, ((512, 0),)),
)

MEASURED, DERIVED, ASSUMED = "measured", "derived", "assumed"
FITTED: Final = (*FREE, *OF_BANDWIDTH, *OF_FLOPS)  # constants of dense models of 16 bits that a fit changes
RATES: Final = ("_tb_s", "_tflops")
DEFAULTS: Final = dict(zip(Constants.__struct_fields__[::-1], Constants.__struct_defaults__[::-1], strict=False))


class Profiles(Document):
    """All hardware profiles."""

    _view: ClassVar[str] = "headway.report.notebook:profiles_view"

    def columns(self) -> dict[str, list[Any]]:
        """Return a row for each profile."""
        return columns_of(cells(profile | {"error": [], "range": []}) for profile in self["profiles"])


class ProfileDetails(Document):
    """One hardware profile, with its constants and examples of step times."""

    _view: ClassVar[str] = "headway.report.notebook:profile_view"

    def columns(self) -> dict[str, list[Any]]:
        """Return a row for each constant."""
        return columns_of({"constant": name, **constant} for name, constant in self["constants"].items())


@checked
def hardware(name: str | None = None, model: str = MODEL, tp: int = 1) -> Profiles | ProfileDetails:
    """Return all profiles. If a name or file is set, return that profile with its constants and example step times."""
    if name is None:
        entries = gpus().entries
        return Profiles(profiles=[_about(read_profile(each, gpu, "gpu"), gpu) for each, gpu in entries.items()])
    table, is_file = gpus(), name.endswith((".yaml", ".yml"))
    gpu = None if is_file else table.find(name, "hardware profile", "hardware", "a .yaml file will do")
    times = step_times(name, model, tp)
    profile = times.profile
    if is_file:
        key = plain(profile.gpu)
        gpu = table.entries.get(table.aliases.get(key, key))
    constants = {
        name: {
            "value": getattr(profile.constants, name),
            "unit": key.doc.type,
            "origin": origin(profile, name),
            "of": key.doc.meaning,
        }
        for name, key in keys_of(Constants).items()
    }
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
    hosts = {
        name: {
            "step_us": engine.step_ps / PS_PER_US,
            "sequence_us": engine.sequence_ps / PS_PER_US,
            "quantise_us": engine.quantise_ps / PS_PER_US,
            "kv8_tb_s": engine.kv8_tb_s,
            "fp8_many_tb_s": engine.fp8_many_tb_s,
            "fp8_share": engine.fp8_share,
            "packed_tb_s": engine.packed_tb_s,
            "packed_tflops": engine.packed_tflops,
            "source": engine.source.strip(),
        }
        for name, engine in engines().entries.items()
    }
    return ProfileDetails({**_about(profile, gpu), "constants": constants, "engines": hosts, "examples": examples})


def origin(profile: Profile, name: str) -> str:
    """Return where the value of a constant comes from.

    A measured profile determines the fitted constants of the kinds of work that it covers, except those that it lists
    as assumed. The rates of a spec sheet are derived: a measured card's fraction of the peak, times the peak of this
    card. The other constants of a spec sheet are those of the measured card, and therefore assumed.
    """
    if not profile.calibrated:
        return DERIVED if name.endswith(RATES) else ASSUMED
    kind = next((kind for kind, work in KINDS.items() if name in work.names), None)
    covered = name in FITTED if kind is None else kind in profile.covers
    if kind == CACHES_OF_8_BITS:  # `covers` has no word for them: they were measured if any of their constants was set
        covered = any(getattr(profile.constants, each) != DEFAULTS[each] for each in KINDS[kind].names)
    return MEASURED if covered and name not in profile.assumed else ASSUMED


def _about(profile: Profile, gpu: Gpu | None) -> Json:
    known = profile.calibrated
    card = None
    if gpu is not None:
        card = {
            "memory_gb": gpu.memory / 1e9,
            "visible_mib": None if gpu.visible is None else gpu.visible / 2**20,
            "bandwidth_tb_s": gpu.bandwidth / 1e12,
            "tflops": float(gpu.flops) / 1e12,
            "link": _link(gpu),
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
        "covers": list(profile.covers),
        "assumed": dict(profile.assumed),
        "engine": profile.engine,
        "default_engine": SETS[CURRENT].engine if HOST in profile.assumed else None,
        "host_ms": profile.host_ps / PS_PER_MS,
        "host_sequence_us": profile.host_sequence_ps / PS_PER_US,
        "all_reduce_times": profile.all_reduce_times,
        "card": card,
    }


def _link(gpu: Gpu) -> Json:
    link = interconnect(gpu)
    return {
        "name": link.name,
        "kind": link.kind,
        "bandwidth_gb_s": link.bandwidth / 1e9,
        "peer": link.peer,
        "source": link.source,
        "assumed": link.assumed,
    }
