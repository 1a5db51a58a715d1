"""One minute of random faults; `make chaos` runs ten."""

import pytest

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")
pytest.importorskip("aiohttp", reason="the extra `gateway` is not installed")

from chaos import run_chaos


@pytest.mark.long
def test_under_random_faults_every_request_is_answered_and_nothing_is_left_over() -> None:
    assert run_chaos(seconds=60, rate=40, seed=1) == []
