"""`headway policies`: the catalogue."""

from __future__ import annotations

from headway.cli.page import AsJson, Page
from headway.types import Json


def policies(name: str | None = None, /, *, as_json: AsJson = False) -> Page | Json:
    """List the policies, or show one with its parameters and the signals it reads.

    Parameters
    ----------
    name:
        A policy's name, of whatever stage.
    """
    from headway.report import catalogue

    found = catalogue.find(name)
    if as_json:
        return {"policies": [catalogue.document(entry) for entry in found]}
    return Page([catalogue.listing(found)] if name is None else [catalogue.page(entry) for entry in found])
