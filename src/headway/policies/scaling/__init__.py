"""Autoscalers: how many replicas a pool should have. A file a family."""

from headway.policies.scaling import capacity, forecast, hpa, kpa, thresholds  # noqa: F401
