"""What a run leaves behind, in columns: one row a request in order of arrival, one entry a run of equal steps."""

from __future__ import annotations

from array import array

from msgspec import Struct

from headway.types import OUTCOMES

IN_FLIGHT = OUTCOMES.index("in_flight")


class Recorder:
    """Per-request columns and the gaps between tokens. A time that never came is -1; so is the instance of a request
    that was never routed."""

    __slots__ = (
        "arrival_ps",
        "cached_tokens",
        "finished_ps",
        "first_token_ps",
        "gaps",
        "instance",
        "outcome",
        "output_tokens",
        "preemptions",
        "prompt_tokens",
        "reasons",
        "started_ps",
    )

    def __init__(self) -> None:
        self.arrival_ps = array("q")
        self.started_ps = array("q")
        self.first_token_ps = array("q")
        self.finished_ps = array("q")
        self.instance = array("i")
        self.outcome = array("b")  # index into OUTCOMES
        self.prompt_tokens = array("q")
        self.output_tokens = array("q")
        self.cached_tokens = array("q")
        self.preemptions = array("i")
        self.reasons: dict[int, str] = {}  # row -> why it was rejected or failed
        # Gaps between successive tokens of one request, run by run, four integers each: the first gap, the increment
        # from step to step, the number of steps, and how many requests saw them. A negative weight takes back the
        # gaps of a request that turned out not to count.
        self.gaps = array("q")

    def arrived(self, at_ps: int, prompt_tokens: int) -> None:
        self.arrival_ps.append(at_ps)
        self.started_ps.append(-1)
        self.first_token_ps.append(-1)
        self.finished_ps.append(-1)
        self.instance.append(-1)
        self.outcome.append(IN_FLIGHT)
        self.prompt_tokens.append(prompt_tokens)
        self.output_tokens.append(0)
        self.cached_tokens.append(0)
        self.preemptions.append(0)

    def __len__(self) -> int:
        return len(self.arrival_ps)


class InstanceStats(Struct):
    """What one instance did over a whole run."""

    id: str
    requests: int = 0  # routed here
    busy_ps: int = 0
    steps: int = 0
    prefill_tokens: int = 0  # computed, recomputation after a preemption not counted again
    output_tokens: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    evicted_blocks: int = 0
    peak_kv_blocks: int = 0
    kv_blocks: int = 0


class RunFacts(Struct):
    """What `metrics.summarise` needs beside the columns."""

    started_ps: int  # first arrival
    ended_ps: int  # last event, or the horizon
    block_tokens: int
    warmup: int
    slo_ttft_ps: int | None
    slo_tpot_ps: int | None
    gpus_per_instance: int
    usd_per_gpu_hour: float
    policy_metrics: dict[str, float]
