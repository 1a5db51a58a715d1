"""Verbs for writing files: `init` and `schema`."""

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from headway.cli.catalogues import Stage
from headway.cli.options import flag
from headway.cli.page import Page, say
from headway.types import Json

SchemaName = Literal["scenario", "suite", "gateway", "bundle", "trace"]
Force = Annotated[bool, flag("Overwrite the file if it exists.")]
Rate = Annotated[str | None, Parameter(help="Rate of new sessions, such as 40/s. Default: 4/s.")]
Instances = Annotated[int | None, Parameter(help="Number of instances. Default: 4.")]
Model = Annotated[str | None, Parameter(help="Model: a name or a config.json. Default: llama-3.1-8b.")]
Gpu = Annotated[str | None, Parameter(help="GPU. Default: h200.")]

init = App(name="init", help="Write a short file to start from, with comments.", help_format="plaintext")


@init.command
def scenario(
    file: Annotated[Path, Parameter(help="The file to write.")] = Path("scenario.yaml"),
    /,
    *,
    rate: Rate = None,
    instances: Instances = None,
    model: Model = None,
    gpu: Gpu = None,
    trace: Annotated[str | None, Parameter(help="Trace to replay instead of generated requests.")] = None,
    columns: Annotated[
        str | None,
        Parameter(
            name="--map",
            help="If the trace is your own table: its columns, such as arrival=ts_ms:ms,prompt=in_tok,output=out_tok. "
            "Default: guessed from their names.",
        ),
    ] = None,
    routing: Annotated[str | None, Parameter(help="Routing policy. Default: weighted.")] = None,
    force: Force = False,
) -> Page:
    """Write a scenario: requests, instances and policies.

    In a terminal, and without options, ask for the values.
    """
    options = {"rate": rate, "instances": instances, "model": model, "gpu": gpu, "trace": trace, "routing": routing}
    options["columns"] = columns
    return _write("scenario", file, force, options, "headway run")


@init.command
def gateway(
    file: Annotated[Path, Parameter(help="The file to write.")] = Path("gateway.yaml"),
    /,
    *,
    listen: Annotated[str | None, Parameter(help="Address for clients. Default: 127.0.0.1:8000.")] = None,
    engine: Annotated[
        list[str] | None, flag("URL of an engine; repeat for more. Default: two emulated engines.", "--engine")
    ] = None,
    routing: Annotated[str | None, Parameter(help="Routing policy. Default: kv-aware-spill.")] = None,
    force: Force = False,
) -> Page:
    """Write the settings of a gateway.

    In a terminal, and without options, ask for the values.
    """
    options = {"listen": listen, "engines": engine, "routing": routing}
    return _write("gateway", file, force, options, "headway serve")


@init.command
def suite(
    file: Annotated[Path, Parameter(help="The file to write.")] = Path("suite.yaml"),
    /,
    *,
    rate: Rate = None,
    instances: Instances = None,
    model: Model = None,
    gpu: Gpu = None,
    force: Force = False,
) -> Page:
    """Write a suite: the cases and objectives of a search.

    In a terminal, and without options, ask for the values.
    """
    options = {"rate": rate, "instances": instances, "model": model, "gpu": gpu}
    return _write("suite", file, force, options, "headway evolve")


@init.command
def policy(
    file: Annotated[Path, Parameter(help="The file to write: a bundle (.yaml), or a source (.py).")] = Path(
        "policy.yaml"
    ),
    /,
    *,
    stage: Annotated[Stage | None, Parameter(help="Stage of the policy. Default: routing.")] = None,
    force: Force = False,
) -> Page:
    """Write a policy in the policy language.

    In a terminal, and without options, ask for the stage.
    """
    return _write("policy", file, force, {"stage": stage}, "headway policy check")


def _write(kind: str, file: Path, force: bool, options: dict[str, Any], command: str) -> Page:
    import shlex

    from headway.schemas.starters import new_file, write_starter

    new_file(kind, file, force)  # raises an error if the file exists, before the user answers questions
    if sys.stdin.isatty() and all(value is None for value in options.values()):
        options = _ask(kind)
    path = write_starter(kind, file, force=force, **options)
    say(f"wrote {path}")
    return Page([], f"{command} {shlex.quote(str(path))}")


def _ask(kind: str) -> dict[str, Any]:
    """Ask the user for the values of a new file, and return the answers. The questions go to stderr, because stdout is
    for the result. A value with an empty answer is left out, so that it has its default."""
    from headway.schemas.starters import STARTERS

    answers: dict[str, Any] = {}
    for name, option in STARTERS[kind].options.items():
        if not option.question:
            continue
        default = ", ".join(option.default) if isinstance(option.default, tuple) else option.default
        print(f"{option.question} [{'none' if default is None else default}]: ", end="", file=sys.stderr, flush=True)
        answer = sys.stdin.readline().strip()
        if answer:
            answers[name] = int(answer) if isinstance(option.default, int) and answer.isdecimal() else answer
    return answers


def schema(
    name: SchemaName | None = None,
    /,
    *,
    path: Annotated[bool, flag("Print the path of the schema in the installed package, for an editor.")] = False,
) -> Page | Json:
    """Print the JSON Schema of a kind of file, for an editor.

    Parameters
    ----------
    name:
        Kind of file. The schema of `trace` describes one line. Without a name, list all schemas.
    """
    from headway import schemas

    if name is None:
        from rich.table import Table

        table = Table("Schema", "Describes", box=None, pad_edge=False)
        for known, title in schemas.TITLES.items():
            table.add_row(known, title)
        return Page([table])
    return Page([], str(schemas.schema_file(name))) if path else schemas.schema(name)
