"""The keys of a disaggregated deployment: what its two kinds of instances do not share, and the way of the KV cache."""

from typing import Annotated, Any, Final, Literal

from msgspec import Struct

from headway.config.keys import Duration, Positive
from headway.errors import HeadwayError
from headway.latency.links import ProfileName, Speed, fill_link
from headway.scenario.kv_spec import Kv

ROLES: Final = ("prefill", "decode")


class Transfer(Struct, frozen=True):
    """How the KV cache of a prompt goes from the instance that has computed it to the one that generates."""

    latency_ps: Annotated[Duration, "added to each transfer"] = 500_000_000
    bandwidth: Annotated[Speed, "of the link out of each prefill instance; transfers on it share it equally"] = (
        50 * 10**9
    )
    granularity: Annotated[
        Literal["block", "chunk", "stream"],
        "what is moved is a multiple of a block, of the prefill side's `max_batch_tokens`, or of a token",
    ] = "block"
    keep_prefill_copy: Annotated[bool, "whether the prefix cache of the prefill side keeps what was moved"] = False
    first_token: Annotated[
        Literal["prefill", "decode"],
        "the side that delivers the first token: when the prompt is computed, or after the transfer",
    ] = "prefill"
    pipelined: Annotated[
        bool,
        "whether each chunk of a prompt travels as soon as it is computed, once the decode side has room; else the "
        "whole at the end",
    ] = False
    max_incoming: Annotated[
        Positive | None,
        "requests that a decode instance may be waiting for, in its queue or on their way; with as many, no further "
        "prompt for it is begun",
    ] = None
    profile: ProfileName = None

    @classmethod
    def expand(cls, section: Any, where: str) -> Any:
        return fill_link(section, where, {})

    def grain_tokens(self, block_tokens: int, max_batch_tokens: int) -> int:
        return {"block": block_tokens, "chunk": max_batch_tokens, "stream": 1}[self.granularity]


def check_shared(kvs: dict[str, Kv], where: str) -> None:
    """A store that the instances of a deployment share is one, so both kinds describe it alike."""
    prefill, decode = (kv.tiers or {} for kv in kvs.values())
    for name in prefill:
        if name not in decode or not (prefill[name].shared or decode[name].shared):
            continue
        if prefill[name] != decode[name]:
            wrong = f"{where}.decode.kv.tiers.{name}: is one store that prefill and decode share"
            raise HeadwayError(f"{wrong}; give it once, as {where}.kv.tiers.{name}.")
        if len({kv.eviction for kv in kvs.values()}) > 1:
            wrong = f"{where}.decode.kv.eviction: prefill and decode share the {name} store, which has one order"
            raise HeadwayError(f"{wrong}; give it once, as {where}.kv.eviction.")
