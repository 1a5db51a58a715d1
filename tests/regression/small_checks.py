"""Scenarios small enough to check in a fraction of a second."""

from __future__ import annotations

from typing import Any

SMALL: dict[str, Any] = {
    "name": "small",
    "workload": {
        "requests": 40,
        "rate": "12/s",
        "prompt_tokens": {"dist": "uniform", "min": 100, "max": 900},
        "output_tokens": {"dist": "uniform", "min": 4, "max": 40},
    },
    "cluster": {"instances": 2, "latency": {"model": "linear"}},
    "policies": {"routing": "least-loaded"},
}
SLOW = "cluster.latency.step=14ms"  # twice the default
