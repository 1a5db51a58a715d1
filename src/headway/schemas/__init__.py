"""JSON Schemas of the files that people write, for editors; and starters, which are short files to start from. This
folder has one schema for each kind of file.

`python -m headway.schemas` generates the schemas from the declarations of the keys. The schemas are stored as files, so
that an editor finds them in the installed package. Printing a schema does not import the packages that the gateway or a
search needs.
"""

import json
from importlib import resources
from pathlib import Path
from typing import Final

from headway.config.arguments import checked
from headway.config.wording import suggest
from headway.errors import HeadwayError
from headway.types import Json

TITLES: Final = {
    "scenario": "A scenario of Headway: workload, cluster and policies of a run",
    "suite": "A suite of Headway: cases and objectives of a search",
    "gateway": "The settings of Headway's gateway",
    "bundle": "A bundle of Headway: the policies of all stages",
    "trace": "A line of a trace in Headway's own format: the header, or a request",
}


@checked
def schema(name: str) -> Json:
    """Return the JSON Schema of a kind of file: scenario, suite, gateway, bundle, or the lines of a trace."""
    document: Json = json.loads(schema_file(name).read_text(encoding="utf-8"))
    return document


@checked
def schema_file(name: str) -> Path:
    """Return the path of a schema in the installed package."""
    if name not in TITLES:
        raise HeadwayError(f"schema: no schema is called {name!r}.{suggest(name, TITLES)}")
    return Path(str(resources.files(__name__) / f"{name}.json"))
