"""The input of a summary's sections: a run's records, and whether each request met its targets."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from headway.policies.registry import DEFAULT_POLICIES
from headway.results.findings.observed import Observed
from headway.results.groups import Promises, promises
from headway.results.records import Finding
from headway.results.result import Result
from headway.results.sample import Sample
from headway.results.survey import Survey, survey
from headway.results.table import Coded
from headway.results.words.phrases import Fact, Parts, amount, count, join, name, phrase, seconds
from headway.types import Json


class Material:
    """The data of a run that the sections read. Derived values are computed on first use and cached."""

    def __init__(self, result: Result, findings: Sequence[Finding] | None = None) -> None:
        self.result = result
        self.scenario: Json = result.scenario
        self.summary: Json = result.summary()
        self.rows = len(result.requests)
        self.warmup: int = min(self.scenario.get("warmup") or 0, self.rows)
        self._findings = findings

    def column(self, name: str) -> Sequence[Any]:
        return self.result.requests.column(name)

    def phrase(self, template: str, *facts: Fact | Parts) -> Parts:
        """Fill a template with facts, and with values of the summary that the template names by their paths."""
        return phrase(template, *facts, of=self.summary, source="summary")

    @cached_property
    def findings(self) -> list[Finding]:
        return self.result.findings() if self._findings is None else list(self._findings)

    @cached_property
    def ids(self) -> dict[int, str]:
        return self.result.instance_ids()

    def instance(self, index: int) -> Fact:
        return name(f"instance.{index}", self.ids.get(index, "no instance"))

    @cached_property
    def tenants(self) -> tuple[Sequence[int], Sequence[str]]:
        """The tenant code of each request, and the tenants' names by code."""
        return self.codes_of("tenant")

    def codes_of(self, name: str) -> tuple[Sequence[int], Sequence[str]]:
        """Return a column of strings as codes, and the strings by code."""
        column = self.column(name)
        if isinstance(column, Coded):
            return column.codes, column.words
        numbers: dict[str, int] = {}
        codes = array("i", (numbers.setdefault(word, len(numbers)) for word in column))
        return codes, list(numbers)

    def same(self, name: str, other: str) -> bool:
        """Return whether two columns of strings divide the requests into the same groups."""
        first, second = self.codes_of(name)[0], self.codes_of(other)[0]
        pairs = set(zip(first, second, strict=True))
        return len(pairs) == len(set(first)) == len(set(second))

    # --- promises ----------------------------------------------------------------------------------------------

    @cached_property
    def promises(self) -> Promises:
        return promises(self.scenario)

    @property
    def has_slo(self) -> bool:
        return self.promises.any

    @cached_property
    def observed(self) -> Observed:
        return Observed(self.result)

    @property
    def sample(self) -> Sample:
        """The completed requests after the warm-up, with the targets that they met."""
        return self.observed.sample

    @property
    def missed(self) -> array[int]:
        """For each request: MET, MISSED (also if it was not completed), or UNCOUNTED (in the warm-up, or in flight)."""
        return self.observed.missed

    def ttft_ps(self, row: int) -> int:
        """Return the time to first token of a request; -1 if it got no token."""
        first = self.column("first_token_ps")[row]
        return int(first - self.column("arrival_ps")[row]) if first >= 0 else -1

    # --- decisions ---------------------------------------------------------------------------------------------

    @cached_property
    def survey(self) -> Survey | None:
        """Totals over the decisions; None if no decision was traced."""
        decisions = self.result.decisions
        return None if decisions is None or not len(decisions) else survey(self.result, self.missed)

    @cached_property
    def moved(self) -> frozenset[int]:
        """The requests that were dispatched more than once, so that their outcome depends on more than one decision."""
        both = zip(self.column("retries"), self.column("redirects"), strict=True)
        return frozenset(row for row, (retries, redirects) in enumerate(both) if retries or redirects)


def setting(run: Material) -> Parts:
    cluster, instances = run.scenario["cluster"], run.summary["instances"]
    models = [name("scenario.cluster.model", cluster["model"])] if isinstance(cluster.get("model"), str) else []
    if not models:
        known = sorted({instance["model"] for instance in instances if instance.get("model")})
        models = [name(f"model.{model}", model) for model in known[:3]]
    of = phrase(" of {}", join(models)) if models else ()
    return phrase(
        "Ran {} for {}: {} instances{}.",
        name("scenario.name", str(run.scenario.get("name", "a scenario"))),
        seconds("summary.duration_s", run.summary["duration_s"]),
        count("instances.count", len(instances)),
        of,
    )


def policies(run: Material) -> Parts:
    """Name the routing policy with its parameters, and the policies of other stages that are not the default."""
    phrases: list[Parts] = []
    for stage, spec in run.scenario["policies"].items():
        keys = spec if isinstance(spec, dict) else {"name": str(spec)}
        if stage == "routing":
            phrases.insert(0, policy(stage, keys))
        elif keys.get("name") != DEFAULT_POLICIES.get(stage):
            phrases.append(policy(stage, keys))
    return phrase("Policies: {}.", join(phrases, "; "))


def policy(stage: str, spec: Json) -> Parts:
    place = f"scenario.policies.{stage}"
    settings: list[Parts] = []
    for key, value in spec.items():
        if key != "name" and (parts := _parameter(f"{place}.{key}", key, value)):
            settings.append(parts)
    title = phrase(f"{stage} {{}}", name(f"{place}.name", str(spec.get("name", ""))))
    return phrase("{} ({})", title, join(settings)) if settings else title


def _parameter(place: str, key: str, value: Any) -> Parts:
    """Write a parameter as `key value`, and a scorer as `name weight`. For other values, return an empty tuple."""
    if isinstance(value, list) and not (value and all(isinstance(item, str) for item in value)):
        items = [_parameter(f"{place}.{number}", key, item) for number, item in enumerate(value)]
        return join([item for item in items if item])
    text: Fact | Parts
    if isinstance(value, bool):
        text = name(place, str(value).lower())
    elif isinstance(value, int | float):
        text = amount(place, value)
    elif isinstance(value, str):
        text = name(place, value)
    elif isinstance(value, list):
        text = join([name(f"{place}.{number}", item) for number, item in enumerate(value)], " and ")
    elif isinstance(value, dict) and "weight" in value and "name" in value:
        return phrase("{name:name} {weight:amount}", of=value, source=place)
    elif isinstance(value, dict) and "name" in value:
        text = name(f"{place}.name", value["name"])
    else:
        return ()
    return phrase("{} {}", name(f"key:{place}", key), text)
