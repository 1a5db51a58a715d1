"""Models that answer by rule, in a separate module that other processes can import."""

from __future__ import annotations

import re
from typing import Any

from headway.evolve.model import Prompt, messages_of

WEIGHT = re.compile(r"W = parameter\(([\d.]+), 0.0, 50.0\)")
SOURCE = """\
W = parameter(1.0, 0.0, 50.0)


def score(request, instance, cluster):
    return W * ratio(cached_tokens(instance), request.prompt_tokens) - instance.inflight
"""


def text_of(prompt: Prompt) -> str:
    return str(messages_of(prompt)[-1]["content"])


def heavier(prompt: Prompt) -> str:
    """Return the current policy with twice the weight, after some text and a block that is not the policy."""
    shown = text_of(prompt)
    result = WEIGHT.search(shown)
    weight = 2 * float(result[1]) if result else 4.0
    policy = SOURCE.replace("parameter(1.0,", f"parameter({min(weight, 50.0)},")
    return f"It should be heavier:\n```\nW = {weight}\n```\nThe whole of it:\n```python\n{policy}```\nThat is all."


def diff(before: str, after: str) -> str:
    return f"Better so.\n<<<<<<< SEARCH\n{before}\n=======\n{after}\n>>>>>>> REPLACE\n"


def editor(prompt: Prompt) -> str:
    """Return a diff that doubles the weight of the current program."""
    current = text_of(prompt).rpartition("# Current Program")[2]
    line = WEIGHT.search(current)
    if line is None:
        return "I see no weight."
    weight = min(2 * float(line[1]), 50.0)
    return diff(line[0], f"W = parameter({weight}, 0.0, 50.0)")


def hostile(prompt: Prompt) -> str:
    """Return a diff with an endless loop, with an edit outside the markers, or with an import."""
    current = text_of(prompt).rpartition("# Current Program")[2]
    length = len(text_of(prompt)) % 3
    if length == 0:
        return diff("    return W *", "    while True:\n        W * 1\n    return W *")
    if length == 1:
        return diff("# EVOLVE-BLOCK-END", "# EVOLVE-BLOCK-END\nimport os")
    return diff("def score", "import os\n\n\ndef score") if "def score" in current else "nothing"


def silent(prompt: Prompt) -> str:
    raise RuntimeError("no line to the model")


class Counting:
    """Counts its prompts."""

    def __init__(self, model: Any) -> None:
        self.model, self.asked = model, 0

    def __call__(self, prompt: Prompt, /) -> str:
        self.asked += 1
        answer: str = self.model(prompt)
        return answer
