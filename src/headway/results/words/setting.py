"""What ran: the cluster, and its policies with their parameters."""

from __future__ import annotations

from typing import Any

from headway.results.words.figures import Parts, amount, count, joined, name, said, seconds
from headway.results.words.material import Material
from headway.types import Json


def setting(run: Material) -> Parts:
    cluster, instances = run.scenario["cluster"], run.summary["instances"]
    models = [name("scenario.cluster.model", cluster["model"])] if isinstance(cluster.get("model"), str) else []
    if not models:
        known = sorted({one["model"] for one in instances if one.get("model")})
        models = [name(f"model.{model}", model) for model in known[:3]]
    of = said(" of {}", joined(models)) if models else ()
    return said(
        "Ran {} for {}: {} instances{}.",
        name("scenario.name", str(run.scenario.get("name", "a scenario"))),
        seconds("summary.duration_s", run.summary["duration_s"]),
        count("instances.count", len(instances)),
        of,
    )


def policies(run: Material) -> Parts:
    """The routing policy with all that was set of it, the others where they are not the plain ones."""
    plain = {"admission": "always", "priority": "none", "flow": "none", "scheduler": "fcfs", "scaling": "static"}
    phrases: list[Parts] = []
    for stage, spec in run.scenario["policies"].items():
        shown = spec if isinstance(spec, dict) else {"name": str(spec)}
        if stage != "routing" and shown.get("name") == plain.get(stage):
            continue
        phrase = policy(stage, shown)
        phrases.insert(0, phrase) if stage == "routing" else phrases.append(phrase)
    return said("Policies: {}.", joined(phrases, "; "))


def policy(stage: str, spec: Json) -> Parts:
    place = f"scenario.policies.{stage}"
    settings: list[Parts] = []
    for key, value in spec.items():
        if key != "name" and (shown := _parameter(f"{place}.{key}", key, value)):
            settings.append(shown)
    named = said(f"{stage} {{}}", name(f"{place}.name", str(spec.get("name", ""))))
    return said("{} ({})", named, joined(settings)) if settings else named


def _parameter(place: str, key: str, value: Any) -> Parts:
    """A parameter as `key value`; scorers as `name weight`; nothing of what is empty or has no name and no number."""
    if isinstance(value, bool) or value is None:
        return said("{} {}", name(f"key:{place}", key), name(place, str(value).lower())) if value is not None else ()
    if isinstance(value, int | float):
        return said("{} {}", name(f"key:{place}", key), amount(place, value))
    if isinstance(value, str):
        return said("{} {}", name(f"key:{place}", key), name(place, value))
    if isinstance(value, dict):
        if "weight" in value and "name" in value:
            return said("{} {}", name(f"{place}.name", value["name"]), amount(f"{place}.weight", value["weight"]))
        return said("{} {}", name(f"key:{place}", key), name(f"{place}.name", value["name"])) if "name" in value else ()
    if isinstance(value, list):
        if value and all(isinstance(one, str) for one in value):
            some = [name(f"{place}.{number}", one) for number, one in enumerate(value)]
            return said("{} {}", name(f"key:{place}", key), joined(some, " and "))
        shown = [_parameter(f"{place}.{number}", key, one) for number, one in enumerate(value)]
        return joined([one for one in shown if one])
    return ()
