"""Checks a policy file: its errors, or its parameters, signals and complexity. Only Python policies are run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import headway.policies  # noqa: F401  (declares the policies)
from headway.config.arguments import checked
from headway.config.documents import read_text, read_yaml
from headway.config.wording import shown, suggest
from headway.display.displayed import Document, Types, columns_of
from headway.errors import HeadwayError, argument
from headway.experiment.repeatable import Repetition
from headway.policies import registry
from headway.policies.bundle import FURTHER, STAGES, WRITTEN, Bundle, complexity, is_bundle, source_of
from headway.policies.code import check, stage_of
from headway.policies.tree import tree_source
from headway.scenario.overrides import policy_config
from headway.types import Json

DOCUMENTS = (".yaml", ".yml")
# The scenario of the run that checks a Python policy.
TRIAL: Json = {
    "name": "policy check",
    "workload": {"requests": 240, "rate": "40/s", "prefix": {"groups": 20, "tokens": 256}},
    "cluster": {"instances": 8},
}
SCALED: Json = {"cluster": {"instances": 8, "min_replicas": 1, "max_replicas": 16}, "scaling": {"interval": "500ms"}}
SPLIT: Json = {
    "cluster": {"architecture": "disaggregated", "prefill": {"instances": 4}, "decode": {"instances": 4}},
}
# For each kind of part, such as a scorer: a routing policy that uses the part `reference`.
WHOLES: dict[str, Callable[[str], Json]] = {
    "scorer": lambda reference: {"name": "weighted", "scorers": [{"name": reference, "weight": 1}]},
    "filter": lambda reference: {"name": "weighted", "filters": [reference]},
    "picker": lambda reference: {"name": "weighted", "picker": reference},
}


class PolicyCheck(Document):
    """The errors of a policy file, or its policies."""

    _view: ClassVar[str] = "headway.report.notebook:policy_check_view"
    _types: ClassVar[Types] = {"stage": str, "policy": str, "name": str, "construct": str}

    def columns(self) -> dict[str, list[Any]]:
        """Return a row for each error. If there are no errors, return a row for each parameter."""
        if self["rejections"]:
            return columns_of(self["rejections"])
        rows = (
            {"stage": policy["stage"], "policy": policy["name"], **parameter}
            for policy in self["policies"]
            for parameter in policy["parameters"]
        )
        return columns_of(rows, ("stage", "policy", "name", "value", "low", "high"))


@checked
def check_policy(file: str | Path, stage: str | None = None) -> PolicyCheck:
    """Check a source in the policy language, a bundle, a file with a routing policy, or a class in a Python file, given
    as `path/to/file.py:Class`. A Python policy is also run twice, to check that it repeats its decisions and writes to
    no view.

    In the result, `ok` tells whether the policy can run, `rejections` lists the errors with their locations, and
    `policies` has the signals, parameters and complexity of each policy. If `stage` is None, the function that the
    source defines determines the stage.
    """
    if stage is not None and stage not in (*STAGES, *FURTHER):
        raise HeadwayError(f"stage: there is no stage {shown(stage)}.{suggest(stage, (*STAGES, *FURTHER))}")
    if registry.is_file(str(file)):
        return _document(str(file), None, [_python(str(file), entry) for entry in _entries(str(file), stage)])
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


def _document(file: str, bundle: Json | None, policies: list[tuple[Json | None, list[Json]]]) -> PolicyCheck:
    rejections = [rejection for _, rejections in policies for rejection in rejections]
    return PolicyCheck(
        file=file,
        ok=not rejections,
        bundle=bundle,
        policies=[policy for policy, _ in policies if policy is not None],
        rejections=rejections,
    )


def _source(file: str, source: str, stage: str | None) -> PolicyCheck:
    stage = stage or stage_of(source)
    if stage is None:
        wrong = check(source, "routing")  # first report errors that do not depend on the stage
        if wrong and wrong[0].construct != "routing":
            return _document(file, None, [(None, [_rejection(file, "routing", None, fault) for fault in wrong])])
        raise HeadwayError(
            f"{file}: the stage cannot be determined from its functions. Name the stage with {argument('stage')}."
        )
    return _document(file, None, [_policy(stage, {"name": "code", "source": source}, file)])


def _entries(reference: str, stage: str | None) -> list[registry.Entry]:
    where = "policies" if stage is None else f"policies.{stage}"
    return registry.load_all(reference, where) if stage is None else [registry.load(stage, reference, where)]


def _python(reference: str, entry: registry.Entry) -> tuple[Json | None, list[Json]]:
    """Describe a policy from a Python file, and run it."""
    stage = entry.stage
    about, rejections = _policy(stage, {"name": reference}, reference)
    if rejections:
        return about, rejections
    path, _, name = reference.rpartition(":")
    whole = f"{Path(path).expanduser().resolve()}:{name}"
    policies = {"routing": WHOLES[stage](whole)} if stage in WHOLES else {stage: {"name": whole}}
    changes = {"scaling": SCALED, "decider": SPLIT}.get(stage, {})
    repetition = Repetition({**TRIAL, **changes, "policies": policies})
    wrong = repetition.error() or repetition.problem()
    if wrong is None:
        return about, []
    return None, [_row(stage, f"policies.{stage}", wrong, wrong)]


def _policy(stage: str, spec: Any, where: str) -> tuple[Json | None, list[Json]]:
    """Return the description of a policy. If the policy has errors, return None and the errors."""
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
        "parameters": _parameters(policy, written),
        "signals": {"exact": list(entry.exact), "reported": list(entry.reported)},
        "complexity": complexity(stage, spec),
        "source": source_of(stage, spec) if written else None,
    }
    return about, []


def _rejections(stage: str, name: str, parameters: Json, where: str) -> list[Json]:
    """Return the errors that the policy language finds in a source or tree, with their locations."""
    if name == "code":
        source = source_of(stage, {"name": name, **parameters})
        return [_rejection(where, stage, None, fault) for fault in check(source, stage)]
    tree = tree_source(parameters.get("tree"), stage)
    return [_rejection(f"{where}:", stage, tree.place(fault.line), fault) for fault in check(tree.text, stage)]


def _parameters(policy: Any, written: bool) -> list[Json]:
    rows = []
    for each in (policy.program if written else policy.entry).parameters:
        value = policy.program.values[each.name] if written else registry.written_value(getattr(policy, each.name))
        bounds = each if written else each.bounds
        low, high = (bounds.low, bounds.high) if bounds else (None, None)
        rows.append({"name": each.name, "value": value, "low": low, "high": high})
    return rows


def _rejection(where: str, stage: str, place: str | None, fault: Any) -> Json:
    at = f"line {fault.line}" if place is None else place
    text = f"{where} {at}: {fault.construct}: {fault.why}"
    return _row(stage, at, fault.why, text, fault.line, fault.construct)


def _mistake(where: str, stage: str, error: HeadwayError) -> Json:
    why = str(error).removeprefix(f"policies.{stage}").removeprefix(": ").removeprefix(".")
    return _row(stage, f"policies.{stage}", why, f"{where}: {why}")


def _row(stage: str, place: str, why: str, text: str, line: int | None = None, construct: str | None = None) -> Json:
    return {"stage": stage, "place": place, "line": line, "construct": construct, "why": why, "text": text}
