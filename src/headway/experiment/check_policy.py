"""A policy file looked at without running it: what of it is refused, or what it reads and how large it is."""

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
        return _document(str(file), None, [_policy("routing", spec, str(file))])
    bundle = Bundle.read(path)
    policies = [_policy(each, spec, f"{file} policies.{each}") for each, spec in bundle.policies.items()]
    about = {"name": bundle.name, "id": bundle.id, "generation": bundle.generation, "parent": bundle.parent}
    return _document(str(file), about, policies)


def _document(file: str, bundle: Json | None, policies: list[tuple[Json | None, list[Json]]]) -> Json:
    rejections = [rejection for _, rejections in policies for rejection in rejections]
    return {
        "file": file,
        "ok": not rejections,
        "bundle": bundle,
        "policies": [policy for policy, _ in policies if policy is not None],
        "rejections": rejections,
    }


def _source(file: str, source: str, stage: str | None) -> Json:
    stage = stage or stage_of(source)
    if stage is None:
        wrong = check(source, "routing")  # what is wrong for every stage comes first
        if wrong and wrong[0].construct != "routing":
            return _document(file, None, [(None, [_rejection(file, "routing", None, fault) for fault in wrong])])
        raise HeadwayError(f"{file}: no function of it is that of one stage; say with --stage which it is for.")
    return _document(file, None, [_policy(stage, {"name": "code", "source": source}, file)])


def _policy(stage: str, spec: Any, where: str) -> tuple[Json | None, list[Json]]:
    """What a policy is, or else what is wrong with it."""
    name, parameters = registry.split(spec, f"policies.{stage}")
    written = name in WRITTEN
    try:
        if written and (wrong := _rejections(stage, name, parameters, where)):
            return None, wrong
        policy = registry.build(stage, spec, f"policies.{stage}")
    except HeadwayError as error:
        return None, [_mistake(where, stage, error)]
    entry = policy.entry
    about = {
        "stage": stage,
        "name": entry.name,
        "form": name if written else "parameters",
        "parameters": _code_parameters(policy) if written else _file_parameters(policy),
        "signals": {"exact": list(entry.exact), "reported": list(entry.reported)},
        "complexity": complexity(stage, spec),
        "source": source_of(stage, spec) if written else None,
    }
    return about, []


def _rejections(stage: str, name: str, parameters: Json, where: str) -> list[Json]:
    """What of a text the language does not have; of a tree with its place there."""
    if name == "code":
        source = source_of(stage, {"name": name, **parameters})
        return [_rejection(where, stage, None, fault) for fault in check(source, stage)]
    tree = tree_source(parameters.get("tree"), stage)
    return [_rejection(f"{where}:", stage, tree.place(fault.line), fault) for fault in check(tree.text, stage)]


def _code_parameters(policy: Any) -> list[Json]:
    values = policy.program.values
    return [
        {"name": each.name, "value": values[each.name], "low": each.low, "high": each.high}
        for each in policy.program.parameters
    ]


def _file_parameters(policy: Any) -> list[Json]:
    rows = []
    for each in policy.entry.parameters:
        low, high = (each.bounds.low, each.bounds.high) if each.bounds else (None, None)
        rows.append({"name": each.name, "value": getattr(policy, each.name), "low": low, "high": high})
    return rows


def _rejection(where: str, stage: str, place: str | None, fault: Any) -> Json:
    at = f"line {fault.line}" if place is None else place
    return {
        "stage": stage,
        "place": at,
        "line": fault.line,
        "construct": fault.construct,
        "why": fault.why,
        "text": f"{where} {at}: {fault.construct}: {fault.why}",
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
