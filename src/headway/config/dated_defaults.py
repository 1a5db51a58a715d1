"""Dated sets of defaults. The key `defaults` of a scenario or of a gateway's file names one of them.

A set supplies the values that a file omits; a value in the file always wins. A new set gets a new date, and the older
sets stay, so that a file that names its set gives the same results with every version of Headway.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal

from msgspec import Struct

from headway.types import PS_PER_SECOND, Belief, LoadRule

Dated = Literal["2026-11", "2026-12"]


class Defaults(Struct, frozen=True):
    """One set of defaults."""

    poll_interval_ps: int  # `signals.poll_interval` of a scenario; 0: signals are always fresh
    effective_load: LoadRule  # `signals.effective_load`
    auto: bool  # whether `lru_blocks` defaults to `auto`, which is the capacity of each instance's KV cache
    belief: Belief  # `signals.belief`, if instances report KV events
    engine: str  # `default_engine` of the latency model `hardware`; auto: none
    # `policies.routing` of a gateway. With the rule `outstanding`, all idle engines have the same load. If cold prompts
    # arrive one at a time, `weighted` then sends all of them to the first engine. `kv-aware-spill` spreads them.
    gateway_routing: str
    # `max_queue` of `policies.admission` of a gateway: most requests in flight for each model and role. None: the sum
    # of the batch and queue limits of the engines.
    gateway_max_queue: int | None


SETS: Final[dict[Dated, Defaults]] = {
    "2026-11": Defaults(
        poll_interval_ps=0,
        effective_load="snapshot",
        auto=False,
        belief="routed",
        engine="auto",
        gateway_routing="weighted",
        gateway_max_queue=1024,
    ),
    "2026-12": Defaults(
        poll_interval_ps=PS_PER_SECOND // 2,
        effective_load="outstanding",
        auto=True,
        belief="both",
        engine="vllm-0.18",
        gateway_routing="kv-aware-spill",
        gateway_max_queue=None,
    ),
}
FIRST: Final[Dated] = "2026-11"  # the set of all presets; the section classes declare the same defaults
CURRENT: Final[Dated] = "2026-12"  # files without the key `defaults` use this set


def set_of(document: Mapping[str, Any]) -> Dated:
    """Return the name of the set that a file uses. If the file names an unknown set, return the current set; the code
    that reads the file reports the error."""
    return next((name for name in SETS if document.get("defaults") == name), CURRENT)
