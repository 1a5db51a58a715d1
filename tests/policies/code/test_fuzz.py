"""Drawn programs: the language says what Python says, says it twice alike, and whatever is thrown at it is at most
refused."""

from __future__ import annotations

import ast
import io
import random
import tokenize
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st
from msgspec.structs import replace
from oracle import Unsound, checking, outcome, run, run_plainly, situation
from programs import Maker

from drawing import draws
from headway.policies.code import CodeError, Program, check, language

DRAWN = draws(25, suppress_health_check=list(HealthCheck))


def seeds() -> st.SearchStrategy[int]:
    return st.integers(0, 2**40)


def drawn(seed: int) -> str:
    return Maker(Random(seed)).source()


def same_as_python(seed: int) -> None:
    source = drawn(seed)
    try:
        program = Program(source, "routing")
    except CodeError:
        return
    said, left = run(program)
    assert run(Program(source, "routing")) == (said, left)  # to the step
    assert run(program) == (said, left)  # whatever was run before
    if said[-1][0] == "stopped":  # by the language alone
        return
    plainly = run_plainly(source)
    assert plainly[:-1] == said[:-1]
    assert plainly[-1][0] == said[-1][0]
    if said[-1][0] == "gave":
        assert plainly[-1] == said[-1]


@DRAWN
@given(seeds())
@example(306)
def test_a_drawn_program_says_what_python_says(seed: int) -> None:
    same_as_python(seed)


def kinds_hold(seed: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        checking(patched)
        try:
            program = Program(drawn(seed), "routing")
        except CodeError:
            return
        run(program)


@DRAWN
@given(seeds())
def test_every_value_is_of_the_kind_that_was_worked_out(seed: int) -> None:
    kinds_hold(seed)


@pytest.mark.full
def test_the_drawn_programs_get_somewhere() -> None:
    """A good part of them is of the language, and of these a good part gives a value."""
    ends: dict[str, int] = {}
    for seed in range(120):
        try:
            program = Program(drawn(seed), "routing")
        except CodeError:
            continue
        last = run(program)[0][-1][0]
        ends[last] = ends.get(last, 0) + 1
    assert sum(ends.values()) > 70
    assert ends["gave"] > 20


def test_a_value_of_another_kind_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check itself: an inference that takes texts for numbers is found out."""
    checking(monkeypatch)
    monkeypatch.setitem(language.FUNCTIONS, "len", replace(language.FUNCTIONS["len"], gives=0))
    program = Program("def route(request, instances, cluster):\n    return len(instances)\n", "routing")
    running = program.start()
    running.begin(100, [], None)
    with pytest.raises(Unsound, match=r"line 2: len\(instances\)"):
        running.entrance(*situation())


# --- what is not of the language -------------------------------------------------------------------------------------

WORDS = (
    *(
        "def",
        "return",
        "if",
        "else",
        "for",
        "while",
        "in",
        "import",
        "lambda",
        "class",
        "yield",
        "async",
        "await",
        "try",
    ),
    *(
        "with",
        "del",
        "global",
        "nonlocal",
        "raise",
        "assert",
        "match",
        "case",
        "type",
        "is",
        "not",
        "and",
        "or",
        "None",
    ),
    *("True", "x", "xs", "route", "request", "instances", "cluster", "__class__", "_left", "_library", "min", "sorted"),
    *(
        "parameter",
        "recall",
        "open",
        "exec",
        "format",
        "0",
        "1e999",
        "9" * 20,
        "0x_1",
        "'a'",
        "b'a'",
        "f'{x}'",
        "...",
        "1j",
    ),
    *(
        "+",
        "-",
        "*",
        "/",
        "//",
        "%",
        "**",
        "@",
        "<<",
        "~",
        "=",
        "==",
        ":=",
        "+=",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        ",",
        ":",
    ),
    *(".", ";", "->", "\n", "\n    ", "\n        ", " ", "\\\n", "#", "\t", "\0", "\ud800", "é", "ﬀ", "$", "?", "!"),
)


def refused_or_runs(source: str) -> None:
    """Nothing but rejections comes of a text; what has none can be run, and stops."""
    found = check(source, "routing")
    for one in found:
        assert one.line >= 1 and one.construct and one.why
    if found:
        with pytest.raises(CodeError) as caught:
            Program(source, "routing")
        assert list(caught.value.rejections) == found
        return
    program = Program(source, "routing")
    said, left = run(program, 2000, 1)
    assert run(program, 2000, 1) == (said, left)


@DRAWN
@given(st.lists(st.sampled_from(WORDS), max_size=60).map("".join))
def test_token_soup_is_refused_or_runs(source: str) -> None:
    refused_or_runs(source)


@DRAWN
@given(st.lists(st.sampled_from(WORDS), max_size=30).map(" ".join))
def test_token_soup_within_a_function_is_refused_or_runs(soup: str) -> None:
    refused_or_runs(f"def route(request, instances, cluster):\n    x = 1\n    {soup}\n    return x\n")


@DRAWN
@given(st.text(max_size=200))
def test_any_text_is_refused_or_runs(source: str) -> None:
    refused_or_runs(source)


@DRAWN
@given(seeds(), st.randoms(use_true_random=False))
def test_a_program_with_other_tokens_is_refused_or_runs(seed: int, rng: random.Random) -> None:
    source = drawn(seed)
    tokens = [one.string for one in tokenize.generate_tokens(io.StringIO(source).readline) if one.string.strip()]
    lines = source.splitlines()
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(lines))
        old, new = rng.choice(tokens), rng.choice((*tokens, *WORDS))
        lines[at] = (
            lines[at].replace(old, new, 1) if rng.random() < 0.7 else lines[at][: rng.randrange(len(lines[at]) + 1)]
        )
    refused_or_runs("\n".join(lines) + "\n")


class Swap(ast.NodeTransformer):
    """Some expressions stand where others stood."""

    def __init__(self, rng: random.Random, tree: ast.AST) -> None:
        self.rng = rng
        self.spare = [node for node in ast.walk(tree) if isinstance(node, ast.expr)]

    def visit(self, node: ast.AST) -> Any:
        if (
            isinstance(node, ast.expr)
            and isinstance(getattr(node, "ctx", ast.Load()), ast.Load)
            and self.rng.random() < 0.04
        ):
            return self.rng.choice(self.spare)
        return self.generic_visit(node)


@DRAWN
@given(seeds(), st.randoms(use_true_random=False))
def test_a_program_with_other_expressions_is_refused_or_runs(seed: int, rng: random.Random) -> None:
    try:
        tree = ast.parse(drawn(seed))
        source = ast.unparse(ast.fix_missing_locations(Swap(rng, ast.parse(drawn(seed + 1))).visit(tree)))
    except (SyntaxError, ValueError, RecursionError):  # a few of the drawn ones are no Python
        return
    refused_or_runs(source)


def test_outcomes_tell_one_and_true_apart() -> None:
    assert outcome(lambda: 1) != outcome(lambda: True) != outcome(lambda: 1.0)
    assert outcome(lambda: float("nan")) == outcome(lambda: float("nan"))
