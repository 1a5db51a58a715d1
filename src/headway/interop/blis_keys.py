"""The keys of a workload specification of BLIS, version 2."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

CLASSES: Final = ("critical", "standard", "sheddable", "batch", "background")
OLD_CLASSES: Final = {"realtime": "critical", "interactive": "standard"}  # of version 1
ARRIVALS: Final = ("poisson", "gamma", "weibull", "constant")
PREFIX_TOKENS: Final = 50  # of a prefix group that does not say
CLIENT_TIMEOUT_US: Final = 300_000_000  # of clients that wait for answers, unless they say otherwise


class Spec(Struct):
    version: str | int = "2"
    seed: int = 0
    category: str = ""
    clients: list[dict[str, Any]] = []
    cohorts: Any = None
    aggregate_rate: float = 0.0
    horizon: int = 0
    num_requests: int = 0
    servegen_data: Any = None
    inference_perf: Any = None
    goodput_slo_targets: Any = None


class Client(Struct):
    arrival: Any = None
    input_distribution: Any = None
    output_distribution: Any = None
    id: str = ""
    tenant_id: str = ""
    slo_class: str = ""
    model: str = ""
    adapter: str = ""
    rate_fraction: float = 0.0
    concurrency: int = 0
    think_time_us: int = 0
    prefix_group: str = ""
    prefix_length: int = 0
    streaming: bool = False
    network: Any = None
    lifecycle: Any = None
    multimodal: Any = None
    reasoning: Any = None
    timeout: int | None = None
    slo_target_us: int | None = None
    closed_loop: bool | None = None


class Arrival(Struct):
    process: str
    cv: float | None = None
    shape: float | None = None
    scale: float | None = None


class Reasoning(Struct):
    reason_ratio_distribution: Any = None
    multi_turn: Any = None


class MultiTurn(Struct):
    max_rounds: int
    think_time_us: int = 0
    context_growth: str = ""
    single_session: bool = False
