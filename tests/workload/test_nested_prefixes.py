"""Nested prefixes: the prefix of a group begins with that of its outer group."""

from __future__ import annotations

from typing import Any

import pytest
from generated import plan

from headway.errors import HeadwayError
from headway.types import Path
from headway.workload.contexts import Context, nested
from headway.workload.prefixes import parse

OUTER, GROUP, OWN = (3, 80), 7, 9


@pytest.mark.parametrize(
    ("tokens", "keys", "ends"),
    [
        (300, (3, 7, 9), (80, 200, 300)),
        (200, (3, 7), (80, 200)),
        (150, (3, 7), (80, 150)),
        (80, (3,), (80,)),
        (5, (3,), (5,)),
    ],
)
def test_a_prompt_begins_with_the_outer_prefix(tokens: int, keys: tuple[int, ...], ends: tuple[int, ...]) -> None:
    assert Context(GROUP, 200, outer=OUTER).prompt(tokens, OWN) == Path(keys, ends)
    plain = Context(GROUP, 200).prompt(tokens, OWN)
    assert nested(OUTER, plain.keys, plain.ends) == (keys, ends)


def test_later_turns_keep_both_prefixes() -> None:
    context = Context(GROUP, 200, outer=OUTER)
    context.prompt(300, OWN)
    context.add_answer(11, 20, 0)
    assert context.prompt(40, 13) == Path((3, 7, 9, 11, 13), (80, 200, 300, 320, 360))


def prompts(kind: str, prefix: dict[str, Any]) -> list[Path]:
    lengths = {"prompt_tokens": 300, "output_tokens": 10}
    return [item.request.path for item in plan(requests=60, rate="10/s", kind=kind, prefix=prefix, **lengths)]


@pytest.mark.parametrize("kind", ["chat", "completion"])
def test_groups_of_one_outer_group_share_its_prefix_and_no_more(kind: str) -> None:
    paths = prompts(kind, {"groups": 6, "tokens": 200, "within": {"groups": 2, "tokens": 80}})
    outer = {path.keys[1]: path.keys[0] for path in paths}
    assert len(outer) == 6 and len(set(outer.values())) == 2
    assert all(path.ends[:2] == (80, 200) for path in paths)


@pytest.mark.parametrize("kind", ["chat", "completion"])
def test_nesting_changes_no_draw(kind: str) -> None:
    plain = prompts(kind, {"groups": 6, "tokens": 200})
    inner = prompts(kind, {"groups": 6, "tokens": 200, "within": {"groups": 2, "tokens": 80}})
    assert [(path.keys[1:], path.ends[1:]) for path in inner] == [(path.keys, path.ends) for path in plain]


@pytest.mark.parametrize(
    ("prefix", "message"),
    [
        ({"groups": 6, "tokens": 80, "within": {"groups": 2, "tokens": 80}}, "must be less than 80"),
        ({"groups": [{"name": "a", "tokens": 90}], "within": {"groups": 2, "tokens": 80}}, "needs a number of groups"),
    ],
)
def test_what_cannot_be_nested_is_an_error(prefix: dict[str, Any], message: str) -> None:
    with pytest.raises(HeadwayError, match=message):
        parse(prefix, "workload.prefix")
