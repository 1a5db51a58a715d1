"""The parts of a weighted profile that llm-d has as well, and how the parameters of each translate. What both have but
mean slightly otherwise is told in a sentence."""

from typing import Any, Final

from msgspec import Struct

from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.interop.translation import Notes
from headway.policies.context import BLOCK_TOKENS, LRU_BLOCKS
from headway.types import Json

PRODUCER: Final = "approx-prefix-cache-producer"
PRODUCER_NAME: Final = "prefixMatchInfoProducerName"
PRECISE: Final = "precise-prefix-cache-producer"
LEAST_BLOCK: Final = 64  # tokens; llm-d counts shorter blocks as of this length
MATCHED: Final = 131_072  # tokens of a prompt that llm-d looks at by default
SESSION_HEADER: Final = "x-headway-session"
HANDLER: Final = "single-profile-handler"
ROLE_FILTERS: Final = ("decode-filter", "prefill-filter", "encode-filter")


class Parameters:
    """The parameters of a plugin, which are taken one by one; those that are left have no counterpart."""

    def __init__(self, data: Any, where: str) -> None:
        if data is not None and not isinstance(data, dict):
            raise HeadwayError(f"{where}.parameters: expected a mapping, got {shown(data)}.")
        self.left, self.where = dict(data or {}), f"{where}.parameters"

    def take(self, name: str, default: Any = None) -> Any:
        value = self.left.pop(name, None)
        return default if value is None else value

    def whole(self, name: str, default: int) -> int:
        value = self.take(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise HeadwayError(f"{self.place(name)}: expected a whole number of at least 0, got {shown(value)}.")
        return value

    def text(self, name: str) -> str | None:
        value = self.take(name)
        if value is not None and not isinstance(value, str):
            raise HeadwayError(f"{self.place(name)}: expected a name, got {shown(value)}.")
        return value

    def place(self, name: str) -> str:
        return f"{self.where}.{name}"

    def refuse_rest(self) -> None:
        for name, value in self.left.items():
            raise HeadwayError(f"{self.place(name)}: {shown(value)} has no counterpart here; leave the parameter out.")


class Part(Struct, frozen=True):
    """Of a stage: our name, llm-d's type, and in what they differ."""

    name: str
    type: str
    differs: str = ""
    prefixed: bool = False  # asks a prefix index


SCORERS: Final = (
    Part("prefix-affinity", "prefix-cache-scorer", prefixed=True),
    Part(
        "queue-depth",
        "queue-scorer",
        "queue-scorer counts requests that wait; queue-depth also those that run or were sent since the last report.",
    ),
    Part("kv-utilization", "kv-cache-utilization-scorer"),
    Part("active-requests", "active-request-scorer"),
    Part("no-hit-lru", "no-hit-lru-scorer", prefixed=True),
    Part(
        "session-affinity",
        "session-affinity-scorer",
        "session-affinity-scorer sends a new session where the fewest are and forgets one after a while; "
        "session-affinity leaves new ones to the other scorers and remembers a number of them.",
    ),
    Part(
        "adapter-affinity",
        "lora-affinity-scorer",
        "lora-affinity-scorer also grades endpoints that have room for an adapter, or are about to load it.",
    ),
)
FILTERS: Final = (
    Part(
        "load-below",
        "active-request-filter",
        "active-request-filter counts the requests that the picker has under way; load-below goes by what engines "
        "report and what was sent since.",
    ),
)
PICKERS: Final = (
    Part(
        "max-score",
        "max-score-picker",
        "max-score-picker draws lots among equal scores; max-score takes the first of them.",
    ),
    Part("weighted-random", "weighted-random-picker"),
)


def ours(parts: tuple[Part, ...], name: str) -> Part | None:
    return next((part for part in parts if part.name == name), None)


def theirs(parts: tuple[Part, ...], type_: str) -> Part | None:
    return next((part for part in parts if part.type == type_), None)


# --- ours to theirs ---------------------------------------------------------------------------------------------------


def producer_parameters(block_tokens: int, lru_blocks: int, notes: Notes) -> Json:
    if block_tokens < LEAST_BLOCK:
        notes.add(f"{PRODUCER} counts blocks of {block_tokens} tokens as blocks of {LEAST_BLOCK}.")
    return {
        "autoTune": False,
        "blockSizeTokens": block_tokens,
        "lruCapacityPerServer": lru_blocks,
        "maxPrefixTokensToMatch": 0,
    }


def scorer_parameters(name: str, scorer: Json, notes: Notes) -> Json:
    """Beside those of its prefix index."""
    if name != "session-affinity":
        return {}
    notes.add(f"session-affinity: the {scorer['max_sessions']:,} sessions it remembers have no counterpart.")
    return {"algorithm": "session_id_header", "headerName": SESSION_HEADER}


def filter_parameters(item: Json, where: str) -> Json:
    if item["max_load"] < 1:
        raise HeadwayError(f"{where}.max_load: active-request-filter lets at least one request in, got 0.")
    return {"maxRequests": item["max_load"], "fallbackOnEmpty": True}


# --- theirs to ours ---------------------------------------------------------------------------------------------------


def prefix_index(parameters: Parameters, notes: Notes) -> Json:
    """The figures of our index, from the plugin that llm-d has for it."""
    block = parameters.whole("blockSizeTokens", 0) or BLOCK_TOKENS
    blocks = parameters.whole("lruCapacityPerServer", 0) or LRU_BLOCKS
    if parameters.take("autoTune", True):
        notes.add(
            f"{PRODUCER} takes block size and capacity from the engines (autoTune); here they are {block} tokens and "
            f"{blocks:,} blocks."
        )
    if block < LEAST_BLOCK:
        notes.add(f"{PRODUCER} counts blocks of {block} tokens as blocks of {LEAST_BLOCK}.")
    blocks_matched = parameters.whole("maxPrefixBlocksToMatch", 0)
    most = parameters.whole("maxPrefixTokensToMatch", MATCHED) or blocks_matched * block
    if most:
        notes.add(f"{PRODUCER} looks at the first {most:,} tokens of a prompt; here all of it is looked at.")
    parameters.refuse_rest()
    return {"block_tokens": block, "lru_blocks": blocks}


def check_scorer(type_: str, parameters: Parameters, notes: Notes) -> None:
    """Refuse or note the parameters that have no counterpart; the caller has taken those of the prefix index."""
    if type_ == "prefix-cache-scorer":
        if parameters.take("prefixLengthWeight", 0.0):
            raise HeadwayError(
                f"{parameters.place('prefixLengthWeight')}: prefix-affinity has no weight for long prefixes."
            )
        parameters.take("maxModelLen")
    elif type_ == "active-request-scorer":
        idle, busiest = parameters.whole("idleThreshold", 0), parameters.take("maxBusyScore", 1.0)
        if idle or busiest != 1.0:
            raise HeadwayError(
                f"{parameters.where}: active-requests has no idleThreshold and no maxBusyScore; leave them."
            )
        for name in ("requestTimeout", "inFlightLoadProducerName"):
            if parameters.take(name):
                notes.add(f"active-request-scorer: {name} has no counterpart; requests are counted until they end.")
    elif type_ == "no-hit-lru-scorer":
        for name in ("lruSize", "prefixPluginType", "prefixPluginName"):
            if parameters.take(name) is not None and name == "lruSize":
                notes.add("no-hit-lru-scorer: lruSize has no counterpart; no-hit-lru remembers every instance.")
    elif type_ == "session-affinity-scorer":
        _check_session(parameters, notes)
    parameters.refuse_rest()


def _check_session(parameters: Parameters, notes: Notes) -> None:
    header = parameters.take("headerName", "x-session-token")
    if header != SESSION_HEADER:
        notes.add(f"session-affinity-scorer: the header {header} is `sessions: {{header: ...}}` of a gateway's file.")
    if parameters.take("algorithm", "encoded_endpoint_header") != "session_id_header":
        notes.add("session-affinity-scorer: there the client carries its endpoint; here the router remembers sessions.")
    for name in ("evictionTtlSeconds", "evictionSweepSeconds", "missThreshold", "profileName"):
        if parameters.take(name) is not None:
            notes.add(f"session-affinity-scorer: {name} has no counterpart.")


def read_filter(parameters: Parameters, notes: Notes) -> Json:
    most = parameters.take("maxRequests")
    if not isinstance(most, int) or most < 1:
        raise HeadwayError(
            f"{parameters.place('maxRequests')}: expected a whole number of at least 1, got {shown(most)}."
        )
    if not parameters.take("fallbackOnEmpty", False):
        notes.add("active-request-filter: fallbackOnEmpty is false there; here a filter never drops every instance.")
    parameters.take("inFlightLoadProducerName")
    parameters.refuse_rest()
    return {"max_load": most}


def read_picker(parameters: Parameters, notes: Notes) -> None:
    if parameters.take("maxNumOfEndpoints", 1) != 1:
        notes.add("maxNumOfEndpoints: one instance is picked here.")
    parameters.refuse_rest()
