"""The options of `headway evolve` that are about a language model."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from headway.errors import HeadwayError

if TYPE_CHECKING:
    from headway.evolve.dialogue import Writer
    from headway.evolve.model import Model

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

    def asked(self, engine: Writer) -> Model:
        from headway.evolve.dialogue import model_of

        return model_of(engine, self.model, self.api_base, self.api_key_env, self.record, self.replay)

    def check_absent(self, engine: str) -> None:
        if astuple(self) != astuple(Talk()):
            raise HeadwayError(
                f"--engine {engine}: asks no model; leave out --model, --api-base, --api-key-env, --record and "
                "--replay, or take --engine gepa or openevolve."
            )
