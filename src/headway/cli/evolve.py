"""`headway evolve`: look for better policies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from headway.cli.options import RayCluster, Workers, output_to
from headway.cli.page import AsJson, Page, say
from headway.errors import HeadwayError
from headway.types import Json

if TYPE_CHECKING:
    from headway.evolve.final import Conclusion
    from headway.evolve.model import Model


# The options of `headway evolve` that are about a language model.

KEY = "OPENAI_API_KEY"


@dataclass(frozen=True)
class Talk:
    """Which model is asked, and what is kept of it."""

    model: Annotated[str | None, Parameter(help="Of openevolve and gepa: the model's name at the endpoint.")] = None
    api_base: Annotated[
        str | None,
        Parameter(help="An endpoint that speaks as OpenAI's does, as in http://127.0.0.1:8000/v1."),
    ] = None
    api_key_env: Annotated[
        str, Parameter(help="The environment variable that has the endpoint's key; none is sent where it is not set.")
    ] = KEY
    record: Annotated[
        Path | None, Parameter(help="Write every prompt and its answer to this file, a line of JSON each.")
    ] = None
    replay: Annotated[
        Path | None, Parameter(help="Take answers from such a file, in place of a model; other prompts are an error.")
    ] = None

    def open_model(self, engine: str) -> Model:
        from headway.evolve.dialogue import model_of

        return model_of(engine, self.model, self.api_base, self.api_key_env, self.record, self.replay)

    def check_absent(self, engine: str) -> None:
        if astuple(self) != astuple(Talk()):
            raise HeadwayError(
                f"--engine {engine}: asks no model; leave out --model, --api-base, --api-key-env, --record and "
                "--replay, or take --engine gepa or openevolve."
            )


def evolve(
    suite: Annotated[
        str | None, Parameter(help="A suite's YAML file or a preset's name; the embedded suite if left out.")
    ] = None,
    /,
    *,
    engine: Annotated[
        Literal["numeric", "gp", "openevolve", "gepa"],
        Parameter(
            help="numeric: the numbers of a template; gp: rules bred by genetic programming; openevolve and gepa: "
            "policies written by a language model."
        ),
    ] = "numeric",
    sampler: Annotated[
        Literal["nsga2", "tpe", "cmaes"] | None,
        Parameter(help="How a numeric search chooses its numbers; tpe if left out."),
    ] = None,
    template: Annotated[
        str | None,
        Parameter(
            help="Whose numbers are looked for, or what a model begins with: a policy's name or mapping, a source "
            "(.py) or a bundle (.yaml); prefill-cost-routing if left out."
        ),
    ] = None,
    stage: Annotated[
        str, Parameter(help="The stage of the template; several, separated by commas, of a bundle.")
    ] = "routing",
    evaluations: Annotated[int, Parameter(help="How many candidates are judged on the train part.")] = 50,
    batch: Annotated[
        int | None, Parameter(help="How many are judged at a time; 10 of a numeric search, 20 of gp if left out.")
    ] = None,
    seed: Annotated[int, Parameter(help="Another seed is another search.")] = 0,
    builtins: Annotated[
        str | None,
        Parameter(help="Policies that the winner is compared with, separated by commas; all of the stage if left out."),
    ] = None,
    workers: Workers = None,
    ray: RayCluster = None,
    output: Annotated[
        Path | None,
        output_to(
            "Write each batch to this folder as it is done, and the best bundle; a search that is there goes on."
        ),
    ] = None,
    talk: Annotated[Talk | None, Parameter(name="*")] = None,
    as_json: AsJson = False,
) -> Page | Json:
    """Look for a policy that beats the built-in ones: search on the train part of a suite, choose the winner on its
    validation part, and compare it with every built-in policy on the held-out part."""
    from headway.evolve.dialogue import Dialogue, asks_model, evolve_with_model
    from headway.evolve.evolution import Plan
    from headway.evolve.evolution import evolve as run_search
    from headway.evolve.search_tables import EvolveProgress, report

    if evaluations < 1:
        raise HeadwayError(f"--evaluations: one candidate at least is wanted, got {evaluations}.")
    stages = tuple(name.strip() for name in stage.split(","))
    talk = talk or Talk()
    if sampler is not None and engine != "numeric":
        raise HeadwayError(f"--sampler: {engine} has none; leave it out, or take --engine numeric.")
    search: Callable[..., Conclusion]
    if asks_model(engine):
        if batch is not None:
            raise HeadwayError(f"--batch: {engine} has no batches; leave it out.")
        dialogue = Dialogue(engine, template, stages, seed, evaluations)
        search = partial(evolve_with_model, suite, talk.open_model(engine), dialogue, say=say)
    else:
        talk.check_absent(engine)
        plan = Plan(engine, sampler or "tpe", template, stages, seed, batch)
        search = partial(run_search, suite, plan, evaluations=evaluations)
    with EvolveProgress() as progress:
        conclusion = search(builtins=builtins, workers=workers, ray=ray, output=output, progress=progress)
    if output is not None:
        say(f"wrote best.yaml, result.json and {conclusion.candidates:,} evaluations to {output}")
    return conclusion.document() if as_json else Page(report(conclusion))
