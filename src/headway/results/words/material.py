"""What the parts of a summary are made from: a run's records, and of each request what it was promised and got."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from headway.results.findings.observed import Observed
from headway.results.groups import KINDS, Promises, promises
from headway.results.recorder import Targets
from headway.results.records import Finding
from headway.results.result import Result
from headway.results.sample import completed_sample
from headway.results.survey import Survey, survey
from headway.results.table import Coded
from headway.results.words.phrases import Fact, Parts, amount, count, join, name, phrase, seconds
from headway.types import Json

MET, MISSED, UNCOUNTED = 0, 1, -1


class Material:
    """A run as the parts see it. Everything is computed once, when the first of them asks."""

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
        """Fill a template with facts and with values of the summary, by their paths."""
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
        """The tenant of each request as a number, and the names of the tenants."""
        return self.codes_of("tenant")

    def codes_of(self, name: str) -> tuple[Sequence[int], Sequence[str]]:
        """A column of words as numbers, and the words."""
        column = self.column(name)
        if isinstance(column, Coded):
            return column.codes, column.words
        numbers: dict[str, int] = {}
        codes = array("i", (numbers.setdefault(word, len(numbers)) for word in column))
        return codes, list(numbers)

    def same(self, name: str, other: str) -> bool:
        """Whether two columns of words divide the requests alike."""
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
    def missed(self) -> array[int]:
        """Of each request whether it was served as promised: MISSED also where it was not completed, UNCOUNTED in the
        warm-up and where it had not ended."""
        codes, words = self.tenants
        targets = [self.promises.to(tenant) for tenant in words]
        flags = array("b", bytes(self.rows))
        names = ("outcome", "arrival_ps", "first_token_ps", "finished_ps", "output_tokens")
        columns = zip(codes, *map(self.column, names), strict=True)
        for row, (code, outcome, arrival, first, finished, output) in enumerate(columns):
            if row < self.warmup or outcome == "in_flight":
                flags[row] = UNCOUNTED
            elif outcome != "completed" or not _met(targets[code], arrival, first, finished, output):
                flags[row] = MISSED
        return flags

    @cached_property
    def missed_by(self) -> dict[str, int]:
        """How many of the completed requests that count missed each target."""
        observed = Observed(self.result)
        sample = completed_sample(observed.requests, observed.facts)
        return {target: sample.met[target].count(False) if target in sample.met else 0 for target in KINDS}

    def ttft_ps(self, row: int) -> int:
        """Of one request; -1 where no token came."""
        first = self.column("first_token_ps")[row]
        return int(first - self.column("arrival_ps")[row]) if first >= 0 else -1

    # --- decisions ---------------------------------------------------------------------------------------------

    @cached_property
    def survey(self) -> Survey | None:
        """What the decisions come to; None where they were not traced."""
        decisions = self.result.decisions
        return None if decisions is None or not len(decisions) else survey(self.result, self.missed)

    @cached_property
    def moved(self) -> frozenset[int]:
        """Requests that were sent more than once, so that what became of them is not owed to one decision."""
        both = zip(self.column("retries"), self.column("redirects"), strict=True)
        return frozenset(row for row, (retries, redirects) in enumerate(both) if retries or redirects)


def _met(targets: Targets, arrival: int, first: int, finished: int, output: int) -> bool:
    """Whether a completed request met all its targets; an unknown first token meets none."""
    if targets.ttft_ps is not None and (first < 0 or first - arrival > targets.ttft_ps):
        return False
    if targets.tpot_ps is not None and finished - first > targets.tpot_ps * (output - 1):
        return False
    return targets.e2e_ps is None or finished - arrival <= targets.e2e_ps


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
    """The routing policy with all that was set of it, the others where they are not the plain ones."""
    plain = {"admission": "always", "priority": "none", "flow": "none", "scheduler": "fcfs", "scaling": "static"}
    phrases: list[Parts] = []
    for stage, spec in run.scenario["policies"].items():
        keys = spec if isinstance(spec, dict) else {"name": str(spec)}
        if stage == "routing":
            phrases.insert(0, policy(stage, keys))
        elif keys.get("name") != plain.get(stage):
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
    """A parameter as `key value`; scorers as `name weight`; nothing of what is empty or has no name and no number."""
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
