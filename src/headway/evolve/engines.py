"""Searchers by name, with what each needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal

from msgspec import Struct

from headway.config.documents import read_text, read_yaml
from headway.config.wording import shown, suggest
from headway.errors import HeadwayError
from headway.evolve.dimensions import dimensions
from headway.evolve.islands import Islands
from headway.evolve.numeric import Numeric, Sampler
from headway.evolve.searcher import Searcher
from headway.evolve.suite import Suite
from headway.policies.bundle import STAGES, Bundle, is_bundle
from headway.scenario.overrides import parse_yaml
from headway.types import Json

Engine = Literal["numeric", "gp"]
BATCH: Final[dict[Engine, int]] = {"numeric": 10, "gp": 20}
TEMPLATE: Final = "prefill-cost-routing"


class Plan(Struct, frozen=True):
    """Which search it is, but for the suite and its length."""

    engine: Engine = "numeric"
    sampler: Sampler = "tpe"
    template: str | Json | None = None  # of a numeric search: a policy, a bundle's file or a source's
    stages: tuple[str, ...] = ("routing",)  # whose numbers are looked for
    seed: int = 0
    batch: int | None = None

    @property
    def size(self) -> int:
        """Of a batch."""
        return BATCH[self.engine] if self.batch is None else self.batch

    def searcher(self, suite: Suite) -> Searcher:
        for stage in self.stages:
            if stage not in STAGES:
                raise HeadwayError(f"--stage: there is no stage {shown(stage)}.{suggest(stage, STAGES)}")
        if self.size < 2:
            raise HeadwayError(f"--batch: expected 2 candidates or more, got {self.size}.")
        if self.engine == "gp":
            if self.template is not None:
                raise HeadwayError("--template: genetic programming starts from rules of its own; leave it out.")
            if self.stages != ("routing",):
                raise HeadwayError("--stage: genetic programming is for routing alone; take --engine numeric.")
            return Islands(suite, self.seed)
        bundle = self._template(suite)
        bundle.check("--template")
        return Numeric(suite, bundle, dimensions(bundle, self.stages), self.sampler, self.seed, self.size)

    def document(self, suite: Suite) -> Json:
        """What a folder remembers of it."""
        found: Json = {"engine": self.engine, "seed": self.seed, "batch": self.size}
        if self.engine == "numeric":
            template = self._template(suite).policies
            found |= {"sampler": self.sampler, "stages": list(self.stages), "template": template}
        return found

    def _template(self, suite: Suite) -> Bundle:
        return template_of(TEMPLATE if self.template is None else self.template, suite, self.stages[0])


def template_of(given: Any, suite: Suite, stage: str) -> Bundle:
    """A policy's name or mapping, a source in the policy language (.py), or a bundle (.yaml). The other stages are as
    in the suite's baseline."""
    spec = given
    if isinstance(given, str) and given.endswith((".yaml", ".yml")):
        document = read_yaml(given)
        if is_bundle(document):
            return Bundle.read(given)
        spec = document
    elif isinstance(given, str) and given.endswith(".py"):
        spec = {"name": "code", "source": read_text(given)}
    elif isinstance(given, str) and given.lstrip().startswith("{"):
        spec = parse_yaml(given, "--template")
    name = Path(given).stem if isinstance(given, str) and "{" not in given else str(spec.get("name", "template"))
    return Bundle(name, {**suite.baseline, stage: spec})
