"""Several searches in one call: each has its folder, and the share that wins is counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small import suite

from headway.errors import HeadwayError
from headway.evolve.evolution import Plan, evolve
from headway.evolve.repeated import evolve_repeatedly
from headway.evolve.search_tables import searches_report

SMALL = suite(
    train=[{"workload": "prefixes", "seeds": [1]}],
    validation=[],
    held_out=[{"workload": "prefixes", "seeds": [101, 102]}],
)


def test_several_searches_are_the_single_ones_side_by_side(tmp_path: Path) -> None:
    plan = Plan("gp", seed=3, batch=4)
    options: dict[str, Any] = {"evaluations": 4, "builtins": ["lmetric"], "workers": 1, "controls": False}
    found = evolve_repeatedly(SMALL, plan, 2, output=tmp_path / "both", **options)
    alone = evolve(SMALL, Plan("gp", seed=4, batch=4), **options)
    assert list(found.conclusions) == [3, 4]
    assert found.conclusions[4].document() == alone.document()
    assert (tmp_path / "both" / "seed-3" / "best.yaml").is_file() and (tmp_path / "both" / "seed-4").is_dir()
    won = [rival.ahead is not None and (rival.ahead.low or 0.0) > 0 for rival in found.leads("built-in").values()]
    assert found.document()["winning_share"] == {"built-in": sum(won) / 2}
    assert found.verdict.startswith(f"{sum(won)} of 2 searches lead the best built-in policy")
    assert searches_report(found)


def test_several_searches_need_a_held_out_part() -> None:
    with pytest.raises(HeadwayError, match="held-out part, which has no cases"):
        evolve_repeatedly(suite(held_out=[]), Plan("gp"), 2)
    with pytest.raises(HeadwayError, match="searches: must be at least 1"):
        evolve_repeatedly(suite(), Plan("gp"), 0)
