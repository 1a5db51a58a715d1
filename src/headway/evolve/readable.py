"""A bundle's policy for people: its source where it has one, with the chosen numbers in it, else its YAML."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Final

from headway.config.documents import yaml_text
from headway.policies import registry
from headway.policies.bundle import WRITTEN, Bundle, source_of

PARAMETER: Final = r"^{name}\s*(?::[^=\n]*)?=\s*parameter\([^)]*\)"


def readable(bundle: Bundle, stage: str = "routing") -> str:
    spec = bundle.policies[stage]
    name, given = registry.split(spec, f"policies.{stage}")
    if name in WRITTEN:
        return with_numbers(source_of(stage, spec), given.get("parameters") or {})
    template = getattr(registry.find(stage, name, f"policies.{stage}").make, "template", None)
    if isinstance(template, str):
        return with_numbers(_undocumented(template), given)
    return yaml_text({stage: spec})


def with_numbers(source: str, values: Mapping[str, float]) -> str:
    """A source whose parameters are the numbers that were chosen."""
    for name, value in values.items():
        source = re.sub(PARAMETER.format(name=re.escape(name)), f"{name} = {value!r}", source, flags=re.MULTILINE)
    return source


def _undocumented(source: str) -> str:
    """Without the words at its top, which are of the numbers as they were."""
    first = ast.parse(source).body[0]
    lines = source.splitlines()
    told = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return "\n".join(lines[first.end_lineno if told else 0 :]).strip("\n") + "\n"
