"""The parts of a winner: found in its source, removed one at a time, and dropped if they change nothing."""

from __future__ import annotations

import pytest
from small import code, suite

from headway.evolve import Bundle, Cache, evaluate
from headway.evolve.ablation import ablate, simplest, simplify, source_in, without_parts
from headway.evolve.journal import Judged
from headway.evolve.selection import Selection
from headway.evolve.situations import decisions
from headway.policies.code import plain_program

HEAD = "def score(request, instance, cluster):\n"
SUM = (
    HEAD + "    spare = 1 / (1 + instance.inflight)\n    return spare - 3 * instance.queued - instance.kv_utilization\n"
)
SMALL = suite(train=[{"workload": "prefixes", "seeds": [1]}], validation=[{"workload": "prefixes", "seeds": [11, 12]}])


def test_each_term_and_branch_is_a_part_and_unused_names_go_with_it() -> None:
    parts = dict(without_parts(SUM, "routing"))
    assert set(parts) == {"spare - 3 * instance.queued", "instance.kv_utilization", "spare", "3 * instance.queued", "1",
                          "instance.inflight"}  # fmt: skip
    assert "spare" not in parts["spare"] and parts["spare"].endswith(
        "return -(3 * instance.queued) - instance.kv_utilization\n"
    )
    branch = (
        HEAD + "    if instance.queued < 3:\n        return -instance.inflight\n    return min(1, instance.queued)\n"
    )
    assert {"then, if instance.queued < 3", "otherwise, if instance.queued < 3", "1"} <= set(
        dict(without_parts(branch, "routing"))
    )


def test_factors_that_are_constants_and_definitions_of_features_are_no_parts() -> None:
    source = f"{HEAD}    uncached = (request.prompt_tokens - cached_tokens(instance)) / 1000\n"
    source += "    return -0.5 * uncached - 2 * instance.inflight\n"
    assert {part for part, _ in without_parts(source, "routing")} == {"-0.5 * uncached", "2 * instance.inflight"}


@pytest.mark.parametrize("text", ["-instance.inflight + 0.0 * instance.kv_utilization", "-max(instance.inflight, -1)"])
def test_parts_that_change_no_decision_are_dropped(text: str) -> None:
    source = f"{HEAD}    return {text}\n"
    shorter = simplest(source, "routing")
    assert shorter is not None and shorter.strip().endswith("return -instance.inflight")
    assert decisions(plain_program(shorter, "routing")) == decisions(plain_program(source, "routing"))


def test_a_winner_without_needless_parts_stays_as_it_is() -> None:
    assert simplest(f"{HEAD}    return -instance.inflight\n", "routing") == f"{HEAD}    return -instance.inflight\n"


def selection(source: str, cache: Cache) -> Selection:
    bundle = code(source)
    train, validation = (evaluate(bundle, SMALL, part, cache=cache, told=False) for part in ("train", "validation"))
    return Selection([], 0.0, Judged(bundle, train), "validation", {bundle.id: validation})


def test_the_simplified_winner_has_the_figures_of_the_winner_and_names_it_as_its_parent() -> None:
    cache = Cache()
    chosen = selection(f"{HEAD}    return -instance.inflight + 0.0 * instance.kv_utilization\n", cache)
    simpler = simplify(chosen, SMALL, "routing", cache)
    bundle = simpler.winner.bundle
    assert bundle.complexity < chosen.winner.bundle.complexity and bundle.parent == chosen.winner.bundle.id
    assert bundle.mutations == ("simplified",)
    assert [case.figures for case in simpler.winner.evaluation.cases] == [
        case.figures for case in chosen.winner.evaluation.cases
    ]
    assert bundle.id in simpler.validated


def test_a_part_that_only_simulations_need_is_kept() -> None:
    """The term is zero in every situation without a simulation, but orders the requests of a simulation."""
    cache = Cache()
    source = f"{HEAD}    return -instance.inflight - 5 * (instance.index if request.arrival > 0.5 else 0)\n"
    chosen = selection(source, cache)
    assert simplify(chosen, SMALL, "routing", cache).winner.bundle.id == chosen.winner.bundle.id


def test_the_ablation_has_the_loss_of_every_part_on_the_validation_part_the_largest_first() -> None:
    source = f"{HEAD}    return ratio(cached_tokens(instance), request.prompt_tokens) - 0.1 * instance.inflight\n"
    rows = ablate(code(source), SMALL, "routing", Cache())
    assert {row.part for row in rows} == {
        "ratio(cached_tokens(instance), request.prompt_tokens)",
        "0.1 * instance.inflight",
    }
    lost = [row.lost.mean for row in rows if row.lost]
    assert lost == sorted(lost, reverse=True) and any(lost)
    assert all(row.lost and row.lost.low is not None for row in rows)


def test_a_policy_without_a_source_has_no_parts() -> None:
    bundle = Bundle.of(routing="least-loaded")
    assert source_in(bundle, "routing") is None and ablate(bundle, SMALL, "routing", Cache()) == []
