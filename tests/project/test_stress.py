"""The table of policies under stress: complete, explained, and what the command measures today."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType

import pytest

from conftest import ROOT
from headway.policies import registry


def load() -> ModuleType:
    """Load benchmarks/stress.py, which is not part of the package."""
    spec = spec_from_file_location("stress", ROOT / "benchmarks" / "stress.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["stress"] = module
    spec.loader.exec_module(module)
    return module


stress = load()
TABLE = stress.read_figures()
QUICK = [("overload", "prefix-aware"), ("one-prompt", "kv-aware"), ("one-prompt", "kv-aware-spill")]
SAMPLE = ["least-loaded", "prefix-aware", "kv-aware", "kv-aware-spill", "weighted", "random", "unified"]


def test_every_policy_is_in_the_table_under_every_stress() -> None:
    assert list(TABLE) == list(stress.STRESSES)
    for name, row in TABLE.items():
        assert sorted(row) == sorted(registry.names("routing")), f"{name}: run `make stress`"


def test_every_cell_above_three_is_explained_by_its_policy() -> None:
    assert stress.unexplained(TABLE) == []


def test_a_cell_above_three_without_an_explanation_is_an_error() -> None:
    row = {
        "least-loaded": stress.Cell(100.0, 1.0),
        "lmetric": stress.Cell(310.0, 1.0),
        "unified": stress.Cell(1.0, 3.1),
    }
    assert stress.unexplained({"slow": row}) == [("lmetric", "slow"), ("unified", "slow")]
    assert (
        stress.unexplained({"slow": {**row, "lmetric": stress.Cell(300.0, 3.0), "unified": row["least-loaded"]}}) == []
    )


def test_the_page_shows_the_figures_and_quotes_the_reasons() -> None:
    page = stress.PAGE.read_text(encoding="utf-8")
    assert stress.render(page, TABLE) == page, "run `make stress`"
    for policy in stress.bad_cells(TABLE):
        assert stress.limits(policy) in page


def test_the_recommended_policy_is_never_worse_than_least_loaded_beyond_noise() -> None:
    for name, row in TABLE.items():
        assert stress.relative(row["kv-aware-spill"], row["least-loaded"]).ttft_p99 <= 1.02, name


@pytest.mark.parametrize("name", ["overload", "one-prompt"])
def test_the_command_measures_what_the_table_says(name: str) -> None:
    policies = ["least-loaded", *(policy for stressed, policy in QUICK if stressed == name)]
    assert stress.measure(name, policies, workers=1) == {policy: TABLE[name][policy] for policy in policies}


@pytest.mark.full
@pytest.mark.parametrize("name", stress.STRESSES)
def test_the_command_measures_what_the_whole_table_says(name: str) -> None:
    if name in stress.REPLAYS and not stress.TRACES.is_dir():
        pytest.skip("the real traces are not beside this checkout (../shared/traces)")
    assert stress.measure(name, SAMPLE, workers=1) == {policy: TABLE[name][policy] for policy in SAMPLE}
