"""Where a policy's rule turns over: at exactly its threshold, and beyond the ends of its scale."""

from __future__ import annotations

import pytest
from states import bound, choose, prompt, views

import headway.policies  # noqa: F401


@pytest.mark.parametrize("tenths", [1, 3, 6, 7, 9])
def test_a_hit_ratio_of_just_the_threshold_as_it_is_written_is_not_above_it(tenths: int) -> None:
    policy = bound("unified", views(1), min_hit_ratio=tenths / 10)
    hit = tenths * 512
    assert not policy.warm(hit, 10 * 512)
    assert policy.warm(hit, 10 * 512 - 1)


def test_a_declared_prefix_longer_than_the_prompt_is_the_whole_prompt() -> None:
    request = prompt(100, shared_prefix_tokens=1000)
    assert choose("prefix-aware", views(2), request, [5, 6]) == 1
