"""Objectives of a suite: figures from the summary of a run, each with a direction and a weight."""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from headway.config.keys import Doc, Form
from headway.config.schema import Names
from headway.config.section import read
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.results.ranking import direction as best_way
from headway.results.ranking import every_figure
from headway.results.ranking import figure as known_figure
from headway.results.ranking import value as value_at
from headway.types import Json

Direction = Literal["minimize", "maximize"]
WAYS: Final[dict[str, Direction]] = {"low": "minimize", "high": "maximize"}
PRIMARY, COMPLEXITY = "primary", "complexity"  # keys that every fitness has in addition to the objectives
GROUPS: Final = ("tenants", "classes", "kinds")  # lists in a summary; the prefix `tenants.NAME.` selects one member


class Objective(Struct, frozen=True):
    """A figure, or a weighted sum of figures, to minimize or maximize. If its weight is 0, it is only reported."""

    name: str
    figure: str | dict[str, float]  # dotted path of a figure in a run's summary, or path -> weight
    direction: Direction
    weight: float = 1.0

    @property
    def terms(self) -> dict[str, float]:
        return {self.figure: 1.0} if isinstance(self.figure, str) else self.figure

    def value(self, figures: Mapping[str, float | None]) -> float | None:
        """Return the value of the objective in a run. If a figure has no sample or is not finite, return None."""
        terms = [(figures.get(path), weight) for path, weight in self.terms.items()]
        values = [number * weight for number, weight in terms if number is not None]
        total = math.fsum(values) if len(values) == len(terms) and all(map(math.isfinite, values)) else math.nan
        return total if math.isfinite(total) else None


# The valid names: the figures that can rank runs. The pattern also permits figures of one tenant, class or kind, and
# names with hyphens.
FIGURE: Final = Names(lambda: [path for path in every_figure() if best_way(path)], rf"-|^({'|'.join(GROUPS)})\.")
FigureWeights = Annotated[dict[str, float], "weights by figure"]


class ObjectiveKeys(Struct):
    """An objective as a mapping."""

    figure: Annotated[Any, Form.of(FIGURE, FigureWeights), "a figure of a run's summary, or weights by figure"]
    name: Annotated[str | None, Doc("name of the objective", default="the figure")] = None
    direction: Annotated[Direction | None, Doc("which values are better", default="that of the figure")] = None
    weight: Annotated[float, Meta(ge=0, le=1e6), "weight in the fitness; 0: only reported"] = 1.0


OBJECTIVES_FORM: Final = Form.of(list[Annotated[Any, Form.of(FIGURE, ObjectiveKeys)]])


def read_objectives(data: object, where: str) -> tuple[Objective, ...]:
    if not isinstance(data, list) or not data:
        raise HeadwayError(f"{where}: expected a list of {{name, figure, direction, weight}}, got {shown(data)}.")
    objectives = tuple(_objective(objective, f"{where}[{place}]") for place, objective in enumerate(data))
    names: list[str] = [PRIMARY, COMPLEXITY]
    for place, objective in enumerate(objectives):
        if objective.name in names:
            raise HeadwayError(f"{where}[{place}].name: {shown(objective.name)} is already used. Choose another name.")
        names.append(objective.name)
    if not any(objective.weight for objective in objectives):
        raise HeadwayError(f"{where}: at least one objective needs a weight above 0.")
    return objectives


def _objective(data: object, where: str) -> Objective:
    keys = read(ObjectiveKeys, {"figure": data} if isinstance(data, str) else data, where)
    figure = _figure(keys.figure, f"{where}.figure")
    first = figure if isinstance(figure, str) else next(iter(figure))
    direction = keys.direction or WAYS.get(str(best_way(plain(first))))
    if direction is None:
        raise HeadwayError(f"{where}.direction: is missing. Set it to minimize or maximize.")
    name = keys.name or (figure if isinstance(figure, str) else None)
    if not name:
        raise HeadwayError(f"{where}.name: is missing. A weighted sum of figures needs a name.")
    return Objective(name, figure, direction, keys.weight)


def _figure(data: object, where: str) -> str | dict[str, float]:
    if isinstance(data, str):
        return _path(data, where)
    if not isinstance(data, dict) or not data:
        raise HeadwayError(
            f"{where}: expected a figure such as latency.e2e.mean, or weights by figure, got {shown(data)}."
        )
    weights: dict[str, float] = {}
    for path, weight in data.items():
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight) or weight <= 0:
            raise HeadwayError(f"{where}.{path}: expected a weight above 0, got {shown(weight)}.")
        weights[_path(str(path), where)] = float(weight)
    return weights


def _path(text: str, where: str) -> str:
    """Return the full path of a figure. If the path begins with the prefix of a tenant, class or kind, such as
    `tenants.NAME.`, keep the prefix."""
    try:
        return prefix_of(text) + known_figure(plain(text))
    except HeadwayError as error:
        raise HeadwayError(f"{where}: {str(error).removeprefix('by: ')}") from None


def plain(path: str) -> str:
    """Return the path of a figure without the prefix of a tenant, class or kind."""
    return path.removeprefix(prefix_of(path))


def prefix_of(path: str) -> str:
    group, _, rest = path.partition(".")
    name, dot, _ = rest.partition(".")
    return f"{group}.{name}." if group in GROUPS and name and dot else ""


def figures_of(summary: Json, paths: Sequence[str]) -> dict[str, float | None]:
    """Return the number at each of these paths in the summary of a run. If there is no number, the value is None."""
    return {path: _number(summary, path) for path in paths}


def _number(summary: Json, path: str) -> float | None:
    prefix = prefix_of(path)
    if prefix:
        group, name, _ = prefix.split(".")
        summary = next((member for member in summary.get(group, ()) if member["id"] == name), {})
    number = value_at(summary, path.removeprefix(prefix))
    return number if number is not None and math.isfinite(number) else None
