"""Autoscalers: how many replicas a pool should have. A file a family."""

from headway.policies.scaling import capacity, forecast, hpa, kpa, thresholds
from headway.policies.scaling.thresholds import Static

__all__ = ["Static", "capacity", "forecast", "hpa", "kpa", "thresholds"]
