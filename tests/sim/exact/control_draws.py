"""Random control planes for the exactness tests: every policy of these stages with its parameters, and clients that
make them matter: classes, tenants, deadlines, closed loops, retries. Times are mostly in whole milliseconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from draw_sources import Draws, pick

Json = dict[str, Any]
Drawn = dict[str, Callable[[Draws], Json]]
CLASSES = ("realtime", "standard", "batch", "best-effort", "odd")
TENANTS = ("a", "b", "c")


def nothing(draws: Draws) -> Json:
    return {}


def weights(draws: Draws) -> Json:
    return pick(draws, {}, {"a": 3}, {"a": 0.7, "b": 2.5})


def targets(draws: Draws) -> Json:
    return pick(draws, {"realtime": "5ms"}, {"realtime": "10ms", "standard": "30ms", "batch": "200ms"}, {"odd": "1ms"})


def scores(draws: Draws) -> Json:
    return pick(draws, {"realtime": 2, "standard": 1}, {"batch": 1, "odd": -2.5})


def sheddable(draws: Draws) -> Any:
    return pick(draws, None, None, ["batch", "best-effort"], ["standard", "odd"])


# --- admission ---------------------------------------------------------------------------------------------------


def token_bucket(draws: Draws) -> Json:
    by = pick(draws, "requests", "tokens")
    return {
        "by": by,
        "per": pick(draws, "all", "tenant"),
        "rate": pick(draws, 20, 100, 150.5) * (1 if by == "requests" else 20),
        "burst": draws.between(1, 4) * (1 if by == "requests" else 30),
        "on_empty": pick(draws, "delay", "delay", "delay", "reject"),
        "max_wait_s": pick(draws, 60, 0.05, 0),
    }


def max_concurrency(draws: Draws) -> Json:
    return {"max_queue": draws.between(1, 12)}


def tier_shed(draws: Draws) -> Json:
    keep = pick(draws, "realtime", "standard", "batch")
    return {"classes": ["realtime", "standard", "batch"], "keep": keep, "max_load": draws.between(0, 4)}


def saturation(draws: Draws) -> Json:
    return {
        "queue_threshold": pick(draws, 0.5, 1, 3),
        "kv_threshold": pick(draws, 0.2, 0.5, 0.8),
        "sheddable": sheddable(draws),
    }


def probabilistic(draws: Draws) -> Json:
    return {
        **saturation(draws),
        "low": pick(draws, 0, 0.3),
        "k": pick(draws, 300, 5, 1, 0.3),
        "power": pick(draws, 1, 5),
    }


def deadline(draws: Draws) -> Json:
    return {"targets": targets(draws), "margin": pick(draws, 0.1, 1, 3)}


def tenant_fair(draws: Draws) -> Json:
    by = pick(draws, "requests", "tokens")
    total = pick(draws, None, draws.between(1, 6) * (1 if by == "requests" else 50))
    return {"total": total, "by": by, "weights": weights(draws)}


def all_of(draws: Draws) -> Json:
    """Two or three of the others; what puts off stands first or last."""
    others = [name for name in ADMISSION if name not in ("all-of", "never")]
    chosen = [pick(draws, *others) for _ in range(draws.between(1, 2))]
    chosen.insert(draws.between(0, len(chosen)), "token-bucket")
    return {"policies": [{"name": name, **ADMISSION[name](draws)} for name in chosen]}


ADMISSION: Drawn = {
    "always": nothing,
    "never": nothing,
    "token-bucket": token_bucket,
    "max-concurrency": max_concurrency,
    "tier-shed": tier_shed,
    "saturation": saturation,
    "probabilistic": probabilistic,
    "deadline": deadline,
    "tenant-fair": tenant_fair,
    "all-of": all_of,
    "load-shedding": lambda draws: {"soft_load": pick(draws, 0, 1, 3), "hard_load": pick(draws, 2, 6, 100)},
}

# --- priority and flow control -----------------------------------------------------------------------------------

PRIORITY: Drawn = {
    "none": nothing,
    "by-class": lambda draws: {"scores": scores(draws), "other": pick(draws, 0, 1.5)},
    "slo-deadline": lambda draws: {"targets": targets(draws), "other": pick(draws, "20ms", "1h")},
    "shortest-prompt": nothing,
    "aging": lambda draws: {"scores": scores(draws), "per_second": pick(draws, 0, 0.1, 100)},
    "tenant-weighted": lambda draws: {"weights": weights(draws)},
    "weighted-priority": lambda draws: {"age_weight": pick(draws, 0, 0.1, 10), "prompt_weight": pick(draws, 0, 10)},
}


def bands(draws: Draws) -> Json:
    return {
        "by": pick(draws, "class", "score"),
        "classes": pick(draws, ["realtime", "standard", "batch"], ["batch", "odd"]),
        "thresholds": pick(draws, [], [0], [1.5, -0.5]),
        "order": pick(draws, "fifo", "priority", "deadline"),
        "fairness": pick(draws, "strict", "round-robin", "weighted"),
        "weights": weights(draws),
        "share": pick(draws, "tokens", "requests"),
        "ttl": pick(draws, None, None, "1ms", "10ms", "40ms", "13.7ms"),
        "band_capacity": pick(draws, None, None, 1, 3),
        "capacity": pick(draws, None, None, 2, 4),
        "saturation": pick(draws, "utilization", "utilization", "concurrency", "concurrency", "never"),
        "queue_threshold": draws.between(1, 3),
        "kv_threshold": pick(draws, 0.1, 0.4, 0.8, 1),
        "max_inflight": draws.between(1, 4),
        "max_inflight_tokens": pick(draws, None, None, 30, 100),
        "ceiling": pick(draws, "none", "none", "holdback", "reflective"),
    }


FLOW: Drawn = {"none": nothing, "bands": bands}

# --- schedulers --------------------------------------------------------------------------------------------------


def chunks(draws: Draws) -> Json:
    return {"chunk_tokens": pick(draws, None, 1, 5, 16, 64)}


def aging(draws: Draws) -> Json:
    return {"aging": pick(draws, 0, 10, 1000)}


SCHEDULERS: Drawn = {
    "fcfs": nothing,
    "priority": lambda draws: {**aging(draws), **chunks(draws)},
    "sjf": lambda draws: {**aging(draws), **chunks(draws), "unknown_tokens": pick(draws, 1, 20, 256)},
    "shortest-prefill": lambda draws: {**aging(draws), **chunks(draws)},
    "shortest-expected": lambda draws: {**aging(draws), **chunks(draws)},
    "slo-slack": lambda draws: {
        **chunks(draws),
        "targets": pick(draws, {"standard": "1ms"}, targets(draws)),
        "other": pick(draws, "1ms", "2s"),
    },
    "fair": lambda draws: {**chunks(draws), "quantum": pick(draws, 1, 20, 1024)},
    "weighted-scheduling": lambda draws: {**aging(draws), "priority_weight": pick(draws, 0, 1, 1000)},
}

# --- estimators --------------------------------------------------------------------------------------------------


def learned(draws: Draws) -> Json:
    return {"quantile": pick(draws, 0.1, 0.5, 0.9), "least": pick(draws, 1, 3, 10), "kept": pick(draws, 1, 5, 1000)}


ESTIMATORS: Drawn = {
    "auto": learned,
    "by-class": learned,
    "by-prompt": lambda draws: {**learned(draws), "by_class": pick(draws, True, False)},
    "constant": lambda draws: {"tokens": pick(draws, 1, 20, 256)},
    "ratio": lambda draws: {"ratio": pick(draws, 0.1, 1.5), "most_tokens": pick(draws, None, 10)},
    "noisy-oracle": lambda draws: {"error": pick(draws, 0, 0.5, 2), "law": pick(draws, "normal", "uniform")},
    "moving-mean": lambda draws: {"pace": pick(draws, 0.05, 0.5), "first_guess": pick(draws, 1, 256)},
}

STAGES: dict[str, Drawn] = {
    "admission": ADMISSION,
    "priority": PRIORITY,
    "flow": FLOW,
    "scheduler": SCHEDULERS,
    "estimator": ESTIMATORS,
}


def policy(draws: Draws, stage: str, *names: str) -> Json:
    """One of these, or any of the stage."""
    name = pick(draws, *(names or STAGES[stage]))
    return {"name": name, **STAGES[stage][name](draws)}


def policies(draws: Draws) -> Json:
    """One of each stage but routing. Nobody is admitted only rarely, since nothing then happens."""
    open_door = [name for name in ADMISSION if name != "never"]
    return {
        "admission": policy(draws, "admission", *open_door, *open_door, "token-bucket", "never"),
        "priority": policy(draws, "priority"),
        "flow": policy(draws, "flow", "none", "bands", "bands"),
        "scheduler": policy(draws, "scheduler"),
        "estimator": policy(draws, "estimator"),
    }


# --- clients -----------------------------------------------------------------------------------------------------


def tenants(draws: Draws, prompt: int, output: int) -> Json:
    """One to three tenants with prompts and outputs of up to so many tokens, open and closed loops side by side."""
    return {name: tenant(draws, prompt, output) for name in TENANTS[: draws.between(1, 3)]}


def tenant(draws: Draws, prompt: int, output: int) -> Json:
    found: Json = {
        "priority": pick(draws, *CLASSES),
        "prompt_tokens": {"dist": "uniform", "min": 1, "max": draws.between(1, prompt)},
        "output_tokens": {"dist": "exponential", "mean": draws.between(1, output), "max": output},
    }
    if pick(draws, True, False, False):
        found["closed_loop"] = {"concurrency": draws.between(1, 6), "think_time": pick(draws, "0s", "1ms", "7ms")}
    else:
        found["rate"] = pick(draws, "1000/s", "500/s", "200/s", "100/s")
        found["arrival"] = pick(draws, "constant", "poisson", {"process": "gamma", "cv": 3})
    if pick(draws, True, True, False):
        found["timeout"] = pick(draws, "1ms", "10ms", "30ms", "50ms", "100ms", "500ms", "12.345ms")
    if pick(draws, True, False):
        found["retry"] = {"max": draws.between(1, 2), "backoff": pick(draws, "1ms", "5ms", "0.7ms")}
    if pick(draws, False, False, True):
        found["max_tokens"] = pick(draws, 5, 200)
    if pick(draws, True, False):
        found["prefix"] = {"groups": draws.between(1, 3), "tokens": draws.between(1, prompt), "share": 0.7}
    if pick(draws, False, False, True):
        turns = {"turns": draws.between(1, 4), "turn_tokens": draws.between(1, 10)}
        found["kind"] = {"kind": "chat", **turns, "think_time": pick(draws, "0s", "2ms")}
    return found
