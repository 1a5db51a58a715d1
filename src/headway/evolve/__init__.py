"""Search for better policies: suites of cases, fitness, evaluation in processes with limits, and search engines."""

from headway.evolve.cache import Cache
from headway.evolve.evaluate import evaluate, evaluate_many
from headway.evolve.evaluation import Case, CaseResult, Evaluation
from headway.evolve.evolution import Plan, evolve
from headway.evolve.limits import Limits
from headway.evolve.objectives import Objective
from headway.evolve.suite import Cascade, Suite
from headway.policies.bundle import Bundle

__all__ = [
    "Bundle",
    "Cache",
    "Cascade",
    "Case",
    "CaseResult",
    "Evaluation",
    "Limits",
    "Objective",
    "Plan",
    "Suite",
    "evaluate",
    "evaluate_many",
    "evolve",
]
