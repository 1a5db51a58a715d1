"""What programs say and what they cost, to the step, in every version of Python: a corpus with its answers.

`python tests/policies/code/test_golden.py` writes it anew, for a change of the language that is meant.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest
from oracle import CACHED, SHORT, outcome, run, situation
from programs import Maker
from test_hostile import ALLOWED, AROUND, RUNNING, body

from headway.policies.code import CodeError, Program

FILE = Path(__file__).with_name("golden.json")
GOLDEN: dict[str, dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
DRAWN = 60  # programs that were drawn, come to a value and read what a word below says
MORE = ", of more views"  # the end of their names
VIEWED = ("tier_", "tenants", "priority.", "adapters", "deadline", "estimated_wait")


def answer(source: str) -> dict[str, Any]:
    """The two first decisions, what was left of the steps, and the words of a failure."""
    program = Program(source, "routing")
    said, left = run(program)
    running = program.start()
    words = ""
    for _ in said:
        running.begin(SHORT, CACHED, None)
        try:
            running.entrance(*situation())
        except Exception as error:
            words = program.failure(error)
    return {"said": [list(one) for one in said], "left": left, "nodes": program.nodes, "words": words}


def corpus() -> dict[str, str]:
    found = {name: kept["source"] for name, kept in GOLDEN.items()}  # a program is never dropped
    found |= {name: body(text) for name, (text, _) in RUNNING.items()}
    found |= {name: AROUND + body(text) for name, (text, _) in ALLOWED.items()}
    seed = 0
    while len([name for name in found if name.endswith(MORE)]) < DRAWN:
        seed += 1
        source = Maker(Random(seed)).source()
        try:
            program = Program(source, "routing")
        except CodeError:
            continue
        if run(program)[0][-1][0] == "gave" and any(word in source for word in VIEWED):
            found[f"drawn {seed}{MORE}"] = source
    return found


@pytest.mark.parametrize("name", GOLDEN)
def test_a_program_says_what_it_always_said_at_the_same_cost(name: str) -> None:
    kept = GOLDEN[name]
    assert answer(kept["source"]) == {key: value for key, value in kept.items() if key != "source"}


def test_the_corpus_has_what_the_language_has() -> None:
    assert set(RUNNING) | set(ALLOWED) <= set(GOLDEN)
    ends = [one["said"][-1][0] for one in GOLDEN.values()]
    assert all(ends.count(end) > 10 for end in ("gave", "stopped", "failed"))


def test_outcomes_are_those_of_the_corpus() -> None:
    assert outcome(lambda: [1, 2.5]) == ("gave", ["list 2", "2.5", "1"])


if __name__ == "__main__":
    made = {name: {"source": source, **answer(source)} for name, source in corpus().items()}
    FILE.write_text(json.dumps(made, indent=1, ensure_ascii=True) + "\n", encoding="utf-8")
    print(f"{len(made)} programs", file=sys.stderr)
