"""A search on a Ray cluster of two machines that loses one of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_search import FEW, contents, few

from headway.evolve.evolution import Plan, evolve
from installed import need
from ray_cluster import lose, two_machines

need("ray", "ray")


@pytest.mark.full
def test_a_search_that_loses_a_machine_comes_to_the_same_bytes(tmp_path: Path) -> None:
    plan = Plan("gp", seed=3, batch=5)
    with two_machines() as cluster:

        class Unplug:
            """Run when the first candidates have been evaluated."""

            lost = False

            def __call__(self, done: int, total: int, best: float | None) -> None:
                if done and not self.lost:
                    self.lost = True
                    lose(cluster)

            def final(self, done: int, total: int) -> None:
                pass

        unplug = Unplug()
        evolve(
            few(),
            plan,
            evaluations=15,
            builtins=FEW,
            ray=cluster.address,
            output=tmp_path / "away",
            progress=unplug,
        )
        assert unplug.lost
    evolve(few(), plan, evaluations=15, builtins=FEW, workers=1, output=tmp_path / "here")
    assert contents(tmp_path / "away") == contents(tmp_path / "here")
