"""A policy file looked at without running it: what of it is refused, or what it reads and how large it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import headway.policies  # noqa: F401  (declares the policies)
from headway.config.documents import read_text, read_yaml
from headway.config.wording import shown, suggest
from headway.errors import HeadwayError
from headway.policies import registry
from headway.policies.bundle import STAGES, WRITTEN, Bundle, complexity, is_bundle, source_of
from headway.policies.code import check, stage_of
from headway.policies.tree import tree_source
from headway.scenario.overrides import policy_config
from headway.types import Json

DOCUMENTS = (".yaml", ".yml")


def check_policy(file: str | Path, stage: str | None = None) -> Json:
    """What there is to say of a source in the policy language, a bundle, or a file with a routing policy.

    `ok` says whether it can run, `rejections` why not, each with its place; `policies` has what each policy reads, its
    parameters and its complexity. The `stage` of a source is found from its function if it is not given.
    """
    if stage is not None and stage not in STAGES:
        raise HeadwayError(f"stage: no stage is called {shown(stage)}.{suggest(stage, STAGES)}")
    path = Path(file)
    if path.suffix not in DOCUMENTS:
        return _source(str(file), read_text(path), stage)
    document = read_yaml(path)
    if not is_bundle(document):
        name, scorers = policy_config(path, document)
        spec = {"name": name or "weighted", **({} if scorers is None else {"scorers": scorers})}
        found, wrong = _policy("routing", spec, str(file))
        return _document(str(file), None, [found], wrong)
    bundle = Bundle.read(path)
    both = [_policy(one, spec, f"{file} policies.{one}") for one, spec in bundle.policies.items()]
    about = {"name": bundle.name, "id": bundle.id, "generation": bundle.generation, "parent": bundle.parent}
    return _document(str(file), about, [one for one, _ in both], [wrong for _, some in both for wrong in some])


def _document(file: str, bundle: Json | None, policies: list[Json | None], rejections: list[Json]) -> Json:
    return {
        "file": file,
        "ok": not rejections,
        "bundle": bundle,
        "policies": [one for one in policies if one is not None],
        "rejections": rejections,
    }


def _source(file: str, source: str, stage: str | None) -> Json:
    wanted = stage or stage_of(source)
    if wanted is None:
        wrong = check(source, "routing")  # what is wrong for every stage comes first
        if wrong and wrong[0].construct != "routing":
            return _document(file, None, [], [_rejection(file, "routing", None, one) for one in wrong])
        raise HeadwayError(f"{file}: no function of it is that of one stage; say with --stage which it is for.")
    found, rejections = _policy(wanted, {"name": "code", "source": source}, file)
    return _document(file, None, [found], rejections)


def _policy(stage: str, spec: Any, where: str) -> tuple[Json | None, list[Json]]:
    """What a policy is, or else what is wrong with it."""
    name, given = registry.split(spec, f"policies.{stage}")
    try:
        if name in WRITTEN and (wrong := _refused(stage, name, given, where)):
            return None, wrong
        made = registry.build(stage, spec, f"policies.{stage}")
    except HeadwayError as error:
        return None, [_mistake(where, stage, error)]
    entry = made.entry
    written = name in WRITTEN
    found = {
        "stage": stage,
        "name": entry.name,
        "form": name if written else "parameters",
        "parameters": _written(made) if written else _filed(made),
        "signals": {"exact": list(entry.exact), "reported": list(entry.reported)},
        "complexity": complexity(stage, spec),
        "source": source_of(stage, spec) if written else None,
    }
    return found, []


def _refused(stage: str, name: str, given: Json, where: str) -> list[Json]:
    """What of a text the language does not have; of a tree with its place there."""
    if name == "code":
        source = source_of(stage, {"name": name, **given})
        return [_rejection(where, stage, None, one) for one in check(source, stage)]
    made = tree_source(given.get("tree"), stage)
    return [_rejection(f"{where}:", stage, made.place(one.line), one) for one in check(made.text, stage)]


def _written(made: Any) -> list[Json]:
    program = made.program
    return [
        {"name": one.name, "value": program.values[one.name], "low": one.low, "high": one.high}
        for one in program.parameters
    ]


def _filed(made: Any) -> list[Json]:
    return [
        {
            "name": one.name,
            "value": getattr(made, one.name),
            "low": one.bounds.low if one.bounds else None,
            "high": one.bounds.high if one.bounds else None,
        }
        for one in made.entry.parameters
    ]


def _rejection(where: str, stage: str, place: str | None, one: Any) -> Json:
    at = f"line {one.line}" if place is None else place
    return {
        "stage": stage,
        "place": at,
        "line": one.line,
        "construct": one.construct,
        "why": one.why,
        "text": f"{where} {at}: {one.construct}: {one.why}",
    }


def _mistake(where: str, stage: str, error: HeadwayError) -> Json:
    why = str(error).removeprefix(f"policies.{stage}").removeprefix(": ").removeprefix(".")
    return {
        "stage": stage,
        "place": f"policies.{stage}",
        "line": None,
        "construct": None,
        "why": why,
        "text": f"{where}: {why}",
    }
