"""Convert between bundles and source texts: get the sources of a bundle by stage, and create a bundle from sources."""

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from headway.config.documents import presets, yaml_text
from headway.config.wording import suggest
from headway.errors import HeadwayError, argument
from headway.policies import registry
from headway.policies.bundle import EVERY, WRITTEN, Bundle, source_of
from headway.policies.code import check
from headway.policies.context import BLOCK_TOKENS, LRU_BLOCKS
from headway.policies.registry import DEFAULT_POLICIES

PARAMETER: Final = r"^{name}\s*(?::[^=\n]*)?=\s*parameter\([^)]*\)"


def readable(bundle: Bundle, stage: str = "routing") -> str:
    """Return the policy of a stage in readable form: its source with the chosen numbers. If it has no source, return
    YAML."""
    spec = bundle.policy(stage)
    name, keys = registry.split(spec, f"policies.{stage}")
    if name in WRITTEN:
        return with_numbers(source_of(stage, spec), keys.get("parameters") or {})
    template = getattr(registry.find(stage, name, f"policies.{stage}").make, "template", None)
    if isinstance(template, str):
        return with_numbers(_strip_docstring(template), keys)
    return yaml_text({stage: spec})


def with_numbers(source: str, values: Mapping[str, float]) -> str:
    """Return a source with the values of its parameters replaced by the chosen numbers."""
    for name, value in values.items():
        source = re.sub(PARAMETER.format(name=re.escape(name)), f"{name} = {value!r}", source, flags=re.MULTILINE)
    return source


def _strip_docstring(source: str) -> str:
    """Return the source without its docstring, because the docstring describes the default numbers."""
    first = ast.parse(source).body[0]
    lines = source.splitlines()
    documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return "\n".join(lines[first.end_lineno if documented else 0 :]).strip("\n") + "\n"


# Sources that make the same decisions as the default policies.
DEFAULTS: Final = {
    "admission": "def admit(request, cluster):\n    return True\n",
    "priority": "def prioritise(request, cluster):\n    return 0\n",
    "decider": "def apart(request, instance, cluster):\n    return True\n",
    "scheduler": "def key(ticket):\n    return ticket.number\n",
    "scaling": "def scale(pool):\n    return pool.replicas\n",
}
# The keys that a policy written as source code inherits from the policy that it replaces, with the keys' defaults.
BESIDE: Final = {"block_tokens": BLOCK_TOKENS, "lru_blocks": LRU_BLOCKS, "chunk_tokens": None}


def texts_of(bundle: Bundle, stages: Sequence[str]) -> dict[str, str]:
    """Return the source of the policy of each stage. A built-in policy has a source if it has a template or a cookbook
    entry, or if it is the default policy."""
    check_stages(stages)
    return {stage: _text(bundle, stage) for stage in EVERY if stage in stages}


def bundle_of(
    base: Bundle,
    texts: Mapping[str, str],
    name: str,
    generation: int = 0,
    parent: str | None = None,
    mutations: Sequence[str] = (),
    *,
    auto: bool,
) -> Bundle:
    """Return a copy of `base` in which these sources replace the policies of their stages. Pass the suite's `auto`, so
    that the new policies have the same prefix indexes as the old policies have in the suite's scenarios."""
    policies: dict[str, Any] = dict(base.policies)
    for stage, source in texts.items():
        keys = registry.explicit(stage, base.policy(stage), f"policies.{stage}", auto=auto)
        defaults = {key: registry.written_value(usual, auto) for key, usual in BESIDE.items()}
        own = {key: keys[key] for key, usual in defaults.items() if keys.get(key, usual) != usual}
        policies[stage] = {"name": "code", "source": source, **own}
    return Bundle(name, policies, generation, parent, tuple(mutations))


def check_stages(stages: Sequence[str]) -> None:
    for stage in stages:
        if stage not in EVERY:
            raise HeadwayError(f"{argument('stages', '--stage')}: there is no stage {stage!r}.{suggest(stage, EVERY)}")


def _text(bundle: Bundle, stage: str) -> str:
    spec = bundle.policy(stage)
    name, keys = registry.split(spec, f"policies.{stage}")
    source = readable(bundle, stage)
    if name in WRITTEN or not check(source, stage):
        return source
    plain = not keys
    if plain and stage == "routing" and name in (cookbook := presets("cookbook", ".py")):
        return cookbook[name]
    if plain and stage in DEFAULTS and name == DEFAULT_POLICIES[stage]:
        return DEFAULTS[stage]
    raise HeadwayError(
        f"{argument('template')}: {name!r} has no source in the policy language. "
        "Use a template, a cookbook policy without parameters, or a file of your own."
    )
