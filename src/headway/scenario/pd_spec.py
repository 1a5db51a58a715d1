"""The keys of a disaggregated deployment that describe the transfer of the KV cache from prefill to decode
instances."""

from typing import Annotated, Any, Final, Literal

from msgspec import Struct

from headway.config.keys import Duration, Positive
from headway.errors import HeadwayError
from headway.latency.links import ProfileName, Speed, fill_link
from headway.scenario.kv_spec import Kv

ROLES: Final = ("prefill", "decode")


class Transfer(Struct, frozen=True):
    """The transfer of a prompt's KV cache from the prefill instance to the decode instance."""

    latency_ps: Annotated[Duration, "latency of each transfer"] = 500_000_000
    bandwidth: Annotated[
        Speed, "bandwidth of the link out of each prefill instance; concurrent transfers share it equally"
    ] = 50 * 10**9
    granularity: Annotated[
        Literal["block", "chunk", "stream"],
        "a transfer moves a multiple of a block, of the prefill side's `max_batch_tokens` (chunk), or of a token "
        "(stream)",
    ] = "block"
    keep_prefill_copy: Annotated[bool, "whether the prefill instance keeps transferred blocks in its cache"] = False
    first_token: Annotated[
        Literal["prefill", "decode"],
        "which instance returns the first token: prefill, when the prompt is computed, or decode, after the transfer",
    ] = "prefill"
    pipelined: Annotated[
        bool,
        "whether each chunk of a prompt is transferred when it is computed and the decode instance has room; else the "
        "whole prompt is transferred at the end",
    ] = False
    max_incoming: Annotated[
        Positive | None,
        "limit on the requests that are queued at a decode instance or in transfer to it; at the limit, prefill "
        "starts no more prompts for that instance",
    ] = None
    profile: ProfileName = None

    @classmethod
    def expand(cls, section: Any, where: str) -> Any:
        return fill_link(section, where, {})

    def grain_tokens(self, block_tokens: int, max_batch_tokens: int) -> int:
        return {"block": block_tokens, "chunk": max_batch_tokens, "stream": 1}[self.granularity]


def check_shared(kvs: dict[str, Kv], where: str) -> None:
    """Check that the prefill and decode instances describe a shared tier in the same way."""
    prefill, decode = (kv.tiers or {} for kv in kvs.values())
    for name in prefill:
        if name not in decode or not (prefill[name].shared or decode[name].shared):
            continue
        if prefill[name] != decode[name]:
            wrong = f"{where}.decode.kv.tiers.{name}: prefill and decode share this store, but describe it differently"
            raise HeadwayError(f"{wrong}; set it once, as {where}.kv.tiers.{name}.")
        if len({kv.eviction for kv in kvs.values()}) > 1:
            wrong = (
                f"{where}.decode.kv.eviction: prefill and decode share the {name} tier, so both need the same eviction"
            )
            raise HeadwayError(f"{wrong}; set it once, as {where}.kv.eviction.")
