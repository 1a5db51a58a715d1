"""What the parts of a summary are made from: a run's records, and of each request what it was promised and got."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from headway.results.groups import KINDS, Promises, promises
from headway.results.recorder import Targets
from headway.results.records import Finding
from headway.results.result import Result
from headway.results.survey import Survey, survey
from headway.results.table import Coded
from headway.results.words.phrases import Fact, Parts, amount, count, joined, name, said, seconds
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

    def column(self, of: str) -> Sequence[Any]:
        return self.result.requests.column(of)

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
        """The tenant of each request as a number, and their names."""
        return self.coded("tenant")

    def coded(self, of: str) -> tuple[Sequence[int], Sequence[str]]:
        """A column of words as numbers, and the words."""
        column = self.column(of)
        if isinstance(column, Coded):
            return column.codes, column.words
        numbers: dict[str, int] = {}
        codes = array("i", (numbers.setdefault(word, len(numbers)) for word in column))
        return codes, list(numbers)

    def same(self, one: str, other: str) -> bool:
        """Whether two columns of words divide the requests alike."""
        first, second = self.coded(one)[0], self.coded(other)[0]
        pairs = set(zip(first, second, strict=True))
        return len(pairs) == len(set(first)) == len(set(second))

    # --- promises ----------------------------------------------------------------------------------------------

    @cached_property
    def promises(self) -> Promises:
        return promises(self.scenario)

    @property
    def everybody(self) -> Targets:
        """What a request is promised whose tenant has no targets of its own."""
        return self.promises.everybody

    @property
    def own(self) -> dict[str, Targets]:
        """What the tenants are promised that have targets of their own."""
        return self.promises.own

    @property
    def has_slo(self) -> bool:
        return self.promises.any

    def promised(self, tenant: str) -> Targets:
        return self.promises.to(tenant)

    @cached_property
    def missed(self) -> array[int]:
        """Of each request whether it was served as promised: MISSED also where it was not completed, UNCOUNTED in the
        warm-up and where it had not ended."""
        codes, words = self.tenants
        targets = [self.promised(tenant) for tenant in words]
        found = array("b", bytes(self.rows))
        columns = zip(
            codes,
            self.column("outcome"),
            self.column("arrival_ps"),
            self.column("first_token_ps"),
            self.column("finished_ps"),
            self.column("output_tokens"),
            strict=True,
        )
        for row, (code, outcome, arrival, first, finished, output) in enumerate(columns):
            if row < self.warmup or outcome == "in_flight":
                found[row] = UNCOUNTED
            elif outcome != "completed" or not _kept(targets[code], arrival, first, finished, output):
                found[row] = MISSED
        return found

    @cached_property
    def missed_by(self) -> dict[str, int]:
        """How many of the completed requests that count missed each target."""
        codes, words = self.tenants
        targets = [self.promised(tenant) for tenant in words]
        arrivals, firsts, finishes = (self.column(name) for name in ("arrival_ps", "first_token_ps", "finished_ps"))
        outputs = self.column("output_tokens")
        found = dict.fromkeys(KINDS, 0)
        for row, outcome in enumerate(self.column("outcome")):
            if row < self.warmup or outcome != "completed":
                continue
            arrival, first, finished, limits = arrivals[row], firsts[row], finishes[row], targets[codes[row]]
            found["ttft"] += limits.ttft_ps is not None and first - arrival > limits.ttft_ps
            found["tpot"] += limits.tpot_ps is not None and finished - first > limits.tpot_ps * (outputs[row] - 1)
            found["e2e"] += limits.e2e_ps is not None and finished - arrival > limits.e2e_ps
        return found

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


def _kept(targets: Targets, arrival: int, first: int, finished: int, output: int) -> bool:
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
