"""Where the runs of a verb are done."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

Workers = Annotated[int | None, Parameter(help="Processes to use; one a core if left out.")]
RayCluster = Annotated[
    str | None,
    Parameter(help='Run on a Ray cluster instead: "auto", host:port or ray://host:port, or "local" to start one here.'),
]
