"""The clock has an end, and a run that would pass it is told so."""

from __future__ import annotations

import pytest

import headway
from headway.errors import HeadwayError


@pytest.mark.parametrize("rate", [1e-6, 2e-7])
def test_a_run_beyond_the_last_picosecond_is_refused(rate: float) -> None:
    scenario = {
        "workload": {"requests": 3, "rate": "1/s", "prompt_tokens": 10, "output_tokens": 50},
        "cluster": {"instances": 1, "latency": {"model": "fixed", "decode_tokens_per_s": rate}},
    }
    with pytest.raises(HeadwayError, match="exceeds 106 days of simulated time"):
        headway.simulate(scenario)
