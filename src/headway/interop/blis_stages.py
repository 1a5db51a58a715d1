"""Read the section `inference_perf` of a workload specification of BLIS: stages of load, and system prompts that users
share."""

from math import isfinite
from typing import Any, Final

from msgspec import Struct

from headway.config.section import read
from headway.config.units import duration_text
from headway.errors import HeadwayError
from headway.interop import plain
from headway.types import PS_PER_SECOND, PS_PER_US, Json

PREFIX_TOKENS: Final = 50  # BLIS's default length of a shared prefix, in tokens
MOST_PROMPTS: Final = 10_000  # maximum number of system prompts, because each becomes a tenant
CLIENT_TIMEOUT_US: Final = 300_000_000  # BLIS's default timeout of clients that wait for answers


class Stage(Struct):
    rate: float
    duration: int  # in seconds


class SharedPrefix(Struct):
    num_unique_system_prompts: int
    num_users_per_system_prompt: int
    system_prompt_len: int = 0
    question_len: int = 0
    output_len: int = 0
    enable_multi_turn_chat: bool = False


class InferencePerf(Struct):
    stages: list[dict[str, Any]] = []
    shared_prefix: Any = None


def import_stages(section: Any, where: str, notes: list[str]) -> Json:
    """Return the workload of the section: a tenant for each system prompt, and the stages as a load profile."""
    keys = read(InferencePerf, section, where)
    stages = _stages(keys, where)
    users = read(SharedPrefix, keys.shared_prefix, f"{where}.shared_prefix")
    for name in ("num_unique_system_prompts", "num_users_per_system_prompt"):
        if not 1 <= getattr(users, name) <= MOST_PROMPTS:
            limits = f"must be between 1 and {MOST_PROMPTS:,}"
            raise HeadwayError(f"{where}.shared_prefix.{name}: {limits}, got {getattr(users, name):,}.")
    for name in ("system_prompt_len", "question_len", "output_len"):
        if getattr(users, name) < 0:
            raise HeadwayError(f"{where}.shared_prefix.{name}: must not be negative, got {getattr(users, name)}.")
    workload = _conversations(stages, users, where) if users.enable_multi_turn_chat else _load(stages, notes)
    workload["prompt_tokens"] = max(1, users.question_len)
    workload["output_tokens"] = max(1, users.output_len)
    tokens = users.system_prompt_len or PREFIX_TOKENS
    if not users.system_prompt_len:
        notes.append(f"system_prompt_len is 0: BLIS then uses its default prefix of {PREFIX_TOKENS} tokens.")
    names = [f"prompt-{number}" for number in range(users.num_unique_system_prompts)]
    workload["tenants"] = {
        name: {"prefix": {"groups": [{"name": name}], "tokens": tokens, "added": True}} for name in names
    }
    return workload


def _stages(keys: InferencePerf, where: str) -> list[Stage]:
    if not keys.stages:
        raise HeadwayError(f"{where}.stages: the list is empty. Add at least one stage.")
    stages = [read(Stage, stage, f"{where}.stages[{at}]") for at, stage in enumerate(keys.stages)]
    for at, stage in enumerate(stages):
        if not (isfinite(stage.rate) and stage.rate > 0):
            raise HeadwayError(f"{where}.stages[{at}].rate: must be above 0, got {stage.rate:g}.")
        if stage.duration < 1:
            raise HeadwayError(f"{where}.stages[{at}].duration: must be at least 1 second, got {stage.duration}.")
    return stages


def _load(stages: list[Stage], notes: list[str]) -> Json:
    """Return the keys of an open loop. They do not distinguish users, because the arrivals of all users together are
    one arrival process."""
    base = stages[0].rate
    load: Json = {"rate": f"{plain(base)}/s"}
    if len(stages) == 1:
        notes.append("the stage has as many requests as in BLIS, but they need not end exactly with the stage.")
        return {"requests": max(1, int(base * stages[0].duration)), **load}
    levels, at = [], 0
    for stage in stages:
        levels.append({"at": _seconds(at), "multiplier": plain(stage.rate / base)})
        at += stage.duration
    return {"duration": _seconds(at), **load, "profile": {"type": "step", "levels": levels}}


def _conversations(stages: list[Stage], users: SharedPrefix, where: str) -> Json:
    """Return the keys of a closed loop: each user sends a question, waits for the answer, pauses, and starts anew.

    In inference-perf, the prompt of a turn does not contain earlier turns, so turns are independent requests.
    """
    if len(stages) > 1:
        raise HeadwayError(f"{where}.shared_prefix.enable_multi_turn_chat: is supported only with a single stage.")
    (stage,) = stages
    sessions = users.num_unique_system_prompts * users.num_users_per_system_prompt
    pause_us = int(sessions / stage.rate * 1e6)
    return {
        "requests": max(1, int(stage.rate * stage.duration)),
        "closed_loop": {
            "concurrency": users.num_users_per_system_prompt,
            "think_time": duration_text(pause_us * PS_PER_US),
        },
        "timeout": duration_text(CLIENT_TIMEOUT_US * PS_PER_US),
    }


def _seconds(seconds: int) -> str | None:
    return duration_text(seconds * PS_PER_SECOND)
