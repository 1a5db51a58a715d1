"""The router's belief about caches against what the instances had cached, in tokens.

Qᵢ is the number of prompt tokens that the router believed cached when it dispatched request i, and Hᵢ is the number
that the instance had cached at the request's first step. A request diverges if the difference exceeds both the
tolerance, in tokens, and the fraction `LEAST_SHARE` of its prompt.

The tolerance is what rounding alone can cause. A belief counts whole blocks of b tokens and may be b − 1 tokens too
low; an engine counts whole blocks of e tokens, so that the belief may be e − 1 too high. The tolerance is therefore
max(b, e) − 1. An engine computes at least the last token of a prompt of P tokens, so a belief above P − 1 counts as
P − 1 when it is compared with the tolerance.
"""

from collections.abc import Iterator
from itertools import compress
from operator import ne, sub
from typing import Final

from headway.results.recorder import RequestColumns, RunFacts
from headway.results.sample import column_of_started, ratio
from headway.types import Json

LEAST_SHARE: Final = 0.1
# Tolerance for runs that do not record their tolerance, in tokens: one less than the block size of most engines.
TOLERANCE: Final = 15


def shadow(requests: RequestColumns, facts: RunFacts) -> Json:
    """Return the section `shadow` of the summary if a policy predicts cached tokens, otherwise an empty dict."""
    believed = column_of_started(requests, facts, "predicted_tokens")
    if not facts.predicts and not any(believed):
        return {}
    cached = column_of_started(requests, facts, "cached_tokens")
    prompts = column_of_started(requests, facts, "prompt_tokens")
    tolerance = max(facts.belief_block_tokens, facts.block_tokens) - 1
    drifts = [drift for _, drift in divergences(believed, cached, prompts, tolerance)]
    high, low = [drift for drift in drifts if drift > 0], [-drift for drift in drifts if drift < 0]
    total = sum(prompts)
    return {
        "shadow": {
            "divergences": len(drifts),
            "unexpected_misses": len(high),
            "unexpected_hits": len(low),
            "divergence_rate": ratio(len(drifts), len(cached)),
            "too_high_tokens": sum(high),
            "too_high_share": ratio(sum(high), total),
            "too_low_tokens": sum(low),
            "too_low_share": ratio(sum(low), total),
            "tolerance_tokens": tolerance,
            "token_error": ratio(sum(map(abs, map(sub, believed, cached))), len(cached)),
            "token_bias": ratio(sum(believed) - sum(cached), len(cached)),
        }
    }


def divergences(
    believed: list[int], cached: list[int], prompts: list[int], tolerance: int
) -> Iterator[tuple[int, int]]:
    """Yield the position of each request that diverges, and its Q − H, which is positive if the belief was too high."""
    differs = map(ne, believed, cached)  # most beliefs are exact; skip those requests quickly
    for place in compress(range(len(believed)), differs):
        prompt, actual = prompts[place], cached[place]
        drift = abs(min(believed[place], prompt - 1) - actual)
        if drift > tolerance and drift > LEAST_SHARE * prompt:
            yield place, believed[place] - actual
