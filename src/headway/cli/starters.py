"""Verbs for writing files: `schema`."""

from typing import Annotated, Literal

from headway.cli.options import flag
from headway.cli.page import Page
from headway.types import Json

SchemaName = Literal["scenario", "suite", "gateway", "bundle", "trace"]


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
        Kind of file. A schema of `trace` describes one line. Without a name, list all schemas.
    """
    from headway import schemas

    if name is None:
        from rich.table import Table

        table = Table("Schema", "Describes", box=None, pad_edge=False)
        for known, title in schemas.TITLES.items():
            table.add_row(known, title)
        return Page([table])
    return Page([], str(schemas.schema_file(name))) if path else schemas.schema(name)
