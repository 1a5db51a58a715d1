"""Autoscalers, which set the number of replicas of a pool. Each family has its own file."""

from headway.policies.scaling import capacity, forecast, hpa, kpa, thresholds  # noqa: F401
