"""The parts (scorers, filters and pickers) of a weighted profile that llm-d also has, and the translation of their
parameters. If a part behaves slightly differently in llm-d, a note says how."""

from typing import Any, Final

from msgspec import Struct

from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.policies.context import BLOCK_TOKENS, LRU_BLOCKS
from headway.policies.registry import AUTO
from headway.types import Json

PRODUCER: Final = "approx-prefix-cache-producer"
PRODUCER_NAME: Final = "prefixMatchInfoProducerName"
PRECISE: Final = "precise-prefix-cache-producer"
PRODUCERS: Final = (PRODUCER, PRECISE)
LEAST_BLOCK: Final = 64  # minimum block size of llm-d in tokens; llm-d replaces smaller sizes with this size
MATCHED: Final = 131_072  # maximum number of tokens of a prompt that llm-d matches by default
SESSION_HEADER: Final = "x-headway-session"
HANDLER: Final = "single-profile-handler"
ROLE_FILTERS: Final = ("decode-filter", "prefill-filter", "encode-filter")
IGNORED: Final = {  # llm-d's scorer -> parameters that Headway ignores
    "active-request-scorer": ("requestTimeout", "inFlightLoadProducerName"),
    "no-hit-lru-scorer": ("lruSize",),
    "session-affinity-scorer": ("evictionTtlSeconds", "evictionSweepSeconds", "missThreshold", "profileName"),
}


class Parameters:
    """The parameters of a plugin. Reading a parameter removes it from `left`. So the parameters that are left at the
    end have no equivalent in Headway."""

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
            raise HeadwayError(f"{self.place(name)}: Headway does not support {shown(value)}. Remove the parameter.")


class Part(Struct, frozen=True):
    """A scorer, filter or picker: Headway's name, llm-d's type, and how the two differ."""

    name: str
    type: str
    differs: str = ""
    prefixed: bool = False  # whether the part uses a prefix index


SCORERS: Final = (
    Part("prefix-affinity", "prefix-cache-scorer", prefixed=True),
    Part(
        "queue-depth",
        "queue-scorer",
        "queue-scorer counts waiting requests; queue-depth adds running ones and those sent since the last report.",
    ),
    Part("kv-utilization", "kv-cache-utilization-scorer"),
    Part("active-requests", "active-request-scorer"),
    Part("no-hit-lru", "no-hit-lru-scorer", prefixed=True),
    Part(
        "session-affinity",
        "session-affinity-scorer",
        "session-affinity-scorer sends a new session to the endpoint with the fewest sessions, and forgets a session "
        "after a time; session-affinity leaves new sessions to the other scorers, and remembers a fixed number of "
        "sessions.",
    ),
    Part(
        "adapter-affinity",
        "lora-affinity-scorer",
        "lora-affinity-scorer also scores endpoints that have room for an adapter or are about to load it.",
    ),
)
FILTERS: Final = (
    Part(
        "load-below",
        "active-request-filter",
        "active-request-filter counts the picker's requests in flight; load-below uses the engines' reports and the "
        "requests sent since.",
    ),
)
PICKERS: Final = (
    Part(
        "max-score",
        "max-score-picker",
        "max-score-picker chooses at random among equal scores; max-score takes the first.",
    ),
    Part("weighted-random", "weighted-random-picker"),
)


def ours(parts: tuple[Part, ...], name: str) -> Part | None:
    return next((part for part in parts if part.name == name), None)


def theirs(parts: tuple[Part, ...], type_: str) -> Part | None:
    return next((part for part in parts if part.type == type_), None)


# --- export -----------------------------------------------------------------------------------------------------------


def producer_parameters(block_tokens: int, lru_blocks: int | str, notes: list[str]) -> Json:
    _note_block(block_tokens, notes)
    if lru_blocks == AUTO:
        notes.append(
            f"{PRODUCER} takes the block size from the engines too (autoTune), instead of {block_tokens} tokens."
        )
        return {"autoTune": True, "blockSizeTokens": block_tokens, "maxPrefixTokensToMatch": 0}
    return {
        "autoTune": False,
        "blockSizeTokens": block_tokens,
        "lruCapacityPerServer": lru_blocks,
        "maxPrefixTokensToMatch": 0,
    }


def _note_block(block_tokens: int, notes: list[str]) -> None:
    if block_tokens < LEAST_BLOCK:
        notes.append(f"{PRODUCER} treats blocks of {block_tokens} tokens as blocks of {LEAST_BLOCK}.")


def scorer_parameters(name: str, scorer: Json, notes: list[str]) -> Json:
    """Return llm-d's parameters of a scorer, except the parameters of its prefix index."""
    if name != "session-affinity":
        return {}
    notes.append(f"session-affinity: llm-d ignores the limit of {scorer['max_sessions']:,} sessions.")
    return {"algorithm": "session_id_header", "headerName": SESSION_HEADER}


def filter_parameters(item: Json, where: str) -> Json:
    if item["max_load"] < 1:
        raise HeadwayError(f"{where}.max_load: active-request-filter needs a limit of at least 1, got 0.")
    return {"maxRequests": item["max_load"], "fallbackOnEmpty": True}


# --- import -----------------------------------------------------------------------------------------------------------


def prefix_index(parameters: Parameters, notes: list[str]) -> Json:
    """Translate the parameters of llm-d's producer plugin to the settings of Headway's prefix index."""
    block = parameters.whole("blockSizeTokens", 0) or BLOCK_TOKENS
    blocks: int | str = parameters.whole("lruCapacityPerServer", 0) or int(LRU_BLOCKS)
    if parameters.take("autoTune", True):
        blocks = AUTO
        notes.append(f"{PRODUCER} takes the block size from the engines (autoTune); Headway uses {block} tokens.")
    _note_block(block, notes)
    blocks_matched = parameters.whole("maxPrefixBlocksToMatch", 0)
    most = parameters.whole("maxPrefixTokensToMatch", MATCHED) or blocks_matched * block
    if most:
        notes.append(f"{PRODUCER} matches the first {most:,} tokens of a prompt; Headway matches all tokens.")
    parameters.refuse_rest()
    return {"block_tokens": block, "lru_blocks": blocks}


def check_scorer(type_: str, parameters: Parameters, notes: list[str]) -> None:
    """Raise an error or add a note for parameters without an equivalent. The caller must read the parameters of
    the prefix index first."""
    if type_ == "prefix-cache-scorer":
        if parameters.take("prefixLengthWeight", 0.0):
            raise HeadwayError(f"{parameters.place('prefixLengthWeight')}: is not supported. Remove it.")
        parameters.take("maxModelLen")
    elif type_ == "active-request-scorer":
        idle, busiest = parameters.whole("idleThreshold", 0), parameters.take("maxBusyScore", 1.0)
        if idle or busiest != 1.0:
            raise HeadwayError(f"{parameters.where}: idleThreshold and maxBusyScore are not supported. Remove them.")
    elif type_ == "no-hit-lru-scorer":
        parameters.take("prefixPluginType")
        parameters.take("prefixPluginName")
    elif type_ == "session-affinity-scorer":
        header = parameters.take("headerName", "x-session-token")
        if header != SESSION_HEADER:
            notes.append(f"{type_}: set the header {header} as `sessions.header` of a gateway's file.")
        if parameters.take("algorithm", "encoded_endpoint_header") != "session_id_header":
            notes.append(f"{type_}: in llm-d, the client names its endpoint; in Headway, the router remembers it.")
    for name in IGNORED.get(type_, ()):
        if parameters.take(name) is not None:
            notes.append(f"{type_}: {name} is ignored.")
    parameters.refuse_rest()


def read_filter(parameters: Parameters, notes: list[str]) -> Json:
    most = parameters.take("maxRequests")
    if not isinstance(most, int) or most < 1:
        raise HeadwayError(
            f"{parameters.place('maxRequests')}: expected a whole number of at least 1, got {shown(most)}."
        )
    if not parameters.take("fallbackOnEmpty", False):
        notes.append("active-request-filter: fallbackOnEmpty: false is ignored; filters never drop every instance.")
    parameters.take("inFlightLoadProducerName")
    parameters.refuse_rest()
    return {"max_load": most}


def read_picker(parameters: Parameters, notes: list[str]) -> None:
    if parameters.take("maxNumOfEndpoints", 1) != 1:
        notes.append("maxNumOfEndpoints is ignored: Headway picks one instance.")
    parameters.refuse_rest()
