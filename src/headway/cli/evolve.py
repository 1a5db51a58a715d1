"""`headway evolve`: searches for better policies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from headway.cli.options import PolicyTimeout, RayCluster, Workers, allow_policies, output_to
from headway.cli.page import AsJson, Page, say
from headway.errors import HeadwayError
from headway.types import Json

if TYPE_CHECKING:
    from headway.evolve.final import Conclusion
    from headway.evolve.model import Model
    from headway.evolve.repeated import Searches


KEY = "OPENAI_API_KEY"


@dataclass(frozen=True)
class Talk:
    """Options for the language model of a search: which model to ask, and where to record or replay its answers."""

    model: Annotated[str | None, Parameter(help="For openevolve and gepa: name of the language model.")] = None
    api_base: Annotated[
        str | None,
        Parameter(help="URL of an OpenAI-compatible endpoint, such as http://127.0.0.1:8000/v1."),
    ] = None
    api_key_env: Annotated[
        str, Parameter(help="Environment variable that holds the endpoint's key; no key is sent if it is not set.")
    ] = KEY
    record: Annotated[
        Path | None, Parameter(help="Write every prompt and answer to this file, one JSON line each.")
    ] = None
    replay: Annotated[
        Path | None,
        Parameter(help="Answer from this recording instead of a model; an unknown prompt is an error."),
    ] = None

    model_settings: Annotated[
        str | None,
        Parameter(help="Further fields of each request to the model, such as '{temperature: 0.7, max_tokens: 4096}'."),
    ] = None
    model_timeout: Annotated[str, Parameter(help="Time limit for one answer of the model.")] = "300s"
    token_prices: Annotated[
        str | None,
        Parameter(help="USD per million tokens of prompts and of answers, such as 0.15,0.60: prints the cost."),
    ] = None

    def open_model(self, engine: str) -> Model:
        from headway.config.documents import parse_yaml
        from headway.config.units import positive_seconds
        from headway.evolve.dialogue import model_of

        settings = {} if self.model_settings is None else parse_yaml(self.model_settings, "--model-settings")
        if not isinstance(settings, dict):
            raise HeadwayError(
                f"--model-settings: expected a mapping such as '{{temperature: 0.7}}', got {settings!r}."
            )
        named = self.model, self.api_base, self.api_key_env, self.record, self.replay
        return model_of(
            engine, *named, timeout_s=positive_seconds(self.model_timeout, "--model-timeout"), settings=settings
        )

    def prices(self) -> tuple[float, float] | None:
        """Return the prices of tokens in USD per million, or None."""
        if self.token_prices is None:
            return None
        try:
            asked, answered = (float(price) for price in self.token_prices.split(","))
            if 0 <= asked < inf and 0 <= answered < inf:
                return asked, answered
        except ValueError:
            pass
        raise HeadwayError(f"--token-prices: expected two prices such as 0.15,0.60, got {self.token_prices!r}.")

    def check_absent(self, engine: str) -> None:
        if astuple(self) != astuple(Talk()):
            raise HeadwayError(
                f"--engine {engine}: uses no language model. Remove the options of the model, such as --model and "
                "--replay, or use --engine gepa or openevolve."
            )


def evolve(
    suite: Annotated[
        str | None, Parameter(help="A suite's YAML file or a preset's name. Default: the embedded suite.")
    ] = None,
    /,
    *,
    engine: Annotated[
        Literal["numeric", "gp", "openevolve", "gepa"],
        Parameter(
            help="numeric: tune the parameters of a template; gp: breed rules by genetic programming; "
            "openevolve, gepa: a language model writes policies."
        ),
    ] = "numeric",
    sampler: Annotated[
        Literal["nsga2", "tpe", "cmaes"] | None,
        Parameter(help="Sampler of a numeric search. Default: tpe."),
    ] = None,
    template: Annotated[
        str | None,
        Parameter(
            help="Policy to tune, or to start from: a name, a mapping, a source (.py) or a bundle (.yaml). "
            "Default: prefill-cost-routing."
        ),
    ] = None,
    stage: Annotated[
        str, Parameter(help="Stage of the template; for a bundle, one or more stages, separated by commas.")
    ] = "routing",
    evaluations: Annotated[
        int | None, Parameter(help="Number of candidates to evaluate on the train part. Default: 50.")
    ] = None,
    cpu_minutes: Annotated[
        float | None,
        Parameter(help="For numeric and gp: end the search after the batch in which this CPU time is spent."),
    ] = None,
    batch: Annotated[int | None, Parameter(help="Candidates per batch. Default: 10 for numeric, 20 for gp.")] = None,
    seed: Annotated[int, Parameter(help="Random seed of the search.")] = 0,
    searches: Annotated[
        int, Parameter(help="Number of searches, with consecutive seeds; prints the share that wins.")
    ] = 1,
    race: Annotated[
        bool, Parameter(help="Stop candidates that fall behind all finalists before they have run every case.")
    ] = True,
    controls: Annotated[
        bool,
        Parameter(help="Also tune a linear rule and draw random rules, each with the budget of the search."),
    ] = True,
    builtins: Annotated[
        str | None,
        Parameter(help="Policies to compare the winner with, separated by commas. Default: all policies of the stage."),
    ] = None,
    workers: Workers = None,
    ray: RayCluster = None,
    output: Annotated[
        Path | None,
        output_to("Write each batch and the best bundle to this folder. A search that is already there continues."),
    ] = None,
    policy_timeout: PolicyTimeout = None,
    talk: Annotated[Talk | None, Parameter(name="*")] = None,
    as_json: AsJson = False,
) -> Page | Json:
    """Search for a policy that beats the built-in ones.

    Searches on the train part of a suite, and chooses the winner on the validation part.
    Then compares the winner with every built-in policy on the held-out part.
    """
    from headway.evolve.dialogue import Dialogue, asks_model, evolve_with_model
    from headway.evolve.evolution import EVALUATIONS, Plan
    from headway.evolve.evolution import evolve as run_search
    from headway.evolve.repeated import Searches, evolve_repeatedly
    from headway.evolve.search_tables import EvolveProgress, report, searches_report

    if evaluations is not None and evaluations < 1:
        raise HeadwayError(f"--evaluations: must be at least 1, got {evaluations}.")
    allow_policies(policy_timeout)
    stages = tuple(name.strip() for name in stage.split(","))
    talk = talk or Talk()
    if sampler is not None and engine != "numeric":
        raise HeadwayError(f"--sampler: only --engine numeric has a sampler, not {engine}.")
    search: Callable[..., Conclusion | Searches]
    if asks_model(engine):
        if batch is not None:
            raise HeadwayError(f"--batch: {engine} has no batches; remove the option.")
        if searches != 1:
            raise HeadwayError(f"--searches: {engine} runs one search at a time; remove the option.")
        if cpu_minutes is not None:
            raise HeadwayError(f"--cpu-minutes: {engine} counts evaluations; remove the option.")
        most = EVALUATIONS if evaluations is None else evaluations
        dialogue = Dialogue(engine, template, stages, seed, most, talk.prices())
        search = partial(evolve_with_model, suite, talk.open_model(engine), dialogue, say=say)
    else:
        talk.check_absent(engine)
        plan = Plan(engine, sampler or "tpe", template, stages, seed, batch, race)
        length: Json = {"evaluations": evaluations, "cpu_minutes": cpu_minutes}
        search = partial(run_search, suite, plan, controls=controls, **length)
        if searches != 1:
            search = partial(evolve_repeatedly, suite, plan, searches, controls=controls, **length)
    with EvolveProgress(output) as progress:
        conclusion = search(builtins=builtins, workers=workers, ray=ray, output=output, progress=progress)
    if isinstance(conclusion, Searches):
        return conclusion.document() if as_json else Page(searches_report(conclusion))
    if output is not None:
        say(f"wrote best.yaml, result.json and {conclusion.candidates:,} evaluations to {output}")
    return conclusion.document() if as_json else Page(report(conclusion))
