"""Matches the requests of a recorded run with the simulated requests: by id if possible, else by order of arrival.

A simulated request has the id of its record in the trace that the scenario replays. If the trace has no ids, a recorded
id such as `17` or `bench-17` counts as the position in the order of arrival, from 0 (or from 1, if there is no 0).
"""

import re
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from headway.errors import HeadwayError
from headway.results.recorded import Served
from headway.types import Json
from headway.workload import trace_spec
from headway.workload.replay import open_replayed

NUMBERED: Final = re.compile(r"(.*?)(\d{1,15})", re.DOTALL)
Placed = list[tuple[int, Served]]  # recorded requests, each with the position of its simulated request


def place_recorded(ours: Sequence[Served], theirs: Sequence[Served], scenario: Json) -> Placed:
    """Return the recorded requests, each with the position of the same request in the simulated run, in the order of
    these positions. Without usable ids, this is the order of arrival. `scenario` is that of the simulation, resolved.
    """
    ids = [request.id for request in theirs if request.id is not None]
    if ids and len(ids) == len(theirs) == len(set(ids)):
        places = _trace_places(ours, scenario)
        if not all(name in places for name in ids):
            places = _numbers(ids, len(ours))
        placed = [(places[name], request) for name, request in zip(ids, theirs, strict=True) if name in places]
        same = all(ours[place].prompt_tokens == request.prompt_tokens for place, request in placed)
        if same and len(placed) == len(theirs):
            return sorted(placed, key=lambda pair: pair[0])
    return list(enumerate(theirs))


def _trace_places(ours: Sequence[Served], scenario: Json) -> Mapping[str, int]:
    """Return the position of each id of the scenario's trace. Return nothing if the trace has no ids, or if a replay by
    timestamps does not keep its order."""
    trace = scenario["workload"].get("trace")
    if trace is None:
        return {}
    spec = trace_spec.parse(trace)
    if spec.starts is not None or not Path(spec.path).exists():
        return {}
    try:
        seed = scenario["seed"]
        reader = open_replayed(spec, seed if isinstance(seed, int) else seed["workload"])
        records = [(record.id, record.prompt_tokens) for record in islice(reader.records, len(ours))]
    except HeadwayError:
        return {}
    same = [tokens for _, tokens in records] == [request.prompt_tokens for request in ours]
    places = {name: place for place, (name, _) in enumerate(records) if name is not None}
    return places if same and len(places) == len(ours) else {}


def _numbers(ids: Sequence[str], count: int) -> Mapping[str, int]:
    """Return the number at the end of each id as its position. Return nothing if the ids are not numbers below `count`
    after one common text."""
    matches = [NUMBERED.fullmatch(name) for name in ids]
    known = [match for match in matches if match is not None]
    if len(known) < len(ids) or len({match[1] for match in known}) > 1:
        return {}
    numbers = [int(match[2]) for match in known]
    first = 1 if min(numbers) == 1 and max(numbers) == count else 0
    if max(numbers) - first >= count or len(set(numbers)) < len(ids):
        return {}
    return {name: number - first for name, number in zip(ids, numbers, strict=True)}
