"""Policies in the policy language: the policy `code` of every stage."""

from __future__ import annotations

from dataclasses import dataclass, field, make_dataclass
from typing import Any, Final

from headway.config.documents import file_name, read_text
from headway.errors import HeadwayError
from headway.policies.code import language as lang
from headway.policies.code.coded import FAILURES as FAILURES
from headway.policies.code.coded import Coded, MemoryKeys, Steps, Values
from headway.policies.code.engine_stages import CodedScaling, CodedScheduler
from headway.policies.code.router_stages import (
    CodedAdmission,
    CodedDecider,
    CodedEstimator,
    CodedPriority,
    CodedRouting,
)
from headway.policies.context import BLOCK_TOKENS, LRU_BLOCKS, BlockTokens, LruBlocks
from headway.policies.registry import policy
from headway.policies.scheduling import ChunkTokens

STAGES: Final[dict[str, type[Coded]]] = {
    "admission": CodedAdmission,
    "priority": CodedPriority,
    "estimator": CodedEstimator,
    "routing": CodedRouting,
    "decider": CodedDecider,
    "scheduler": CodedScheduler,
    "scaling": CodedScaling,
}
# Additional parameters of each stage: (name, type, default).
FIELDS: Final[dict[str, list[tuple[str, Any, Any]]]] = {
    **{
        stage: [("block_tokens", BlockTokens, BLOCK_TOKENS), ("lru_blocks", LruBlocks, LRU_BLOCKS)]
        for stage in lang.ROUTER
    },
    "scheduler": [("chunk_tokens", ChunkTokens, None)],
}
BELIEF: Final = "`cached_tokens` uses the prefix index with these `block_tokens` and `lru_blocks`."


def declare(name: str, way: type[Coded], docs: dict[str, str]) -> None:
    """Declare a policy of this name for each stage in `docs`, which maps stages to docstrings. `way` is the base class,
    which reads the source from the parameters."""
    for stage, doc in docs.items():
        title, fields, bases = f"{name.title()}{stage.title()}", FIELDS.get(stage, []), (way, STAGES[stage])
        members = {"__doc__": doc, "__module__": __name__}
        cls = make_dataclass(title, fields, bases=bases, namespace=members, eq=False, repr=False)
        policy(stage, name, exact=(), reported=())(cls)


@dataclass(eq=False, repr=False)
class Sourced(Coded):
    """A policy that gets its source from its parameters: `source`, or the file `path`."""

    source: str = ""
    path: str = ""
    parameters: Values = field(default_factory=dict)
    steps: Steps = lang.STEPS
    memory_keys: MemoryKeys = lang.MEMORY_KEYS

    def __post_init__(self) -> None:
        if bool(self.source) == bool(self.path):
            raise HeadwayError("code: give the policy as 'source' or its file as 'path', as in {path: rule.py}.")
        source = self.source or read_text(self.path)
        name = file_name(self.path) if self.path else "code"
        self.compile(source, name, self.parameters)


OWN: Final = "your own function in the policy language"
TEXT: Final = "`source` is the program, or `path` its file. `parameters` sets the parameters that it declares."
LIMITS: Final = "`steps` limits a decision, and `memory_keys` the values that the program remembers."
ONCE: Final = (
    "`key` is evaluated once, when a request arrives at its instance. `rank` is evaluated again after each change."
)
declare(
    "code",
    Sourced,
    {
        "routing": f"Routes by {OWN}, `score` or `route`.\n\n{TEXT} {BELIEF} {LIMITS}",
        "admission": f"Admits by {OWN}, `admit`.\n\n{TEXT} {BELIEF} {LIMITS}",
        "priority": f"Scores by {OWN}, `prioritise`.\n\n{TEXT} {BELIEF} {LIMITS}",
        "estimator": f"Expects what {OWN} returns, `estimate`.\n\n{TEXT} {BELIEF} {LIMITS}",
        "decider": f"Splits a request if {OWN} says so, `apart`.\n\n{TEXT} {BELIEF} {LIMITS}",
        "scheduler": f"Serves the lowest number first, by {OWN}, `key`.\n\n{ONCE} {TEXT} {LIMITS}",
        "scaling": f"Sets the number of replicas by {OWN}, `scale`.\n\n{TEXT} {LIMITS}",
    },
)
